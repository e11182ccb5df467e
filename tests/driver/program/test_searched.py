"""optimize="search": what is taken is right and measured, what is not faster is not taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import ops, targets
from tilewright.base.cache import Cache
from tilewright.base.events import Log
from tilewright.driver.program import compile, searched
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.default_passes import passes
from tilewright.driver.program.operator_seconds import OperatorSeconds
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, f32
from tilewright.runtime.program import Program
from tilewright.superopt.partial import corrected
from tilewright.superopt.partial.corrected import Candidate
from tilewright.superopt.partial.layers import Layer, narrowed
from tilewright.superopt.seconds import operators


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


@pytest.fixture(autouse=True)
def one_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All operators take the same, whatever a busy machine's clock says: clearly more than a call
    that computes nothing, which is the first, and than a kernel needs to start."""
    if "timed" not in request.node.name:
        monkeypatch.setattr(searched, "interleaved", lambda calls: [1e-6] + [5e-5] * len(calls[1:]))


def by_shapes(
    seconds: Callable[[Graph], float], asked: list[str]
) -> Callable[..., dict[str, float]]:
    """A clock that goes by what an operator's operands are like, and notes what it was asked."""

    def measured(self: OperatorSeconds, graphs: dict[str, Graph], until: float) -> dict[str, float]:
        asked.extend(graphs)
        return {name: seconds(g) for name, g in graphs.items()}

    return measured


def gates() -> Graph:
    """Three products of one tensor, whose results go on alone."""
    x = input("x", TensorType(f32, (64, 128)))
    weights = [input(n, TensorType(f32, (128, 64)), "weight") for n in "abc"]
    a, b, c = (ops.matmul(x, w) for w in weights)
    return Graph("gates", (x, *weights), (ops.mul(ops.relu(a), ops.add(b, ops.relu(c))),))


@pytest.mark.parametrize(("wide", "products"), [(2e-5, 1), (4e-5, 3)])
def test_a_search_goes_by_what_was_measured(
    wide: float, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One product in the place of three is taken where it takes less than those."""
    asked: list[str] = []
    clock = by_shapes(lambda g: wide if g.outputs[0].shape[-1] == 192 else 1e-5, asked)
    monkeypatch.setattr(OperatorSeconds, "_known", clock)
    log, target = Log(), targets.default()
    cache = Cache(Path("nowhere"), enabled=False)
    measure = OperatorSeconds(
        tw.Options(), log, target, tw.compile_graph, cache, searched.interleaved
    )
    listed = measure.used(gates(), searched.with_search(passes(target)))
    assert asked == [f"matmul(f32[64,128], weight f32[128,{n}])" for n in (64, 192)]
    assert Pipeline.parse(str(listed)) == listed
    made = compile.prepare(gates(), tw.Options(passes=listed), target, Log())
    assert sum(n.op.name == "matmul" for n in made.nodes()) == products


def test_operators_are_measured_once(tmp_path: Path) -> None:
    """Without what a call takes that computes nothing; the next time out of the cache."""
    made: list[int] = []

    def clock(calls: Sequence[Callable[[], object]]) -> list[float]:
        for call in calls:
            call()
        made.append(len(calls))
        return [1e-6, *(3e-6 for _ in calls[1:])]

    graphs = operators(gates().nodes(), set(gates().inputs[1:]))
    for _ in range(2):
        cache = Cache(tmp_path, log=Log())
        measure = OperatorSeconds(
            tw.Options(), Log(), targets.default(), tw.compile_graph, cache, clock
        )
        found = measure._known(graphs, float("inf"))
        assert found == {"matmul(f32[64,128], weight f32[128,64])": pytest.approx(2e-6)}
    assert made == [2]
    assert measure._known({"more": low_rank()}, 0.0) == {}  # no time is left


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


def test_what_is_compared_is_what_is_made_without_a_search() -> None:
    """Also where the list that is given has a search: what only makes graphs ready for it goes."""
    plain = Pipeline(tuple(passes()))
    assert searched.without_search(searched.with_search(plain)) == plain


def test_noise_is_no_gain() -> None:
    """On a busy machine medians of equal programs differ by far: what counts is how often one is
    faster than the other in the same round."""
    rng, taken = np.random.default_rng(0), 0
    for _ in range(400):
        noise = rng.lognormal(0.0, 0.3, (2, searched.ROUNDS))
        before, after = searched.compared(noise.tolist())
        taken += after < searched.CLEARLY * before
    assert taken <= 20
    busy = rng.lognormal(0.0, 0.5, searched.ROUNDS)  # which slows down both
    before, after = searched.compared([busy.tolist(), (0.9 * busy).tolist()])
    assert after == pytest.approx(0.9 * before)


def test_both_programs_are_timed() -> None:
    graph = low_rank()
    listed = searched.with_search(passes(targets.default()))
    assert str(listed).index("Search") < str(listed).index("Decompose")
    programs = [tw.compile_graph(graph), tw.compile_graph(graph, tw.Options(passes=listed))]
    before, after = searched.medians(graph, programs)
    assert 0 < before < 1 and 0 < after < 1


def test_a_close_race_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are nearly as fast run in more rounds: a gain of one percent is taken where
    noise of as much is on it, and one that is luck is not."""
    rounds: list[int] = []

    def measured(gain: float, seed: int) -> tuple[float, float]:
        rng = np.random.default_rng(seed)

        def race(calls: list[object], count: int = searched.ROUNDS, *_: float) -> list[list[float]]:
            rounds.append(count)
            return (rng.lognormal(0.0, 0.01, (2, count)) * np.array([[1.0], [gain]])).tolist()

        monkeypatch.setattr(searched, "_rounds", race)
        before, after = searched.medians(graph, [program, program])
        return before, after

    graph = gates()
    program = tw.compile_graph(graph, tw.Options(), Log())
    for gain, counts, least, most in (
        (0.8, {searched.ROUNDS}, 1.0, 1.0),
        (1.2, {searched.ROUNDS}, 0.0, 0.0),
        (0.98, {searched.ROUNDS, searched.MORE_ROUNDS}, 0.8, 1.0),
        (1.0, {searched.ROUNDS, searched.MORE_ROUNDS}, 0.0, 0.02),
    ):
        rounds.clear()
        found = [measured(gain, seed) for seed in range(50)]
        taken = sum(after < searched.CLEARLY * before for before, after in found) / len(found)
        assert set(rounds) == counts and least <= taken <= most, gain


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


def convolution() -> Graph:
    x = input("x", TensorType(f32, (1, 8, 5, 5)))
    w = input("w", TensorType(f32, (8, 8, 3, 3)), "weight")
    return Graph("convolution", (x, w), (ops.relu(ops.conv(x, w, padding=1)),))


def in_two_boxes(layer: Layer, target: Target) -> list[Candidate]:
    """The first rows, and the others."""
    windows = tuple((0, n) for n in layer.windows)
    parts = [
        narrowed(layer.root, (*layer.whole[:2], rows, layer.whole[3]), windows)
        for rows in ((0, 2), (2, 5))
    ]
    program = ops.concat([p for p in parts if p is not None], 2)
    return [Candidate("rows", program, 1.0, 2)]


@pytest.mark.parametrize("faster", [True, False])
def test_layers_are_replaced_where_that_is_faster(
    faster: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def measured(graph: Graph, programs: list[Program]) -> list[float]:
        asked.append(graph.name)
        return [2.0, *(2.0 for _ in programs[1:-1]), 1.0 if faster else 1.99]

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(searched, "medians", measured)
    monkeypatch.setattr(corrected, "candidates", in_two_boxes)
    graph, log = convolution(), Log()
    plain = sum(k.calls for k in tw.compile_graph(graph).kernels)
    for again in (False, True):
        program = tw.compile_graph(graph, SEARCH, log)
        assert (sum(k.calls for k in program.kernels) > plain) == faster
        arrays = random_inputs(graph)
        (got,), (want,) = run_arrays(program, arrays), evaluate(graph, arrays)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert again or any(" boxes " in e.message for e in log.events)
    # A layer that another program does not compute faster is no part of one that is measured.
    assert asked == (["layer", "convolution"] if faster else ["layer"])
