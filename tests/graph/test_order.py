"""The order in which clusters run."""

from __future__ import annotations

from tilewright import ops
from tilewright.graph.cluster import Cluster
from tilewright.graph.order import _uses, few_live_bytes, peak
from tilewright.ir.node import Node, input
from tilewright.ir.types import TensorType, f32

ROWS, BYTES = 256, 256 * 64 * 4


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
    uses = _uses(clusters, results, {})
    assert peak(clusters, uses, {}) >= 12 * BYTES
    assert peak(found, uses, {}) < 3.5 * BYTES
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
    assert peak(found, _uses(clusters, sums, {}), {}) < 1.5 * BYTES
