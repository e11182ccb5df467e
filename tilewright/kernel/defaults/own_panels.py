"""Panels of the right operand of a product, copied by the thread that reads them.

An operand that changes with every call lies in rows as it came. A panel of columns is a few lines
of each row there: where rows are a power of two apart these share few places of the first cache,
and lines that begin in between are read twice. A copy has its lines next to each other. It is made
right before all rows of a block pass by, so it is still in the cache of the thread that made it.

    for block of rows: for panel:              # shared by threads
      for k: lanes j: p[k,j] = b[k,j]
      for rows in tiles: for k: c[i,j] += a[i,k] * p[k,j]

A sum too long for the cache is in parts: then all panels of a block of columns pass by a part of
the rows, and the sums of the block stay in the second cache.

      for part of k: for panel:
        for k: lanes j: p[k,j] = b[k,j]
        for rows in tiles: …
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, extent
from tilewright.ir.register_tile import CHAIN, LEAST_ROWS, copies_panels, panel_width, reads_apart
from tilewright.ir.value_text import value_text
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.defaults.tiles import (
    Placed,
    Tile,
    lanes_of_tile,
    partial_sums,
    reorder,
)
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split

# Pieces of work for each thread: others help when it falls behind. Where all threads have as many,
# there need not be more.
PIECES = 4
# A panel is written and read once more for each block of rows, the other operand read once for each
# block of columns.
COPY = 2


@dataclass(frozen=True)
class Panels:
    """The stage that copies panels, its axis of columns, the buffer that it reads, the columns of a
    panel."""

    stage: str
    column: str
    source: str
    width: int


def own_panels(s: Scheduler, acc: Stage, ops: tuple[Load, Load], t: Tile) -> Panels | None:
    """A stage that copies the operand of the columns, where that pays; it is placed later."""
    row, col = acc.axes[t.row], acc.axes[t.col]
    x = _right_operand(s, acc, ops, t)
    if x is None or t.group or not t.plain or t.large or t.window or not t.around:
        return None
    b, rows, wide = s.nest.buffer(str(x.source)), extent(row), extent(col)
    same = b.dtype is s.nest.buffer(acc.name).dtype and b.scope == "in" and b.layout is None
    summed = [q for q in s.reduced(acc.name) if q.var in x.symbols()]
    if not same or len(summed) != 1 or len(summed) < len(s.reduced(acc.name)):
        return None
    deep, at = summed[0].extent, linear_index(b, x.index)
    stride = D.coefficient(at, summed[0].var)
    known = isinstance(rows, int) and isinstance(wide, int) and isinstance(deep, int)
    if not known or not isinstance(stride, int) or D.coefficient(at, col) != 1:
        return None
    width = panel_width(wide, t.lanes * t.vectors, t.lanes) if rows >= LEAST_ROWS else None
    if width is None:
        return None
    if s.choices.panels is None:
        size = b.dtype.bytes
        apart = reads_apart(s.target, deep, stride * size, width * size)
        own = copies_panels(s.target, rows, deep, stride * size)
        if not (apart and own):
            return None
    into, axes = f"{acc.name}p", [q.var for q in s.path(acc.name) if q.var in x.symbols()]
    if not s.attempt(Materialise(acc.name, value_text(x), into)):
        return None
    last = axes.index(col)
    s.do(Permute(into, (*(k for k in range(len(axes)) if k != last), last)))
    return Panels(into, f"{into}.i{last}", b.name, width)


def _right_operand(s: Scheduler, acc: Stage, ops: tuple[Load, Load], t: Tile) -> Load | None:
    """The operand with the columns and without the rows, if it is multiplied as it is."""
    if s.choices.panels is False:
        return None
    own = [x for x in ops if acc.axes[t.col] in x.symbols()]
    if len(own) != 1 or acc.axes[t.row] in own[0].symbols():
        return None
    value = s.store(acc.name).value
    return own[0] if isinstance(value, Fn) and own[0] in value.args else None


def place_panels(s: Scheduler, t: Tile, p: Panels) -> Placed:
    """The host's loops in tiles, a panel copied before the tiles of rows that read it."""
    a, m, n = t.acc, t.names[t.row], t.names[t.col]
    em, en = guess(s.loops(m)[0].extent), guess(s.loops(n)[0].extent)
    chain = min(t.choices.chain or CHAIN, t.chain or CHAIN)
    blocks, around = partial_sums(s, a, chain)
    rest = [x for x in t.names if x not in (m, n)]
    many = prod(guess(s.loops(x)[0].extent) for x in rest)
    tall, broad = _block(s, t, (em, en), p.width, many, blocks is not None)
    rows = _rows(t, tall, em)
    assert rows is not None
    if tall < em or (blocks is not None and not rest):
        s.do(Split(m, tall))
        rest, m = [*rest, f"{m}.0"], f"{m}.1"
    if broad < en:
        s.do(Split(n, broad))
        rest, n = [*rest, f"{n}.0"], f"{n}.1"
    s.do(Split(m, rows))
    s.do(Split(n, p.width))
    tiles = (f"{n}.0", f"{m}.0")
    s.do(Reorder((*rest, *tiles, f"{m}.1", f"{n}.1")))
    if blocks is None:
        s.do(ComputeAt(a, tiles[1]))
        s.do(ComputeAt(p.stage, tiles[0]))
    else:
        row, col = f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"
        s.do(ComputeAt(a, rest[-1]))
        s.do(Split(row, rows))
        s.do(Split(col, p.width))
        reorder(s, (*around, f"{col}.0", f"{row}.0", f"{row}.1", f"{col}.1"))
        s.do(ComputeAt(blocks, f"{row}.0"))
        s.do(ComputeAt(p.stage, f"{col}.0"))
    reorder(s, (*(q.name for q in s.own(p.stage) if q.name != p.column), p.column))
    lanes_of_tile(s, p.column, t.lanes)
    parts = (rows, p.width) if blocks is not None else (0, 0)
    return Placed(replace(t, rows=rows), m, n, rest, tiles, False, blocks, *parts)


def _block(
    s: Scheduler, t: Tile, sizes: tuple[int, int], width: int, many: int, deep: bool
) -> tuple[int, int]:
    """Rows and columns that threads take at a time: enough pieces for them, so few that operands
    are not read again and again, and so large that they stay in the second cache."""
    st, size = s.group.stage(t.acc), s.nest.buffer(t.acc).dtype.bytes
    terms, cores = prod(guess(extent(x)) for x in st.raxes), s.target.cores
    part = min(terms, t.choices.chain or CHAIN) * size
    room = s.target.l2 // (4 if deep else 2)
    heights = [d for d in _divisors(sizes[0]) if d >= LEAST_ROWS and _rows(t, d, sizes[0])]
    if t.choices.block in heights:
        heights = [t.choices.block]
    widths = [d * width for d in _divisors(sizes[1] // width)] if deep else [sizes[1]]

    def worth(block: tuple[int, int]) -> tuple[bool, bool, bool, float, int]:
        tall, broad = block
        pieces = many * (sizes[0] // tall) * (sizes[1] // (broad if deep else width))
        shared = pieces >= PIECES * cores or pieces % cores == 0
        fits = tall * part <= room and (not deep or tall * broad * size <= room)
        # Rows of the other operand that stay in the cache whole are read once, with any columns.
        again = 0.0 if tall * terms * size <= s.target.l2 // 2 else 1 / (broad if deep else width)
        rows = _rows(t, tall, sizes[0])
        full = rows is not None and 4 * rows > 3 * t.rows  # fewer load more for each sum
        return shared, full, fits, -(COPY / tall + again), -broad

    return max(((h, w) for h in heights for w in widths), key=worth)


def _rows(t: Tile, tall: int, of: int) -> int | None:
    """Rows of a tile: of a block of some of the rows, so many that none are left over."""
    if t.choices.rows is not None:
        return t.choices.rows if tall == of or tall % t.choices.rows == 0 else None
    if tall == of:
        return -(-tall // -(-tall // min(t.rows, tall)))
    return next((r for r in range(t.rows, t.rows // 2, -1) if tall % r == 0), None)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def prefetch_panels(s: Scheduler, placed: Placed, p: Panels, top: str) -> None:
    """The next panel of an operand that no cache holds arrives while rows pass by this one."""
    b = s.nest.buffer(p.source)
    if 2 * D.bounds(b.size)[0] * b.dtype.bytes <= s.target.l2:
        return
    a, t = placed.tile.acc, placed.tile
    row, col = f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"
    if placed.blocks is not None:
        s.prefetch(b.name, f"{col}.0", f"{row}.0", 2)
    else:
        s.prefetch(b.name, top, placed.tiles[1], 2)
