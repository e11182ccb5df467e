"""The order in which clusters run: producers first, and few live bytes on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from tilewright.graph.classify import guess, nbytes
from tilewright.graph.cluster import Cluster
from tilewright.graph.memory import overwritable
from tilewright.ir.node import Node

# How many clusters that one waits for are run with it, at most: no number is best for all graphs.
FURTHEST = (4, 12, 20)
NEAR = 4  # so far behind what ran, the bytes of chains are counted again


def few_live_bytes(
    clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]
) -> list[Cluster]:
    """The best of some orders: as given, always the ready cluster that grows memory least, or chain
    by chain; and each of these with what frees less than it makes as late as it can be."""
    flow = _Flow.of(clusters, results, aliases)
    every = _Sizes.of(flow)
    # Results are the caller's memory, and all there in the end, whatever the order.
    own = _Sizes.of(flow, without=_in_results(clusters, results, aliases))
    orders = [list(range(len(clusters)))]
    if all(_is_least(flow, orders[0], size) for size in (own, every)):
        return list(clusters)
    for size in (own, every) if own.values != every.values else (every,):
        orders.append(_greedy(flow, size))
        orders += [_Chains(flow, size, most).order() for most in FURTHEST]
    orders += [_late(flow, o, size) for o in orders for size in (own, every)]
    peaks = [tuple(max(_live(flow, found, size)) for size in (own, every)) for found in orders]
    return [clusters[k] for k in orders[peaks.index(min(peaks))]]


def _in_results(
    clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]
) -> set[Node]:
    """What lies in the memory of results: these, and values whose place they take. The gradient of
    words that are a table and a product's weights, too, is one product that others are added to."""
    found = {aliases.get(o, o) for o in results}
    made = {o for c in clusters for o in c.outputs}
    readers = Counter(y for c in clusters for y in {aliases.get(x, x) for x in c.inputs})
    for c in reversed(clusters):
        for o in found.intersection(c.outputs):
            bases = (aliases.get(x, x) for x in overwritable(c, o, aliases))
            replaced = next((y for y in bases if y in made and readers[y] == 1), None)
            if replaced is not None:
                found.add(replaced)
    return found


def peak(clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]) -> int:
    """Most bytes of cluster outputs alive at once; a cluster's inputs live until it is done."""
    flow = _Flow.of(clusters, results, aliases)
    return max(_live(flow, range(len(clusters)), _Sizes.of(flow)), default=0)


@dataclass(frozen=True)
class _Flow:
    """Which values clusters read and make. Both have numbers here."""

    values: Sequence[Node]
    makes: Sequence[Sequence[int]]  # by clusters
    reads: Sequence[Sequence[int]]
    maker: Sequence[int]  # by values
    readers: Sequence[Sequence[int]]
    uses: Sequence[int]  # how many clusters read a value; results are read once more, at the end

    @staticmethod
    def of(
        clusters: Sequence[Cluster], results: Sequence[Node], aliases: Mapping[Node, Node]
    ) -> _Flow:
        values = [o for c in clusters for o in c.outputs]
        number = {x: v for v, x in enumerate(values)}
        maker = [k for k, c in enumerate(clusters) for _ in c.outputs]
        makes = [[number[o] for o in c.outputs] for c in clusters]
        bases = [dict.fromkeys(aliases.get(x, x) for x in c.inputs) for c in clusters]
        reads = [[number[x] for x in found if x in number] for found in bases]
        readers: list[list[int]] = [[] for _ in values]
        for k, found in enumerate(reads):
            for v in found:
                readers[v].append(k)
        uses = [len(found) for found in readers]
        for o in results:
            base = aliases.get(o, o)
            if base in number:
                uses[number[base]] += 1
        return _Flow(values, makes, reads, maker, readers, uses)

    def before(self) -> list[list[int]]:
        """The clusters that each one reads from."""
        return [sorted({self.maker[v] for v in found}) for found in self.reads]


@dataclass(frozen=True)
class _Sizes:
    """Bytes of values, and of all that a cluster makes: `unread` are those that nobody reads."""

    values: Sequence[int]
    made: Sequence[int]
    unread: Sequence[int]

    @staticmethod
    def of(flow: _Flow, without: set[Node] | None = None) -> _Sizes:
        out = without or set()
        values = [0 if x in out else guess(nbytes(x.ttype)) for x in flow.values]
        made = [sum(values[v] for v in found) for found in flow.makes]
        unread = [sum(values[v] for v in found if not flow.uses[v]) for found in flow.makes]
        return _Sizes(values, made, unread)


def _live(flow: _Flow, order: Sequence[int], size: _Sizes) -> list[int]:
    """Bytes alive while each cluster runs."""
    left, reads, bytes_of = list(flow.uses), flow.reads, size.values
    live, out = 0, []
    for k in order:
        live += size.made[k]
        out.append(live)
        for v in reads[k]:
            left[v] -= 1
            if not left[v]:
                live -= bytes_of[v]
        live -= size.unread[k]
    return out


def _is_least(flow: _Flow, order: Sequence[int], size: _Sizes) -> bool:
    """Are as many bytes alive in any order? Results are in the end, and while the cluster runs that
    has most of them here, all that was made for it and that it or what follows from it reads."""
    live = _live(flow, order, size)
    most = max(live, default=0)
    kept = [v for v, found in enumerate(flow.readers) if flow.uses[v] > len(found)]
    if sum(size.values[v] for v in kept) == most:
        return True
    k = order[live.index(most)]
    before = _reached(k, lambda m: [flow.maker[v] for v in flow.reads[m]])
    after = _reached(k, lambda m: [r for v in flow.makes[m] for r in flow.readers[v]])
    needed = {v for m in after for v in flow.reads[m]}.union(kept)
    return (
        size.made[k] + sum(size.values[v] for v in needed if flow.maker[v] in before - {k}) == most
    )


def _reached(k: int, following: Callable[[int], Iterable[int]]) -> set[int]:
    """Cluster k, and all that follow from it."""
    found, stack = {k}, [k]
    while stack:
        more = {*following(stack.pop())} - found
        found |= more
        stack += more
    return found


def _late(flow: _Flow, order: Sequence[int], size: _Sizes) -> list[int]:
    """Clusters that make more bytes than they free, such as packed copies of inputs, and what is
    computed again from values that a forward pass kept, right before the first that reads them."""
    place = {k: p for p, k in enumerate(order)}
    last = [max((place[k] for k in found), default=-1) for found in flow.readers]
    at: dict[int, int] = {}  # where a cluster stays, or before which place it runs
    for p in reversed(range(len(order))):
        k = order[p]
        free = sum(size.values[v] for v in flow.reads[k] if last[v] == p)
        later = [at[r] for v in flow.makes[k] for r in flow.readers[v]]
        at[k] = p if not later or 0 < free >= size.made[k] else min(later)
    return sorted(order, key=lambda k: (at[k], place[k]))


def _greedy(flow: _Flow, size: _Sizes) -> list[int]:
    left, before = list(flow.uses), flow.before()
    waiting = [len(found) for found in before]
    followers: list[list[int]] = [[] for _ in before]
    for k, found in enumerate(before):
        for m in found:
            followers[m].append(k)

    def growth(k: int) -> int:
        return size.made[k] - sum(size.values[v] for v in flow.reads[k] if left[v] == 1)

    ready = [(growth(k), k) for k, w in enumerate(waiting) if w == 0]
    heapify(ready)
    done = [False] * len(before)
    out: list[int] = []
    while ready:
        _, k = heappop(ready)
        if done[k]:
            continue
        done[k] = True
        out.append(k)
        for f in followers[k]:
            waiting[f] -= 1
        changed = set(followers[k])
        for v in flow.reads[k]:
            left[v] -= 1
            if left[v] == 1:  # its last reader would now free it
                changed.update(flow.readers[v])
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

    def __init__(self, flow: _Flow, size: _Sizes, most: int) -> None:
        """`most` clusters are run with one, and it with them."""
        self.flow, self.size, self.most = flow, size, most
        self.left, self.before = list(flow.uses), flow.before()
        self.done = [False] * len(self.before)
        # What each cluster waited for when that was last looked up, and itself last; as much of it
        # as was found, where it was too much.
        self.chains: list[list[int] | None] = [None] * len(self.before)
        self.whole = [False] * len(self.before)

    def order(self) -> list[int]:
        latest: dict[int, tuple[int, int, int]] = {}
        heap: list[tuple[int, int, int]] = []

        def look(k: int) -> None:
            found = self.worth(k)
            if found is not None:
                latest[k] = found
                heappush(heap, found)

        for k in range(len(self.before)):
            look(k)
        out: list[int] = []
        while heap:
            found = heappop(heap)
            k = found[-1]
            if self.done[k] or latest[k] != found:
                continue
            chain = self.needed(k)
            assert chain is not None, "what a cluster waits for only gets less"
            out += chain
            for m in sorted(self.run(chain)):
                if not self.done[m]:
                    look(m)
        return out

    def needed(self, k: int) -> list[int] | None:
        """All that has to run for cluster k, and k; None where that is too much."""
        found, done = self.chains[k], self.done
        if found is not None:
            rest = self.chains[k] = [m for m in found if not done[m]]
            if self.whole[k]:
                return rest
            if len(rest) > self.most + 1:
                return None
        rest, self.whole[k] = self._needed(k)
        self.chains[k] = rest
        return rest if self.whole[k] else None

    def _needed(self, k: int) -> tuple[list[int], bool]:
        """The same anew, and whether it is all."""
        found: dict[int, None] = {}
        stack, done = [k], self.done
        while stack:
            missing = [p for p in self.before[stack[-1]] if not done[p] and p not in found]
            if len(found) + len(stack) + len(missing) > self.most + 1:
                every = {*found, *stack, *missing}
                if len(every) > self.most + 1:
                    return list(every), False
            if missing:
                stack += missing
            else:
                found[stack.pop()] = None
        return list(found), True

    def worth(self, k: int) -> tuple[int, int, int] | None:
        """The smallest is run first."""
        chain = self.needed(k)
        if chain is None:
            return None
        used: dict[int, int] = {}
        left, reads, size = self.left, self.flow.reads, self.size
        live = most = 0
        for m in chain:
            live += size.made[m]
            most = max(most, live)
            for v in reads[m]:
                used[v] = now = used.get(v, 0) + 1
                if now == left[v]:
                    live -= size.values[v]
            live -= size.unread[m]
        return (0, most, k) if live <= 0 else (1, live - most, k)

    def run(self, chain: Sequence[int]) -> set[int]:
        """The clusters whose worth may be another one afterwards."""
        flow, near = self.flow, set[int]()
        for m in chain:
            self.done[m] = True
            for v in flow.reads[m]:
                self.left[v] -= 1
                near.update(flow.readers[v])
            for v in flow.makes[m]:
                near.update(flow.readers[v])
        edge = near
        for _ in range(NEAR):
            made = [v for m in edge for v in flow.makes[m]]
            edge = {r for v in made for r in flow.readers[v]} - near
            near |= edge
        return near
