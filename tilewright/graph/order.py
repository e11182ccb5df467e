"""The order in which clusters run: producers first, and few live bytes on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from tilewright.graph.classify import guess, nbytes
from tilewright.graph.cluster import Cluster
from tilewright.ir.node import Node


def few_live_bytes(
    clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]
) -> list[Cluster]:
    """The better of two orders: as given, or always the ready cluster that grows memory least."""
    uses = _uses(clusters, results, aliases)
    greedy = _greedy(clusters, uses, aliases)
    given = list(clusters)
    return greedy if peak(greedy, uses, aliases) < peak(given, uses, aliases) else given


def _uses(
    clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]
) -> dict[Node, int]:
    """How many clusters read each cluster output; results are read once more, at the end."""
    uses = {o: 0 for c in clusters for o in c.outputs}
    for c in clusters:
        for x in {aliases.get(x, x) for x in c.inputs}:
            if x in uses:
                uses[x] += 1
    for o in results:
        base = aliases.get(o, o)
        if base in uses:
            uses[base] += 1
    return uses


def peak(
    clusters: Sequence[Cluster], uses: Mapping[Node, int], aliases: Mapping[Node, Node]
) -> int:
    """Most bytes of cluster outputs alive at once; a cluster's inputs live until it is done."""
    left = dict(uses)
    size = {x: guess(nbytes(x.ttype)) for x in uses}
    live = best = 0
    for c in clusters:
        live += sum(size[o] for o in c.outputs)
        best = max(best, live)
        for x in {aliases.get(x, x) for x in c.inputs}:
            if x in left:
                left[x] -= 1
                live -= size[x] if left[x] == 0 else 0
        live -= sum(size[o] for o in c.outputs if left[o] == 0)
    return best


def _greedy(
    clusters: Sequence[Cluster], uses: Mapping[Node, int], aliases: Mapping[Node, Node]
) -> list[Cluster]:
    left = dict(uses)
    size = {x: guess(nbytes(x.ttype)) for x in uses}
    reads = [[x for x in {aliases.get(x, x) for x in c.inputs} if x in uses] for c in clusters]
    maker = {o: k for k, c in enumerate(clusters) for o in c.outputs}
    waiting = [len({maker[x] for x in r}) for r in reads]
    followers: list[list[int]] = [[] for _ in clusters]
    for k, r in enumerate(reads):
        for m in {maker[x] for x in r}:
            followers[m].append(k)

    def growth(k: int) -> int:
        freed = sum(size[x] for x in reads[k] if left[x] == 1)
        return sum(size[o] for o in clusters[k].outputs) - freed

    ready: list[tuple[int, int]] = [(growth(k), k) for k, w in enumerate(waiting) if w == 0]
    ready.sort()
    readers: dict[Node, list[int]] = {}
    for k, r in enumerate(reads):
        for x in r:
            readers.setdefault(x, []).append(k)
    done = [False] * len(clusters)
    out: list[Cluster] = []
    while ready:
        _, k = heappop(ready)
        if done[k]:
            continue
        done[k] = True
        out.append(clusters[k])
        for f in followers[k]:
            waiting[f] -= 1
        changed = set(followers[k])
        for x in reads[k]:
            left[x] -= 1
            if left[x] == 1:  # its last reader would now free it
                changed.update(readers[x])
        for f in changed:
            if waiting[f] == 0 and not done[f]:
                heappush(ready, (growth(f), f))
    return out
