"""Many small or elementwise clusters run at the same time, and write where their inputs are."""

from collections.abc import Mapping

import numpy as np
import pytest

from tests.graph.build import TARGET, arg, arguments, fused, run_planned
from tests.graph.random_graphs import random_graph
from tilewright import ops
from tilewright.base.events import Log
from tilewright.graph.batches import FEWEST
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import plan
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node

SHAPES = [(40, 300), (300,), (7, 11, 5), (1, 3), (2,), (64, 64)]


def step(k: int, shape: tuple[int, ...], lr: Node) -> tuple[list[Node], list[Node]]:
    """A parameter and its average, and what they become."""
    p, m, g = (arg(f"{name}{k}", *shape) for name in "pmg")
    new = ops.add(ops.mul(m, ops.full((), 0.9, m.dtype)), g)
    return [p, m], [ops.sub(p, ops.mul(new, lr)), new]


def optimizer() -> tuple[list[Node], list[Node]]:
    lr = arg("lr")
    found = [step(k, s, lr) for k, s in enumerate(SHAPES)]
    return [x for olds, _ in found for x in olds], [x for _, news in found for x in news]


def in_place(f: Fused, updates: Mapping[int, Node], seed: int = 0) -> set[int]:
    """The results that lie where inputs do, once they were found to be right."""
    p = plan(f, updates=updates)
    args = arguments(f.graph, seed)
    want = evaluate(f.graph, args)
    for a, b in zip(run_planned(f, p, args), want, strict=True):
        np.testing.assert_array_equal(a, b)
    return {at for at, _ in p.updated}


def test_updates_of_all_shapes_are_one_batch_in_place() -> None:
    olds, news = optimizer()
    f = fused(*news)
    assert len(set(f.batches)) == 1 < FEWEST <= len(f.clusters) == len(SHAPES)
    assert in_place(f, dict(enumerate(olds))) == set(range(len(news)))


def test_equal_updates_are_equal_clusters() -> None:
    f = fused(*optimizer()[1])
    assert len({tuple(n.op.name for n in c.nodes) for c in f.clusters}) == 1


def test_few_clusters_are_no_batch() -> None:
    lr = arg("lr")
    f = fused(*(x for k in range(FEWEST - 1) for x in step(k, SHAPES[k], lr)[1]))
    assert len(set(f.batches)) == len(f.clusters)


def test_what_waits_for_a_batch_follows_it() -> None:
    """Sums of all, of which all are made: as where gradients are clipped."""
    xs = [arg(f"x{k}", 3 + k, 5) for k in range(6)]
    total = ops.sum(ops.stack([ops.sum(ops.mul(x, x), (0, 1)) for x in xs], 0), (0,))
    f = fused(*(ops.mul(x, total) for x in xs))
    numbers = {o: f.batch(k) for k, c in enumerate(f.clusters) for o in c.outputs}
    for k, c in enumerate(f.clusters):
        assert all(numbers[f.aliases.get(x, x)] < f.batch(k) for x in c.inputs if x in numbers)
    assert max(f.batches.count(n) for n in f.batches) == 6
    assert in_place(f, dict(enumerate(xs))) == set(range(6))


def test_an_input_that_is_read_afterwards_is_not_replaced() -> None:
    a, b = arg("a", 8), arg("b", 8)
    new_a = ops.add(a, b)
    later = ops.sum(ops.mul(ops.reshape(new_a, (8, 1)), ops.reshape(a, (1, 8))), (1,))
    assert in_place(fused(new_a, later), {0: a}) == set()
    flipped = ops.sub(ops.flip(a, (0,)), b)  # other elements of it
    assert in_place(fused(flipped), {0: a}) == set()
    swapped = ops.neg(a), ops.neg(b)  # each is replaced by what is made of the other
    assert len(in_place(fused(*swapped), {0: b, 1: a})) < 2
    both = ops.add(a, b), ops.mul(a, b)  # the second one reads what the first one replaces
    assert in_place(fused(*both), {0: a, 1: b}) in ({1}, {0}, set())


def test_no_other_value_lies_where_the_input_is() -> None:
    """A value that the result may overwrite would have had the memory of the result before it."""
    a, b = arg("a", 4), arg("b", 4)
    first = ops.exp(b)
    total = ops.sum(first, (0,))
    scaled = ops.mul(first, total)
    new = ops.add(a, scaled)
    clusters = (
        Cluster((first,), (b,), (first,), "map"),
        Cluster((total,), (first,), (total,), "column", total),
        Cluster((scaled, new), (first, total, a), (new,), "map"),
    )
    f = Fused(Graph("g", (a, b), (new,)), clusters, ())
    assert plan(f).in_place  # of what is new, in the memory of the first
    assert in_place(f, {0: a}) == {0}


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int) -> None:
    g = random_graph(seed, 30)
    f = fuse(g, TARGET, Log())
    kinds = {(x.type, k): x for k, x in enumerate(g.inputs)}
    updates: dict[int, Node] = {}
    for at, o in enumerate(g.outputs):
        like = next((x for (t, _), x in kinds.items() if t == o.type), None)
        if like is not None and like not in updates.values():
            updates[at] = like
    in_place(f, updates, seed)
