"""The order in which clusters run."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.seeds import drawn
from tilewright import ops
from tilewright.graph.cluster import Cluster
from tilewright.graph.order import _Flow, _is_least, _late, _Sizes, few_live_bytes, peak
from tilewright.ir.node import Node, input
from tilewright.ir.types import TensorType, f32

ROWS, BYTES = 256, 256 * 64 * 4


def most(clusters: list[Cluster], results: list[Node]) -> int:
    """Bytes alive at once."""
    return peak(clusters, results, {})


def backward(depth: int) -> tuple[list[Cluster], list[Node]]:
    """As gradients are: a chain of large values, each of which is copied for a small sum of its
    own. The sums come last."""
    x = input("x", TensorType(f32, (ROWS, 64)))
    chain = [ops.neg(x)]
    for _ in range(depth - 1):
        chain.append(ops.neg(chain[-1]))
    copies = [ops.exp(g) for g in chain]
    sums = [ops.sum(c, (0,)) for c in copies]
    every = [*chain, *copies, *sums]
    return [Cluster((n,), n.inputs, (n,), "map") for n in every], sums


def test_gradients_of_weights_do_not_wait_until_the_end() -> None:
    clusters, results = backward(12)
    found = few_live_bytes(clusters, results, {})
    assert most(clusters, results) >= 12 * BYTES
    assert most(found, results) < 3.5 * BYTES
    made: set[Node] = set()
    for c in found:
        assert all(x in made or not x.inputs for x in c.inputs)
        made.update(c.outputs)
    assert len(found) == len(clusters)


def test_copies_of_inputs_wait_for_their_reader() -> None:
    inputs = [input(f"x{k}", TensorType(f32, (ROWS, 64))) for k in range(8)]
    copies = [ops.exp(x) for x in inputs]
    sums = [ops.sum(c, (0,)) for c in copies]
    clusters = [Cluster((n,), n.inputs, (n,), "map") for n in (*copies, *sums)]
    found = few_live_bytes(clusters, sums, {})
    assert most(found, sums) < 1.5 * BYTES


def test_copies_for_a_reader_that_waits_wait_with_it() -> None:
    """Also where another reader does not wait, and results are no memory of the program's."""
    x, y = (input(n, TensorType(f32, (ROWS, 64))) for n in "xy")
    base = ops.exp(y)
    packs = [ops.mul(base, float(k)) for k in range(2, 8)]
    steps = [ops.neg(x)]
    for p in packs:
        steps.append(ops.add(steps[-1], p))
    clusters = [Cluster((n,), n.inputs, (n,), "map") for n in (base, *packs, *steps)]
    results = [steps[-1], base]
    found = few_live_bytes(clusters, results, {})
    assert sorted(map(id, found)) == sorted(map(id, clusters))
    made: set[Node] = set()
    for c in found:
        assert all(n in made or not n.inputs for n in c.inputs)
        made.update(c.outputs)
    assert most(clusters, results) >= 7 * BYTES
    assert most(found, results) <= 4 * BYTES


def test_what_frees_less_than_it_makes_waits_for_its_reader() -> None:
    """As scores of attention, computed again for a gradient from keys that were kept: each is the
    last to read a packed copy, which is smaller."""
    depth = 10
    kept = [input(f"k{k}", TensorType(f32, (ROWS, 16))) for k in range(depth)]
    copies = [ops.neg(k) for k in kept]
    scores = [ops.exp(ops.concat([c] * 4, 1)) for c in copies]
    chain = [ops.neg(input("x", TensorType(f32, (ROWS, 64))))]
    for s in reversed(scores):
        chain.append(ops.mul(chain[-1], s))
    clusters = [Cluster((n,), n.inputs, (n,), "map") for n in copies]
    clusters += [
        Cluster((s.inputs[0], s), (c,), (s,), "map") for c, s in zip(copies, scores, strict=True)
    ]
    clusters += [Cluster((n,), n.inputs, (n,), "map") for n in chain]
    flow = _Flow.of(clusters, chain[-1:], {})
    late = _late(flow, range(len(clusters)), _Sizes.of(flow))
    found = [clusters[k] for k in late]
    assert sorted(late) == list(range(len(clusters)))
    made: set[Node] = set()
    for c in found:
        assert all(x in made or not x.inputs for x in c.inputs)
        made.update(c.outputs)
    assert most(clusters, chain[-1:]) >= depth * BYTES
    assert most(found, chain[-1:]) <= 3 * BYTES


def orders(clusters: list[Cluster]) -> Iterator[list[Cluster]]:
    """All that have producers first."""

    def rest(begun: list[Cluster]) -> Iterator[list[Cluster]]:
        if len(begun) == len(clusters):
            yield begun
        made = {o for c in begun for o in c.outputs}
        for c in clusters:
            if c not in begun and all(x in made or not x.inputs for x in c.inputs):
                yield from rest([*begun, c])

    return rest([])


@pytest.mark.parametrize("seed", drawn(range(100), 3))
def test_no_order_is_better_where_the_first_is_said_to_be_the_best(seed: int) -> None:
    draw, proved = random.Random(seed), 0
    for _ in range(4):
        first = input("x", TensorType(f32, (draw.randint(1, 9),)))
        nodes = [ops.neg(first)]
        clusters = [Cluster((nodes[0],), (first,), (nodes[0],), "map")]
        for k in range(draw.randint(1, 5)):
            x, y = draw.choice(nodes), draw.choice(nodes)
            read = ops.concat([x, y], 0) if draw.random() < 0.5 else ops.slice(x, 0, 0, 1)
            made = ops.mul(read, k + 2.0)
            nodes.append(made)
            clusters.append(Cluster((read, made), (x, y), (made,), "map"))
        results = draw.sample(nodes, draw.randint(1, len(nodes)))
        given, least = most(clusters, results), min(most(c, results) for c in orders(clusters))
        found = few_live_bytes(clusters, results, {})
        assert least <= most(found, results) and len(found) == len(clusters)
        flow = _Flow.of(clusters, results, {})
        if _is_least(flow, range(len(clusters)), _Sizes.of(flow)):
            assert given == least, f"seed {seed}: {[str(c) for c in clusters]}"
            proved += 1
    assert proved or seed  # some are


def test_what_a_result_replaces_is_no_memory_of_its_own() -> None:
    """Products in the place of results are made early, where their large operands end then, though
    what is added to them comes late: as the gradient of a table of words that also multiplies."""
    inputs = [input(f"x{k}", TensorType(f32, (ROWS, 64))) for k in range(6)]
    table = input("t", TensorType(f32, (64, 512)))
    copies = [ops.exp(x) for x in inputs]
    sums = [ops.sum(c, (0, 1)) for c in copies]
    products = [ops.matmul(c, table) for c in copies]
    late = sums[0]
    for s in sums[1:]:
        late = ops.add(late, s)
    results = [ops.add(p, late) for p in products]
    every = [*copies, *sums, *(n for n in _chain(late, sums)), *products, *results]
    clusters = [Cluster((n,), n.inputs, (n,), "map") for n in every]
    found = few_live_bytes(clusters, results, {})
    live = [copies.index(c.nodes[0]) for c in found if c.nodes[0] in copies]
    assert sorted(live) == list(range(6))
    alive = most_alive = 0
    read = dict.fromkeys(copies, 2)
    for c in found:
        alive += c.nodes[0] in copies
        most_alive = max(most_alive, alive)
        for x in c.inputs:
            if x in read:
                read[x] -= 1
                alive -= not read[x]
    assert most_alive == 1


def _chain(last: Node, sums: list[Node]) -> list[Node]:
    """Sums of sums, the first one first."""
    found = []
    while last not in sums:
        found.append(last)
        last = next(x for x in last.inputs if x is not sums[len(sums) - len(found)])
    return found[::-1]
