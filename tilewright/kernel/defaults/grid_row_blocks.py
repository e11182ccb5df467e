"""Products of few rows of a GPU with rows between them, in one launch, such as a step of attention.

A block has one row of everything. What its stages hand on is in shared memory; each of them is
divided among all threads: maps element by element, sums of a row in parts, products whose operand
lies along the sum by some threads each, products whose neighbouring results read neighbours by
vectors of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.row_blocks import block_threads
from tilewright.ir import dim as D
from tilewright.ir.expr import Load, extent, loads
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_lanes import vector_lanes
from tilewright.kernel.defaults.scheduler import Scheduler, cost, store_reads
from tilewright.kernel.group import Stage
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.begin_early import BeginEarly
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.pipeline import MAX_AHEAD, Pipeline
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

BESIDE = 16  # vectors of a thread that are on their way at a time
RESIDENT = 2  # blocks of a multiprocessor that there are registers for
# Where operands are copied early: bytes of shared memory for all else, and vectors of a thread that
# are one turn of the last product.
LEFT = 24 * 1024
EARLY_BESIDE = 4


def schedule_early_row_blocks(s: Scheduler) -> bool:
    """The same, where matrices are wanted that are copied to shared memory, and begin to be before
    earlier launches have ended."""
    grid = s.target.grid
    assert grid is not None
    possible = s.choices.early and grid.copies_in_background and grid.block_shared > LEFT
    return bool(possible) and schedule_row_blocks(s, grid.block_shared - LEFT)


def schedule_row_blocks(s: Scheduler, room: int = 0) -> bool:
    """Takes a group of maps and reductions along the last axis, at least two of which are products,
    with one result; all share their first axes. There is `room` in shared memory for copies."""
    assert s.target.grid is not None
    stages = s.group.stages
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    known = all(isinstance(extent(a), int) for x in stages for a in (*x.axes, *x.raxes))
    if len(outs) != 1 or not known or any(x.ordered or len(x.raxes) > 1 for x in stages):
        return False
    sums = [x for x in stages if x.is_reduce and x.axes]
    products = [x for x in sums if extent(x.axes[-1]) != 1]
    if len(products) < 2 or len(outs[0].axes) < 2:
        return False
    stored = _stored(s)
    kept = [x for x in stages if x in outs or x.name in stored]
    for x in stages:
        if x not in kept:
            s.do(ComputeInline(x.name))
    for x in products[:-1]:
        s.do(CacheWrite(x.name, _sums_of(x.name)))
    host, last = outs[0].name, products[-1].name
    while len(path := s.path(host)) > 2:
        s.do(Fuse(path[0].name, path[1].name, f"{host}.o{len(path)}"))
    row, column = path
    if not D.known_le(row.extent, s.target.grid.multiprocessors):
        return False
    lanes = vector_lanes(s, [last, host], s.path(last)[-2].var, column.var)
    by = block_threads(int(column.extent), lanes) if isinstance(column.extent, int) else None
    if by is None:
        return False
    s.do(Split(column.name, lanes))
    vectors, once = f"{column.name}.0.0", f"{column.name}.0.1"
    s.do(Split(f"{column.name}.0", 1))  # one thread stores a vector of results
    block = _Block(s, row.name, *by, room)
    if room:
        block.beside(host, lanes)
    s.do(ComputeAt(last, row.name if room else vectors))
    inner = [x for x in kept if x not in outs and x.name != last]
    first = _read_first(s, [x.name for x in inner if x not in products]) if room else {}
    placed: dict[str, str] = {}
    for x in reversed(inner):
        s.do(ComputeAt(x.name, row.name))
        if x in products:
            placed[x.name] = block.place(x.name)
        if x.name in first:  # before all that comes before this one
            s.do(ComputeAt(first[x.name], row.name))
            block.own_part(first[x.name])
    for x in inner:
        if x in products:
            block.product(x.name, placed[x.name])
        elif x.is_reduce:
            block.sum(x.name)
        else:
            block.spread(x.name)
        if x in products or not x.is_reduce:
            s.do(SetScope(x.name, "shared"))
    if room:
        block.weighted_early(last, lanes)
    else:
        block.weighted(last)
    s.do(Bind(once, "thread.y"))
    s.do(Vectorize(f"{column.name}.1"))
    s.do(Bind(vectors, "thread.x"))
    s.do(Bind(row.name, "block.x"))
    for turn, copy, ahead in block.copies:
        s.do(Pipeline(turn, copy, ahead, asynchronous=True))
        s.do(BeginEarly(turn))
    s.do(Pragma(row.name, "resident", 1 if block.copies else RESIDENT))
    s.do(Synchronise())
    return True


def _read_first(s: Scheduler, stages: list[str]) -> dict[str, str]:
    """By the first of the stages that read it along their rows: the copy of an input, which is read
    before anything that comes before them."""
    readers: dict[str, list[str]] = {}
    for x in stages:
        last = s.path(x)[-1].var
        for r in store_reads(s.store(x)):
            along = r.index and D.is_sym(r.index[-1]) and D.the_sym(r.index[-1]) is last
            b = s.nest.buffer(str(r.source))
            if along and b.scope == "in" and D.known_eq(b.size, s.path(x)[-1].extent):
                readers.setdefault(b.name, []).append(x)
    made: dict[str, str] = {}
    for name, found in readers.items():
        into = f"{name}_own"
        if found[0] not in made and s.attempt(CacheRead(name, tuple(dict.fromkeys(found)), into)):
            made[found[0]] = into
    return made


def _stored(s: Scheduler) -> set[str]:
    """Stages that are stored: reductions, and maps that would be computed again and again."""
    kept: set[str] = set()
    users: dict[str, set[str]] = {}  # of each stage: the stored ones that read it in the end
    by_name = {x.name: x for x in s.group.stages}
    for x in reversed(s.group.stages):
        found = users.get(x.name, set())
        reads = [by_name[u] for u in found]
        often = any(u.is_reduce and _points(u) >= 2 * _points(x) for u in reads)
        costly = len(reads) > 1 and cost(x.value) > 0
        long = bool(x.axes) and extent(x.axes[-1]) != 1 and not isinstance(x.value, Load)
        if x.is_reduce or (long and (often or costly)):
            kept.add(x.name)
        final = {x.name} if x.name in kept or not found else found
        for r in {str(r.source) for r in loads(x.value)}:
            if r in by_name and r != x.name:
                users.setdefault(r, set()).update(final)
    return kept


def _points(x: Stage) -> int:
    return prod(d for a in (*x.axes, *x.raxes) if isinstance(d := extent(a), int))


def _sums_of(stage: str) -> str:
    """What a thread has of a product before it is stored."""
    return f"{stage}s"


def _beside(count: D.Dim) -> int:
    return next(k for k in (BESIDE, 8, 4, 2, 1) if isinstance(count, int) and count % k == 0)


@dataclass
class _Block:
    """A block of `rows` times `across` threads, which has one iteration of a loop."""

    s: Scheduler
    at: str
    across: int
    rows: int
    room: int  # bytes of shared memory for copies that begin early
    copies: list[tuple[str, str, int]] = field(default_factory=list)  # loop, copy, turns ahead

    def own(self, stage: str) -> list[Loop]:
        """The loops of a stage inside the block's."""
        path = self.s.path(stage)
        inside = path[[p.name for p in path].index(self.at) + 1 :]
        return [p for p in inside if p.extent != 1]

    def along(self, stage: str) -> str:
        found = self.own(stage)
        if len(found) != 1:
            raise Refused(f"{stage} has other loops than one along the row")
        return found[0].name

    def split(self, loop: str) -> tuple[str, str, str]:
        """(turns, rows, across) of a loop that all threads share."""
        self.s.do(Split(loop, self.across))
        self.s.do(Split(f"{loop}.0", self.rows))
        return f"{loop}.0.0", f"{loop}.0.1", f"{loop}.1"

    def bind(self, turns: str, rows: str, across: str) -> None:
        s = self.s
        if s.loops(across):
            s.do(Bind(across, "thread.x"))
        if s.loops(rows):
            s.do(Bind(rows, "thread.y"))
        if s.loops(turns):
            s.do(Unroll(turns))

    def spread(self, stage: str) -> None:
        self.bind(*self.split(self.along(stage)))

    def beside(self, host: str, lanes: int) -> None:
        """What the results are made of besides, each thread for its own, is read first of all."""
        s, column = self.s, self.s.path(host)[-1]
        for r in store_reads(s.store(host)):
            b, into = s.nest.buffer(str(r.source)), f"{r.source}_beside"
            along = r.index and D.coefficient(r.index[-1], column.var) == 1
            if b.scope != "in" or not along or not s.attempt(CacheRead(b.name, host, into)):
                continue
            s.do(ComputeAt(into, self.at))
            loop, axis = self.along(into), len(s.nest.buffer(into).shape) - 1
            s.do(Split(loop, lanes))
            self.bind("", "", f"{loop}.0")
            s.do(Vectorize(f"{loop}.1"))
            self.lay_out(into, axis, f"i{axis}//{lanes}", f"i{axis}%{lanes}")

    def own_part(self, stage: str) -> None:
        """The same, where each thread has its part in registers."""
        self.spread(stage)
        axis = len(self.s.nest.buffer(stage).shape) - 1
        c, all_ = f"i{axis}", self.across * self.rows
        digits = f"{c}//{all_}", f"{c}//{self.across}%{self.rows}", f"{c}%{self.across}"
        self.lay_out(stage, axis, *digits)

    def sum(self, stage: str) -> None:
        """A partial result for every thread, then one of all threads."""
        turns, rows, across = self.split(self.along(stage))
        part = f"{stage}p"
        self.s.do(RFactor(stage, (rows, across), part))
        axes = len(self.s.nest.buffer(part).shape)
        self.bind("", f"{part}.init.i{axes - 2}", f"{part}.init.i{axes - 1}")
        self.bind(*(moved(x, part) for x in (turns, rows, across)))
        self.bind("", rows, across)

    # ---- a product whose operand lies along the sum: some threads for each result

    def place(self, stage: str) -> str:
        """Threads have some results at a time, each of which one of them stores. Returned: the loop
        along the results, which is split now."""
        s, result = self.s, self.along(stage)
        s.do(Split(result, 1))
        s.do(Split(f"{result}.0", self.rows))
        s.do(Split(f"{result}.0.0", _beside(s.loops(f"{result}.0.0")[0].extent)))
        s.do(ComputeAt(_sums_of(stage), f"{result}.0.0.0"))
        return result

    def product(self, stage: str, result: str) -> None:
        s, own = self.s, _sums_of(stage)
        mine, deep = [p for p in s.path(own) if p.extent != 1][-2:]
        lanes = vector_lanes(s, [own], deep.var)
        self.load(own, f"{result}.0.0.0", mine, lanes)
        s.do(Split(deep.name, lanes))
        s.do(Split(f"{deep.name}.0", self.across))
        across, part = f"{deep.name}.0.1", f"{own}p"
        s.do(RFactor(own, (across,), part))
        for loop, beside in (
            (moved(mine.name, f"{own}.init"), ""),
            (f"{part}.init.i0", f"{part}.init.i1"),
            (moved(mine.name, part), moved(across, part)),
            (mine.name, across),
        ):
            s.do(Split(loop, self.rows))
            self.bind(f"{loop}.0", f"{loop}.1", beside)
        self.bind(moved(f"{deep.name}.0.0", part), "", "")
        if lanes > 1:
            s.do(Vectorize(moved(f"{deep.name}.1", part)))
        self.bind(f"{result}.0.0.1", f"{result}.0.1", f"{result}.1")
        axis = len(s.nest.buffer(own).shape) - 1
        self.lay_out(own, axis, f"i{axis}//{self.rows}", f"i{axis}%{self.rows}")
        self.lay_out(part, 0, f"i0//{self.rows}", f"i0%{self.rows}")

    def load(self, own: str, at: str, result: Loop, lanes: int) -> None:
        """The vectors of a turn are read before any of them is used: all are on their way
        together."""
        s, into = self.s, f"{own}v"
        found = (r for r in store_reads(s.store(own)) if str(r.source) != own)
        matrix = next(r for r in found if any(result.var in D.symbols(i) for i in r.index))
        s.do(CacheRead(str(matrix.source), (own,), into))
        s.do(ComputeAt(into, at))
        rows, along = [p.name for p in s.path(into) if p.extent != 1][-2:]
        s.do(Split(along, lanes))
        s.do(Split(f"{along}.0", self.across))
        s.do(Split(rows, self.rows))
        self.bind(f"{rows}.0", f"{rows}.1", f"{along}.0.1")
        self.bind(f"{along}.0.0", "", "")
        if lanes > 1:
            s.do(Vectorize(f"{along}.1"))
        if self.copied(into, at, whole=True):
            return
        axis = len(s.nest.buffer(into).shape) - 1
        i, j = f"i{axis - 1}", f"i{axis}"
        turns = f"{j}//{self.across * lanes}", f"{j}//{lanes}%{self.across}", f"{j}%{lanes}"
        self.lay_out(into, axis - 1, f"{i}//{self.rows}", f"{i}%{self.rows}", *turns)

    def copied(self, buffer: str, at: str, whole: bool = False) -> bool:
        """Where there is room, an operand is copied to shared memory, and that begins before
        earlier launches have ended: a `whole` one, or as many turns as fit. A thread copies what it
        reads itself."""
        s, b, turns = self.s, self.s.nest.buffer(buffer), self.s.loops(at)[0].extent
        if not self.room or not isinstance(turns, int):
            return False
        size = prod((b.dtype.bytes, *(d for d in b.shape if isinstance(d, int))))
        versions = min(self.room // size, MAX_AHEAD)
        if versions < (turns if whole else 2):
            return False
        ahead = turns if versions >= turns else versions - 1
        self.room -= size * (ahead + (ahead < turns))
        s.do(SetScope(buffer, "shared"))
        self.copies.append((at, buffer, ahead))
        return True

    def lay_out(self, buffer: str, axis: int, *places: str) -> None:
        """Some axes so that the numbers of threads are axes of their own: each thread has memory
        for its own part only."""
        axes = [f"i{k}" for k in range(len(self.s.nest.buffer(buffer).shape))]
        gone = {x for p in places for x in axes if p.startswith((f"{x}/", f"{x}%"))}
        after = [x for x in axes[axis:] if x not in gone]
        named = f"{', '.join(axes)} -> {', '.join([*axes[:axis], *places, *after])}"
        self.s.do(Relayout(buffer, named))

    # ---- a product whose neighbouring results read neighbours

    def weighted(self, stage: str) -> None:
        """Threads share the steps of the sum, each for a vector of results."""
        s = self.s
        column, deep = (p.name for p in s.path(stage)[-2:])
        s.do(Split(deep, self.rows))
        own, part = f"{deep}.1", f"{stage}p"
        s.do(RFactor(stage, (own,), part))
        lane, turns, mine = (moved(x, part) for x in (column, f"{deep}.0", own))
        s.do(Reorder((turns, mine, lane)))
        count = s.loops(turns)[0].extent
        if count != (beside := _beside(count)):
            s.do(Split(turns, beside))
            turns = f"{turns}.1"
        width = len(s.nest.buffer(part).shape) - 1
        self.bind("", f"{part}.init.i{width}", "")
        self.bind(turns, mine, "")
        s.do(Vectorize(lane))
        s.do(Reorder((column, own)))
        self.bind(column, own, "")
        for first in (f"{part}.init.i{width - 1}", moved(column, f"{stage}.init")):
            s.do(Unroll(first))  # constant indices, so that all of them are registers

    def weighted_early(self, stage: str, lanes: int) -> None:
        """The same, where what the sum reads goes through shared memory."""
        s, part, into = self.s, f"{stage}p", f"{stage}v"
        column, deep = self.s.path(stage)[-2:]
        found = (r for r in store_reads(s.store(stage)) if str(r.source) != stage)
        matrix = next(r for r in found if any(column.var in D.symbols(i) for i in r.index))
        s.do(CacheRead(str(matrix.source), (stage,), into))
        s.do(Split(deep.name, self.rows))
        own, turns = f"{deep.name}.1", f"{deep.name}.0"
        beside = next(
            k for k in (EARLY_BESIDE, 2, 1) if D.known_eq(D.mod(s.loops(turns)[0].extent, k), 0)
        )
        s.do(Split(turns, beside))
        s.do(RFactor(stage, (own,), part))
        turn, again, mine = (moved(x, part) for x in (f"{turns}.0", f"{turns}.1", own))
        first, inner = moved(column.name, f"{stage}.init"), moved(column.name, part)
        for loop in (first, f"{part}.init.i0", inner, column.name):
            s.do(Split(loop, lanes))
        s.do(Reorder((turn, again, mine, f"{inner}.0", f"{inner}.1")))
        s.do(ComputeAt(into, turn))
        self.bind(f"{first}.1", "", f"{first}.0")
        self.bind(f"{part}.init.i0.1", f"{part}.init.i1", f"{part}.init.i0.0")
        self.bind(again, mine, f"{inner}.0")
        s.do(Vectorize(f"{inner}.1"))
        self.bind(f"{column.name}.1", own, f"{column.name}.0")
        axis = len(s.nest.buffer(stage).shape) - 1
        self.lay_out(stage, axis, f"i{axis}//{lanes}", f"i{axis}%{lanes}")
        self.lay_out(part, 0, f"i0//{lanes}", f"i0%{lanes}")
        rows, along = (p.name for p in s.path(into)[-2:])
        s.do(Split(along, lanes))
        s.do(Split(rows, self.rows))
        self.bind(f"{rows}.0", f"{rows}.1", f"{along}.0")
        s.do(Vectorize(f"{along}.1"))
        if not self.copied(into, turn):
            raise Refused(f"there is no room for copies of {matrix.source}")
