"""What fusion decided about a graph, before clusters are put into an order; also of equal regions.

Which nodes are one kernel depends on what is near them, so it is decided for a few of several equal
regions and written out for the others (`ir/repeated.py`). The order in which clusters run depends
on the whole graph: `assembled` finds it for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.events import Log
from tilewright.graph.batches import in_batches
from tilewright.graph.classify import facts
from tilewright.graph.cluster import Cluster, Fused, Refusal
from tilewright.graph.order import few_live_bytes
from tilewright.graph.siblings import sums_first
from tilewright.graph.totals import totals_last
from tilewright.ir.node import Graph, Node
from tilewright.ir.repeated import REACH, Lengthened, Run, Shortened
from tilewright.ir.target import Target


@dataclass(frozen=True, eq=False)
class Cut:
    """A cluster whose nodes are in no order yet, and the node that it began with."""

    first: Node
    cluster: Cluster


@dataclass(frozen=True, eq=False)
class Cuts:
    """Clusters and refusals in no order. `aliases` as in `Fused`."""

    graph: Graph
    cuts: tuple[Cut, ...]
    refusals: tuple[Refusal, ...]  # without the user's places
    aliases: Mapping[Node, Node]


def assembled(found: Cuts, target: Target, log: Log) -> Fused:
    """The clusters in the order in which they run."""
    graph = found.graph
    position = {n: k for k, n in enumerate(graph.nodes())}
    ordered = [_in_order(c.cluster, position, target) for c in _producers_first(found, position)]

    def place(r: Refusal) -> tuple[int, int]:
        return position[r.producer], position[r.consumer]

    refusals = tuple(
        replace(r, where=graph.place(r.consumer) or graph.place(r.producer))
        for r in sorted(found.refusals, key=place)
    )
    for r in refusals:
        log.add("fusion", str(r), where=r.where, criterion=r.criterion, detail=True)
    for c in ordered:
        where = next((w for n in (c.anchor, *c.nodes) if n and (w := graph.place(n))), None)
        log.add("fusion", str(c), where=where, detail=True)
    ordered = few_live_bytes(ordered, graph.outputs, found.aliases)
    return in_batches(Fused(graph, tuple(ordered), refusals, found.aliases), target)


def _in_order(c: Cluster, position: Mapping[Node, int], target: Target) -> Cluster:
    """The cluster with its nodes, inputs and outputs in the order of the graph."""
    place = position.__getitem__
    nodes, inputs, outputs = (sorted(x, key=place) for x in (c.nodes, c.inputs, c.outputs))
    if c.kind == "total" or (c.kind == "row" and target.grid is not None):
        nodes = totals_last(nodes, {n: facts(n) for n in nodes})
    elif c.kind == "column":
        read = {x: facts(x) for n in nodes for x in (n, *n.inputs)}
        nodes = sums_first(nodes, read)
    return replace(c, nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(outputs))


def _producers_first(found: Cuts, position: Mapping[Node, int]) -> list[Cut]:
    """In the order in which clusters began, but each after those that it reads."""
    cuts = sorted(found.cuts, key=lambda c: position[c.first])
    maker = {o: k for k, c in enumerate(cuts) for o in c.cluster.outputs}

    def read(k: int) -> Iterator[int]:
        bases = (found.aliases.get(x, x) for x in cuts[k].cluster.inputs)
        return iter(sorted({maker[x] for x in bases if x in maker} - {k}))

    done: dict[int, None] = {}
    for root in range(len(cuts)):
        stack = [] if root in done else [(root, read(root))]
        while stack:
            k, rest = stack[-1]
            waiting = next((p for p in rest if p not in done), None)
            if waiting is None:
                stack.pop()
                done[k] = None
            else:
                stack.append((waiting, read(waiting)))
    return [cuts[k] for k in done]


# ---- equal regions

Moved = Callable[[Node], Node]


def lengthened(short: Shortened, found: Cuts) -> Cuts | None:
    """What was decided about a short graph, for the whole one. None where it was decided otherwise
    in each of its equal regions than in the one before."""
    long = short.lengthened(found.graph)
    if long is None:
        return None
    run, at = long.run, long.run.row.at
    if any(_span(c.cluster, run) > REACH * run.period for c in found.cuts):
        return None
    last = [(max(at[n] for n in c.cluster.nodes), c) for c in found.cuts]
    cuts = _Decided(long, _moved_cut, last)
    refusals = _Decided(long, _moved_refusal, [(at[r.consumer], r) for r in found.refusals])
    aliases = _Decided(long, _moved_alias, [(at[a[0]], a) for a in found.aliases.items()])
    all_ = cuts, refusals, aliases
    for region in range(1, long.run.count):
        if all(x.repeats(region) for x in all_):
            made = [x.written_out(region) for x in all_]
            whole = Cuts(long.graph, tuple(made[0]), tuple(made[1]), dict(made[2]))
            return whole if _is_complete(whole) else None
    return None


def _span(c: Cluster, run: Run) -> int:
    """Over how many nodes of a row a cluster extends, without what regions share."""
    places = [k for n in c.nodes if (k := run.row.at[n]) >= run.start]
    return max(places) - min(places) if places else 0


def _is_complete(found: Cuts) -> bool:
    """Is every value that is read stored once?"""
    stored = Counter(o for c in found.cuts for o in c.cluster.outputs)
    read = [x for c in found.cuts for x in c.cluster.inputs]
    bases = {found.aliases.get(x, x) for x in (*read, *found.graph.outputs)}
    return max(stored.values()) == 1 and all(stored[x] for x in bases if x.inputs)


def _moved_cut(c: Cut, to: Moved) -> Cut:
    k = c.cluster
    nodes, inputs, outputs = (tuple(map(to, x)) for x in (k.nodes, k.inputs, k.outputs))
    anchor = None if k.anchor is None else to(k.anchor)
    roles = tuple((name, to(n)) for name, n in k.roles)
    return Cut(to(c.first), Cluster(nodes, inputs, outputs, k.kind, anchor, roles))


def _moved_refusal(r: Refusal, to: Moved) -> Refusal:
    return replace(r, producer=to(r.producer), consumer=to(r.consumer))


def _moved_alias(a: tuple[Node, Node], to: Moved) -> tuple[Node, Node]:
    return to(a[0]), to(a[1])


def _content(x: Cut | Refusal | tuple[Node, Node]) -> Any:
    """What two of them have in common that are equal."""
    if not isinstance(x, Cut):
        return x
    c = x.cluster
    parts = frozenset(c.nodes), frozenset(c.inputs), frozenset(c.outputs)
    return (x.first, *parts, c.kind, c.anchor, c.roles)


class _Decided:
    """Decisions about nodes of a short graph, each at a position of its row."""

    def __init__(
        self, long: Lengthened, moved: Callable[[Any, Moved], Any], placed: list[tuple[int, Any]]
    ) -> None:
        self.long, self.run, self.moved, self.placed = long, long.run, moved, placed

    def of_region(self, number: int) -> list[Any]:
        first = self.run.start + number * self.run.period
        return [x for at, x in self.placed if first <= at < first + self.run.period]

    def repeats(self, region: int) -> bool:
        """Is the same decided about a region as about the one before?"""
        before = [self.moved(x, self._next) for x in self.of_region(region - 1)]
        return Counter(map(_content, before)) == Counter(map(_content, self.of_region(region)))

    def written_out(self, region: int) -> list[Any]:
        """Each where it belongs; those about one region also for the regions that were left out."""
        run, more = self.run, self.long.more
        first = run.start + region * run.period
        out = [self.moved(x, self._by(0)) for at, x in self.placed if at < first]
        for further in range(0, more + 1, run.period):
            out += [self.moved(x, self._by(further)) for x in self.of_region(region)]
        last = [x for at, x in self.placed if at >= first + run.period]
        return out + [self.moved(x, self._by(more)) for x in last]

    def _by(self, further: int) -> Moved:
        """The node that stands for one of a region in one that is so many nodes behind it."""
        nodes, at, start = self.long.nodes, self.run.row.at, self.run.start

        def to(n: Node) -> Node:
            k = at[n]
            return nodes[k if k < start else k + further]

        return to

    def _next(self, n: Node) -> Node:
        """The same of the next region of the short graph. What regions share lies before all."""
        k = self.run.row.at[n]
        return n if k < self.run.start else self.run.row.nodes[k + self.run.period]
