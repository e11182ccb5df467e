"""Matrix products of a GPU by groups of four warps, which read their operands in shared memory.

The copy engine brings tiles of the operands there, some steps of the sum ahead; the product of a
step goes on while the next one begins. What is done to the results is done to registers; then they
go through shared memory, so that they are stored in whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod
from operator import mul

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.target import Grid
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
    Way,
    assumed,
    neighbours,
    row_length,
    source_of,
)
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.complete import Complete
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.roles import MOST, Roles
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.steps.swizzle import Swizzle
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.steps.walk import Walk

ROW = 128  # bytes of a row of a tile
BLOCK = 64  # rows of one instruction, and of a block of an operand that lies across the sum
FEWEST = 16  # rows and columns, of which a tile has 64
GROUP = 128  # threads
VECTOR = 16  # bytes
BARRIERS = 1024  # bytes of shared memory besides tiles
# By the number of groups of a block: its rows and columns, and cycles that a step of the sum takes,
# where all threads ask for copies and where a warp of its own does, which runs ahead (measured on
# an H200, of rows of 128 bytes; those of the narrowest are estimated). Large tiles take as long as
# shared memory does: its 128 bytes in a cycle are what is copied and what instructions read.
TILES: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    2: ((128, 256, 1160, 1130), (128, 128, 650, 650), (128, 64, 600, 350)),
    1: ((64, 128, 560, 340), (64, 256, 800, 660), (64, 64, 390, 260)),
}
HIDDEN = 8  # so many cycles that others hide count as one
SHORT = 128 * 128  # results of a tile whose steps are short
STORED = 4  # results that a group of warps ends with in a cycle
BEGIN = 2400  # cycles until the first copies are there; of a block that walks they come before
REQUEST = 1.6  # cycles of the copy engine for a row, or a part of it, in 128 bytes of memory
OTHER_REGISTERS = 26  # of a thread, besides its sums
# Blocks of a multiprocessor among which shared memory is divided: while one stores its results
# another one multiplies. One has more steps on their way.
BLOCKS = 1
# Steps in shared memory, the most that fit: the remainder of a power of two is cheap, and more of
# them pay only where steps are very short.
STAGES = (12, 8, 7, 6, 5, 4, 3, 2)
RESERVED = 1024  # bytes of shared memory that every block takes besides its own
PLAIN = (Way(),)
# To bring operands, the best of which is taken.
WAYS = (*PLAIN, *(Way(True, k, x) for k in (1, 2) for x in (False, True)))
PIECES = (1, 2, 4)  # in which a block that walks over tiles may store one


def across(i: Intrinsic) -> tuple[bool, bool]:
    """Whose rows run across the sum, of both operands that an instruction takes."""
    return len(i.maps["a"]) == 3, len(i.maps["b"]) == 3


def in_boxes(s: Scheduler, x: Operand) -> bool:
    """Can the copy engine bring tiles of an operand? Its rows are multiples of 16 bytes."""
    return row_length(s, x) * s.nest.buffer(x.buffer).dtype.bytes % VECTOR == 0


def group_tiles(
    s: Scheduler,
    i: Intrinsic,
    sizes: list[Dim],
    item: int,
    bytes_: int | None = None,
    brought: tuple[Operand, Operand] | None = None,
) -> Iterator[tuple[float, Tile]]:
    """Tiles, parts of the sum and ways, each with a rough estimate of its cycles: of the rounds of
    blocks on all multiprocessors, or of reading the operands, and of adding up parts. `bytes_` are
    those of the operands, where they are not matrices in memory. Other ways than the plain one are
    for operands that the copy engine brings."""
    grid = s.target.grid
    assert grid is not None
    known = assumed(sizes)
    if known is None:
        return
    deep = ROW // item
    rows, columns = known[-3:-1]
    if rows < FEWEST or columns < FEWEST:
        return
    steps = -(-known[-1] // deep)
    if bytes_ is None:
        bytes_ = item * prod(known[:-3]) * (rows + columns) * known[-1]
    read = bytes_ / BANDWIDTH
    whole = all(isinstance(d, int) for d in sizes)
    lines = [lines_of(s, x) for x in brought or ()]
    for m, n, plain, ahead in TILES[i.warps // 4]:
        tiles = prod(known[:-3]) * -(-rows // m) * -(-columns // n)
        for parts in PARTS:
            each = -(-steps // parts)
            if parts > 1 and (each < 4 or -(-steps // each) != parts):
                continue
            rounds = -(-tiles * parts // grid.multiprocessors)
            for way in WAYS if brought else PLAIN:
                if way.walks and (rounds == 1 or parts > 1 or not whole):
                    continue
                if way.walks and way.cluster > grid.multiprocessors:
                    continue
                tile = Tile(m, n, m, n, deep, parts, each, way)
                own = own_rows(tile, rows, tiles)
                if own is None or (way.roles and not way.walks and each == 1):
                    continue
                stored = m * n / STORED / (i.warps // 4)
                beside = (BEGIN + stored) / resident(tile, i.warps // 4, grid)
                beside = stored if way.walks else beside
                step = max(ahead if way.roles else plain, REQUEST * sum(map(mul, own, lines)))
                made = rounds * (each * step + beside)
                time = max(made, read) + min(made, read) / HIDDEN
                yield time + added_up(parts, prod(known[:-1])), tile


def lines_of(s: Scheduler, x: Operand) -> int:
    """In how many pieces of memory of 128 bytes a row of a tile lies."""
    return 1 if row_length(s, x) * s.nest.buffer(x.buffer).dtype.bytes % ROW == 0 else 2


def own_rows(t: Tile, rows: int, tiles: int) -> tuple[int, int] | None:
    """Of a tile and step, the rows of both operands that a block asks for itself; None where no
    clusters of neighbours are made."""
    count = t.way.cluster
    beside = neighbours(-(-rows // t.rows))
    if count == 1:
        return t.rows, t.columns
    if beside % count == 0:
        return t.rows, t.columns // count
    return (t.rows // count, t.columns) if beside == 1 and tiles % count == 0 else None


def versions(t: Tile, grid: Grid, besides: int = 0) -> tuple[int, int]:
    """(steps that copies are ahead, products that go on): as many as there is room for besides so
    many bytes. Steps of small tiles are so short that two of them go on."""
    room = min(grid.block_shared, grid.shared // BLOCKS - RESERVED) - BARRIERS - besides
    room //= (t.rows + t.columns) * ROW
    fit = next((x for x in STAGES if x <= room), 2)
    short = t.rows * t.columns <= SHORT and fit > 4
    slack = min(t.steps - 1, 2 if short else 1)
    return max(1, min(fit - 1 - slack, t.steps - 1)), slack


def resident(t: Tile, groups: int, grid: Grid) -> int:
    """How many blocks a multiprocessor has at a time: what one does besides its sum others hide."""
    bytes_ = (sum(versions(t, grid)) + 1) * (t.rows + t.columns) * ROW
    registers = t.rows * t.columns + OTHER_REGISTERS * GROUP * groups
    return max(1, min(grid.shared // bytes_, grid.registers // registers))


def pieces(t: Tile, grid: Grid, item: int) -> int:
    """In how many pieces of columns a block that walks over tiles stores results of so many bytes:
    their memory is no tile's, so the fewest that leave room for as many steps."""
    most = sum(versions(t, grid))
    fit = (k for k in PIECES if sum(versions(t, grid, staging(t, item, k))) == most)
    return next(fit, PIECES[-1])


def staging(t: Tile, item: int, count: int) -> int:
    """Bytes of the memory that a piece of the results goes through."""
    return item * t.rows * (t.columns // count + VECTOR // item)


class GroupProduct(WarpProduct):
    _pieces = 1  # of columns, in which results are stored
    _piece = ""  # the loop over them

    def schedule(self) -> None:
        s, t = self.s, self.tile
        shared = {x: x.copy for x in (self.a, self.b)}
        k = s.path(self.stage.name)[-1].name
        self._operands(shared, k)
        c, y = (self.stage.name, self.out) if t.parts == 1 else self._apart(k)
        rank = len(s.nest.buffer(c).shape)
        self._pad(c, rank - 2, t.rows)
        self._pad(c, rank - 1, t.columns)
        # Parts are memory of our own: of whole tiles, stored as they are. Several results are
        # stored out of registers too.
        staged = t.parts == 1 and not self.several
        grid, item = s.target.grid, s.nest.buffer(y).dtype.bytes
        assert grid is not None
        if staged and self._may_walk():
            self._pieces = pieces(t, grid, item)
        made = f"{y}_s" if staged else y
        if staged:
            s.do(CacheWrite(y, made))
        if staged or t.parts > 1:
            for axis, size in ((rank - 2, t.rows), (rank - 1, t.columns)):
                self._pad(made, axis, size)
        if staged or t.parts > 1:
            outer, block, rest = self._tiles(y, staged)
        else:
            outer, tiles, rest = self._result_tiles(y, 2)
            block = self._ordered(y, *tiles)
        if staged:
            s.do(ComputeAt(made, self._piece or block))
        s.do(ComputeAt(c, block))
        k = self._steps(c)
        for x in (self.b, self.a):
            s.do(ComputeAt(shared[x], f"{k}.0"))
            s.do(SetScope(shared[x], "shared"))
        if staged:
            s.do(SetScope(made, "shared"))
        if self._piece:
            s.do(Unroll(self._piece))
        self._bind_blocks(y, outer, block)
        if staged or t.parts > 1:
            row, column = s.path(made)[-2:]
            s.do(Vectorize(self._spread(row.name, column.name, "")))
        else:
            self._stored(*rest)
        first, second = (D.the_sym(d).name for d in s.first_store(c).index[-2:])
        s.do(Vectorize(self._spread(first, second, "")))
        if staged:
            self._store(*rest, made)
        for x in (self.a, self.b):
            self._box(shared[x], x)
        self._results(c, rank)
        s.do(Tensorize(self._first, self.instruction))
        walk = staged and self._walks()
        besides = staging(t, item, self._pieces) if walk else 0
        # Copies of a block that walks are ahead of its tile too.
        ahead, slack = versions(replace(t, steps=MOST) if walk else t, grid, besides)
        if self._may_have_roles():
            most = ahead + 1 + slack
            slack = min(slack, t.steps - 1)
            s.do(Roles(f"{k}.0", most if walk else min(most, t.steps), slack))
        else:
            for x in (self.a, self.b):
                s.do(Pipeline(f"{k}.0", shared[x], ahead, asynchronous=True, slack=slack))
        if t.parts > 1:
            add_up(s, self.stage, self.out)
        s.do(Synchronise())

    def _stored(self, i: str, j: str, lanes: str) -> None:
        s = self.s
        wide = s.loops(lanes)[0].extent
        assert isinstance(wide, int)
        s.do(Split(i, BLOCK * self.groups))
        s.do(Split(f"{i}.1", 16))
        s.do(Split(f"{i}.1.1", 8))
        s.do(Split(j, 8 // wide))
        s.do(Split(f"{j}.1", 2 // wide))
        turns = (f"{i}.0", f"{j}.0", f"{i}.1.1.0")
        threads = (f"{i}.1.0", f"{i}.1.1.1", f"{j}.1.0")
        s.do(Reorder((*turns, *threads, f"{j}.1.1")))
        for loop, axis in zip(threads, ("thread.z", "thread.y", "thread.x"), strict=True):
            s.do(Bind(loop, axis))
        for loop in (*turns, f"{j}.1.1"):
            s.do(Unroll(loop))
        s.do(Vectorize(lanes))

    def _apart(self, k: str) -> tuple[str, str]:
        return take_apart(self.s, self.stage, k, self.tile.deep * self.tile.steps)

    def _tiles(self, y: str, staged: bool) -> tuple[list[str], str, tuple[str, str, str]]:
        """The loops over results as tiles: those around, that over tiles, and those inside."""
        s, t = self.s, self.tile
        *outer, i, j = (p.name for p in s.path(y))
        last = s.loops(j)[0].extent
        assert isinstance(last, int)
        wide = gcd(VECTOR // s.nest.buffer(y).dtype.bytes, last) if staged else 1
        lanes = ""
        if staged:
            s.do(Split(j, wide))
            j, lanes = f"{j}.0", f"{j}.1"
        s.do(Split(i, t.rows))
        s.do(Split(j, t.columns // wide))
        inside = [f"{i}.1", f"{j}.1", *([lanes] if staged else [])]
        s.do(Reorder((*outer, f"{i}.0", f"{j}.0", *inside)))
        for loop, size in ((f"{j}.1", t.columns // wide), (f"{i}.1", t.rows)):
            if staged and s.loops(loop)[0].extent != size:
                s.do(Complete(loop, size))
        if s.loops(f"{i}.1.there"):
            s.do(Reorder((f"{i}.1", f"{j}.1", f"{i}.1.there")))
        last = f"{j}.1"
        if self._pieces > 1:
            s.do(Split(last, t.columns // wide // self._pieces))
            self._piece, last = f"{last}.0", f"{last}.1"
            s.do(Reorder((self._piece, f"{i}.1", last)))
        return outer, self._ordered(y, f"{i}.0", f"{j}.0"), (f"{i}.1", last, lanes)

    @property
    def groups(self) -> int:
        return INTRINSICS[self.instruction].warps // 4

    def _steps(self, c: str) -> str:
        """The loops of the sum: steps, then those of the instruction."""
        s = self.s
        i, j, k = (p.name for p in s.path(c)[-3:])
        s.do(Split(k, self.tile.deep))
        inner: list[str] = []
        for loop, blocks in zip((i, j), across(INTRINSICS[self.instruction]), strict=True):
            if blocks:
                s.do(Split(loop, BLOCK))
            inner += [f"{loop}.0", f"{loop}.1"] if blocks else [loop]
        self._first = inner[0]
        s.do(Reorder((f"{k}.0", *inner, f"{k}.1")))
        return k

    def _may_have_roles(self) -> bool:
        return self.tile.way.roles and not any(x.lanes for x in (self.a, self.b))

    def _may_walk(self) -> bool:
        return self.tile.way.walks and self._may_have_roles()

    def _walks(self) -> bool:
        """Few blocks, as many as run at a time, walk over all tiles."""
        s, grid, cluster = self.s, self.s.target.grid, self.tile.way.cluster
        assert grid is not None
        tiles = s.loops(self._grid[0])[0].extent
        if not self._may_walk() or len(self._grid) > 1 or not isinstance(tiles, int):
            return False
        rounds = -(-tiles // (grid.multiprocessors // cluster * cluster))
        blocks = -(-tiles // rounds)
        blocks = -(-blocks // cluster) * cluster
        if rounds > 1:
            s.do(Walk(self._grid[0], blocks))
        return rounds > 1

    def _bind_blocks(self, y: str, outer: list[str], block: str) -> None:
        s = self.s
        if self._may_walk() and not self._rows:  # over one loop
            for k, loop in enumerate(reversed(outer)):
                s.do(Fuse(loop, block, f"{y}.all{k}"))
                block = f"{y}.all{k}"
            outer = []
        for k in range(len(outer) - 1):
            s.do(Fuse(outer[0], outer[1], f"{y}.z{k}"))
            outer = [f"{y}.z{k}", *outer[2:]]
        for loop in outer:
            s.do(Bind(loop, "block.z" if self._rows else "block.y"))
        if self._rows:
            s.do(Bind(self._rows, "block.y"))
        s.do(Bind(block, "block.x"))
        self._grid = [*outer, *([self._rows] if self._rows else []), block]
        count = self.tile.way.cluster
        if count > 1 and (self._beside % count == 0 or self._beside == 1):
            # Neighbours have the same columns, or the same rows: they share the copies of those.
            s.attempt(Pragma(block, "cluster", count))

    def _spread(self, i: str, j: str, warps: str) -> str:
        s = self.s
        s.do(Split(i, BLOCK * self.groups))
        s.do(Split(f"{i}.1", 16))
        s.do(Split(f"{i}.1.1", 8))
        s.do(Split(j, 8))
        s.do(Split(f"{j}.1", 2))
        turns = (f"{i}.0", f"{j}.0", f"{i}.1.1.0")
        threads = (f"{i}.1.0", f"{i}.1.1.1", f"{j}.1.0")
        s.do(Reorder((*turns, *threads, f"{j}.1.1")))
        for loop, axis in zip(threads, ("thread.z", "thread.y", "thread.x"), strict=True):
            s.do(Bind(loop, axis))
        for loop in turns:
            s.do(Unroll(loop))
        return f"{j}.1.1"

    def _store(self, i: str, j: str, lanes: str, made: str) -> None:
        """The tile of results from shared memory, in vectors; its rows are one vector longer, so
        that those which threads write together are in different banks."""
        s = self.s
        flat = f"{self.out}.v"
        s.do(Fuse(i, j, flat))
        self._deal(flat, GROUP * self.groups)
        s.do(Vectorize(lanes))
        b = s.nest.buffer(made)
        columns = self.tile.columns // self._pieces
        s.do(StorageAlign(made, len(b.shape) - 2, columns, VECTOR // b.dtype.bytes))

    def _box(self, stage: str, x: Operand) -> None:
        """A tile of an operand: rows of 128 bytes, swizzled. The copy engine brings it, or threads
        gather it."""
        s = self.s
        kind = s.nest.buffer(x.buffer).dtype
        rows, columns = f"{stage}.i{x.rank - 2}", f"{stage}.i{x.rank - 1}"
        if x.deep < x.row:
            names = [f"n{k}" for k in range(x.rank)]
            blocks = [*names[:-2], f"{names[-1]}//{BLOCK}", names[-2], f"{names[-1]}%{BLOCK}"]
            s.do(Relayout(stage, f"{', '.join(names)} -> {', '.join(blocks)}"))
        if x.lanes:
            self._copy(stage, x, GROUP * self.groups, BLOCK)
            return
        if x.deep < x.row:
            s.do(Split(columns, BLOCK))
            s.do(Reorder((f"{columns}.0", rows, f"{columns}.1")))
            s.do(Unroll(f"{columns}.0"))
        s.do(Swizzle(stage, 3, (VECTOR // kind.bytes).bit_length() - 1, 3))
        axes = len(s.nest.buffer(source_of(s, x)).shape)
        s.do(Tensorize(rows, f"nvptx.bulk.{axes}.{kind}"))

    def _results(self, c: str, rank: int = 0) -> None:
        names = [f"n{k}" for k in range(rank)]
        i, j = names[-2:]
        rows, warps = BLOCK * self.groups, 4 * self.groups
        own = f"{i}//{rows}, {i}//16%{warps}, {j}//8, {i}//8%2, {i}%8, {j}//2%4, {j}%2"
        places = [*names[:-2], own]
        self.s.do(Relayout(c, f"{', '.join(names)} -> {', '.join(places)}"))
