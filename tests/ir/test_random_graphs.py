"""The generator of random graphs itself: sound graphs, a fair judge, a shrinker that shrinks."""

from collections import Counter

import numpy as np
import pytest

from tests.ir.random_graphs import disagreement, random_case, random_graph, reference, shrink
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.graph.decompose import Decompose
from tilewright.graph.fold import FoldConstants, split_weights
from tilewright.graph.simplify import Simplify
from tilewright.ir.check import verify
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph
from tilewright.ir.operator import is_composed
from tilewright.ir.text import parse_graph, print_graph

SEEDS = drawn(range(60), quick=20)


@pytest.mark.parametrize("seed", SEEDS)
def test_graphs_are_sound_and_print(seed: int) -> None:
    graph, args = random_graph(seed)
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    again, same = random_graph(seed)
    assert again == graph and all(np.array_equal(a, b) for a, b in zip(args, same, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_cases_are_sound_and_print(seed: int) -> None:
    case = random_case(seed)
    assert parse_graph(print_graph(case.graph)) == case.graph
    for c in case.calls:
        assert [a.ndim for a in c.args] == [n.rank for n in case.graph.inputs]
        expected, allowed = reference(case.graph, c.args, c.dims)
        own = evaluate(case.graph, c.args, c.dims)
        assert disagreement(expected, allowed, own) is None


def test_cases_are_of_every_kind() -> None:
    cases = [random_case(seed) for seed in range(250)]
    graphs = [c.graph for c in cases]
    assert any(len(g.inputs) > 100 and len(g.outputs) > 100 for g in graphs)
    assert any(len(g.nodes()) > 1000 for g in graphs)
    assert any(len(set(g.outputs)) < len(g.outputs) for g in graphs)
    assert any(set(g.outputs) & set(g.inputs) for g in graphs)
    assert any("cond" in {n.op.name for n in g.nodes()} for g in graphs)
    values = {v for c in cases for call in c.calls for v in call.dims.values()}
    assert {0, 1, 17} <= values
    assert any(
        a.dtype.kind == "i" and a.ndim and a.min(initial=0) < -9
        for c in cases
        for call in c.calls
        for a in call.args
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_passes_keep_the_meaning(seed: int) -> None:
    """Simplify, decompose and fold give the same bits as the graph they start from."""
    graph, args = random_graph(seed)
    before = evaluate(graph, args)
    log = Log()
    for p in (Simplify(), Decompose(), Simplify(), FoldConstants(), Simplify()):
        graph = p.apply(graph, log)
        verify(graph, after=str(p))
    assert not any(is_composed(n.op) for n in graph.nodes())
    for a, b in zip(before, evaluate(graph, args), strict=True):
        np.testing.assert_array_equal(a, b, f"seed {seed}\n{print_graph(graph)}")


@pytest.mark.parametrize("seed", SEEDS)
def test_splitting_weights_keeps_the_meaning(seed: int) -> None:
    graph, args = random_graph(seed)
    prologue, main = split_weights(graph)
    verify(prologue)
    verify(main)
    by_input = dict(zip(graph.inputs, args, strict=True))
    folded = evaluate(prologue, [by_input[n] for n in prologue.inputs])
    own = len(main.inputs) - len(folded)
    got = evaluate(main, [by_input[n] for n in main.inputs[:own]] + folded)
    for a, b in zip(evaluate(graph, args), got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_judge_is_fair() -> None:
    """Values are finite and the program in its own precision passes, with room to spare."""
    operators: Counter[str] = Counter()
    for seed in range(60):
        graph, args = random_graph(seed)
        expected, allowed = reference(graph, args)
        assert disagreement(expected, allowed, evaluate(graph, args)) is None
        for n, a, tolerance in zip(graph.outputs, expected, allowed, strict=True):
            assert np.isfinite(a).all(), f"seed {seed}: {n!r}"
            # A judge that allows everything would prove nothing.
            if n.dtype.name in ("f32", "f64"):
                assert tolerance <= 1e-3 * max(1.0, float(np.abs(a).max(initial=0))), f"seed {seed}"
        operators.update(n.op.name for n in graph.nodes())
    assert len(operators) >= 40, operators


def test_a_wrong_result_is_noticed_and_shrunk() -> None:
    def fails(graph: Graph, args: list[np.ndarray]) -> bool:
        return any(n.op.name == "tanh" for n in graph.nodes())

    seed = next(s for s in range(200) if fails(*random_graph(s, 12)))
    graph, args = random_graph(seed, 12)
    small, given = shrink(graph, args, fails)
    verify(small)
    assert fails(small, given) and len(small.nodes()) <= 2, print_graph(small)
    assert [a.shape for a in given] == [n.shape for n in small.inputs]
    expected, allowed = reference(small, given)
    assert disagreement(expected, allowed, [a + 1 for a in expected]) is not None
