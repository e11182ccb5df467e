"""A layer put together from boxes, each by the cheapest program that is right there.

The boxes in which a mutant is wrong are its correction: there the layer's own operators compute, on
parts of their operands. Pieces are put together by `concat`, which the kernel layer joins with what
reads it; so all boxes are cut by planes through everything that is still whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.graph.pack import rebuild_knowing
from tilewright.ir.expr import extent
from tilewright.ir.interpret import Evaluator
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ir.positions import static
from tilewright.ir.target import Target
from tilewright.ops.views import concat
from tilewright.superopt.partial.layers import Box, Layer, layer_of, narrowed, part_of
from tilewright.superopt.partial.mutants import Mutant, rearranged, windowed
from tilewright.superopt.partial.regions import Region, agreement, sampled
from tilewright.superopt.partial.sums import sums_of
from tilewright.superopt.seconds import Seconds

# By the estimate, of what the layer takes: what is not clearly less is not worth measuring.
WORTH = 0.9
LOOKED_AT = 48  # mutants of a kind that are right somewhere, the cheapest by the estimate first
LEAST = 0.5  # of all positions at which one has to be right
CELLS = 8  # parts of an axis
ALL_CELLS = 100


@dataclass(frozen=True)
class Candidate:
    """A program equal to a layer, how it was made, and its seconds by the estimate. `boxes` are
    computed apart: more than one where a mutant is corrected."""

    how: str
    program: Node
    seconds: float
    boxes: int


def candidates(layer: Layer, target: Target, most: int = 4) -> tuple[Candidate, ...]:
    """Programs equal to a layer that may be faster, the cheapest by the estimate first."""
    cost = _Costs(layer, target)
    limit = WORTH * cost.whole(layer.root)

    def worth(found: Iterable[Mutant]) -> list[Mutant]:
        distinct = {m.program: m for m in found}.values()
        costs = {m: c for m in distinct if (c := cost.whole(m.program)) < limit}
        return sorted(costs, key=costs.__getitem__)

    narrow = _located(layer, worth(_some_windows(layer)), 0.0)
    wide = _located(layer, worth(rearranged(layer)), LEAST)
    covers = (
        _Cover(layer, [*narrow, *([main] if main else [])], cost).candidate()
        for main in (None, *wide)
    )
    made = sorted((c for c in covers if c and c.seconds < limit), key=lambda c: c.seconds)
    # The cheapest of each number of boxes, that of a single one in any case: what it costs to put
    # boxes together is only estimated.
    distinct = {c.boxes: c for c in reversed(made)}.values()
    chosen = sorted(distinct, key=lambda c: (c.boxes > 1, c.seconds))[:most]
    right = (c for c in chosen if _is_right(layer, c.program))
    return tuple(sorted(right, key=lambda c: c.seconds))


def _located(layer: Layer, found: list[Mutant], least: float) -> list[tuple[Mutant, Region]]:
    """Mutants that agree with the layer at more than a part of all positions, and where."""
    out: list[tuple[Mutant, Region]] = []
    for m in found:
        try:
            if least and sampled(layer.root, m.program) < least / 2:
                continue
            r = agreement(layer.root, m.program)
        except Unsupported:
            continue
        if r.part > least:
            out.append((m, r))
        if len(out) == LOOKED_AT:
            break
    return out


def _is_right(layer: Layer, program: Node) -> bool:
    """With other random numbers than those by which its parts were chosen."""
    try:
        return bool(agreement(layer.root, program, seed=1).agrees.all())
    except Unsupported:
        return False


def _some_windows(layer: Layer) -> Iterator[Mutant]:
    """Larger windows; and smaller ones where much of what is read is padding."""
    size = prod(layer.windows)
    much = live_part(layer) < WORTH
    for m in windowed(layer):
        assert m.windows is not None
        if much or prod(stop - start for start, stop in m.windows) > size:
            yield m


def live_part(layer: Layer) -> float:
    """Of the products of a layer, those under conditions that hold: others are 0."""
    try:
        (sums,) = sums_of((layer.root,))
        conditions = sums.conditions
    except Unsupported:
        return 1.0
    parts = [1.0]
    for c in conditions:
        symbols = sorted(c.symbols())
        sizes = static([extent(s) for s in symbols])
        if prod(sizes) <= 1 << 22:
            at = np.indices(sizes, sparse=True)
            env = {s.name: x for s, x in zip(symbols, at, strict=True)}
            parts.append(float(np.mean(np.broadcast_to(Evaluator({}, {}, env)(c), sizes))))
    return min(parts)


class _Costs:
    """Seconds by the estimate of the search."""

    def __init__(self, layer: Layer, target: Target) -> None:
        self.layer, self.target = layer, target
        self.shared = set(topological(layer.root.inputs))  # counted once, whatever reads it
        self._pieces: dict[tuple[object, ...], float] = {}

    def whole(self, program: Node) -> float:
        return sum(self._of(program).values())

    def piece(self, box: Box, windows: Box) -> float:
        """Of a part of the layer, without what is shared."""
        key = *(b - a for a, b in box), windows
        if key not in self._pieces:
            made = narrowed(self.layer.root, box, windows)
            found = {} if made is None else self._of(made)
            own = sum(c for n, c in found.items() if n not in self.shared)
            self._pieces[key] = own if made is not None else float("inf")
        return self._pieces[key]

    def _of(self, program: Node) -> dict[Node, float]:
        nodes = topological((program,))
        known: set[Node] = set()
        for n in nodes:
            weight = isinstance(n.op, Input) and n.op.role == "weight"
            if weight or (n.inputs and known.issuperset(n.inputs)):
                known.add(n)
        cost = Seconds(self.target, known)
        return {n: cost(n) for n in nodes}


@dataclass(frozen=True)
class _Plan:
    """A program for a box, or plans beside each other along an axis."""

    cost: float
    box: Box = ()
    program: int = 0
    axis: int = 0
    parts: tuple[_Plan, ...] = ()

    def leaves(self) -> Iterator[_Plan]:
        if self.parts:
            for p in self.parts:
                yield from p.leaves()
        else:
            yield self


class _Cover:
    """The cheapest way to cut a layer's result and to compute each box."""

    def __init__(
        self, layer: Layer, programs: Sequence[tuple[Mutant, Region]], cost: _Costs
    ) -> None:
        self.layer, self.cost = layer, cost
        whole = tuple((0, n) for n in layer.windows)
        self.mutants = [Mutant("the layer itself", layer.root, whole), *(m for m, _ in programs)]
        regions = [r for _, r in programs]
        self.cuts = [
            sorted({0, n}.union(*(r.cuts(k) for r in regions))) for k, n in enumerate(layer.shape)
        ]
        counts = [len(c) - 1 for c in self.cuts]
        self.small = max(counts) <= CELLS and prod(counts) <= ALL_CELLS
        self.right = [np.ones(counts, bool)]  # in which cells each program is
        for r in regions if self.small else ():
            cells = product(*(list(pairwise(c)) for c in self.cuts))
            self.right.append(np.array([r.everywhere(c) for c in cells]).reshape(counts))
        self._known: dict[Box, _Plan] = {}

    def candidate(self) -> Candidate | None:
        if not self.small:
            return None
        plan = self._best(tuple((0, len(c) - 1) for c in self.cuts))
        used = sorted({p.program for p in plan.leaves()}, reverse=True)
        made = self._built(plan)
        if used == [0] or made is None:
            return None
        how = ", beside ".join(self.mutants[k].how for k in used)
        return Candidate(how, made, self.cost.whole(made), sum(1 for _ in plan.leaves()))

    def _best(self, cells: Box) -> _Plan:
        """For a box of cells: all by one program that is right in all of them, or cut in two."""
        if cells in self._known:
            return self._known[cells]
        box = tuple((c[a], c[b]) for c, (a, b) in zip(self.cuts, cells, strict=True))
        inside = tuple(slice(a, b) for a, b in cells)
        found = [
            _Plan(0.0 if m.windows is None else self.cost.piece(box, m.windows), box, k)
            for k, (m, right) in enumerate(zip(self.mutants, self.right, strict=True))
            if right[inside].all()
        ]
        for axis, (a, b) in enumerate(cells):
            for cut in range(a + 1, b):
                parts = tuple(
                    self._best((*cells[:axis], side, *cells[axis + 1 :]))
                    for side in ((a, cut), (cut, b))
                )
                found.append(_Plan(sum(p.cost for p in parts), box, axis=axis, parts=parts))
        best = self._known[cells] = min(found, key=lambda p: p.cost)
        return best

    def _built(self, p: _Plan) -> Node | None:
        if not p.parts:
            m = self.mutants[p.program]
            if m.windows is None:
                return part_of(m.program, p.box)
            return narrowed(self.layer.root, p.box, m.windows)
        parts = list(p.parts)
        while any(x.parts and x.axis == p.axis for x in parts):  # one concat for cuts of one axis
            parts = [y for x in parts for y in (x.parts if x.axis == p.axis and x.parts else (x,))]
        built = [self._built(x) for x in parts]
        known = [x for x in built if x is not None]
        return concat(known, p.axis) if len(known) == len(built) else None


def layers_of(graph: Graph, target: Target) -> dict[Layer, float]:
    """The distinct layers of a graph and their seconds by the estimate, the longest first."""
    seconds: dict[Layer, float] = {}

    def look(n: Node, constant: set[Node]) -> Node:
        found = layer_of(n, constant)
        if found is not None:
            layer = found[0]
            seconds[layer] = seconds.get(layer, 0.0) + _Costs(layer, target).whole(layer.root)
        return n

    rebuild_knowing(graph, look)
    return dict(sorted(seconds.items(), key=lambda x: -x[1]))
