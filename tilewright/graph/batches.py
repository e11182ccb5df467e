"""Clusters that run at the same time: many small or elementwise ones, none of which waits for
another, such as the updates of all parameters by an optimizer.

A kernel for each would wake the threads for each. What runs at the same time begins together and
ends together, as one parallel loop over all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tilewright.graph.classify import facts, nbytes
from tilewright.graph.cluster import Cluster, Fused
from tilewright.ir.node import Node, topological
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType

FEWEST = 4  # clusters: fewer are not worth it
# Bytes that a cluster may read and write and still be run by one thread, as a whole.
SMALL = 1 << 16
# Bytes of values that it may leave to others: what begins early lives long.
LEFT = 1 << 10


def in_batches(fused: Fused, target: Target) -> Fused:
    """The same clusters, with batches; a GPU has other ways to run many kernels."""
    if target.grid is not None:
        return fused
    results = {fused.aliases.get(o, o) for o in fused.graph.outputs}
    clusters, numbers = _batches(fused.clusters, results, fused.aliases)
    sizes = Counter(numbers)
    alike = (_in_order(c) if sizes[k] > 1 else c for c, k in zip(clusters, numbers, strict=True))
    return replace(fused, clusters=tuple(alike), batches=numbers)


def _in_order(c: Cluster) -> Cluster:
    """The nodes of maps in an order that depends on nothing else: equal ones then have one kernel.
    In other kinds the order of nodes says which loops they are in."""
    if c.kind != "map":
        return c
    own = set(c.nodes)
    found = [n for n in topological(c.outputs, stop=c.inputs) if n in own]
    return replace(c, nodes=tuple(found)) if len(found) == len(own) else c


def _batches(
    clusters: Sequence[Cluster], results: set[Node], aliases: Mapping[Node, Node]
) -> tuple[tuple[Cluster, ...], tuple[int, ...]]:
    """The clusters in an order in which those of a batch are neighbours, and the number of each
    one's batch: these ascend, and most have a batch of their own."""
    maker = {o: k for k, c in enumerate(clusters) for o in c.outputs}
    before = [{maker[b] for x in c.inputs if (b := aliases.get(x, x)) in maker} for c in clusters]
    depth: list[int] = []
    for found in before:
        depth.append(1 + max((depth[k] for k in found), default=0))
    levels: dict[int, list[int]] = {}
    for k, c in enumerate(clusters):
        if _fits(c, results):
            levels.setdefault(depth[k], []).append(k)
    together = [ks for ks in levels.values() if len(ks) >= FEWEST]
    if not together:
        return tuple(clusters), tuple(range(len(clusters)))
    return _ordered(clusters, before, together)


def _ordered(
    clusters: Sequence[Cluster], before: Sequence[set[int]], together: Sequence[Sequence[int]]
) -> tuple[tuple[Cluster, ...], tuple[int, ...]]:
    """Producers first, otherwise as given. Of one depth nothing waits for another, so what runs at
    the same time stands for its first member."""
    head = {k: ks[0] for ks in together for k in ks}
    members = {ks[0]: list(ks) for ks in together}
    waits: dict[int, set[int]] = {}
    for k, found in enumerate(before):
        waits.setdefault(head.get(k, k), set()).update(head.get(p, p) for p in found)
    left = {k: len(found) for k, found in waits.items()}
    after: dict[int, list[int]] = {}
    for k, found in waits.items():
        for p in found:
            after.setdefault(p, []).append(k)
    ready = [k for k, n in left.items() if n == 0]
    heapify(ready)
    order: list[Cluster] = []
    numbers: list[int] = []
    number = 0
    while ready:
        k = heappop(ready)
        own = members.get(k, [k])
        order += [clusters[m] for m in own]
        numbers += [number] * len(own)
        number += 1
        for q in after.get(k, ()):
            left[q] -= 1
            if left[q] == 0:
                heappush(ready, q)
    assert len(order) == len(clusters), "a batch waits for itself"
    return tuple(order), tuple(numbers)


def _fits(c: Cluster, results: set[Node]) -> bool:
    """Is it elementwise or small, of known sizes, and does it leave little to others?"""
    if any(subgraphs(n.op) for n in c.nodes):
        return False
    sizes = [nbytes(x.ttype) for x in (*c.inputs, *c.outputs)]
    if not all(isinstance(n, int) for n in sizes):
        return False
    known = [n for n in sizes if isinstance(n, int)]
    left = sum(
        n for o, n in zip(c.outputs, known[len(c.inputs) :], strict=True) if o not in results
    )
    if left > LEFT or not all(known[len(c.inputs) :]):
        return False
    return sum(known) <= SMALL or (c.kind == "map" and is_elementwise(c))


def is_elementwise(c: Cluster) -> bool:
    """Is every element made of the elements at its own place, and of single numbers?"""
    shape = c.outputs[0].shape
    if any(o.shape != shape for o in c.outputs):
        return False
    for n in c.nodes:
        if not isinstance(n.type, TensorType) or (n.type.size != 1 and n.shape != shape):
            return False
        f = facts(n)
        if f.kind not in ("source", "map", "view") or (f.kind == "map" and not f.pointwise):
            return False
        for a in f.accesses:
            x = n.inputs[a.operand]
            if x.ttype.size != 1 and not a.pointwise(x.shape, shape):
                return False
    return True
