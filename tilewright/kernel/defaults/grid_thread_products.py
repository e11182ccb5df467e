"""Matrix products of a GPU for which it has no instruction: every thread multiplies numbers.

A thread has a small tile of sums in its registers. Blocks bring tiles of the operands to shared
memory by asynchronous copies, some steps of the sum ahead, with the rows of a step adjacent: what a
thread needs of it are a few vectors. Float32 is multiplied so, and everything else that no warp
multiplies; sizes may be any, tiles go past the ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.defaults.grid_parts import (
    BANDWIDTH,
    PARTS,
    add_up,
    added_up,
    take_apart,
)
from tilewright.kernel.defaults.grid_warp_products import (
    Operand,
    Tile,
    WarpProduct,
    assumed,
    row_length,
)
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.fragments import LANES, WARP
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

FEWEST = 8  # rows and columns
VECTOR = 16  # bytes of one access
STEP = 64  # bytes of the sum at a time
AHEAD = 3  # steps that copies are ahead; one less where shared memory is small
ADDS = 128  # of a multiprocessor in a cycle, in float32
ROWS, COLUMNS = WARP["thread.y"], WARP["thread.x"]  # threads of a warp along both
# Rows and columns of a block and of a thread; how many times the cycles of its additions alone a
# step takes, and how much more where a multiprocessor has one block alone, whose threads wait for
# shared memory and for each other (fitted to products that were timed on an H200).
TILES = (
    (128, 128, 8, 8, 1.2, 0.4),
    (64, 128, 8, 8, 1.4, 0.6),
    (64, 64, 8, 4, 1.7, 0.8),
    (32, 64, 4, 4, 1.9, 1.5),
    (32, 32, 4, 2, 2.6, 2.0),
)
TOGETHER = 4  # blocks of a multiprocessor that hide each other's waits
BESIDE = 1500  # cycles that a block begins and ends with


def thread_tiles(s: Scheduler, sizes: list[Dim], item: int) -> Iterator[tuple[float, Tile]]:
    """Tiles, and parts of the sum, each with a rough estimate of its cycles."""
    grid = s.target.grid
    assert grid is not None
    known = assumed(sizes)
    if known is None:
        return
    rows, columns, sum_ = known[-3:]
    if rows < FEWEST or columns < FEWEST:
        return
    deep = max(8, STEP // item)
    steps, batch = -(-sum_ // deep), prod(known[:-3])
    read = item * batch * (rows + columns) * sum_ / BANDWIDTH
    for m, n, own_rows, own_columns, slower, alone in TILES:
        if not _ahead(s, m + n, deep * item):
            continue
        blocks = batch * -(-rows // m) * -(-columns // n)
        for parts in PARTS:
            each = -(-steps // parts)
            if parts > 1 and (each < 4 or -(-steps // each) != parts):
                continue
            rounds = -(-blocks * parts // grid.multiprocessors)
            times = slower + alone / min(rounds, TOGETHER)
            time = rounds * each * deep * m * n / ADDS * times * item / 4
            time = max(time, read) + BESIDE * -(-rounds // TOGETHER)
            time += added_up(parts, batch * rows * columns)
            yield time, Tile(m, n, own_rows, own_columns, deep, parts, each)


def _ahead(s: Scheduler, rows: int, step: int) -> int:
    """Steps that copies can be ahead: of so many rows and columns, a step of so many bytes."""
    assert s.target.grid is not None
    fits = s.target.grid.block_shared // ((rows + 2 * VECTOR) * step) - 1
    return min(AHEAD, fits) if fits >= AHEAD - 1 else 0


@dataclass
class ThreadProduct(WarpProduct):
    """`warp_rows` and `warp_columns` of its tile are those of a thread."""

    def schedule(self) -> None:
        s, t = self.s, self.tile
        shared = {x: x.copy for x in (self.a, self.b)}
        own = {x: f"{x.buffer}_r" for x in (self.a, self.b)}
        k = s.path(self.stage.name)[-1].name
        self._operands(shared, k)
        for x in (self.a, self.b):
            s.do(CacheRead(shared[x], self.stage.name, own[x]))
        c, y = self.stage.name, self.out
        if t.parts > 1:
            c, y = take_apart(s, self.stage, k, t.deep * t.steps)
        rank = len(s.nest.buffer(c).shape)
        for axis, size in ((rank - 2, t.rows), (rank - 1, t.columns)):
            self._pad(c, axis, size)
            if t.parts > 1:  # memory of our own: of whole tiles
                self._pad(y, axis, size)
        most = min(VECTOR // s.nest.buffer(y).dtype.bytes, t.warp_columns)
        outer, tiles, inside = self._result_tiles(y, most)
        s.do(ComputeAt(c, tiles[1]))
        k = self._sums(c)
        for x in (self.b, self.a):
            s.do(ComputeAt(own[x], f"{k}.1"))
        for x in (self.b, self.a):
            s.do(ComputeAt(shared[x], f"{k}.0"))
            s.do(SetScope(shared[x], "shared"))
        i, j = (p.name for p in s.path(c)[-2:])
        for loop in (f"{k}.1", i):
            s.do(Unroll(loop))
        s.do(Vectorize(j))
        self._blocks(outer, *tiles)
        self._results_stored(y, *inside)
        first, second = (D.the_sym(d).name for d in s.first_store(c).index[-2:])
        s.do(Vectorize(self._spread(first, second, f"{c}.init.w")))
        for x in (self.a, self.b):
            self._copy(shared[x], x, LANES * self.warps)
            self._registers(own[x], x, "")
        self._results(c)
        item = s.nest.buffer(self.a.buffer).dtype.bytes
        ahead = _ahead(s, t.rows + t.columns, t.deep * item)
        for x in (self.a, self.b):
            s.do(Pipeline(f"{k}.0", shared[x], ahead, asynchronous=True))
        if t.parts > 1:
            add_up(s, self.stage, self.out)
        s.do(Synchronise())

    @property
    def warps(self) -> int:
        t = self.tile
        return t.rows // (t.warp_rows * ROWS) * (t.columns // (t.warp_columns * COLUMNS))

    def _sums(self, c: str) -> str:
        """The loops of the sum: steps, threads, then what one thread adds up."""
        s, t = self.s, self.tile
        i, j, k = (p.name for p in s.path(c)[-3:])
        s.do(Split(k, t.deep))
        for loop, size, threads in ((i, t.warp_rows, ROWS), (j, t.warp_columns, COLUMNS)):
            s.do(Split(loop, size))
            s.do(Split(f"{loop}.0", threads))
        threads = (f"{i}.0.0", f"{j}.0.0", f"{i}.0.1", f"{j}.0.1")
        s.do(Reorder((f"{k}.0", *threads, f"{k}.1", f"{i}.1", f"{j}.1")))
        self._bind(i, j, f"{c}.w")
        return k

    def _bind(self, i: str, j: str, warps: str) -> None:
        """Loops over parts of threads: to warps, and to the threads of one."""
        s = self.s
        s.do(Fuse(f"{i}.0.0", f"{j}.0.0", warps))
        s.do(Bind(warps, "thread.z"))
        s.do(Bind(f"{i}.0.1", "thread.y"))
        s.do(Bind(f"{j}.0.1", "thread.x"))

    def _spread(self, i: str, j: str, warps: str) -> str:
        s, t = self.s, self.tile
        for loop, size, threads in ((i, t.warp_rows, ROWS), (j, t.warp_columns, COLUMNS)):
            s.do(Split(loop, size))
            s.do(Split(f"{loop}.0", threads))
        s.do(Reorder((f"{i}.0.0", f"{j}.0.0", f"{i}.0.1", f"{j}.0.1", f"{i}.1", f"{j}.1")))
        self._bind(i, j, warps)
        s.do(Unroll(f"{i}.1"))
        return f"{j}.1"

    def _results_stored(self, y: str, i: str, j: str, lanes: str) -> None:
        """Each thread stores its own results, in vectors."""
        s, t = self.s, self.tile
        wide = s.loops(lanes)[0].extent if s.loops(lanes) else 1
        assert isinstance(wide, int)
        for loop, size, threads in ((i, t.warp_rows, ROWS), (j, t.warp_columns // wide, COLUMNS)):
            s.do(Split(loop, size))
            s.do(Split(f"{loop}.0", threads))
        s.do(Reorder((f"{i}.0.0", f"{j}.0.0", f"{i}.0.1", f"{j}.0.1", f"{i}.1", f"{j}.1")))
        self._bind(i, j, f"{y}.w")
        for loop in (f"{i}.1", f"{j}.1"):
            if s.loops(loop):
                s.do(Unroll(loop))
        if s.loops(lanes):
            s.do(Vectorize(lanes))

    def _copy(self, stage: str, x: Operand, threads: int) -> None:
        """A tile of an operand, the rows of a step of the sum adjacent. Where the steps of the sum
        are adjacent in memory single elements are copied: rows are one vector longer, so that a
        warp, which has 8 steps of 4 rows, writes to different banks."""
        s = self.s
        item = s.nest.buffer(x.buffer).dtype.bytes
        row, deep = f"{stage}.i{x.row}", f"{stage}.i{x.deep}"
        flat, vector = f"{stage}.v", VECTOR // item
        if x.deep < x.row:
            wide = gcd(row_length(s, x), vector)
            s.do(Split(row, wide))
            s.do(Fuse(deep, f"{row}.0", flat))
            if wide > 1:
                s.do(Vectorize(f"{row}.1"))
        else:
            names = [f"n{k}" for k in range(x.rank)]
            to = [*names[:-2], names[-1], names[-2]]
            s.do(Relayout(stage, f"{', '.join(names)} -> {', '.join(to)}"))
            s.do(Split(row, vector))
            s.do(Split(deep, 8))
            s.do(Reorder((f"{row}.0", f"{deep}.0", f"{row}.1", f"{deep}.1")))
            for k, loop in enumerate((f"{deep}.0", f"{row}.1", f"{deep}.1")):
                s.do(Fuse(f"{row}.0" if k == 0 else f"{stage}.f{k - 1}", loop, f"{stage}.f{k}"))
            flat = f"{stage}.f2"
            size = self.tile.rows if x is self.a else self.tile.columns
            s.do(StorageAlign(stage, x.rank - 2, size, vector))
        self._deal(flat, threads)

    def _registers(self, stage: str, x: Operand, which: str) -> None:
        """What a thread needs of one step: a vector, or a few."""
        s = self.s
        row = f"{stage}.i{x.row}"
        vector = VECTOR // s.nest.buffer(x.buffer).dtype.bytes
        extent = s.loops(row)[0].extent
        assert isinstance(extent, int)
        if extent > vector:
            s.do(Split(row, vector))
            s.do(Unroll(f"{row}.0"))
            row = f"{row}.1"
        s.do(Vectorize(row))

    def _results(self, c: str) -> None:
        """The sums in the registers of the threads that have them."""
        s, t = self.s, self.tile
        names = [f"n{k}" for k in range(len(s.nest.buffer(c).shape))]
        i, j = names[-2:]
        m, n = t.warp_rows, t.warp_columns
        places = [
            *names[:-2],
            f"{i}//{m * ROWS}, {j}//{n * COLUMNS}, {i}//{m}%{ROWS}, {i}%{m}",
            f"{j}//{n}%{COLUMNS}, {j}%{n}",
        ]
        s.do(Relayout(c, f"{', '.join(names)} -> {', '.join(places)}"))
        s.do(FuseAxes(c, len(names) - 2))
