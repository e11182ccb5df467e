"""optimize="search": what is taken is right and measured, what is not faster is not taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import ops, targets
from tilewright.base.events import Log
from tilewright.driver.program import searched
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.default_passes import passes
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32


def low_rank() -> Graph:
    """A product with weights, and one of low rank beside it."""
    x = input("x", TensorType(f32, (32, 64)))
    w, a, b = (
        input(name, TensorType(f32, shape), "weight")
        for name, shape in (("w", (64, 64)), ("a", (64, 4)), ("b", (4, 64)))
    )
    low = ops.matmul(ops.matmul(x, a), b)
    return Graph("low_rank", (x, w, a, b), (ops.add(ops.matmul(x, w), low),))


SEARCH = tw.Options(optimize="search")


@pytest.mark.parametrize(("seconds", "calls"), [((2.0, 1.0), 1), ((1.0, 0.99), 3)])
def test_only_what_is_clearly_faster_is_taken(
    seconds: tuple[float, float], calls: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def measured(*given: object) -> list[float]:
        asked.append(given)
        return list(seconds)

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(searched, "medians", measured)
    graph, log = low_rank(), Log()
    for _ in range(2):  # the second time by the cache
        program = tw.compile_graph(graph, SEARCH, log)
        assert sum(k.calls for k in program.kernels) == calls
        arrays = random_inputs(graph)
        (got,), (want,) = run_arrays(program, arrays), evaluate(graph, arrays)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert len(asked) == 1
    assert any("by the search" in e.message for e in log.events)


def test_both_programs_are_timed() -> None:
    graph = low_rank()
    listed = searched.with_search(passes(targets.default()))
    assert str(listed).index("FoldConstants") < str(listed).index("Search")
    programs = [tw.compile_graph(graph), tw.compile_graph(graph, tw.Options(passes=listed))]
    before, after = searched.medians(graph, programs)
    assert 0 < before < 1 and 0 < after < 1


def test_what_cannot_be_measured_is_compiled_as_it_is() -> None:
    log = Log()
    strict = tw.Options(optimize="search", precision="strict")
    assert sum(k.calls for k in tw.compile_graph(low_rank(), strict, log).kernels) == 3
    assert any("rounds differently" in e.message for e in log.events)
    with pytest.raises(tw.Invalid, match="optimize='serach' is not known"):
        tw.compile_graph(low_rank(), tw.Options(optimize="serach"))


class LowRank(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(64, 64, bias=False)
        self.down = torch.nn.Linear(64, 4, bias=False)
        self.up = torch.nn.Linear(4, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x) + self.up(self.down(x))


def test_a_module_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both programs have been called before one of them is the module's."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(searched, "CLEARLY", 100.0)  # whatever a busy machine's clock says
    module, x = LowRank().eval(), torch.randn(32, 64)
    with torch.no_grad():
        fast = tw.compile(module, x, optimize="search", strict=True)
        assert torch.allclose(fast(x), module(x), atol=1e-5)
    assert sum(p.calls for p in tw.explain(fast).programs) == 1
