"""Loops of which Dynamo traces one step for all, and those of which it may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import tilewright as tw
from tests.capture import loops_once as once
from tests.capture import loops_stepwise as stepwise
from tests.capture.loops_once import STEPS
from tilewright.capture.torch import traced_loops
from tilewright.capture.torch.joined_steps import join_steps
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions


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


def programs(module: ModuleType) -> list[Callable[..., Any]]:
    found = [f for f in vars(module).values() if isinstance(f, FunctionType)]
    return [f for f in found if f.__module__ == module.__name__]


# Scans in the graph; all steps but one or the first are alike in the last rows.
EXPECTED = (
    dict.fromkeys(programs(once), 1)
    | dict.fromkeys(programs(stepwise), 0)
    | dict.fromkeys((once.rolls, once.long_inside_short), 2)
    | dict.fromkeys((once.without_gradient, once.changed_afterwards), 2)
    | dict.fromkeys((stepwise.sets_what_it_began_with, stepwise.last_slice_is_changed), 1)
    | {stepwise.asks_elsewhere_for_identity: 1}
    | dict.fromkeys((stepwise.asks_for_identity, stepwise.other_dtype_later, stepwise.deleted), 1)
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
    *(once.states, once.windows, once.last_step_differs, once.states_before),
    *(once.changed_afterwards, once.inside_functions, stepwise.at_seven, stepwise.counts),
    *(stepwise.reads_its_list, stepwise.lists_views, stepwise.attributes),
    *(stepwise.reads_what_it_sets, stepwise.zeros_of_both_signs, once.joined_along_axes),
    *(stepwise.asks_elsewhere_for_identity, stepwise.key_of_a_dictionary),
)


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, marks=() if f in SOME else pytest.mark.slow, id=f.__name__) for f in EXPECTED],
)
def test_steps_are_right(function: Callable[..., Any]) -> None:
    with torch.no_grad():
        got, session = captured(function, *arguments())
        compare(got, function(*arguments()))
    assert session.scans == EXPECTED[function], session.told


def test_the_graph_does_not_grow_with_the_number_of_steps() -> None:
    with torch.no_grad():
        sizes = [captured(once.states, *arguments(n))[1].calls for n in (20, 50)]
    assert sizes[0] == sizes[1] < 30


def test_another_number_of_steps_is_another_program() -> None:
    torch._dynamo.reset()
    session = Capture()
    fast = torch.compile(once.states, backend=session.backend)
    with torch.no_grad():
        for n in (40, 33, 40, 5):
            compare(fast(*arguments(n)), once.states(*arguments(n)))
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
        torch.compile(once.states, backend=backend)(*arguments())
    assert found == [STEPS]


def results(f: Callable[..., Any], args: Sequence[Tensor]) -> list[Tensor]:
    every = [v for v in pytree.tree_leaves(f(*args)) if isinstance(v, Tensor)]
    total = sum(((v * v).sum() for v in every), torch.zeros(()))
    found = torch.autograd.grad(total, args, allow_unused=True)
    return [*every, *(g for g in found if g is not None)]


MORE = (once.gru, once.lstm, once.windows, once.two_before)


@pytest.mark.parametrize(
    "function", [once.states, *(pytest.param(f, marks=pytest.mark.slow) for f in MORE)]
)
def test_gradients(function: Callable[..., Any]) -> None:
    fast = tw.compile(function)
    ours = results(fast, [a.requires_grad_() for a in arguments()])
    right = results(function, [a.requires_grad_() for a in arguments()])
    for x, y in zip(ours, right, strict=True):
        torch.testing.assert_close(x, y)
    assert any("traced once" in e.message for e in fast.log.events)


def test_what_needs_no_gradient_gets_none() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h, outs = x[:, 0] * 1, []
        for t in range(STEPS):
            h = torch.tanh(h @ w + x[:, t]).detach()
            outs.append(h)
        g, more = x[:, 0] * 1, []
        for t in range(STEPS):
            g = torch.tanh(g @ w + x[:, t])
            more.append(g.detach() * 2)
        return h, torch.stack(outs), outs[2], g, torch.stack(more)

    args = [a.requires_grad_() for a in arguments()]
    got, _ = captured(function, *args)
    right = function(*args)
    compare(got, right)
    assert [v.requires_grad for v in got] == [v.requires_grad for v in right]


@pytest.mark.slow
def test_any_number_of_rows() -> None:
    fast = tw.compile(once.states, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x, w = arguments()
            x = x[:1].repeat(rows, 1, 1)
            compare(fast(x, w), once.states(x, w))
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
