"""Which instruction multiplies two operands, and which tile of sums stays in registers meanwhile.

The one place that decides this. Graph passes call it to lay operands out, default schedules
to tile loops, and the tuner to find other tiles worth trying. All its facts are in the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import gcd

from tilewright.ir.dim import Dim
from tilewright.ir.product import Product
from tilewright.ir.target import Target
from tilewright.ir.types import DType, i8, i16, u8

# Added to bytes of one sign to make them bytes of the other one, so that all stay in range.
BYTE_SHIFT = 128
BYTES = (i8, u8)


@dataclass(frozen=True)
class RegisterTile:
    """Rows and columns of sums that stay in registers while they are added up; `adjacent` is the
    number of rows where their elements are adjacent in memory and loaded in vectors, `most` how
    many there may be where they divide all rows."""

    rows: int
    columns: int
    adjacent: int
    most: int


@dataclass(frozen=True)
class Exact:
    """An instruction for two operands, and what the left one becomes for it, exactly: `left` is its
    new dtype, `shift` what is added to it. Each sum is then too large by `shift` times the sum of
    the right operand's column."""

    product: Product
    left: DType
    shift: int = 0


def lanes_of(target: Target, dtype: DType) -> int:
    """Sums of values of a dtype that fill one vector."""
    return target.lanes(dtype.accumulator.bits)


def products_of(target: Target, dtypes: tuple[DType, DType, DType]) -> Iterator[Product]:
    """Instructions that multiply and add exactly these dtypes, the best first."""
    return (p for p in target.products if p.dtypes == dtypes)


def other_sign(dtype: DType) -> tuple[DType, int]:
    """The dtype of bytes of the other sign, and what bytes are shifted by to become such."""
    return (u8, BYTE_SHIFT) if dtype is i8 else (i8, -BYTE_SHIFT)


def exact_products(target: Target, dtypes: tuple[DType, DType, DType]) -> Iterator[Exact]:
    """Instructions that multiply operands of these dtypes exactly, the best first: as they are,
    then with bytes of the other sign, then with wider ones."""
    a, b, c = dtypes
    lefts = [(a, 0)]
    if a in BYTES:
        lefts += [other_sign(a), (i16, 0)]
    for left, shift in lefts:
        for p in products_of(target, (left, b, c)):
            yield Exact(p, left, shift)


def register_tile(
    target: Target, dtype: DType, columns: int | None = None, product: Product | None = None
) -> RegisterTile:
    """The tile of sums of values of a dtype, if any number of rows and columns may be left over at
    the edges; of the columns that an operand was packed in, if given; of a product's own registers,
    if it has such."""
    if product is not None and product.tile is not None:
        return RegisterTile(product.rows, product.columns, product.rows, product.rows)
    lanes = lanes_of(target, dtype)
    fitting = [t for t in target.tiles if columns is None or t.vectors * lanes <= columns]
    t = fitting[0] if fitting else target.tiles[-1]
    return RegisterTile(t.rows, t.vectors * lanes, t.adjacent, max(t.rows, t.most))


def dividing_rows(rows: int, most: int, of: Dim) -> int:
    """So many rows of a tile that none are left over, if some more than `rows` do that: what is
    left over needs code of its own, and leaves registers idle."""
    if not isinstance(of, int):
        return rows
    return next((r for r in range(rows, most + 1) if of % r == 0), rows)


def window_rows(target: Target, vectors: int, pixels: Dim) -> int:
    """Rows of a tile of so many vectors whose pixels share what they read (a depthwise
    convolution): those that pixels of a line fill best, then the most. Four registers per vector
    are for what a window reads. Taps of a window, of which there are few, are all in one tile."""
    room = max(1, (target.vector_registers - 4 * vectors) // vectors)
    most = min(8, room)
    if not isinstance(pixels, int):
        return most
    if pixels <= room:
        return pixels
    return min(range(most, most // 2, -1), key=lambda r: -(-pixels // r) * r)


def in_registers(target: Target, rows: int, vectors: int) -> bool:
    """Do the sums of a tile, a row of the other operand and an element fit the registers?"""
    return rows * vectors + vectors < target.vector_registers


def operand_level(target: Target, instruction: str) -> int:
    """The cache that a product's next operands are prefetched into. Those of vectors stream through
    the first one, which has no place for the next; an instruction with registers for whole matrices
    reads each operand less often."""
    return 1 if any(p.tile and p.instruction == instruction for p in target.products) else 2


def _room(target: Target, vectors: int) -> int:
    """Registers for sums: the others are for a row of so many vectors and an element."""
    registers = target.vector_registers
    return min(registers - registers // 4, registers - vectors - 1)


def ragged_rows(target: Target, product: Product, rows: int, width: int) -> int:
    """Rows of a tile so many columns wide for a product of so many rows, where the last tile may
    have fewer: as few instructions in all as possible. Those that multiply count for at least as
    many as hide their latency; the code of a smaller last tile has to save a twentieth."""
    vectors = width // product.lanes
    least = target.fma_pipes * target.fma_latency
    most = max(1, min(rows, product.rows, _room(target, vectors) // vectors))

    def instructions(height: int) -> int:
        return max(height * vectors, least) + height + vectors if height else 0

    def total(height: int) -> float:
        last = rows % height
        return (rows // height * instructions(height) + instructions(last)) * (1.05 if last else 1)

    return min(range(most, 0, -1), key=total)


def whole_tile(
    target: Target, product: Product, rows: int, columns: int, widest: int | None = None
) -> tuple[int, int] | None:
    """Rows and columns of a tile that divides a product of such sizes: enough sums to hide an
    instruction's latency, as many as registers hold, then as few loads per sum as possible."""
    heights = [n for n in range(1, min(rows, product.rows) + 1) if rows % n == 0]
    most = min(columns, product.columns if widest is None else widest)
    widths = [n for n in range(product.lanes, most + 1, product.lanes) if columns % n == 0]
    if not heights or not widths:
        return None
    if product.tile is not None:
        return max(heights), max(widths)

    def worth(tile: tuple[int, int]) -> tuple[bool, int, float]:
        height, vectors = tile[0], tile[1] // product.lanes
        sums = height * vectors
        loads = vectors + (height if product.loads == "each" else height / product.lanes)
        return sums <= _room(target, vectors), min(sums, 16), -loads / sums

    return max(((h, w) for h in heights for w in widths), key=worth)


# A panel of an operand that lies in rows is copied for at least so many rows: a vector is loaded
# and stored in a few cycles, and multiplied by a row in half of one.
LEAST_ROWS = 64
# Of a sum in parts, by no more rows than these: with more, the operand is better copied whole, as
# it lies, once for all of them.
MOST_ROWS = 128
# Terms of a sum in which the lines of results arrive.
SHORT_SUM = 256
# Bytes of a line of a cache, and of a way of the first one, where lines that far apart collide.
LINE = 64
WAY = 4096


def shares_of_blocks(blocks: int, threads: int) -> int:
    """Into how many equal parts threads divide blocks, where each part has sums of its own; 1 where
    there are no such parts."""
    return next((k for k in range(threads, EVEN * threads + 1) if blocks % k == 0), 1)


# Tiles of a convolution that make a block, which reads all weights again.
BLOCK_TILES = 24
# Blocks of each thread from which on one more of some of them matters little.
EVEN = 4
# A chain of more additions than this loses accuracy against a library that sums in blocks.
CHAIN = 512


def panel_width(columns: int, widest: int, lanes: int) -> int | None:
    """Columns of panels that divide an operand: the most, two vectors where it has as many."""
    least = min(2 * lanes, columns)
    fits = [n for n in range(widest, least - 1, -lanes) if columns % n == 0]
    return fits[0] if fits else None


def copies_panels(target: Target, rows: int, deep: int, stride: int) -> bool:
    """Are panels of an operand best copied by the threads that read them? `stride` is the bytes of
    a row of it. Where such rows lie on a page each, processors have too few translations for some
    lines of very many of them, as a long sum takes; and those of results wait for a short one."""
    if not target.rated or rows < LEAST_ROWS or (stride >= WAY and deep < SHORT_SUM):
        return False
    return deep <= CHAIN or (rows <= MOST_ROWS and stride < WAY)


def rows_of_block(room: int, each: int, rows: int, times: int, threads: int, least: int = 1) -> int:
    """Rows of a block that divide all: as many as there is room for, where each takes so much of
    it, but as few more as make `least`, and such that threads have about the same number of
    blocks, `times` over. One, if no more are possible."""

    def even(k: int) -> bool:
        blocks = times * rows // k
        return blocks % threads == 0 or blocks >= EVEN * threads

    possible = [k for k in range(1, rows + 1) if rows % k == 0 and even(k)]
    found = max((k for k in possible if k * each <= room), default=1)
    return found if found >= least else min((k for k in possible if k >= least), default=found)


@dataclass(frozen=True)
class Block:
    """Tiles of an image that pass through a kernel together, and how many of them are the rows of a
    register tile."""

    tiles: int
    rows: int


def least_of_block(weights: int, cache: int) -> int:
    """Tiles that a block should have at least, for what it reads of the weights: more where no near
    cache has room for these."""
    return BLOCK_TILES if weights <= cache else 2 * BLOCK_TILES


def block_of_tiles(
    room: int,
    each: int,
    tiles: Dim,
    threads: int,
    least: int = BLOCK_TILES,
    tile: RegisterTile | None = None,
) -> Block:
    """Of tiles that take so much of the room each: such that threads have about the same number of
    blocks, and rows of a register tile divide them. Of tiles of any number some are left over in
    each block: half as many rows leave fewer over, and need less code for these."""
    block = max(room // each, least)
    most = max(tile.rows, tile.most) if tile is not None else 1
    rows = max(1, tile.rows // 2) if tile is not None else 1
    if isinstance(tiles, int):
        blocks = max(1, min(-(-tiles // block), tiles // least))
        if blocks < EVEN * threads:
            blocks = -(-blocks // threads) * threads
            if -(-tiles // blocks) < least:
                blocks = max(threads, blocks - threads)
        block = -(-tiles // blocks)
    else:
        most = rows
    return next(Block(k, r) for k in count(block) for r in range(most, rows - 1, -1) if k % r == 0)


# Terms of the shortest part of a sum that is worth writing its results; and how many times as much
# as the results of all pieces of a sum, which are written and read, is read of operands.
PART, PAYS = 32, 8
# Pieces of a sum for each thread: others help when it falls behind.
SUM_PIECES = 4


@dataclass(frozen=True)
class Shared:
    """A product of which threads share the sum: terms of a piece, and of a part that stays in the
    first cache; rows and columns of a tile; how many results there are."""

    piece: int
    part: int
    rows: int
    columns: int
    results: int


def shared_sum(target: Target, dtype: DType, rows: int, columns: int, terms: int) -> Shared | None:
    """Where threads share a sum that is summed over rows of both operands, which stay as they lie:
    where results are so few that each thread has all of them in the first cache, and operands so
    many that each should come from memory once. None elsewhere, or where sizes have no divisors."""
    size, lanes, results = dtype.bytes, lanes_of(target, dtype), rows * columns
    seen = terms * (rows + columns)
    if not target.rated or not results or columns % lanes or results * size > target.l1:
        return None
    if seen * size <= target.l2:
        return None
    most = register_tile(target, dtype).columns
    width = next(w for w in range(most, 0, -lanes) if columns % w == 0)
    tile = register_tile(target, dtype, width)
    tall = next(r for r in range(max(tile.rows, tile.most), 0, -1) if rows % r == 0)
    room = min(CHAIN, 3 * target.l1 // 4 // (size * (width + rows)))
    part = next((n for n in range(room, PART - 1, -1) if terms % n == 0), None)
    if part is None or tall * width < lanes * target.fma_pipes * target.fma_latency:
        return None
    parts, wanted = terms // part, SUM_PIECES * target.cores
    pieces = next((n for n in range(wanted, parts + 1) if parts % n == 0), None)
    if pieces is None or PAYS * pieces * results > seen:
        return None
    return Shared(terms // pieces, part, tall, width, results)


def lines_of(rows: int, stride: int, width: int) -> int:
    """Lines of the first cache that as many rows take up, counting those that no other row's lines
    can be in because all of them collide."""
    each = -(-width // LINE)
    apart = WAY // gcd(stride, WAY) if stride % LINE == 0 else WAY // LINE
    return rows * each * max(1, WAY // LINE // (apart * each))


def reads_apart(target: Target, rows: int, stride: int, width: int) -> bool:
    """Do the lines of a panel that lies in rows leave too little of the first cache to what else is
    read and written meanwhile?"""
    return 2 * lines_of(rows, stride, width) > target.l1 // LINE
