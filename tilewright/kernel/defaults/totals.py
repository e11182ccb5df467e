"""Maps fused with reductions of all elements that they go through: pieces of one loop do both.

    parallel o in pieces:
      for k:
        lane l: y[o,k,l] = …
        lane l: p[l] += x[o,k,l]             # a partial result for each lane
      lane l: c[o] += p[l]                   # and for each piece
    for o: t += c[o]

A sum of floats is cut into the pieces that it would have without the map: it is rounded the same
way, whatever is fused with it and however many threads there are.
"""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.defaults.cascades import cut, pieces_of
from tilewright.kernel.defaults.cases import case_axes
from tilewright.kernel.defaults.maps import collapse, fuse_outer, schedule_alone, schedule_map
from tilewright.kernel.defaults.rows import inner_lanes, reduction_lanes
from tilewright.kernel.defaults.scheduler import (
    PIECE,
    PIECES,
    Scheduler,
    contiguous,
    lanes_for,
    store_reads,
    work_per_point,
)
from tilewright.kernel.dependence import rounds
from tilewright.kernel.group import Stage
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.join import Join
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize


def schedule_totals(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """False, and no step, where the stages are not of this kind."""
    totals = [x.name for x in inner if x.is_reduce]
    between = [x.name for x in inner if not x.is_reduce]
    maps = [x for x in outs if s.path(x.name)]
    names = [x.name for x in maps]
    known = all(isinstance(p.extent, int) for x in (*totals, *names) for p in s.path(x))
    whole = all(not s.store(x).index for x in totals)
    reads = {x.source for m in (*names, *between) for x in store_reads(s.store(m))}
    if not totals or not maps or not known or not whole or reads & set(totals):
        return False
    before = s.nest, list(s.trace)
    try:
        if _Shared(s, names, totals, between).run():
            return True
    except Refused:
        pass  # a shape that does not fit: each has loops of its own
    s.nest, s.trace[:] = before
    for x in between:
        schedule_alone(s, x)
    schedule_map(s, maps)
    for x in totals:
        reduction_lanes(s, x)
    return True


class _Shared:
    """The loops of a map that totals share, the outermost `depth` of them so far. `between` are
    maps that several stages read."""

    def __init__(
        self, s: Scheduler, maps: list[str], totals: list[str], between: list[str]
    ) -> None:
        self.s, self.maps, self.between = s, maps, between
        self.host, self.parts, self.depth = maps[0], totals, 0
        self.sums = any(rounds(s.store(x)) for x in totals)
        # Sums of floats have the lanes that they have alone.
        found = [lanes_for(s, x) for x in (totals if self.sums else [*maps, *totals])]
        self.lanes, self.alike = min(found), min(found) == max(found)

    def run(self) -> bool:
        s, host = self.s, self.host
        self._same_loops()
        # A sum is cut as it would be alone, where its loop is one. Maps of cases are unrolled.
        if (self.sums and not (self.alike and len(s.path(host)) == 1)) or case_axes(s, host):
            return False
        for m in self.maps[1:]:
            s.do(ComputeWith(m, s.path(host)[-1].name))
        points = _points(s.path(host))
        work = points * sum(work_per_point(s, x) for x in (*self.maps, *self.parts))
        while (pieces := self._pieces(work)) > 1:
            self._cut(pieces)
        top = s.path(host)[0]
        joined = [x for x in self.parts if self._lane_by_lane(x)]
        at = self._join(joined)
        self._compute_between(at)
        self._vectorize(at, joined)
        for x in self.parts:
            if x not in joined:
                reduction_lanes(s, x, self.lanes)
        return not self.depth or s.parallel(top.name, work // max(1, _points([top])))

    def _same_loops(self) -> None:
        """The loops of the maps, and the same ones of each total, as few as can be."""
        s, every = self.s, [*self.maps, *self.parts]
        if all(len(s.path(x)) == len(s.path(self.host)) for x in every):
            collapse(s, every)
        fewest = min(len(s.path(x)) for x in self.parts)
        fuse_outer(s, every, min(fewest, len(s.path(self.host)) - 1))

    def _pieces(self, work: int) -> int:
        """Into how many pieces the next loop is cut."""
        s = self.s
        loops = s.path(self.host)[self.depth :]
        extent = loops[0].extent
        if not isinstance(extent, int):
            return 1
        if not self.sums:  # threads share them
            most = PIECES * max(1, s.target.cores)
            return 1 if self.depth else min(extent, most, work // PIECE)
        return max(pieces_of(s, x, extent, self.lanes) for x in self.parts if self._rounds(x))

    def _rounds(self, x: str) -> bool:
        return rounds(self.s.store(x))

    def _cut(self, pieces: int) -> None:
        """The next loop is shared piece by piece: its totals become partial results."""
        s, depth, parts = self.s, self.depth, []
        alone = len(s.path(self.host)) == depth + 1
        extent = s.path(self.host)[depth].extent
        assert isinstance(extent, int)
        factor = cut(extent, pieces, self.lanes if alone else 1)
        for x in (self.host, *self.parts):
            if factor > 1:
                s.do(Split(s.path(x)[depth].name, factor))
        at = s.path(self.host)[depth].name
        for x in self.parts:
            loop = s.path(x)[depth].name
            s.do(RFactor(x, (loop,), f"{x}c"))
            mine = s.path(f"{x}c")[depth].name
            s.do(Join(at, mine) if depth else ComputeWith(f"{x}c", at))
            parts.append(f"{x}c")
        self.parts, self.depth = parts, depth + 1

    def _lane_by_lane(self, part: str) -> bool:
        """A partial result for each lane, where a total goes through the elements as the lanes of
        the host do: both can be one loop over vectors."""
        s = self.s
        own = s.path(part)
        longer = D.bounds(own[-1].extent)[1] > self.lanes
        alike = longer and len(own) == len(s.path(self.host))
        if not alike or not contiguous(s, s.store(part), own[-1].var):
            return False
        s.do(Split(own[-1].name, self.lanes))
        s.do(RFactor(part, (f"{own[-1].name}.1",), f"{part}p"))
        return True

    def _join(self, joined: list[str]) -> str:
        """One loop over vectors for all of them; its name, or the innermost one of longer ones."""
        s, host = self.s, self.host
        last = s.path(host)[-1]
        if D.bounds(last.extent)[1] > self.lanes:
            s.do(Split(last.name, self.lanes))
        for x in joined:
            for k in range(self.depth, len(s.path(host)) - 1):
                s.do(Join(s.path(host)[k].name, s.path(f"{x}p")[k].name))
        path = s.path(host)
        return path[max(0, len(path) - 2)].name

    def _compute_between(self, at: str) -> None:
        for x in reversed(self.between):
            self.s.do(ComputeAt(x, at))
        for x in self.between:
            inner_lanes(self.s, x, self.lanes)

    def _vectorize(self, at: str, joined: list[str]) -> None:
        s = self.s
        lanes = [s.path(self.host)[-1].name]
        for x in joined:
            width = len(s.nest.buffer(f"{x}p").shape) - 1
            lanes += [s.path(f"{x}p")[-1].name, s.path(x)[-1].name, f"{x}p.init.i{width}"]
        # The last piece is shorter; it goes first, for then the vectors of all others are whole.
        for loop in dict.fromkeys((s.path(self.host)[0].name, at)):
            s.attempt(Peel(loop))
        for loop in dict.fromkeys(lanes):
            if s.loops(loop):
                s.attempt(Vectorize(loop))


def _points(path: list[Loop]) -> int:
    return prod(p.extent for p in path if isinstance(p.extent, int))
