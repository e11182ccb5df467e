"""Equal regions of a graph that follow each other, such as the layers of a transformer.

What a pass makes of one region depends on the region and on what is near it, so it makes the same
of all but the first and the last few. `by_regions` therefore hands on a graph with `KEPT` regions
of each run of equal ones, and writes the result out for all of them:

    x0 → A → A → A → A → A → A → A → y      a run of seven
    x0 → A → A → A → A → A → y              what is rewritten, `short`
    x0 → B → C → C → C → D → y              what became of it
    x0 → B → C → C → C → C → C → D → y      the same, written out

Regions are found by structure: nodes in an order in which layers follow each other, of equal
operators and types, whose operands are of the same region, at the same place in one before it, or
the same for all. Inputs (weights, say) are where regions differ: each place has one per region.
The result is written out only if it has equal regions too, at least `LEAST`, which have the inputs
of one region after the other. Otherwise the graph is rewritten as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.ir.node import Constant, Graph, Input, Node, Place, node, topological

HEAD = 2  # regions that are kept before those that are left out …
KEPT = 5  # … and in all
LEAST = 3  # equal regions of a result: two in a row do not tell that a third one follows
REACH = 2  # an operand lies in its region, or so many before it, at most
PERIODS = 6  # distances between equal nodes that are tried, the most frequent ones
FEW = 64  # nodes of a graph that is small enough as it is

Kinds = np.ndarray


@dataclass(frozen=True, eq=False)
class Row:
    """The nodes of a graph in an order in which layers follow each other."""

    nodes: tuple[Node, ...]
    at: Mapping[Node, int]
    reads: np.ndarray  # positions of operands, node after node
    first: np.ndarray  # where those of a node begin

    @staticmethod
    def of(graph: Graph) -> Row:
        nodes = _layered(graph.outputs)
        at = {n: k for k, n in enumerate(nodes)}
        counts = np.fromiter((len(n.inputs) for n in nodes), np.int64, len(nodes))
        first = np.concatenate([[0], np.cumsum(counts)])
        reads = np.fromiter((at[x] for n in nodes for x in n.inputs), np.int64, int(first[-1]))
        return Row(nodes, at, reads, first)


def _layered(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Operands first. What depends on the input from which the longest path begins is ordered by
    its distance from there; all else is just before it is needed. So a gradient of a weight stands
    beside those that were computed at the same time, and not behind all layers."""
    nodes = topological(outputs)
    number = {n: k for k, n in enumerate(nodes)}
    reads = [[number[x] for x in n.inputs] for n in nodes]
    height = [0] * len(nodes)
    for k in range(len(nodes) - 1, -1, -1):
        above = height[k] + 1
        for x in reads[k]:
            if height[x] < above:
                height[x] = above
    sources = [k for k, n in enumerate(nodes) if isinstance(n.op, Input)]
    if not sources:
        return tuple(nodes)
    depth = [-1] * len(nodes)
    depth[max(sources, key=height.__getitem__)] = 0
    for k, operands in enumerate(reads):
        for x in operands:
            if depth[x] >= depth[k] and depth[x] >= 0:
                depth[k] = depth[x] + 1
    deep = sorted((k for k, d in enumerate(depth) if d >= 0), key=depth.__getitem__)
    out: list[Node] = []
    done = [False] * len(nodes)
    for root in (*deep, *range(len(nodes))):
        stack = [root]
        while stack:
            k = stack[-1]
            missing = [] if done[k] else [x for x in reversed(reads[k]) if not done[x]]
            stack += missing
            if not missing:
                stack.pop()
                if not done[k]:
                    done[k] = True
                    out.append(nodes[k])
    return tuple(out)


@dataclass(frozen=True, eq=False)
class Run:
    """`count` equal regions of `period` nodes each, from position `start` of a row on."""

    row: Row
    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count * self.period

    @cached_property
    def operands(self) -> list[list[tuple[int, bool]]]:
        """Of each node of the first region: positions of its operands, and whether those of later
        regions are as far behind as the regions are. Others are the same for all."""
        row, p = self.row, self.period
        out: list[list[tuple[int, bool]]] = []
        for j in range(self.start, self.start + p):
            mine = row.reads[row.first[j] : row.first[j + 1]].tolist()
            next_ = row.reads[row.first[j + p] : row.first[j + p + 1]].tolist()
            out.append([(x, y != x) for x, y in zip(mine, next_, strict=True)])
        return out


def _longest(true: np.ndarray) -> tuple[int, int]:
    """(start, length) of the longest stretch of true values."""
    if true.all():
        return 0, len(true)
    ends = np.flatnonzero(~np.concatenate([[False], true, [False]]))
    gaps = np.diff(ends) - 1
    best = int(gaps.argmax())
    return int(ends[best]), int(gaps[best])


def _run(row: Row, kinds: Kinds, period: int, alike: np.ndarray | None = None) -> Run | None:
    """The longest run of regions of this many nodes: of equal kinds, with equal operands. `alike`
    says which nodes are more than of equal kinds with those a period behind them."""
    if not 0 < period <= len(kinds) // 2:
        return None
    same = kinds[period:] == kinds[:-period]
    a, length = _longest(same if alike is None else same & alike)
    # How far each operand moves from a region to the next one.
    here = row.reads[row.first[a] : row.first[a + length]]
    moved = row.reads[row.first[a + period] : row.first[a + period + length]] - here
    reader = np.repeat(np.arange(length), np.diff(row.first[a : a + length + 1]))
    fits = np.ones(length, bool)
    fits[reader[(moved != period) & (moved != 0)]] = False
    near = here >= a + reader - REACH * period
    fits[reader[(moved == period) & ~near]] = False
    start, length = _longest(fits)
    regions = length // period
    if regions == 0:
        return None
    inside = (reader >= start) & (reader < start + regions * period)
    ways = moved[inside].reshape(regions, -1)
    first, count = 0, regions
    if regions > 1 and ways.shape[1]:
        first, count = _longest((ways[1:] == ways[:-1]).all(1))
        count += 1
    found = Run(row, a + start + first * period, period, count + 1)
    return _apart(found)


def _apart(run: Run) -> Run | None:
    """Without the regions that something far behind the run reads, or that all regions read."""
    row, p = run.row, run.period
    later = row.reads[row.first[run.end] :]
    shared = [x for operands in run.operands for x, moves in operands if not moves]
    far = later[(later >= run.start) & (later < run.end - REACH * p)]
    last = max([run.start - 1, *far.tolist(), *shared])
    less = -(-(last + 1 - run.start) // p)
    return Run(row, run.start + less * p, p, run.count - less) if run.count - less > 1 else None


def is_given(n: Node) -> bool:
    """Is it something that differs from region to region without being another operation?"""
    return isinstance(n.op, Input) or (isinstance(n.op, Constant) and n.op.passed)


def _numbered(keys: Iterator[Any], count: int) -> Kinds:
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(k, len(numbers)) for k in keys), np.int64, count)


def _kinds(row: Row, graph: Graph, given: Callable[[Node], Any]) -> Kinds:
    """Numbers that are equal for nodes that do the same with their operands."""
    results = Counter(graph.outputs)

    def key(n: Node) -> Any:
        if is_given(n):
            return (given(n), results[n])
        return (type(n.op), n.op, len(n.inputs), n.type, results[n])

    return _numbered(map(key, row.nodes), len(row.nodes))


def find(graph: Graph) -> Run | None:
    """The run by which a graph can be shortened most; None where there is none."""
    row = Row.of(graph)
    if len(row.nodes) <= FEW:
        return None
    kinds = _kinds(row, graph, lambda n: (n.type, getattr(n.op, "role", "")))
    by_kind = np.argsort(kinds, kind="stable")
    gaps = np.diff(by_kind)[np.diff(kinds[by_kind]) == 0]
    most = Counter(gaps.tolist()).most_common(PERIODS)
    best: Run | None = None
    saved = 0
    for period, times in most:
        if times < KEPT:
            break
        found = _run(row, kinds, period)
        if found is None or found.count < KEPT + REACH:
            continue
        nodes = row.nodes[found.start : found.start + period]
        less = (found.count - KEPT) * period
        if less > saved and any(map(is_given, nodes)):
            best, saved = found, less
    return best


@dataclass(frozen=True, eq=False)
class Shortened:
    """A graph without some of the equal regions of a run."""

    whole: Graph
    run: Run

    @property
    def left_out(self) -> int:
        return self.run.count - KEPT

    @cached_property
    def graph(self) -> Graph:
        run, row, whole = self.run, self.run.row, self.whole
        less = self.left_out * run.period
        begin = run.start + HEAD * run.period
        end = begin + less
        new: dict[Node, Node] = {}
        places = {n: where for n, where in whole.places.items() if row.at.get(n, end) < begin}

        def kept(x: Node) -> Node:
            at = row.at[x]
            return x if at < begin else row.nodes[at - less] if at < end else new[x]

        for n in row.nodes[end:]:
            new[n] = node(n.op, *map(kept, n.inputs)) if n.inputs else n
            if n in whole.places:
                places[new[n]] = places.get(new[n], frozenset()) | whole.places[n]
        gone = set(row.nodes[begin:end])
        return Graph(
            whole.name,
            tuple(x for x in whole.inputs if x not in gone),
            tuple(kept(o) for o in whole.outputs if o not in gone),
            places,
        )

    @cached_property
    def given(self) -> dict[int, list[Node]]:
        """Of each place of a region that has something given: that of every region."""
        run = self.run
        of = range(run.start, run.start + run.period)
        places = [j for j in of if is_given(run.row.nodes[j])]
        return {
            j - run.start: [run.row.nodes[j + i * run.period] for i in range(run.count)]
            for j in places
        }

    @property
    def others(self) -> int:
        """Nodes that are in no region of the run."""
        return len(self.run.row.nodes) - self.run.count * self.run.period

    @cached_property
    def slots(self) -> dict[Node, tuple[int, int]]:
        """Of what is given to kept regions: its place, and the region's number among those."""
        gone = range(HEAD, HEAD + self.left_out)
        return {
            x: (place, i if i < HEAD else i - self.left_out)
            for place, nodes in self.given.items()
            for i, x in enumerate(nodes)
            if i not in gone
        }

    def lengthened(self, made: Graph) -> Lengthened | None:
        """What was made of the short graph, written out for the whole one. None where it has no
        equal regions that follow each other as those of the short graph do."""
        row = Row.of(made)
        slots = self.slots
        kinds = _kinds(row, made, lambda n: slots[n][0] if n in slots else n)
        region = np.fromiter((slots.get(n, (0, -1))[1] for n in row.nodes), np.int64)
        at = {slots[n]: k for k, n in enumerate(row.nodes) if n in slots}
        gaps = Counter(at[p, i + 1] - k for (p, i), k in at.items() if (p, i + 1) in at)
        for period, _ in gaps.most_common(2):
            if not 0 < period <= len(kinds) // 2:
                continue
            next_one = (region[:-period] < 0) | (region[period:] == region[:-period] + 1)
            run = _run(row, kinds, period, next_one)
            if run is None or run.count < LEAST or not self._covers(run, region):
                continue
            found = Lengthened(self, made, run)
            if found.results is not None and found.is_complete:
                return found
        return None

    def _covers(self, run: Run, region: np.ndarray) -> bool:
        """Does what comes before the run belong to the first regions, and what follows to the
        last?"""
        before = region[: run.start]
        inside = region[run.start : run.start + run.period]
        after = region[run.end :]
        inside, after = inside[inside >= 0], after[after >= 0]
        if not len(inside) or inside.max() > HEAD or inside.min() + run.count < HEAD:
            return False
        return bool((before < HEAD).all() and (after >= HEAD).all())


@dataclass(frozen=True, eq=False)
class Lengthened:
    """A run of a result, written out. Positions are those of the result with all regions."""

    of: Shortened
    made: Graph
    run: Run

    @property
    def more(self) -> int:
        """Positions that are added."""
        return self.of.left_out * self.run.period

    @cached_property
    def nodes(self) -> list[Node]:
        run, row, of = self.run, self.run.row, self.of
        out = list(row.nodes[: run.start])
        for i in range(run.count + of.left_out):
            further = i * run.period
            for j, operands in enumerate(run.operands):
                n = row.nodes[run.start + j]
                if n in of.slots:
                    place, first = of.slots[n]
                    out.append(of.given[place][first + i])
                elif operands:
                    ins = (out[x + further] if moves else out[x] for x, moves in operands)
                    out.append(node(n.op, *ins))
                else:
                    out.append(n)
        for k in range(run.end, len(row.nodes)):
            n = row.nodes[k]
            reads = row.reads[row.first[k] : row.first[k + 1]].tolist()
            ins = (out[x if x < run.start else x + self.more] for x in reads)
            out.append(node(n.op, *ins) if reads else n)
        return out

    @cached_property
    def results(self) -> tuple[int, ...] | None:
        """Positions of the graph's outputs; None where those of regions do not follow each
        other."""
        of, run = self.of, self.run
        short, whole = of.run, of.whole
        kept = iter(self.made.outputs)
        begin = short.start + HEAD * short.period
        end = begin + of.left_out * short.period
        # The place and the region of each output, or the position of what made it otherwise.
        asked: list[tuple[int, int] | int] = []
        known: dict[tuple[int, int], set[int]] = {}
        for o in whole.outputs:
            at = short.row.at[o]
            inside = short.start <= at < short.end
            key = divmod(at - short.start, short.period)[::-1]
            if begin <= at < end:
                asked.append(key)
                continue
            position = run.row.at[next(kept)]
            if position >= run.end or (at >= end and position >= run.start):
                position += self.more
            asked.append(position)
            if inside:
                known.setdefault(key, set()).add(position)
        found: list[int] = []
        for x in asked:
            if isinstance(x, int):
                found.append(x)
                continue
            place, region = x
            before, after = known.get((place, HEAD - 1)), known.get((place, HEAD + of.left_out))
            if before is None or after is None or len(before) != 1 or len(after) != 1:
                return None
            (low,), (high,) = before, after
            if high - low != (of.left_out + 1) * run.period:
                return None
            found.append(low + (region - HEAD + 1) * run.period)
        lowest = run.start - REACH * run.period
        inserted = [p for p, x in zip(found, asked, strict=True) if not isinstance(x, int)]
        return tuple(found) if all(p >= lowest for p in inserted) else None

    @property
    def is_complete(self) -> bool:
        """Does the whole graph have all nodes of the written out one, and the types that it had?"""
        types = [o.type for o in self.of.whole.outputs]
        reached = set(self.graph.nodes())
        return [o.type for o in self.graph.outputs] == types and reached.issuperset(self.nodes)

    @cached_property
    def graph(self) -> Graph:
        assert self.results is not None
        whole = self.of.whole
        outputs = tuple(self.nodes[k] for k in self.results)
        return Graph(whole.name, whole.inputs, outputs, self._places())

    def _places(self) -> dict[Node, frozenset[Place]]:
        """The user's lines. Those of a region that was left out are the same as those of one that
        was rewritten, unless they are other lines of the program."""
        run, made, of = self.run, self.made, self.of
        out: dict[Node, frozenset[Place]] = {}

        def add(n: Node, where: frozenset[Place] | None) -> None:
            if where:
                out[n] = out.get(n, frozenset()) | where

        first = self.first_region
        seam = run.start + (HEAD - first) * run.period
        for k, n in enumerate(run.row.nodes):
            add(self.nodes[k if k < seam else k + self.more], made.places.get(n))
        middle = run.count // 2
        lines = _Lines(of, first + middle)
        for j in range(run.period):
            where = made.places.get(run.row.nodes[run.start + middle * run.period + j])
            if where:
                for i in range(HEAD - first, HEAD - first + of.left_out):
                    n = self.nodes[run.start + j + i * run.period]
                    add(n, lines.moved(where, first + i))
        return out

    @cached_property
    def first_region(self) -> int:
        """The region of the whole graph of which the first one of the run has what is given."""
        nodes = self.run.row.nodes[self.run.start : self.run.start + self.run.period]
        return min(self.of.slots[n][1] for n in nodes if n in self.of.slots)


class _Lines:
    """Which lines of other regions stand where a region of the short graph has some line. A region
    of a result may have something of its neighbours, so these are looked at too."""

    def __init__(self, of: Shortened, known: int) -> None:
        self.run, self.places = of.run, of.whole.places
        self.known = known if known < HEAD else known + of.left_out
        nodes = self.run.row.nodes[self.run.start : self.run.end]
        found = [self.places.get(n) for n in nodes]
        self.same = found[self.run.period :] == found[: -self.run.period]
        self.tables: dict[int, dict[Place, frozenset[Place]]] = {}

    def moved(self, where: frozenset[Place], region: int) -> frozenset[Place]:
        """Lines of the known region, as those of another one."""
        if self.same or region == self.known:
            return where
        if region not in self.tables:
            self.tables[region] = self._table((region - self.known) * self.run.period)
        table = self.tables[region]
        return frozenset[Place]().union(*(table.get(x, {x}) for x in where))

    def _table(self, further: int) -> dict[Place, frozenset[Place]]:
        run, places = self.run, self.places
        first = run.start + (self.known - 1) * run.period
        out: dict[Place, frozenset[Place]] = {}
        for k in range(max(first, run.start), min(first + 3 * run.period, run.end)):
            if run.start <= k + further < run.end:
                theirs = places.get(run.row.nodes[k + further], frozenset())
                for x in places.get(run.row.nodes[k], ()):
                    out[x] = out.get(x, frozenset()) | theirs
        return out


def shortened(graph: Graph) -> Shortened | None:
    """The graph without most of its equal regions; None where it has none."""
    run = find(graph)
    return None if run is None else Shortened(graph, run)


def _all(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    return change(graph)


def by_regions(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """`change(graph)`, where each of several equal regions becomes the same: made of a graph with
    a few of them, and written out."""
    short = shortened(graph)
    if short is None:
        return change(graph)
    again = short.others > FEW  # there may be another run
    found = short.lengthened((by_regions if again else _all)(short.graph, change))
    return change(graph) if found is None else found.graph
