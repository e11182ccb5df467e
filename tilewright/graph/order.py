"""The order in which clusters run: producers first, and few live bytes on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from tilewright.graph.classify import guess, nbytes
from tilewright.graph.cluster import Cluster
from tilewright.ir.node import Node

# How many clusters that one waits for are run with it, at most: no number is best for all graphs.
FURTHEST = (4, 12, 20)
NEAR = 4  # so far behind what ran, the bytes of chains are counted again


def few_live_bytes(
    clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]
) -> list[Cluster]:
    """The best of some orders: as given, always the ready cluster that grows memory least, or chain
    by chain; and each of these with what frees nothing as late as it can be."""
    uses = _uses(clusters, results, aliases)
    every = {x: guess(nbytes(x.ttype)) for x in uses}
    # Results are the caller's memory, and all there in the end, whatever the order.
    own = every | {x: 0 for o in results if (x := aliases.get(o, o)) in every}
    orders = [list(clusters)]
    for size in (own, every) if own != every else (every,):
        orders.append(_greedy(clusters, uses, aliases, size))
        orders += [_Chains(clusters, uses, aliases, size, most).order() for most in FURTHEST]
    orders += [_late(found, uses, aliases) for found in orders]

    def cost(found: Sequence[Cluster]) -> tuple[int, int]:
        return peak(found, uses, aliases, own), peak(found, uses, aliases, every)

    return min(orders, key=cost)


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
    clusters: Sequence[Cluster],
    uses: Mapping[Node, int],
    aliases: Mapping[Node, Node],
    size: Mapping[Node, int],
) -> int:
    """Most bytes of cluster outputs alive at once; a cluster's inputs live until it is done."""
    left = dict(uses)
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


def _late(
    clusters: Sequence[Cluster], uses: Mapping[Node, int], aliases: Mapping[Node, Node]
) -> list[Cluster]:
    """Clusters that read nothing for the last time, such as packed copies of inputs, right before
    the first one that reads them."""
    reads = [{x for y in c.inputs if (x := aliases.get(y, y)) in uses} for c in clusters]
    readers: dict[Node, list[int]] = {}
    for k, found in enumerate(reads):
        for x in found:
            readers.setdefault(x, []).append(k)
    at: dict[int, int] = {}  # a cluster that stays, before which it runs
    for k in reversed(range(len(clusters))):
        frees = any(readers[x][-1] == k for x in reads[k])
        later = [at[r] for o in clusters[k].outputs for r in readers.get(o, ())]
        at[k] = k if frees or not later else min(later)
    return [clusters[k] for k in sorted(at, key=lambda k: (at[k], k))]


def _greedy(
    clusters: Sequence[Cluster],
    uses: Mapping[Node, int],
    aliases: Mapping[Node, Node],
    size: Mapping[Node, int],
) -> list[Cluster]:
    left = dict(uses)
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


class _Chains:
    """Runs a cluster together with all that it waits for. A gradient and its copy in another layout
    are two steps, of which only the second frees memory: one that looks at single clusters would
    have the gradient wait until the end.

    What ends with fewer bytes than it began with is best done at once, that with the least on its
    way first. Of the rest, what needs most for a while and leaves least of it goes first: later
    there would be more beside it. A copy of an input, which leaves all that it needs, is made when
    its reader is run."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        uses: Mapping[Node, int],
        aliases: Mapping[Node, Node],
        size: Mapping[Node, int],
        most: int,
    ) -> None:
        """`most` clusters are run with one, and it with them."""
        self.clusters, self.most = clusters, most
        self.left, self.size = dict(uses), size
        every = [dict.fromkeys(aliases.get(x, x) for x in c.inputs) for c in clusters]
        self.reads = [[x for x in found if x in uses] for found in every]
        maker = {o: k for k, c in enumerate(clusters) for o in c.outputs}
        self.before = [sorted({maker[x] for x in found}) for found in self.reads]
        self.readers: dict[Node, list[int]] = {}
        for k, found in enumerate(self.reads):
            for x in found:
                self.readers.setdefault(x, []).append(k)
        self.done = [False] * len(clusters)

    def order(self) -> list[Cluster]:
        latest: dict[int, tuple[int, int, int]] = {}
        heap: list[tuple[int, int, int]] = []

        def look(k: int) -> None:
            found = self.worth(k)
            if found is not None:
                latest[k] = found
                heappush(heap, found)

        for k in range(len(self.clusters)):
            look(k)
        out: list[Cluster] = []
        while heap:
            found = heappop(heap)
            k = found[-1]
            if self.done[k] or latest[k] != found:
                continue
            chain = self.needed(k)
            assert chain is not None, "what a cluster waits for only gets less"
            out += [self.clusters[m] for m in chain]
            for m in sorted(self.run(chain)):
                if not self.done[m]:
                    look(m)
        return out

    def needed(self, k: int) -> list[int] | None:
        """All that has to run for cluster k, and k; None where that is too much."""
        found: dict[int, None] = {}
        stack = [k]
        while stack:
            missing = [p for p in self.before[stack[-1]] if not self.done[p] and p not in found]
            if len(found) + len(stack) + len(missing) > self.most + 1:
                if len({*found, *stack, *missing}) > self.most + 1:
                    return None
            if missing:
                stack += missing
            else:
                found[stack.pop()] = None
        return list(found)

    def worth(self, k: int) -> tuple[int, int, int] | None:
        """The smallest is run first."""
        chain = self.needed(k)
        if chain is None:
            return None
        used: dict[Node, int] = {}
        live = most = 0
        for m in chain:
            live += sum(self.size[o] for o in self.clusters[m].outputs)
            most = max(most, live)
            for x in self.reads[m]:
                used[x] = used.get(x, 0) + 1
                live -= self.size[x] if used[x] == self.left[x] else 0
            live -= sum(self.size[o] for o in self.clusters[m].outputs if self.left[o] == 0)
        return (0, most, k) if live <= 0 else (1, live - most, k)

    def run(self, chain: Sequence[int]) -> set[int]:
        """The clusters whose worth may be another one afterwards."""
        near: set[int] = set()
        for m in chain:
            self.done[m] = True
            for x in self.reads[m]:
                self.left[x] -= 1
                near.update(self.readers[x])
            near.update(r for o in self.clusters[m].outputs for r in self.readers.get(o, ()))
        edge = near
        for _ in range(NEAR):
            made = (o for m in edge for o in self.clusters[m].outputs)
            edge = {r for o in made for r in self.readers.get(o, ())} - near
            near |= edge
        return near
