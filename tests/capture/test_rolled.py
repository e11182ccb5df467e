"""Loops that Dynamo writes out become scans again, where that changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilewright as tw
from tilewright.capture.torch.rolled import rolled
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions

STEPS = 12


def states(x: Tensor, w: Tensor) -> list[Tensor]:
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w)
        out.append(h)
    return out


def stacked(x: Tensor, w: Tensor) -> Any:
    return torch.stack(states(x, w), 1)


def read_alone(x: Tensor, w: Tensor) -> Any:
    out = states(x, w)
    return out[3], out[-1] * 2, torch.cat([x[:, 0], *out[2:]], -1)


def backwards(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), []
    for t in reversed(range(STEPS)):
        h = torch.tanh(x[:, t] * w[0] + x[..., t - STEPS, 1:2] + h)
        out.insert(0, h)
    return torch.stack(out, -1)


def loop_after_loop(x: Tensor, w: Tensor) -> Any:
    g, out = x.new_zeros(3, 4), []
    for h in reversed(states(x, w)):
        g = torch.sigmoid(h + g @ w)
        out.append(g)
    return torch.stack(out)


def two_before(x: Tensor, w: Tensor) -> Any:
    a, b = x[:, 0], x[:, 1]
    for _ in range(2 * STEPS):
        a, b = b, torch.sin(a + b @ w)
    return a + b


def items(x: Tensor, w: Tensor) -> Any:
    h, total = x[:, 0], 0.0
    for now in x.unbind(1):
        new, gate = torch.cat([now + h, now @ w], 1).chunk(2, 1)
        h = torch.tanh(new)
        total = total + (h * gate).sum()
    return total


def windows(x: Tensor, w: Tensor) -> Any:
    flat, h, out = x.flatten(1), x.new_zeros(3, 4), x.new_zeros(3, 4 * STEPS)
    for t in range(STEPS):
        h = torch.tanh(flat[:, 4 * t : 4 * t + 4] @ w + h)
        out[:, 4 * t : 4 * t + 4] = h
    return out


def in_place_inside(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        made = x[:, t] @ w
        made += h
        h = F.relu(made, inplace=True) + 0.1
    return h


def without_gradient(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        target = stacked(x, w)
    return ((stacked(x, w) - target.flip(1)) ** 2).sum()


def few_steps(x: Tensor, w: Tensor) -> Any:
    return torch.stack(states(x[:, :5], w))


def independent(x: Tensor, w: Tensor) -> Any:
    return torch.stack([torch.sin(x[:, t] @ w) for t in range(STEPS)])


def other_weights(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for k in range(STEPS):
        h = torch.tanh(h @ (w + k))
    return h


def random_steps(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = F.dropout(torch.sin(x[:, t] @ w + h), 1e-300)
    return h


def changed_state(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h += x[:, t] @ w
        out.append(h)
    return torch.stack(out)  # all are the last one


def reads_what_it_sets(x: Tensor, w: Tensor) -> Any:
    out = x.new_zeros(3, STEPS + 1, 4)
    for t in range(STEPS):
        out[:, t + 1] = torch.sin(x[:, t] @ w + out[:, t])
    return out


def sets_twice(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), x.new_zeros(3, STEPS + 1, 4)
    for t in range(STEPS):
        h = torch.sin(x[:, t] @ w + h)
        out[:, t] = h
        out[:, t + 1] = h * 2
    return out


def best_path(x: Tensor, w: Tensor) -> Any:
    """One item of a pair is carried, the other one is read by what follows the loop."""
    best, back = x[:, 0], []
    for t in range(1, x.shape[1]):
        high, at = (best[:, :, None] + w).max(1)
        best = high + x[:, t]
        back.append(at)
    return best, torch.stack(back)


def late_item_of_many(x: Tensor, w: Tensor) -> Any:
    h, out = x[:, 0], []
    for t in range(STEPS):
        parts = torch.cat([h @ w, x[:, t]], 1).split(1, 1)
        h = torch.cat(parts[1:5], 1)
        out.append(parts[7])
    return h, torch.stack(out)


def lists_views(x: Tensor, w: Tensor) -> Any:
    """Slices in a list are parts of their tensor."""
    x, h, out = x * 1, x.new_zeros(3, 4), []
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
        out.append(now)
    out[3].add_(1)
    return h, x


def changed_afterwards(x: Tensor, w: Tensor) -> Any:
    """The last state is one of the list."""
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.sin(x[:, t] + h @ w)
        out.append(h)
    h.mul_(2)
    return torch.stack(out), out[-1]


def sets_what_it_began_with(x: Tensor, w: Tensor) -> Any:
    out = x * 1
    h = out[:, 0]
    for t in range(STEPS):
        out[:, t] = torch.sin(x[:, t])
        h = torch.tanh(h @ w + x[:, t])
    return h, out


def sets_a_number(x: Tensor, w: Tensor) -> Any:
    h, out = x[:, 0], x.new_zeros(STEPS, 3, 4)
    for t in range(STEPS):
        out[t] = 1.5
        h = torch.sin(h @ w)
    return h, out


def zeros_of_both_signs(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.copysign(torch.sin(h @ w), 0.0 if t % 3 else -0.0)
    return h


def along_axes(x: Tensor, w: Tensor) -> Any:
    """Torch's functions take numpy's names."""
    first: Any = {"axis": 1}
    last: Any = {"axis": -1}
    out = states(x, w)
    h = x[:, 0]
    for now in torch.unbind(x, **first):
        h = torch.tanh(h @ w + now)
    return torch.stack(out, **first), torch.cat(out, **last), h


ROLLED = {
    sets_a_number: 0,
    zeros_of_both_signs: 0,
    along_axes: 2,
    lists_views: 0,
    changed_afterwards: 1,
    sets_what_it_began_with: 0,
    stacked: 1,
    read_alone: 1,
    backwards: 1,
    loop_after_loop: 2,
    two_before: 1,
    items: 1,
    windows: 1,
    in_place_inside: 1,
    without_gradient: 2,
    few_steps: 0,
    independent: 0,
    other_weights: 0,
    random_steps: 0,
    changed_state: 0,
    reads_what_it_sets: 0,
    sets_twice: 0,
    best_path: 1,
    late_item_of_many: 0,
}


def arguments(steps: int = STEPS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(3, steps, 4), torch.randn(4, 4) * 0.5
    return x.double(), w.double()


def captured(function: Callable[..., Any], *args: Tensor) -> tuple[Any, list[torch.fx.Node]]:
    """What the function returns with its loops rolled, and the graph's nodes."""
    found: list[torch.fx.Node] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        made = rolled(gm) or gm
        found.extend(made.graph.nodes)
        return made.forward

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend=backend, fullgraph=True)(*args), found


@pytest.mark.parametrize(
    ("function", "scans"), ROLLED.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_loops(function: Callable[..., Any], scans: int) -> None:
    args = arguments()
    got, nodes = captured(function, *args)
    assert sum(str(n.target) == "scan" for n in nodes) == scans
    right = function(*args)
    torch.testing.assert_close(got, right)
    if isinstance(right, Tensor):
        assert got.stride() == right.stride()


def test_the_graph_does_not_grow_with_the_number_of_steps() -> None:
    sizes = [len(captured(stacked, *arguments(n))[1]) for n in (20, 40)]
    assert sizes[0] == sizes[1] < 20


SOME = (windows,)


@pytest.mark.parametrize(
    "function",
    [
        f if f in SOME else pytest.param(f, marks=pytest.mark.slow)
        for f in ROLLED
        if f not in (random_steps, sets_what_it_began_with)  # eager has no gradient of the last
    ],
)
def test_gradients(function: Callable[..., Any]) -> None:
    def results(f: Callable[..., Any]) -> list[Tensor]:
        args = [a.requires_grad_() for a in arguments()]
        got = f(*args)
        every = [got] if isinstance(got, Tensor) else list(got)
        total = sum(((v * v).sum() for v in every), torch.zeros(()))
        return [*every, *torch.autograd.grad(total, args)]

    for ours, right in zip(results(tw.compile(function)), results(function), strict=True):
        torch.testing.assert_close(ours, right)


@torch.library.custom_op("test_rolled::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x / 2


halved.register_fake(torch.empty_like)


def test_steps_without_a_native_form_stay_written_out() -> None:
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
    assert not any("scan" in c.operator for u in session.units for c in u.captured.host_calls)
