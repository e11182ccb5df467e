"""Matrix products of a GPU by instructions of single warps.

A block has a tile of the results, each of its warps a part of that, in registers. Tiles of the
operands come to shared memory by asynchronous copies, some steps of the sum ahead, and from there
to registers as the instruction wants them. What is done to the results (a bias, an activation) is
done to the registers before they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, log2, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.target import Grid
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.fragments import LANES, WARP
from tilewright.kernel.group import Stage
from tilewright.kernel.guards import copied
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.complete import Complete
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.pad_sum import PadSum
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

Tiles = tuple[tuple[int, int, int, int], ...]
ROWS, COLUMNS, DEEP = 16, 8, 16  # of one instruction
VECTOR = 8  # elements of 16 bits in 16 bytes
SEVERAL = 2  # iterations that copies are ahead
MOST = 3  # the same of a block that has a multiprocessor for itself
ALONE = 8  # warps of such a block
# Are copies issued at the end of an iteration, while its last products go on? Without a branch, so
# that they stand between those?
LATE = True
ALWAYS = True
# Rows and columns of a block and of a warp, the preferred first: large tiles read less, small ones
# give every multiprocessor something to do.
TILES = (
    (128, 256, 64, 64),
    (128, 128, 64, 64),
    (128, 64, 64, 32),
    (64, 64, 32, 32),
    (64, 32, 32, 16),
    (32, 32, 16, 16),
    (16, 32, 16, 16),
    (16, 16, 16, 16),
)
DEPTHS = (64, 32, 16)
FEWEST = 8  # rows and columns
TYPICAL = 512  # rows that are not known before
UNUSED = 1.3  # times the places of results that a tile may take
NEIGHBOURS = 8  # tiles of rows that run at the same time, at most


@dataclass(frozen=True)
class Operand:
    """A buffer that is read at [..., row, k] or [..., k, row]: the positions of both. One that is
    gathered is a stage of the nest, which becomes the copy in shared memory; of others a copy is
    made. Where only threads can copy it, so many elements of the last axis are copied together."""

    buffer: str
    row: int
    deep: int
    rank: int
    gathered: bool = False
    lanes: int = 0

    @property
    def copy(self) -> str:
        """The stage that copies it to shared memory."""
        return self.buffer if self.gathered else f"{self.buffer}_s"


def source_of(s: Scheduler, x: Operand) -> str:
    """The argument that an operand is read from."""
    if not x.gathered:
        return x.buffer
    found = copied(s.store(x.buffer).value)
    assert found is not None
    return str(found.source)


def row_length(s: Scheduler, x: Operand) -> int:
    """Of the argument, as far as it is known: 1 where it is not."""
    last = s.nest.buffer(source_of(s, x)).shape[-1]
    return last if isinstance(last, int) else 1


@dataclass(frozen=True)
class Way:
    """How blocks get the tiles of operands that the copy engine brings, and results go.

    roles      a warp of its own asks for copies: it runs ahead as far as there is memory
    cluster    so many blocks share what the copy engine brings to all of them
    walks      as many blocks as run at a time walk over all tiles: copies of the next tile come
               while the results of one are stored (with roles)
    """

    roles: bool = False
    cluster: int = 1
    walks: bool = False


@dataclass(frozen=True)
class Tile:
    """Of a block and of a warp; `deep` elements of the sum at a time. Where the sum is taken apart,
    its parts and the steps of each."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    deep: int
    parts: int = 1
    steps: int = 1
    way: Way = Way()

    @property
    def warps(self) -> int:
        return self.rows // self.warp_rows * (self.columns // self.warp_columns)


def assumed(sizes: list[Dim]) -> list[int] | None:
    """Sizes with a number for batches and rows that are not known before; None where columns or
    the length of the sum are not."""
    if not all(isinstance(d, int) for d in sizes[-2:]):
        return None
    return [d if isinstance(d, int) else min(TYPICAL, D.bounds(d)[1]) for d in sizes]


def in_background(s: Scheduler, x: Operand) -> bool:
    """Are tiles of an operand copied by vectors as they lie in memory, while threads compute?"""
    item = s.nest.buffer(x.buffer).dtype.bytes
    return not x.gathered and not x.lanes and row_length(s, x) * item % (VECTOR * 2) == 0


def warp_tile(s: Scheduler, sizes: list[Dim], operands: tuple[Operand, Operand]) -> Tile | None:
    """Of the tiles that leave the fewest places unused, the first one that gives every
    multiprocessor a block; or the one with the most blocks. Where threads wait for their copies
    another block has to work meanwhile."""
    grid = s.target.grid
    assert grid is not None
    known = assumed(sizes)
    if known is None or min(known[-3:-1]) < FEWEST:
        return None
    rows, columns, deep = known[-3:]
    found: list[Tile] = []
    plain = all(in_background(s, x) for x in operands)
    for m, n, wm, wn in TILES:
        if not plain and m * n >= ALONE * wm * wn:
            continue
        for step in DEPTHS:
            bytes_ = (SEVERAL + 1) * (m + n) * step * 2
            fits = bytes_ <= grid.block_shared and m * step >= VECTOR * LANES
            if fits and (_waste(deep, step) <= UNUSED or step == DEPTHS[-1]):
                found.append(Tile(m, n, wm, wn, step, 1, -(-deep // step)))
                break
    places = {t: _waste(rows, t.rows) * _waste(columns, t.columns) for t in found}
    most = max(UNUSED, min(places.values(), default=1.0))
    found = [t for t in found if places[t] <= most]
    whole = [t for t in found if _blocks(t, known) >= grid.multiprocessors]
    return next(iter([*whole, *reversed(found)]), None)


def _waste(size: int, by: int) -> float:
    """How many times its places a size takes in whole tiles."""
    return -(-size // by) * by / size


def _blocks(t: Tile, known: list[int]) -> int:
    return prod(known[:-3]) * -(-known[-3] // t.rows) * -(-known[-2] // t.columns)


def ahead(t: Tile, grid: Grid) -> int:
    """Iterations that copies are ahead: as far as there is memory, if it is no other block's."""
    room = grid.block_shared // ((t.rows + t.columns) * t.deep * 2) - 1
    return min(MOST, room) if t.warps >= ALONE else SEVERAL


def neighbours(count: int) -> int:
    """Tiles of rows that run at the same time and read the same columns."""
    return max(k for k in range(1, NEIGHBOURS + 1) if count % k == 0)


@dataclass
class WarpProduct:
    s: Scheduler
    stage: Stage
    out: str
    a: Operand
    b: Operand
    tile: Tile
    instruction: str
    several: bool = False  # results: the loops of `out` store others too
    _rows = ""  # the loop over tiles of rows, where it is not one with that over columns

    def schedule(self) -> None:
        s, c, t = self.s, self.stage.name, self.tile
        shared = {x: x.copy for x in (self.a, self.b)}
        own = {x: f"{x.buffer}_f" for x in (self.a, self.b)}
        k = s.path(c)[-1].name
        self._operands(shared, k)
        for x in (self.a, self.b):
            s.do(CacheRead(shared[x], c, own[x]))
        rank = len(s.nest.buffer(c).shape)
        self._pad(c, rank - 2, t.rows)
        self._pad(c, rank - 1, t.columns)
        outer, tiles, inside = self._result_tiles(self.out, 2)
        block = self._ordered(self.out, *tiles)
        s.do(ComputeAt(c, block))
        depth = self._sum(c)
        for x in (self.b, self.a):
            s.do(ComputeAt(own[x], f"{depth}.1.0"))
        for x in (self.b, self.a):
            s.do(ComputeAt(shared[x], f"{depth}.0"))
            s.do(SetScope(shared[x], "shared"))
        self._blocks(outer, *([self._rows] if self._rows else []), block)
        s.do(Bind(f"{c}.w", "thread.z"))
        self._stored(*inside)
        first = [f"{c}.init.i{k}" for k in range(len(self.stage.axes))]
        s.do(Vectorize(self._spread(first[-2], first[-1], f"{c}.init.w")))
        for x in (self.a, self.b):
            self._copy(shared[x], x, LANES * self.tile.warps)
            self._registers(own[x], x, "a" if x is self.a else "b")
        self._results(c)
        for loop in (f"{depth}.1.0", *self._inner):
            s.do(Unroll(loop))
        s.do(Tensorize(self._tensor, self.instruction))
        assert s.target.grid is not None
        far, plain = ahead(t, s.target.grid), all(in_background(s, x) for x in (self.a, self.b))
        late, always = LATE and plain, ALWAYS and plain
        for x in (self.a, self.b):
            s.do(Pipeline(f"{depth}.0", shared[x], far, True, late=late, always=always))
        s.do(Synchronise())

    def _operands(self, shared: dict[Operand, str], k: str) -> None:
        """Copies of the operands, with zeros past their ends where tiles go beyond."""
        s, t = self.s, self.tile
        for x, size in ((self.a, t.rows), (self.b, t.columns)):
            if not x.gathered:
                s.do(CacheRead(x.buffer, self.stage.name, shared[x]))
            self._pad(shared[x], x.row, size, zeros=True)
            self._pad(shared[x], x.deep, t.deep * t.steps, zeros=True)
        extent = s.loops(k)[0].extent
        if not isinstance(extent, int) or extent % (t.deep * t.steps):
            s.do(PadSum(k, t.deep * t.steps))

    def _result_tiles(
        self, y: str, most: int
    ) -> tuple[list[str], tuple[str, str], tuple[str, str, str]]:
        """The loops over results: those around, two over tiles, and those inside one, the last of
        them lanes. Iterations past the ends are there and do nothing."""
        s, t = self.s, self.tile
        *outer, i, j = (p.name for p in s.path(y))
        last = s.loops(j)[0].extent
        assert isinstance(last, int)
        wide = gcd(most, last)
        s.do(Split(j, wide))
        j, lanes = f"{j}.0", f"{j}.1"
        s.do(Split(i, t.rows))
        s.do(Split(j, t.columns // wide))
        s.do(Reorder((*outer, f"{i}.0", f"{j}.0", f"{i}.1", f"{j}.1", lanes)))
        for loop, size in ((f"{j}.1", t.columns // wide), (f"{i}.1", t.rows)):
            if s.loops(loop)[0].extent != size:
                s.do(Complete(loop, size))
        if s.loops(f"{i}.1.there"):
            s.do(Reorder((f"{i}.1", f"{j}.1", f"{i}.1.there")))
        return outer, (f"{i}.0", f"{j}.0"), (f"{i}.1", f"{j}.1", lanes)

    def _stored(self, i: str, j: str, lanes: str) -> None:
        """Each thread stores its own results, two at a time where pairs are aligned."""
        s, t = self.s, self.tile
        wide = s.loops(lanes)[0].extent
        assert isinstance(wide, int)
        s.do(Split(i, t.warp_rows))
        s.do(Split(f"{i}.1", 8))
        s.do(Split(f"{i}.1.0", 2))
        s.do(Split(j, t.warp_columns // wide))
        s.do(Split(f"{j}.1", 8 // wide))
        s.do(Split(f"{j}.1.1", 2 // wide))
        turns = (f"{i}.1.0.0", f"{j}.1.0", f"{i}.1.0.1")
        threads = (f"{i}.1.1", f"{j}.1.1.0", f"{j}.1.1.1")
        s.do(Reorder((f"{i}.0", f"{j}.0", *turns, *threads)))
        s.do(Fuse(f"{i}.0", f"{j}.0", f"{self.out}.w"))
        s.do(Bind(f"{self.out}.w", "thread.z"))
        s.do(Bind(f"{i}.1.1", "thread.y"))
        s.do(Bind(f"{j}.1.1.0", "thread.x"))
        for loop in (*turns, f"{j}.1.1.1"):
            s.do(Unroll(loop))
        s.do(Vectorize(lanes))

    def _pad(self, stage: str, axis: int, size: int, zeros: bool = False) -> None:
        d = self.s.nest.buffer(stage).shape[axis]
        # Where nothing is read past an end, no condition is needed.
        plain = not zeros and Pad(stage, axis, size)
        if (not isinstance(d, int) or d % size) and not (plain and self.s.attempt(plain)):
            self.s.do(Pad(stage, axis, size, zeros=True))

    def _sum(self, c: str) -> str:
        """The loops of the sum: steps, warps, steps of an instruction, instructions."""
        s, t = self.s, self.tile
        i, j, k = (p.name for p in s.path(c)[-3:])
        s.do(Split(k, t.deep))
        s.do(Split(f"{k}.1", DEEP))
        for loop, warp, one in ((i, t.warp_rows, ROWS), (j, t.warp_columns, COLUMNS)):
            s.do(Split(loop, warp))
            s.do(Split(f"{loop}.1", one))
        self._inner = (f"{i}.1.0", f"{j}.1.0")
        self._tensor = f"{i}.1.1"
        last = (f"{i}.1.1", f"{j}.1.1", f"{k}.1.1")
        s.do(Reorder((f"{k}.0", f"{i}.0", f"{j}.0", f"{k}.1.0", *self._inner, *last)))
        s.do(Fuse(f"{i}.0", f"{j}.0", f"{c}.w"))
        return k

    def _ordered(self, y: str, i: str, j: str) -> str:
        """Blocks in an order in which those at work at a time read few rows and columns. How many
        there are of rows that are not known before stays a loop of its own."""
        s = self.s
        count = s.loops(i)[0].extent
        if not isinstance(count, int):
            self._rows, self._beside = i, 1
            return j
        self._beside = neighbours(count)
        s.do(Split(i, self._beside))
        s.do(Reorder((f"{i}.0", j, f"{i}.1")))
        s.do(Fuse(f"{i}.0", j, f"{y}.columns"))
        s.do(Fuse(f"{y}.columns", f"{i}.1", f"{y}.tiles"))
        return f"{y}.tiles"

    def _blocks(self, outer: list[str], *tiles: str) -> None:
        s = self.s
        for k in range(len(outer) - 1):
            s.do(Fuse(outer[0], outer[1], f"{self.out}.z{k}"))
            outer = [f"{self.out}.z{k}", *outer[2:]]
        loops = [*outer, *tiles]
        for loop, axis in zip(loops, ("block.z", "block.y", "block.x")[-len(loops) :], strict=True):
            s.do(Bind(loop, axis))

    def _spread(self, i: str, j: str, warps: str) -> str:
        """The loops over a tile of results, to the threads that have them; returns the lanes."""
        s, t = self.s, self.tile
        s.do(Split(i, t.warp_rows))
        s.do(Split(f"{i}.1", 8))
        s.do(Split(f"{i}.1.0", 2))
        s.do(Split(j, t.warp_columns))
        s.do(Split(f"{j}.1", 8))
        s.do(Split(f"{j}.1.1", 2))
        turns = (f"{i}.1.0.0", f"{j}.1.0", f"{i}.1.0.1")
        threads = (f"{i}.1.1", f"{j}.1.1.0", f"{j}.1.1.1")
        s.do(Reorder((f"{i}.0", f"{j}.0", *turns, *threads)))
        s.do(Fuse(f"{i}.0", f"{j}.0", warps))
        s.do(Bind(warps, "thread.z"))
        s.do(Bind(f"{i}.1.1", "thread.y"))
        s.do(Bind(f"{j}.1.1.0", "thread.x"))
        for loop in turns:
            s.do(Unroll(loop))
        return f"{j}.1.1.1"

    def _copy(self, stage: str, x: Operand, threads: int, most: int = 0) -> None:
        """A tile of an operand as vectors, to all threads; in shared memory swizzled, so that
        columns of 8 vectors are in different banks. Rows there have so many elements at most."""
        s = self.s
        rows, columns = f"{stage}.i{x.rank - 2}", f"{stage}.i{x.rank - 1}"
        width = s.loops(columns)[0].extent
        assert isinstance(width, int)
        width = min(width, most or width)
        flat, inner, lanes = f"{stage}.v", columns, x.lanes or VECTOR
        if lanes > 1:
            s.do(Split(columns, lanes))
            inner = f"{columns}.0"
        s.do(Fuse(rows, inner, flat))
        self._deal(flat, threads)
        if lanes > 1:
            s.do(Vectorize(f"{columns}.1"))
        vectors = width // VECTOR
        bits = min(3, int(log2(vectors)))
        # Rows of 8 vectors or more: by the row; of shorter ones several lie side by side.
        shift = max(int(log2(vectors)), 3)
        if bits and vectors & (vectors - 1) == 0:
            s.do(Swizzle(stage, bits, int(log2(VECTOR)), shift))

    def _deal(self, flat: str, threads: int) -> None:
        """The iterations of a loop in turn to all threads of a block."""
        s = self.s
        s.do(Split(flat, threads))
        s.do(Split(f"{flat}.1", WARP["thread.x"]))
        s.do(Split(f"{flat}.1.0", WARP["thread.y"]))
        s.do(Bind(f"{flat}.1.0.0", "thread.z"))
        s.do(Bind(f"{flat}.1.0.1", "thread.y"))
        s.do(Bind(f"{flat}.1.1", "thread.x"))
        s.do(Unroll(f"{flat}.0"))

    def _registers(self, stage: str, x: Operand, which: str) -> None:
        """A tile of an operand of a warp, from shared memory to registers."""
        s = self.s
        names = [f"n{k}" for k in range(x.rank)]
        row, deep = names[x.row], names[x.deep]
        block = f"{row}//16, {deep}//8, {row}//8%2"
        if which == "b":
            block = f"{row}//16, {row}//8%2, {deep}//8"
        places = [*names[:-2], block, f"{row}%8", f"{deep}//2%4", f"{deep}%2"]
        loop, other = f"{stage}.i{x.row}", f"{stage}.i{x.deep}"
        s.do(Split(loop, 16))
        if x.deep < x.row:
            s.do(Reorder((f"{loop}.0", other, f"{loop}.1")))
        s.do(Relayout(stage, f"{', '.join(names)} -> {', '.join(places)}"))
        how = "" if x.deep > x.row else ".trans"
        first = f"{loop}.1" if x.deep > x.row else other
        kind = s.nest.buffer(x.buffer).dtype
        s.do(Tensorize(first, f"nvptx.ldmatrix.{which}.{kind}{how}"))
        s.do(Unroll(f"{loop}.0"))

    def _results(self, c: str) -> None:
        """The sums in the registers of the threads that have them."""
        s, t = self.s, self.tile
        names = [f"n{k}" for k in range(len(self.stage.axes))]
        i, j = names[-2:]
        wm, wn = t.warp_rows, t.warp_columns
        places = [
            *names[:-2],
            f"{i}//{wm}, {j}//{wn}, {i}//16%{wm // 16}, {j}//8%{wn // 8}",
            f"{i}//8%2, {i}%8, {j}//2%4, {j}%2",
        ]
        s.do(Relayout(c, f"{', '.join(names)} -> {', '.join(places)}"))
        s.do(FuseAxes(c, len(names) - 2))
