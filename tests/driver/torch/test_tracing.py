"""How Dynamo traces for this backend under plain torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import guards, symbolic_convert
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

import tilewright as tw
from tilewright.base import knobs
from tilewright.driver.torch.tracing import unnamed, untimed


def _agree(f: Callable[..., Any], *calls: tuple[Any, ...]) -> list[str]:
    """Results are eager's; the titles of graph breaks."""
    fast = torch.compile(f, backend="tilewright")
    for given in calls:
        torch.testing.assert_close(fast(*given), f(*given), rtol=1e-4, atol=1e-5)
    return [str(e.message) for e in tw.explain(fast).graph_breaks]


def _masks(*counts: int) -> list[Tensor]:
    return [torch.arange(20) < n for n in counts]


def test_sizes_that_data_decides_stay_in_the_graph() -> None:
    x = torch.randn(20, 5)
    calls = [(x, m) for m in _masks(7, 1, 0)]
    assert not _agree(lambda x, m: x[m].sum(0), *calls)
    numbers = [(torch.randint(0, n, (30,)),) for n in (9, 3)]
    assert not _agree(lambda i: torch.bincount(i, minlength=4), *numbers)
    with knobs.data_sizes.override(False):
        assert _agree(lambda x, m: (x[m] + 1).mean(0), calls[0])


def test_nothing_is_assumed_about_sizes_that_data_decides() -> None:
    """One row is added to five in eager. Torch would assume that there are five."""
    x, y = torch.randn(20, 5), torch.randn(5, 5)
    five, one = _masks(5, 1)
    assert _agree(lambda x, m: x[m] + y, (x, five), (x, one))

    def branch(x: Tensor, m: Tensor) -> Tensor:
        z = x[m]
        return z * 2 if z.shape[0] > 3 else z - 1

    assert _agree(branch, (x, five), (x, one))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_traced(kind: type[nn.Module]) -> None:
    net = kind(4, 6, batch_first=True).eval()
    with torch.no_grad():
        assert not _agree(lambda x: net(x)[0], (torch.randn(2, 5, 4),))


def test_guards_are_timed_for_others_and_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[object] = []

    def timing(*given: object) -> float:
        timed.append(given)
        return 1.0

    monkeypatch.setattr(guards, "profile_guard_manager", untimed(timing))
    x = torch.randn(3)
    torch.compile(lambda x: x + 1, backend="tilewright")(x)
    assert not timed
    torch.compile(lambda x: x + 2, backend="eager")(x)
    assert len(timed) == 1
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda level: True)
    torch.compile(lambda x: x + 3, backend="tilewright")(x)
    assert len(timed) == 2


def test_names_around_lines_are_found_for_others_and_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the frame that is traced: finding one takes as long as it takes to read its file."""
    found: list[object] = []

    def naming(*given: object) -> str:
        found.append(given)
        return "name"

    x = torch.randn(3)
    torch.compile(lambda x: x, backend="tilewright")(x)
    assert hasattr(symbolic_convert.get_funcname, "__wrapped__")
    monkeypatch.setattr(symbolic_convert, "get_funcname", unnamed(naming))
    torch.compile(lambda x: x + 1, backend="tilewright")(x)
    assert not found
    torch.compile(lambda x: x + 2, backend="eager")(x)
    assert len(found) == 1
    monkeypatch.setattr(symbolic_convert.trace_call_log, "isEnabledFor", lambda level: True)
    torch.compile(lambda x: x + 3, backend="tilewright")(x)
    assert len(found) == 2


def test_calls_tell_the_profiler_of_others_when_arguments_are_fetched() -> None:
    """Two calls of Python's, for each of a graph, that take as long as the guards do."""
    x = torch.randn(3)

    def tells(f: Callable[[Tensor], Tensor], backend: str) -> bool:
        torch.testing.assert_close(torch.compile(f, backend=backend)(x), f(x))
        (entry,) = _debug_get_cache_entry_list(f.__code__)
        return "record_pregraph_bytecode_enter" in entry.code.co_names

    assert not tells(lambda x: x + 1, "tilewright")
    assert tells(lambda x: x + 2, "eager")


def test_other_backends_are_left_alone() -> None:
    seen: list[str] = []

    def other(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        return gm.forward

    x, (five,) = torch.randn(20, 5), _masks(5)
    f = torch.compile(lambda x, m: x[m] * 2, backend=other)
    torch.testing.assert_close(f(x, five), x[five] * 2)
    assert len(seen) == 1  # the product: the graph breaks before it
