"""Products of one row with the rows of matrices, on a GPU, whose matrices stream through shared
memory: a step of a language model is mostly these.

A block has a multiprocessor to itself. Each of its threads copies in the background what it will
multiply itself, so no thread waits for another; as much is on its way as shared memory holds. The
first copies begin before all else, also before earlier launches have ended (BeginEarly).

A row that is made here is made once, by all threads, and handed on in shared memory. A warp has
some results. Of a short row it has the row in registers, and takes its results one after the other;
a long row stays in shared memory, and the sums of all its results grow together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.expr import extent, loads
from tilewright.ir.target import Grid
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_lanes import vector_lanes
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.begin_early import BeginEarly
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_read import CacheRead
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

WARPS = (8, 4)  # of a block: as many as leave room for so many turns of copies
TURNS = 3
# Blocks of a multiprocessor: with two, half as much is on its way in each (slower on an H200).
RESIDENT: int = 1
LEFT = 8 * 1024  # bytes of shared memory that are left for other things than copies
SHARE = 64  # elements of a row that a lane has in registers, at most
MOST_RESULTS = 64  # of a warp
BEGINNING = 4  # results in whose time a block begins and ends
TOGETHER = 4  # results of a warp that are written out, or whose sums grow together, at most
BESIDE = 4  # vectors of each of them that are one turn


def copies_room(grid: Grid, left: int = LEFT) -> int:
    """Bytes of shared memory that a block has for copies which begin early."""
    return min(grid.block_shared, grid.shared // RESIDENT) - left


def schedule_streams(s: Scheduler) -> bool:
    """Takes products of one row, made here or given, with matrices that are inputs, and maps of
    the results, where copies are wanted that begin early."""
    grid = s.target.grid
    assert grid is not None
    if not s.choices.early or not grid.copies_in_background:
        return False
    stages = s.group.stages
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    products = [x for x in stages if x.is_reduce and any(extent(a) != 1 for a in x.axes)]
    if len(outs) != 1 or not products or any(x.ordered or len(x.raxes) > 1 for x in stages):
        return False
    rows = {_row_of(s, x) for x in products}
    row = rows.pop()
    if row is None or rows:
        return False
    made = any(x.name == row for x in stages)
    for x in stages:
        if x.is_map and x.name != row and x not in outs:
            s.do(ComputeInline(x.name))
    matrices = {x.name: _matrix(s, x.name, row) for x in products}
    if None in matrices.values():
        return False
    s.do(CacheRead(row, tuple(x.name for x in products), f"{row}_row"))
    making, row = [row] if made else [], f"{row}_row"
    host = outs[0].name
    while len(path := s.path(host)) > 1:
        s.do(Fuse(path[0].name, path[1].name, f"{host}.o{len(path)}"))
    sums = [x.name for x in stages if x.is_reduce and x not in products]
    depth, results = s.path(row)[-1].extent, path[0].extent
    if not isinstance(depth, int) or not isinstance(results, int) or results % max(WARPS):
        return False
    for x in products:
        s.do(CacheRead(str(matrices[x.name]), x.name, _copy(x.name)))
    given = _given(s, sums, making, depth)
    size = sum(s.nest.buffer(_copy(x.name)).dtype.bytes for x in products)
    alone = depth <= SHARE * grid.warp  # one result of a warp after the other
    fits = (w for w in WARPS if not alone or TURNS * w * depth * size <= copies_room(grid))
    warps = next(fits, WARPS[-1])
    count = _results_of_a_warp(grid, results // warps)
    beside = _beside(s, host, results) if count <= TOGETHER else []
    names = [*given, *sums, *making, row, *(x.name for x in products)]
    lanes = vector_lanes(s, names, *(s.path(x)[-1].var for x in names))
    if lanes == 1 or depth % (grid.warp * lanes):
        return False
    found = [x.name for x in products], sums, making, given, beside, row
    way = _Streams(s, grid, path[0].name, *found, lanes, count, warps)
    if alone:
        return way.one_by_one(depth, size)
    return not sums and not made and count <= TOGETHER and way.together(depth, size)


def _row_of(s: Scheduler, product: Stage) -> str | None:
    """What a product multiplies a matrix with, if it is one row: a map of the group, or an input.
    Maps of inputs that are only read in another order count as these."""
    found = [x for x in loads(product.value) if str(x.source) != product.name]
    moving = {a for a in product.axes if extent(a) != 1}
    rows = {str(x.source) for x in found if not moving & x.symbols()}
    if len(rows) != 1:
        return None
    (name,) = rows
    b = s.group.buffer(name)
    wide = [d for d in b.shape if d != 1]
    local = b.scope == "local" and any(x.name == name and x.is_map for x in s.group.stages)
    return name if len(wide) == 1 and (local or b.scope == "in") else None


def _matrix(s: Scheduler, product: str, row: str) -> str | None:
    """The input whose rows a product multiplies; each is read along the sum, once."""
    found = {x.source: x for x in loads(s.store(product).value) if x.source not in (product, row)}
    deep = s.path(product)[-1].var
    if len(found) != 1:
        return None
    (x,) = found.values()
    b = s.nest.buffer(str(x.source))
    along = len(x.index) == 2 and deep in D.symbols(x.index[-1])
    return b.name if b.scope == "in" and along else None


def _given(s: Scheduler, sums: list[str], making: list[str], depth: int) -> dict[str, list[str]]:
    """Copies of inputs as long as the row, of which it is made, with their readers: each is read
    once, before anything is done with it."""
    readers: dict[str, list[str]] = {}
    for x in (*sums, *making):
        last = s.path(x)[-1].var
        for r in store_reads(s.store(x)):
            b = s.nest.buffer(str(r.source))
            along = D.is_sym(r.index[-1]) and D.the_sym(r.index[-1]) is last if r.index else False
            if b.scope == "in" and along and b.shape[-1] == depth and b.size == depth:
                readers.setdefault(b.name, []).append(x)
    made: dict[str, list[str]] = {}
    for name, found in readers.items():
        if s.attempt(CacheRead(name, tuple(dict.fromkeys(found)), f"{name}_own")):
            made[f"{name}_own"] = found
    return made


def _beside(s: Scheduler, host: str, results: int) -> list[str]:
    """Copies of inputs of which each result reads one element: they are read before the sums, not
    after them."""
    made: list[str] = []
    for r in store_reads(s.store(host)):
        b = s.nest.buffer(str(r.source))
        into = f"{b.name}_beside"
        if b.scope == "in" and b.size == results and s.attempt(CacheRead(b.name, host, into)):
            made.append(into)
    return made


def _copy(product: str) -> str:
    return f"{product}w"


def _results_of_a_warp(grid: Grid, groups: int) -> int:
    """How many results each warp has, where so many are there for each warp of a block: few turns
    of all multiprocessors, of few blocks."""
    choices = [k for k in range(1, MOST_RESULTS + 1) if groups % k == 0]
    return min(choices, key=lambda k: -(-groups // (k * grid.multiprocessors)) * (k + BEGINNING))


@dataclass
class _Streams:
    s: Scheduler
    grid: Grid
    at: str
    products: list[str]
    sums: list[str]
    making: list[str]  # the stage that is the row, if it is made here
    given: dict[str, list[str]]  # copies of what it is made of, with their readers
    beside: list[str]  # copies of what the results are added to, say
    row: str
    lanes: int
    count: int  # results of a warp
    warps: int  # of a block

    def one_by_one(self, depth: int, size: int) -> bool:
        """A warp has the row in registers, and one result after the other: each is a turn."""
        s, at = self.s, self.at
        turn, warp = self._divide()
        ahead = self._ahead(self.warps * depth * size, self.count)
        if ahead == 0:
            return False
        for x in reversed(self.products):
            s.do(ComputeAt(x, warp))
        self._read_beside()
        for x in self.products:
            s.do(ComputeAt(_copy(x), turn))
        later = [x for x, of in self.given.items() if not set(of) & set(self.sums)]
        sooner = [x for x in self.given if x not in later]
        # All that the row is made of is read before the first sum of it.
        for x in (self.row, *self.making, *later, *reversed(self.sums), *sooner):
            s.do(ComputeAt(x, f"{at}.0.0"))
        for x in self.given:
            self._own_part(x)
        for x in self.sums:
            self._sum_of_all(x)
        for x in self.making:
            self._by_all(x)
        self._spread(s.path(self.row)[-1].name)
        for x in self.products:
            self._sum(x)
        self._in_registers(self.row)
        self._finish(turn, warp, ahead)
        return True

    def together(self, depth: int, size: int) -> bool:
        """The row is in shared memory, and the sums of all results of a warp grow together: some
        vectors of each of them are a turn."""
        s, at = self.s, self.at
        part_of = self.grid.warp * self.lanes
        taken = depth * s.nest.buffer(self.row).dtype.bytes
        vector = self.count * self.warps * part_of * size
        some = [k for k in (BESIDE, 2, 1) if depth // part_of % k == 0]
        enough = (k for k in some if (TURNS + 1) * k * vector + taken <= copies_room(self.grid))
        beside = next(enough, some[-1])
        ahead = self._ahead(beside * vector, depth // part_of // beside, taken)
        if ahead == 0 or len(self.products) > 1:
            return False
        mine, warp = self._divide()
        (x,) = self.products
        part = f"{x}p"
        s.do(ComputeAt(x, f"{at}.0.0"))
        self._read_beside()
        s.do(ComputeAt(self.row, f"{at}.0.0"))
        results, deep = (p.name for p in s.path(x)[-2:])
        of, own, lane = self._split(deep)
        s.do(Split(of, beside))
        s.do(RFactor(x, (own,), part))
        first = moved(results, f"{x}.init")
        for loop in (first, f"{part}.init.i0", moved(results, part), results):
            s.do(Split(loop, self.warps))
        turn, again = (moved(f"{of}.{k}", part) for k in (0, 1))
        rows = [moved(f"{results}.{k}", part) for k in (0, 1)]
        s.do(Reorder((turn, *rows)))
        s.do(ComputeAt(_copy(x), turn))
        for loop in (first, f"{part}.init.i0", moved(results, part), results):
            s.do(Unroll(f"{loop}.0"))
            s.do(Bind(f"{loop}.1", "thread.y"))
        s.do(Bind(f"{part}.init.i1", "thread.x"))
        self._bound(again, *(moved(y, part) for y in (own, lane)))
        s.do(Bind(own, "thread.x"))
        for buffer, axis in ((part, 0), (x, len(s.nest.buffer(x).shape) - 1)):
            self._own_results(buffer, axis)
        s.do(Unroll(mine))
        self._by_all(self.row)
        self._finish(turn, warp, ahead)
        return True

    # ---- parts

    def _divide(self) -> tuple[str, str]:
        """The results as blocks, turns and warps; one lane of a warp stores a result."""
        s, at = self.s, self.at
        s.do(Split(at, 1))
        s.do(Split(f"{at}.0", self.count * self.warps))
        s.do(Split(f"{at}.0.1", self.warps))
        return f"{at}.0.1.0", f"{at}.0.1.1"

    def _ahead(self, size: int, turns: int, taken: int = 0) -> int:
        """How many turns are copied ahead, each of so many bytes, where some are taken; 0: there is
        no room."""
        versions = (copies_room(self.grid) - taken) // size
        return max(0, min(turns if turns <= versions else versions - 1, MAX_AHEAD))

    def _split(self, loop: str) -> tuple[str, str, str]:
        """(turns, threads, lanes) of a loop along the row."""
        self.s.do(Split(loop, self.lanes))
        self.s.do(Split(f"{loop}.0", self.grid.warp))
        return f"{loop}.0.0", f"{loop}.0.1", f"{loop}.1"

    def _spread(self, loop: str) -> None:
        self._bound(*self._split(loop))

    def _bound(self, turns: str, own: str, lane: str) -> None:
        s = self.s
        s.do(Bind(own, "thread.x"))
        s.do(Unroll(turns))
        s.do(Vectorize(lane))

    def _sum(self, stage: str) -> None:
        """A part of a sum by every lane of a warp, then one of all lanes."""
        s, part = self.s, f"{stage}p"
        turns, own, lane = self._split(s.path(stage)[-1].name)
        s.do(RFactor(stage, (own,), part))
        axis = len(s.nest.buffer(part).shape) - 1
        s.do(Bind(f"{part}.init.i{axis}", "thread.x"))
        self._bound(*(moved(x, part) for x in (turns, own, lane)))
        s.do(Bind(own, "thread.x"))

    def _by_all(self, stage: str) -> None:
        """Something as long as the row, in shared memory, by all threads."""
        s = self.s
        turns, own, lane = self._split(s.path(stage)[-1].name)
        s.do(SetScope(stage, "shared"))
        s.do(Split(turns, self.warps))
        s.do(Bind(f"{turns}.1", "thread.y"))
        self._bound(f"{turns}.0", own, lane)

    def _own_part(self, stage: str) -> None:
        """Something as long as the row, of which each thread has its own part in registers."""
        s = self.s
        turns, own, lane = self._split(s.path(stage)[-1].name)
        s.do(Split(turns, self.warps))
        s.do(Bind(f"{turns}.1", "thread.y"))
        self._bound(f"{turns}.0", own, lane)
        self._in_registers(stage, self.warps)

    def _sum_of_all(self, stage: str) -> None:
        """A part of a sum by every thread, then one of all threads."""
        s, part = self.s, f"{stage}p"
        turns, own, lane = self._split(s.path(stage)[-1].name)
        s.do(Split(turns, self.warps))
        s.do(RFactor(stage, (f"{turns}.1", own), part))
        axis = len(s.nest.buffer(part).shape) - 1
        again = [moved(x, part) for x in (f"{turns}.0", f"{turns}.1", own, lane)]
        for y, x in ((f"{part}.init.i{axis - 1}", f"{part}.init.i{axis}"), (again[1], again[2])):
            s.do(Bind(y, "thread.y"))
            s.do(Bind(x, "thread.x"))
        s.do(Unroll(again[0]))
        s.do(Vectorize(again[3]))
        s.do(Bind(own, "thread.x"))
        s.do(Bind(f"{turns}.1", "thread.y"))

    def _read_beside(self) -> None:
        """All lanes of a warp have what its results need."""
        s = self.s
        for x in self.beside:
            s.do(ComputeAt(x, f"{self.at}.0.0"))
            loop = s.path(x)[-1].name
            s.do(Split(loop, self.warps))
            s.do(Unroll(f"{loop}.0"))
            s.do(Bind(f"{loop}.1", "thread.y"))
            self._own_results(x, len(s.nest.buffer(x).shape) - 1)

    def _own_results(self, buffer: str, axis: int) -> None:
        """Results laid out so that one axis is the warp: each has memory for its own only."""
        axes = [f"i{k}" for k in range(len(self.s.nest.buffer(buffer).shape))]
        c = axes[axis]
        places = [*axes[:axis], f"{c}//{self.warps}", f"{c}%{self.warps}", *axes[axis + 1 :]]
        self.s.do(Relayout(buffer, f"{', '.join(axes)} -> {', '.join(places)}"))

    def _in_registers(self, buffer: str, warps: int = 1) -> None:
        """Laid out so that axes are the lane and the warp, if each has another part: a thread has
        memory for its own only."""
        *axes, c = (f"i{k}" for k in range(len(self.s.nest.buffer(buffer).shape)))
        size = self.grid.warp * self.lanes
        places = [f"{c}//{size}", f"{c}//{self.lanes}%{self.grid.warp}", f"{c}%{self.lanes}"]
        if warps > 1:
            places[:1] = [f"{c}//{size * warps}", f"{c}//{size}%{warps}"]
        self.s.do(Relayout(buffer, f"{', '.join([*axes, c])} -> {', '.join([*axes, *places])}"))

    def _finish(self, turn: str, warp: str, ahead: int) -> None:
        s, at = self.s, self.at
        for x in self.products:
            rows, along = (p.name for p in s.path(_copy(x))[-2:])
            s.do(SetScope(_copy(x), "shared"))
            s.do(Split(rows, self.warps))
            s.do(Unroll(f"{rows}.0"))
            s.do(Bind(f"{rows}.1", "thread.y"))
            self._spread(along)
        s.do(Bind(f"{at}.1", "thread.x"))
        s.do(Bind(f"{at}.0.0", "block.x"))
        s.do(Bind(warp, "thread.y"))
        for x in self.products:
            s.do(Pipeline(turn, _copy(x), ahead, asynchronous=True))
        s.do(BeginEarly(turn))
        if self.beside and s.loops(turn)[0].extent == self.count:
            s.do(Unroll(turn))  # constant indices, so that what results need is registers
        s.do(Pragma(f"{at}.0.0", "resident", RESIDENT))
        s.do(Synchronise())
