"""Reductions of an axis before a short one, such as the sum of x[3,100000,3] over its middle axis.

The reduced and the short axis are one walk through memory, so lanes run along both. There are as
many partial results as make the pattern of columns come out even with the vectors:

    parallel o in rows * pieces:             # few rows: pieces of the reduced axis are shared too
      for k:
        for l.0 in 3: lane l.1 in 16: p[l] += x[48*k+l]   # l = 3*phase+column; in registers
      for phase in 16: for j in 3: c[o,j] += p[phase,j]
    for o, j: t[j] += c[o,j]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.defaults.cascades import (
    SHARED,
    can_fuse_reads,
    cascades,
    cut,
    fuse_reduced,
    pieces_of,
)
from tilewright.kernel.defaults.maps import schedule_alone
from tilewright.kernel.defaults.scheduler import (
    Scheduler,
    cost,
    lanes_for,
    vector_loop,
    work_per_point,
)
from tilewright.kernel.dependence import rounds
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Additions that wait for each other need about so many registers of partial results.
BUSY = 8
# A reduction is long enough when each partial result takes at least so many numbers.
LEAST = 4
# Where there are no more partial results than fill vectors, so many are enough.
FEWEST = 2
# More partial results than this make long code where they are put together.
MOST = 256


def schedule_short_columns(s: Scheduler, stage: str, host: str) -> bool:
    """False, and no step, where the reduction is not of this kind."""
    before = s.nest, list(s.trace)
    try:
        data, red = s.axes(stage)
        names = fuse_reduced(s, stage, red)
        phases = _phases(s, stage, names, data[-1].name)
        if phases > 1:
            _ShortColumns(s, stage, host, phases).run()
            return True
    except Refused:
        pass  # sums whose order is fixed, or a shape that does not fit
    s.nest, s.trace[:] = before
    return False


def _phases(s: Scheduler, stage: str, red: list[str], last: str) -> int:
    """How many neighbours along the reduced axis have partial results of their own; 1 where lanes
    over columns alone are better."""
    loops = {p.name: p for p in s.path(stage)}
    columns, reduced = loops[last], loops[red[-1]]
    width, store = columns.extent, s.store(stage)
    walk = len(red) == 1 and can_fuse_reads(s, store, reduced.var, columns.var)
    if not walk or not isinstance(width, int) or width == 1 or s.choices.lanes is not None:
        return 1
    one = s.target.lanes(max(32, min(64, s.nest.buffer(stage).dtype.bits)))
    phases = one // gcd(one, width)
    length = D.bounds(reduced.extent)[1]
    if length < FEWEST * phases:
        return 1
    while width * phases < one * (LEAST if cost(store.value) else BUSY):
        if length < 2 * LEAST * phases:
            break  # fewer partial results that wait for each other, rather than none
        phases *= 2
    lanes = lanes_for(s, stage)
    if (4 <= width <= lanes or width % lanes == 0) and not _idle_threads(s, stage, width // lanes):
        return 1  # lanes over columns alone are whole
    fits = width * phases < min(one * s.target.vector_registers, MOST)
    return phases if fits else 1


def _idle_threads(s: Scheduler, stage: str, vectors: int) -> bool:
    """Would most threads have no row? Of several vectors of columns, a few threads have some each,
    and one core may already be as fast as memory is; a single one leaves all but one idle."""
    rows = [p.extent for p in s.axes(stage)[0][:-1]]
    many = prod(e if isinstance(e, int) else 1 << 24 for e in rows)
    return 4 * many <= s.target.cores or many * max(1, vectors) == 1 < s.target.cores


@dataclass
class _ShortColumns:
    s: Scheduler
    stage: str
    host: str
    phases: int

    def run(self) -> None:
        s, host, stage = self.s, self.host, self.stage
        rows = [p.name for p in s.path(host)[:-1]]
        if not self._share_pieces():
            if rows:
                s.do(ComputeAt(stage, rows[-1]))
            work = self._work(stage)
            self._sums(stage)
            self._results(rows, work)
            return
        part = f"{stage}c"
        work = self._work(f"{stage}s")
        self._sums(f"{stage}s")
        self._columns_in_lanes(s.axes(part)[0][-1].name)
        self._parallel([p.name for p in s.path(part)][: len(rows) + 1], work, f"{part}.o")
        if rows:
            s.do(ComputeAt(stage, rows[-1]))
        work = self._work(stage)
        data, red = s.axes(stage)
        s.attempt(Reorder((red[0].name, data[-1].name)))
        self._columns_in_lanes(data[-1].name)
        self._results(rows, work)

    def _work(self, stage: str) -> int:
        """Simple operations of one result of every column."""
        data, red = self.s.axes(stage)
        width = data[-1].extent
        assert isinstance(width, int)
        points = prod(min(int(D.bounds(p.extent)[1]), 1 << 24) for p in red)
        return work_per_point(self.s, stage) * width * min(points, 1 << 24)

    def _share_pieces(self) -> bool:
        """Where rows are too few for the threads, they share pieces of the reduced axis."""
        s, stage = self.s, self.stage
        data, red = s.axes(stage)
        extents = [p.extent for p in (*data, *red)]
        known = [e for e in extents if isinstance(e, int)]
        if len(known) < len(extents):
            return False
        *rows, width, length = known
        if prod(rows) >= 4 * s.target.cores:
            return False
        if rounds(s.store(stage)):  # the same pieces as without threads
            pieces = pieces_of(s, stage, length, self.phases)
        else:
            pieces = length * width // SHARED
        if pieces < 2:
            return False
        outer = red[0].name
        size = cut(length, pieces, self.phases)
        s.do(Split(outer, size))
        s.do(RFactor(stage, (f"{outer}.0",), f"{stage}c"))
        axes = len(s.nest.buffer(f"{stage}c").shape)
        s.do(Permute(f"{stage}c", (*range(axes - 2), axes - 1, axes - 2)))
        *_, column, piece, walk = [p.name for p in s.path(f"{stage}c")]
        s.do(Reorder((piece, column)))
        # A stage of its own inside each piece, where the last one may be shorter.
        s.do(Split(walk, size))
        s.do(RFactor(f"{stage}c", (f"{walk}.0",), f"{stage}s"))
        s.do(ComputeAt(f"{stage}s", piece))
        return True

    def _sums(self, stage: str) -> None:
        """Lanes along the reduced axis and the columns, in sums of sums where they are long."""
        s = self.s
        for part in (inner := [stage, *cascades(s, stage, self.phases)])[:-1]:
            self._columns_in_lanes(s.axes(part)[0][-1].name)
        self._partial_results(inner[-1])

    def _partial_results(self, stage: str) -> None:
        """Partial results that stay in registers: whatever touches them is written out."""
        s, part = self.s, f"{stage}p"
        data, red = s.axes(stage)
        column, walk, width = data[-1].name, red[-1].name, data[-1].extent
        assert isinstance(width, int)
        s.do(Split(walk, self.phases))
        s.do(Reorder((f"{walk}.0", f"{walk}.1", column)))
        s.do(RFactor(stage, (f"{walk}.1",), part))
        s.do(Permute(part, (1, 0)))
        *_, over, phase, own = [p.name for p in s.path(part)]
        first = (f"{part}.init.i1", f"{part}.init.i0")
        s.do(Reorder(first))
        s.do(Fuse(*first, f"{part}.init.l"))
        s.do(Fuse(phase, own, f"{part}.l"))
        s.attempt(Peel(over))
        expensive = cost(s.store(part).value) > 0
        lanes = gcd(lanes_for(s, part), width * self.phases)
        for loop in (f"{part}.init.l", f"{part}.l"):
            many = vector_loop(s, loop, lanes)
            if many is not None and not expensive:
                s.attempt(Unroll(many))
        s.do(Reorder((f"{walk}.1", column)))
        several = column
        if (lanes := gcd(lanes, width)) >= 4:
            several = vector_loop(s, column, lanes)
        if not expensive:
            for loop in (f"{walk}.1", several):
                if loop is not None:
                    s.attempt(Unroll(loop))

    def _columns_in_lanes(self, loop: str) -> None:
        """Lanes over the columns themselves, where partial results are put together."""
        path = self.s.loops(loop)
        if path and isinstance(e := path[0].extent, int) and e >= 4:
            vector_loop(self.s, loop, 16)

    def _results(self, rows: list[str], work: int) -> None:
        s, host = self.s, self.host
        if not rows:
            schedule_alone(s, host)
            return
        self._columns_in_lanes(s.path(host)[-1].name)
        self._parallel(rows, work, f"{host}.o")

    def _parallel(self, loops: list[str], work: int, into: str) -> None:
        """Threads share what were several loops."""
        top = loops[0]
        for k, inner in enumerate(loops[1:]):
            if not self.s.attempt(Fuse(top, inner, f"{into}{k}")):
                break
            top = f"{into}{k}"
        self.s.parallel(top, work)
