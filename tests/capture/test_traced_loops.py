"""Loops of which Dynamo traces one step for all, and those of which it may not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import tilewright as tw
from tilewright.capture.torch import traced_loops
from tilewright.capture.torch.joined_steps import join_steps
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions

STEPS = 20
CELL = nn.GRUCell(4, 4).double()
LSTM = nn.LSTMCell(4, 4).double()
LAYERS = nn.ModuleList([nn.Linear(4, 4) for _ in range(STEPS)]).double()
SCALES = [0.5 + 0.01 * k for k in range(STEPS)]


class Capture(Session):
    """Runs what Dynamo captured as it is; counts scans and calls."""

    def __init__(self) -> None:
        super().__init__(TorchOptions())
        self.scans, self.calls, self.graphs = 0, 0, 0
        self.told: list[str] = []

    def backend(self, gm: torch.fx.GraphModule, _: Sequence[Any], **__: Any) -> Callable[..., Any]:
        join_steps(gm)
        self.graphs += 1
        self.calls += len(gm.graph.nodes)
        self.scans += sum(str(n.target) == "scan" for n in gm.graph.nodes)
        loops = traced_loops.loops_traced()
        self.told += [said for said, _ in (*loops.told, *loops.refusals.values())] if loops else []
        return gm.forward


# ---- steps that are traced once


def states(x: Tensor, w: Tensor) -> Any:
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w)
        out.append(h)
    return torch.stack(out, 1), h, out[3]


def backwards(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS - 1, -1, -1):
        h = torch.tanh(x[:, t] * w[0] + x[..., t - STEPS, 1:2] + h)
    return h


def neighbours(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(1, STEPS):
        h = torch.tanh(x[:, t] - 0.5 * x[:, t - 1] + h @ w)
    return h


def windows(x: Tensor, w: Tensor) -> Any:
    flat, h, out = x.flatten(1), x.new_zeros(3, 4), x.new_zeros(3, 4 * STEPS)
    for t in range(STEPS):
        h = torch.tanh(flat[:, 4 * t : 4 * t + 4] @ w + h)
        out[:, 4 * t : 4 * (t + 1)] = h
    return out, t


def one_wide(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 1, 4)
    for t in range(STEPS):
        h = h * 0.5 + x[:, t : t + 1] @ w
    return h


def gru(x: Tensor, w: Tensor) -> Any:
    h, outs = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h = CELL(x[:, t], h)
        outs.append(h)
    return torch.stack(outs)


def lstm(x: Tensor, w: Tensor) -> Any:
    state = x.new_zeros(3, 4), x.new_zeros(3, 4)
    outs = []
    for t in range(STEPS):
        state = LSTM(x[:, t], state)
        outs.append(state[0])
    return torch.cat(outs, -1), state


def states_before(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], []
    for t in range(STEPS):
        outs.append(h)
        h = torch.sin(h @ w + x[:, t])
    return torch.stack(outs), outs[0] is not None, h


def two_before(x: Tensor, w: Tensor) -> Any:
    a, b = x[:, 0] * 1, x[:, 1] * 1
    for _ in range(2 * STEPS):
        a, b = b, torch.sin(a + b @ w)
    return a, b


def number_at_first(x: Tensor, w: Tensor) -> Any:
    h = 0.0
    for t in range(STEPS):
        h = x[:, t] + h * 0.5
    return h


def nothing_at_first(x: Tensor, w: Tensor) -> Any:
    h = None
    for t in range(STEPS):
        h = x[:, t] if h is None else torch.tanh(h @ w + x[:, t])
    return h


def first_step_differs(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t > 0:
            h = h + x[:, t - 1]
    return h


def last_step_differs(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = h @ w + x[:, t]
        if t < STEPS - 1:
            h = torch.tanh(h)
    return h


def previous_input(x: Tensor, w: Tensor) -> Any:
    before, h = x[:, 0] * 0, x.new_zeros(3, 4)
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now - before)
        before = now
    return h


def last_temporary(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        y = h * 2 + x[:, t]
        h = torch.tanh(y @ w)
    return y + h


def inside_functions(x: Tensor, w: Tensor) -> Any:
    outs: list[Tensor] = []

    def step(h: Tensor, t: int) -> Tensor:
        new = torch.tanh(h @ w + x[:, t])
        outs.append(new)
        return new

    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = step(h, t)
    return torch.stack(outs)


def rolls(x: Tensor, w: Tensor) -> Any:
    """A loop in a function that is called."""
    return states(x, w)[0] + states(x.flip(1), w)[0]


def short_inside_long(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        for _ in range(3):
            h = torch.tanh(h @ w + x[:, t])
    return h


def long_inside_short(x: Tensor, w: Tensor) -> Any:
    for _ in range(2):
        h = x.new_zeros(3, 4)
        for t in range(STEPS):
            h = torch.tanh(h @ w + x[:, t])
        x = x + h[:, None]
    return x


def without_gradient(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        target = states(x, w)[0]
    return states(x, w)[0] - target.flip(1)


def changed_afterwards(x: Tensor, w: Tensor) -> Any:
    """The last state is one of the list, and an item is changed."""
    _, h, _ = states(x, w)
    h = h * 1
    out, g = [], x.new_zeros(3, 4)
    for t in range(STEPS):
        g = torch.sin(g + x[:, t])
        out.append(g)
    g.mul_(2)
    out[2].add_(10)
    return torch.stack(out), g, out[-1], out[2]


def mean_of_all(x: Tensor, w: Tensor) -> Any:
    h, outs = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append((h, h.mean()))
    return torch.stack([m for _, m in outs]), sum(a for a, _ in outs)


def negative_in_order(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(-STEPS, 0):
        h = torch.tanh(h @ w + x[:, t])
    return h, t


# ---- steps that are traced as they are


def at_seven(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t == 7:
            h = h * 2
    return h


def every_second(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) if t % 2 else h + x[:, t]
    return h


def rare(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t % 10 == 9:
            h = h * 0.5
    return h


def arithmetic(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t] * t)
    return h


def other_arithmetic(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) + 0.5 ** (t + 1)
    return h


def ends_early(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        if t == 13:
            break
        h = torch.tanh(h @ w + x[:, t])
    else:
        h = h * 100
    return h, t


def returns_early(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t >= 17:
            return h * 3
    return h


def skips_some(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        if t in (3, 11):
            continue
        h = torch.tanh(h @ w + x[:, t])
    return h


def counts(x: Tensor, w: Tensor) -> Any:
    h, k = x.new_zeros(3, 4), 0
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * (2 if k == 9 else 1)
        k += 1
    return h, k


def halves(x: Tensor, w: Tensor) -> Any:
    h, scale = x.new_zeros(3, 4), 1.0
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * scale
        scale *= 0.5
    return h


def numbers_of_a_list(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * SCALES[t]
    return h


def layer_by_layer(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(LAYERS[t](h))
    return h


def reads_its_list(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], [x[:, 0]]
    for t in range(STEPS):
        h = torch.tanh(outs[-1] @ w + x[:, t])
        outs.append(h)
    return h, len(outs)


def asks_for_the_length(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append(h)
        if len(outs) > 10:
            h = h * 2
    return h


def reads_an_old_item(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append(h)
        if t > 3:
            h = h + outs[t - 2]
    return h


def dictionary(x: Tensor, w: Tensor) -> Any:
    h, found = x[:, 0], {}
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        found[t] = h
    return found[5] + found[19]


class Holder:
    def __init__(self) -> None:
        self.count, self.h = 0, None


def attributes(x: Tensor, w: Tensor) -> Any:
    holder, h = Holder(), x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        holder.count += 1
    return h, holder.count


def generator(x: Tensor, w: Tensor) -> Any:
    def scales() -> Any:
        k = 1.0
        while True:
            yield k
            k *= 0.9

    h, all_scales = x[:, 0], scales()
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * next(all_scales)
    return h


def nonlocal_counter(x: Tensor, w: Tensor) -> Any:
    k = 0

    def more() -> None:
        nonlocal k
        k += 1

    h = x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        more()
    return h * k


def changes_its_state(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h += x[:, t] @ w
        out.append(h)
    return torch.stack(out)


def state_is_a_view(x: Tensor, w: Tensor) -> Any:
    x = x * 1
    h = x[:, 0]
    for t in range(1, STEPS):
        h = torch.tanh(h @ w + x[:, t])
        x[:, 0] = h
    return h, x


def sets_what_it_began_with(x: Tensor, w: Tensor) -> Any:
    out = x * 1
    h = out[:, 0]
    for t in range(STEPS):
        out[:, t] = torch.sin(x[:, t])
        h = torch.tanh(h @ w + x[:, t])
    return h, out


def reads_what_it_sets(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), x.new_zeros(3, STEPS + 1, 4)
    for t in range(STEPS):
        h = h * 0.5 + x[:, t]
        out[:, t + 1] = torch.sin(x[:, t] @ w + out[:, t]) + h
    return out


def lists_views(x: Tensor, w: Tensor) -> Any:
    """Slices in a list are parts of their tensor."""
    x, h, out = x * 1, x.new_zeros(3, 4), []
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
        out.append(now)
    out[3].add_(1)
    return h, x


def lists_twice(x: Tensor, w: Tensor) -> Any:
    """Two items that share memory."""
    h, out = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        out.append(h)
        out.append(h.view(4, 3))
    out[4].add_(1)
    return out[5], out[4], out[-1]


def last_slice_is_changed(x: Tensor, w: Tensor) -> Any:
    x, h = x * 1, x.new_zeros(3, 4)
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
    now.mul_(3)
    return h, x, now


def other_dtype_later(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4).float()
    for t in range(STEPS):
        h = torch.tanh(h.to(x.dtype) @ w + x[:, t])
    return h


def grows(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.cat([h, x[:, t]], -1)
    return h


def shapes_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(1, STEPS):
        h = torch.tanh(h + x[:, :t].mean(1))
    return h


def past_the_end(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 1, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t : t + 2].sum(1, keepdim=True))
    return h


def over_both_ends(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t - 3])
    return h


def random_steps(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = F.dropout(torch.sin(x[:, t] @ w + h), 1e-300)
    return h


def with_autocast(x: Tensor, w: Tensor) -> Any:
    x, w, h = x.float(), w.float(), x.new_zeros(3, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        for t in range(STEPS):
            h = torch.tanh(h @ w + x[:, t])
    return h


def change_places(x: Tensor, w: Tensor) -> Any:
    a, b, h = x[:, 0] * 1, x[:, 1] * 1, x.new_zeros(3, 4)
    for _ in range(STEPS + 1):
        a, b = b, a
        h = torch.tanh(h @ w + a)
    return a, b, h


def no_gradient_in_some(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        h = h * 2 if h.requires_grad else h
    return h


def asks_for_identity(x: Tensor, w: Tensor) -> Any:
    first = x[:, 0]
    h = first
    for t in range(STEPS):
        h = h * 2 if h is first else torch.tanh(h @ w + x[:, t])
    return h


def text_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * len(f"{t}")
    return h


def in_a_set(x: Tensor, w: Tensor) -> Any:
    h, chosen = x.new_zeros(3, 4), {2, 5, 17}
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * (2 if t in chosen else 1)
    return h


def compared_the_other_way(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * (2 if 11 == t else 1)
    return h


def truth_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(-7, STEPS - 7):
        h = torch.tanh(h @ w + x[:, t + 7]) * (2 if not t else 1)
    return h


def minimum(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, min(t, 12)])
    return h


def integer_division(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t // 2])
    return h


def caught(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        try:
            scale = SCALES[t + 5]
        except IndexError:
            scale = 1.0
        h = torch.tanh(h @ w + x[:, t]) * scale
    return h


def squared(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(4, 4 + STEPS):
        h = torch.tanh(h @ w + x[:, (t * t) % STEPS])
    return h


def comprehension(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.stack([torch.tanh(h[k] @ w + x[k, t]) for k in range(3)])
    return h


def random_of_python(x: Tensor, w: Tensor) -> Any:
    h, own = x.new_zeros(3, 4), random.Random(3)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * own.random()
    return h


def deleted(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
        del now
    return h


ONCE: dict[Callable[..., Any], int] = dict.fromkeys(
    (
        *(states, backwards, neighbours, windows, one_wide, gru, lstm, states_before, two_before),
        *(number_at_first, nothing_at_first, first_step_differs, last_step_differs),
        *(previous_input, last_temporary, inside_functions, short_inside_long, mean_of_all),
        *(negative_in_order, sets_what_it_began_with, deleted, other_dtype_later),
        *(asks_for_identity, last_slice_is_changed),
    ),
    1,
) | {rolls: 2, long_inside_short: 2, without_gradient: 2, changed_afterwards: 2}

NEVER = (
    *(at_seven, every_second, rare, arithmetic, other_arithmetic, ends_early, returns_early),
    *(skips_some, counts, halves, numbers_of_a_list, layer_by_layer, reads_its_list),
    *(asks_for_the_length, reads_an_old_item, dictionary, attributes, generator),
    *(nonlocal_counter, changes_its_state, state_is_a_view, over_both_ends, comprehension),
    *(reads_what_it_sets, lists_views, lists_twice, grows, shapes_of_numbers, past_the_end),
    *(random_steps, with_autocast, change_places, text_of_numbers, in_a_set),
    *(compared_the_other_way, truth_of_numbers, minimum, integer_division, caught, squared),
    *(random_of_python, no_gradient_in_some),
)


def arguments(steps: int = STEPS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(3, steps, 4), torch.randn(4, 4) * 0.5
    return x.double(), w.double()


def captured(function: Callable[..., Any], *args: Any) -> tuple[Any, Capture]:
    torch._dynamo.reset()
    session = Capture()
    return torch.compile(function, backend=session.backend)(*args), session


def compare(got: Any, right: Any) -> None:
    a, b = pytree.tree_leaves(got), pytree.tree_leaves(right)
    torch.testing.assert_close(a, b)
    for x, y in zip(a, b, strict=True):
        if isinstance(y, Tensor):
            assert (x.dtype, x.stride()) == (y.dtype, y.stride())


# In every run: something of each kind. All others are slow together, not one by one.
SOME = (
    *(states, windows, last_step_differs, states_before, changed_afterwards, inside_functions),
    *(at_seven, counts, reads_its_list, lists_views, attributes, reads_what_it_sets),
)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(f, marks=() if f in SOME else pytest.mark.slow, id=f.__name__)
        for f in (*ONCE, *NEVER)
    ],
)
def test_steps_are_right(function: Callable[..., Any]) -> None:
    with torch.no_grad():
        got, session = captured(function, *arguments())
        compare(got, function(*arguments()))
    assert session.scans == ONCE.get(function, 0), session.told


def test_the_graph_does_not_grow_with_the_number_of_steps() -> None:
    with torch.no_grad():
        sizes = [captured(states, *arguments(n))[1].calls for n in (20, 50)]
    assert sizes[0] == sizes[1] < 30


def test_another_number_of_steps_is_another_program() -> None:
    torch._dynamo.reset()
    session = Capture()
    fast = torch.compile(states, backend=session.backend)
    with torch.no_grad():
        for n in (40, 33, 40, 5):
            compare(fast(*arguments(n)), states(*arguments(n)))
    assert session.graphs == 3


def test_an_error_in_a_late_step_is_raised() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        h = x.new_zeros(3, 4)
        for t in range(STEPS):
            if t == STEPS - 2:
                raise ValueError(f"step {t}")
            h = torch.tanh(h @ w + x[:, t])
        return h

    def too_short(x: Tensor, w: Tensor) -> Tensor:
        h = x.new_zeros(3, 4)
        for t in range(STEPS):
            h = torch.tanh(h @ w + x[:, t])
        return h

    with torch.no_grad():
        with pytest.raises(ValueError, match="step 18"):
            captured(function, *arguments())
        with pytest.raises(Exception, match=r"out of bounds|out of range"):
            captured(too_short, *arguments(STEPS - 1))


def test_other_backends_trace_all_steps() -> None:
    found: list[int] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(sum(n.target is torch.tanh for n in gm.graph.nodes))
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(states, backend=backend)(*arguments())
    assert found == [STEPS]


def results(f: Callable[..., Any], args: Sequence[Tensor]) -> list[Tensor]:
    every = [v for v in pytree.tree_leaves(f(*args)) if isinstance(v, Tensor)]
    total = sum(((v * v).sum() for v in every), torch.zeros(()))
    return [*every, *torch.autograd.grad(total, args)]


@pytest.mark.parametrize(
    "function",
    [states, *(pytest.param(f, marks=pytest.mark.slow) for f in (gru, lstm, windows, two_before))],
)
def test_gradients(function: Callable[..., Any]) -> None:
    fast = tw.compile(function)
    ours = results(fast, [a.requires_grad_() for a in arguments()])
    right = results(function, [a.requires_grad_() for a in arguments()])
    for x, y in zip(ours, right, strict=True):
        torch.testing.assert_close(x, y)
    assert any("traced once" in e.message for e in fast.log.events)


@pytest.mark.slow
def test_any_number_of_rows() -> None:
    fast = tw.compile(states, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x, w = arguments()
            x = x[:1].repeat(rows, 1, 1)
            compare(fast(x, w), states(x, w))
    found = [e.kind for e in fast.log.events]
    assert found.count("recompile") == 0


@torch.library.custom_op("test_traced_loops::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x / 2


halved.register_fake(torch.empty_like)


def test_steps_without_a_native_form_are_all_traced() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        h = x[:, 0]
        for t in range(STEPS):
            h = halved(x[:, t] + h @ w)
        return h

    args, session = arguments(), Session(TorchOptions())
    torch._dynamo.reset()
    with torch.no_grad():
        ours = torch.compile(function, backend=session.backend)
        torch.testing.assert_close(ours(*args), function(*args))
    assert any("equal steps stay written out" in e.message for e in session.log.events)
    assert not any("traced once" in e.message for e in session.log.events)
    assert not any("scan" in c.operator for u in session.units for c in u.captured.host_calls)
