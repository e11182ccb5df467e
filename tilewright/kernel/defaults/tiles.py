"""A register tile of rows times lanes: where its loops go, and what they become.

A contraction is placed in the tiles of the stage that reads it, then filled: the sums are
registers, the reduction an instruction of the target or an unrolled loop, the columns lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import extent
from tilewright.ir.register_tile import CHAIN
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.scheduler import Scheduler, lanes_and_rest, vector_loop
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.trim import Trim
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize


@dataclass
class Tile:
    """A register tile: host loops and accumulator axes by position; which are rows and lanes."""

    acc: str
    host: str  # the stage that reads the sums
    names: list[str]
    axes: list[str]
    row: int
    col: int
    rows: int
    lanes: int
    vectors: int
    group: int = 0  # adjacent steps of the sum in the packed operand
    plain: bool = False  # does the lane operand lie in rows, not in panels as wide as the tile?
    large: bool = False  # are the sums in registers of the instruction's own, many at a time?
    copy: tuple[str, int] | None = None  # of the row operand, in blocks of so many rows
    height: str | None = None  # of an image all of which passes by a panel before the next one
    passing: tuple[str, ...] = ()  # other loops of rows, all of which pass by it
    window: bool = False  # neighbouring rows of one operand share what they read
    around: bool = True  # are the host's other loops right around those of rows and lanes?
    most: int = 0  # so many rows, if they divide all and `rows` do not
    chain: int = 0  # the most terms that the operator has added one after the other; 0: any number
    choices: Choices = Choices()


@dataclass
class Placed:
    """A tile whose sums are computed where they are read."""

    tile: Tile
    m: str  # the host's loop over rows, split into tiles
    n: str  # and over columns
    rest: list[str]  # the host's loops around the tiles
    tiles: tuple[str, str]  # the loops over tiles, the outer one first
    padded: bool
    blocks: str | None  # a stage of partial sums
    parts: int = 0  # rows of a tile, if all rows pass by a part of the sum before the next part
    wide: int = 0  # columns of a tile, if all columns do too
    passing: tuple[str, ...] = ()  # the host's loops between those over tiles that threads share


def place_tile(s: Scheduler, t: Tile) -> Placed:
    """The host's loops in tiles, the sums computed in the innermost of them."""
    a = t.acc
    m, n = t.names[t.row], t.names[t.col]
    em, en = s.loops(m)[0].extent, s.loops(n)[0].extent
    rows, width = t.rows, t.lanes * t.vectors
    few = isinstance(em, int) and em < rows
    if isinstance(em, int) and few:
        # Few rows: more vectors keep enough sums in flight.
        rows = em
        width *= 1 if t.group else t.choices.side or _side(em, t)
        if t.plain and not t.group and t.choices.side is None and isinstance(en, int):
            width = columns_across(en, t.lanes, s.target.vector_registers // (2 * em))
    elif isinstance(em, int) and rows > MIDDLING and not t.group and t.choices.rows is None:
        rows = -(-em // -(-em // rows))  # as many tiles, and the last one no shorter than need be
    if isinstance(en, int):
        width = min(width, -(-en // t.lanes) * t.lanes)
    ragged = not (isinstance(en, int) and en % width == 0)
    # Zero padding in the packed operand lets every tile be full; only the store is ragged then.
    columns = axis_of(s, a, f"{a}.{t.axes[t.col]}")
    columns = t.col if columns is None else columns
    padded = ragged and t.axes[t.col] != "p" and s.attempt(Pad(a, columns, width))
    if not padded and isinstance(en, int):
        width = min(width, en)
    chain = t.choices.chain or (SHORT_CHAIN if few else _usual_chain(s, t))
    if isinstance(en, int) and en < t.lanes:
        chain = min(chain, _narrow_chain(s, a))
    chain = min(chain, t.chain or chain)
    # With an instruction that adds up groups, all of the sum is in registers.
    blocks: str | None = None
    around: tuple[str, ...] = ()
    if not t.group:
        blocks, around = partial_sums(s, a, chain, uneven=True)
    rest = [x for x in t.names if x not in (m, n)] if t.around else []
    if t.copy is not None and t.copy[1]:
        s.do(Split(m, t.copy[1]))
        rest, m = [*rest, f"{m}.0"], f"{m}.1"
    elif t.choices.block and isinstance(em, int) and em % t.choices.block == 0:
        s.do(Split(m, t.choices.block))  # whole blocks only: otherwise no tile has constant sizes
        rest, m = [*rest, f"{m}.0"], f"{m}.1"
    deep = _deep_block(s, t, em, en, rows, width) if blocks is not None and not rest else 0
    if deep:
        s.do(Split(m, deep))
        rest, m = [f"{m}.0"], f"{m}.1"
    s.do(Split(m, rows))
    s.do(Split(n, width))
    count_n = D.ceildiv(en, width)
    # A panel of the lane operand stays in the cache while the rows pass by, unless there are too
    # few panels to share among threads.
    panels = not isinstance(count_n, int) or count_n >= 4 or (isinstance(em, int) and em <= rows)
    if t.choices.outer is not None:
        panels = t.choices.outer == "columns"
    tiles = (f"{n}.0", f"{m}.0") if panels else (f"{m}.0", f"{n}.0")
    inside: list[str] = []
    passing = tuple(x for x in rest if x in t.passing) if panels and t.copy is None else ()
    if t.height is not None and panels:
        inside = [t.height]
    rest = [x for x in rest if x not in (*passing, *inside)]
    inside = [*passing, *inside]
    s.do(Reorder((*rest, tiles[0], *inside, tiles[1], f"{m}.1", f"{n}.1")))
    count = prod(D.bounds(s.loops(x)[0].extent)[1] for x in passing)
    by_parts = blocks is not None and panels and _by_parts(s, t, em, width, count)
    parts = rows if by_parts else 0
    if deep:
        parts = rows
        s.do(ComputeAt(a, rest[-1]))
    else:
        s.do(ComputeAt(a, tiles[0] if parts else tiles[1]))
    if padded and isinstance(en, int) and en < width:
        s.do(
            Pad(a, columns, width)
        )  # one tile, as narrow as the host: the sums are whole vectors all the same
    if t.copy is not None:
        if t.copy[1]:
            s.do(ComputeAt(t.copy[0], rest[-1]))
        _copy_lanes(s, t.copy[0])
    if blocks is not None and around:
        own, inner = [f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"], around[-1]
        others = [f"{a}.{t.axes[t.names.index(x)]}" for x in passing] if parts else []
        reorder(s, (*around, *others, *own))
        if parts:
            inner = f"{own[0]}.0"
            s.do(Split(own[0], parts))
        if deep:
            s.do(Split(own[1], width))
            reorder(s, (f"{own[1]}.0", f"{own[0]}.0", f"{own[0]}.1", f"{own[1]}.1"))
        s.do(ComputeAt(blocks, inner))
    wide = width if deep else 0
    return Placed(t, m, n, rest, tiles, padded, blocks, parts, wide, passing)


def _deep_block(s: Scheduler, t: Tile, rows: Dim, columns: Dim, tall: int, width: int) -> int:
    """Rows of a block whose sums stay in the second cache, with a part of the rows, while all
    columns pass by that part; 0 where a whole panel fits that cache, or threads would be left
    without a block. A sum so long would otherwise bring in all panels for every few rows."""
    fits = isinstance(rows, int) and isinstance(columns, int) and len(t.names) == 2
    plain = t.copy is None and t.height is None and t.around and not (t.group or t.window)
    if not fits or not plain or t.choices.block or t.choices.outer == "rows":
        return 0
    assert isinstance(rows, int) and isinstance(columns, int)
    size = s.nest.buffer(t.acc).dtype.bytes
    deep = prod(D.bounds(extent(x))[1] for x in s.group.stage(t.acc).raxes)
    if deep * width * size <= s.target.l2 // 2 or min(columns, rows) < 2 * min(width, tall):
        return 0
    most = s.target.l2 // 2 // (size * (columns + (t.choices.chain or CHAIN)))
    most = min(most, rows // s.target.cores)
    found = [n for n in range(tall, most + 1, tall) if rows % n == 0]
    return found[-1] if found and found[-1] >= 4 * tall else 0


def _by_parts(s: Scheduler, t: Tile, rows: Dim, width: int, times: int) -> bool:
    """Is a panel larger than a cache, so that each tile of rows would read it from the next one?
    Then all rows, so many `times`, pass by a part of it before the next part, if their sums fit the
    cache too. The first cache counts where code does not prefetch, elsewhere the second: into the
    first, panels arrive ahead."""
    if t.group or t.copy is not None or t.height is not None or not t.around:
        return False
    if not isinstance(rows, int) or rows <= t.rows:
        return False
    st, size = s.group.stage(t.acc), s.nest.buffer(t.acc).dtype.bytes
    deep = prod(D.bounds(extent(x))[1] for x in st.raxes)
    panel, sums = deep * width * size, times * rows * width * size
    if s.target.prefetch:
        return panel > s.target.l2 // 2 and sums <= s.target.l2 // 4
    return panel > s.target.l1 and sums <= s.target.l1 // 2


# Bytes of one row's adjacent panels: in the cycles that a sum takes, memory brings less.
STREAM = 48


def _side(rows: int, t: Tile) -> int:
    """Adjacent panels for few rows. One row waits for memory, which is fastest where it is
    read as one stream: 31 to 34 GB/s against 23 to 29 of five, measured with two threads."""
    if rows == 1:
        return -(-STREAM // (t.lanes * t.vectors * 4))
    return max(1, 16 // (rows * t.vectors))


def columns_across(columns: int, lanes: int, vectors: int) -> int:
    """Columns of a tile over rows of memory: all of them, or the largest equal parts of whole
    vectors, so that whole rows are read one after the other."""
    most = max(lanes, min(lanes * vectors, -(-columns // lanes) * lanes))
    fits = [n for n in range(lanes, most + 1, lanes) if columns % n == 0]
    return fits[-1] if fits else most


def fill_tile(s: Scheduler, p: Placed) -> None:
    """The sums in registers, the columns in lanes, the reduction unrolled or an instruction."""
    t, a, m, n = p.tile, p.tile.acc, p.m, p.n
    inmost = p.blocks or a
    own = [f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"]
    stems = [own, [f"{a}.init.{t.axes[t.row]}", f"{a}.init.{t.axes[t.col]}"]]
    if p.parts:
        for stem in stems:
            row = stem[0]
            if stem is not own:
                s.do(Split(row, p.parts))
            s.attempt(Peel(f"{row}.0"))
            stem[0] = f"{row}.1"
            if p.wide:
                if stem is not own:
                    s.do(Split(stem[1], p.wide))
                stem[1] = f"{stem[1]}.1"
    if p.blocks is not None:
        own = [f"{p.blocks}.{t.axes[t.row]}", f"{p.blocks}.{t.axes[t.col]}"]
        stems += [own, [f"{p.blocks}.init.i{axis_of(s, p.blocks, x)}" for x in own]]
    if not t.large:
        s.attempt(SetScope(inmost, "register"))
    for stage, (_, column) in {a: stems[0], inmost: own}.items():
        last = len(s.nest.buffer(stage).shape) - 1
        col = axis_of(s, stage, column)
        if col is not None and col != last:
            s.do(Permute(stage, (*(k for k in range(last + 1) if k != col), col)))
    for q in s.reduced(a) if p.blocks is not None else ():
        if isinstance(q.extent, int):
            s.attempt(Peel(q.name))  # a last part of a sum that is shorter than the others
    red = [q.name for q in s.reduced(inmost)]
    for x in p.tiles:
        if p.padded and x == f"{n}.0":
            continue
        # How many rows are left over is known at a call only: code for each number of them keeps
        # their sums in registers too.
        known = all(isinstance(q.extent, int) for q in s.loops(x))
        any_rest = x == f"{m}.0" and not t.large and not known
        if not (any_rest and s.attempt(Peel(x, cases=True))):
            s.attempt(Peel(x))
    if _instruction(s, inmost, own, red, t.group):
        stems.remove(own)
        red = []
    elif t.window and (near := [x for x in red if s.loops(x)[0].extent != 1][-1:]):
        # One row after the other: what it shares with the next is still in a register. Of a long
        # line, such as pixels that a gradient sums, all rows take one number after the other.
        far = [x for x in red if x not in near]
        short = isinstance(e := s.loops(near[0])[0].extent, int) and e <= WINDOW
        reorder(s, (*far, own[0], *near, own[1]) if short else (*far, *near, *own))
        for x in far:
            s.attempt(Trim(x))  # lines outside an image add nothing
    else:
        reorder(s, (*red, *own))
    for r, c in stems:
        if s.loops(r) and not t.large:  # its rows are many, and not in registers
            s.attempt(Unroll(r))
        if s.loops(c):
            lanes_of_tile(s, c, t.lanes)
    if not t.large:
        s.attempt(Unroll(f"{m}.1"))
    if p.padded:
        s.do(Split(f"{n}.1", t.lanes))
        s.do(Unroll(f"{n}.1.0", guarded=True))
        s.do(Vectorize(f"{n}.1.1", masked=True))
    else:
        lanes_of_tile(s, f"{n}.1", t.lanes)
    unroll_reduction(s, red)


def fill_sums(s: Scheduler, stage: str, own: list[str], lanes: int) -> None:
    """Sums of a stage that is a tile of its own, of a loop over rows and one over columns: in
    registers, columns in lanes."""
    s.do(SetScope(stage, "register"))
    last = len(s.nest.buffer(stage).shape) - 1
    at = [axis_of(s, stage, x) for x in own]
    if at[1] is not None and at[1] != last:
        s.do(Permute(stage, (*(k for k in range(last + 1) if k != at[1]), at[1])))
    red = [q.name for q in s.reduced(stage)]
    stems = [own, [f"{stage}.init.i{k}" for k in at]]
    if _instruction(s, stage, own, red, 0):
        stems.remove(own)
    else:
        reorder(s, (*red, *own))
        unroll_reduction(s, red)
    for row, column in stems:
        if s.loops(row):
            s.do(Unroll(row))
        if s.loops(column):
            lanes_of_tile(s, column, lanes)


def axis_of(s: Scheduler, stage: str, loop: str) -> int | None:
    """The axis of a stage that a loop runs along. Partial sums have no axes of one element."""
    moves = [q.var for q in s.path(stage) if q.name == loop]
    found = [k for k, i in enumerate(s.store(stage).index) if moves and moves[0] in D.symbols(i)]
    return found[0] if found else None


def _copy_lanes(s: Scheduler, copy: str) -> None:
    """Pixels of the copy in vectors, one row after the other."""
    loops = [p.name for p in s.own(copy)]
    pixels = f"{copy}.p"
    if pixels in loops:
        reorder(s, (*(x for x in loops if x != pixels), pixels))
        vector_loop(s, pixels, 4 * s.target.lanes(32))


def _instruction(s: Scheduler, stage: str, own: list[str], red: list[str], group: int) -> bool:
    """The tile as one instruction of the target, its longest reduction loop innermost."""
    if group:  # one row has no loop, and only the instruction reads groups in vectors
        own = [x for x in own if s.loops(x)]
    if not own or not red or not all(s.loops(x) for x in (*own, *red)):
        return False
    nest, trace = s.nest, list(s.trace)
    longest = max(red, key=lambda x: D.bounds(s.loops(x)[0].extent)[1])
    inner = [longest]
    if group:
        s.do(Split(longest, group))
        inner = [f"{longest}.0", f"{longest}.1"]
    order = [*(x for x in red if x != longest), *own, *inner]
    now = [p.name for p in s.path(stage) if p.name in order]
    if now == order or s.attempt(Reorder(tuple(order))):
        sums = s.nest.buffer(stage).dtype
        for name in s.target.instructions:
            gives = INTRINSICS[name].group.outputs[0].dtype
            if gives is sums and s.attempt(Tensorize(own[0], name)):
                return True
    s.nest, s.trace = nest, trace
    return False


# Steps of a sum that are all unrolled: neighbouring pixels share what a window of them reads.
WINDOW = 7
# Tiles of more rows are made to fit: the rest of them would be a large part of a small product.
MIDDLING = 8
# With few rows memory is the limit, blocks cost nothing, and libraries sum along their lanes.
SHORT_CHAIN = 64
# Rows of an unknown number may be few, and have to be right; where they are many, a part of
# the sum has to be long enough to hide that it is put together with the others.
ANY_CHAIN = 128
PIXELS = 16
NARROW = 32
SHORTEST = 16  # parts of fewer terms are not worth adding up


def _usual_chain(s: Scheduler, t: Tile) -> int:
    """Pixels are many: their products add up several axes (a convolution), or have some dozen
    matrices side by side (its tiles)."""
    if isinstance(s.loops(t.names[t.row])[0].extent, int) or len(s.reduced(t.acc)) > 1:
        return CHAIN
    others = [x for k, x in enumerate(t.names) if k not in (t.row, t.col)]
    sizes = [p.extent for x in others for p in s.loops(x)[:1]]
    pixels = prod(e for e in sizes if isinstance(e, int)) >= PIXELS
    return CHAIN if pixels else ANY_CHAIN


def _narrow_chain(s: Scheduler, a: str) -> int:
    """Terms of a partial sum where there are fewer columns than lanes, for any number of rows: a
    library has a sum's terms in lanes there, so that its chains are short. As many parts as terms
    in each have the least error, but parts of fewer terms than NARROW cost time."""
    terms = prod(D.bounds(p.extent)[1] for p in s.reduced(a))
    return CHAIN if terms == D.INF else min(SHORT_CHAIN, max(NARROW, isqrt(int(terms))))


def partial_sums(
    s: Scheduler, a: str, chain: int, uneven: bool = False
) -> tuple[str | None, tuple[str, ...]]:
    """Sum in blocks: the name of the stage of partial sums, and the loops over blocks. Where a size
    has no divisors that make them long enough, the last block of an `uneven` sum is shorter."""
    loops = s.reduced(a)
    # The first loop whose body is a chain short enough is split, the ones around it are blocks.
    at, inner, size = len(loops), 1, 1
    longest = 1.0
    while at and inner * longest <= chain:
        at, inner, size = at - 1, int(inner * longest), loops[at - 1].extent
        longest = D.bounds(size)[1]
    if inner * longest <= chain or s.group.precision == "strict":
        return None, ()
    most = chain // inner  # the last part is as long as is left
    if isinstance(size, int):
        even = max(d for d in range(1, size + 1) if size % d == 0 and d * inner <= chain)
        if not uneven or 2 * even * inner >= min(chain, 2 * NARROW):
            most = even
    if most * inner < SHORTEST:
        return None, ()
    around = [p.name for p in loops[:at]]
    if most != size:
        s.do(Split(loops[at].name, most))
        around.append(f"{loops[at].name}.0")
    name = f"{a}b"
    # Each part is placed where it is added up: there are as many as a call has terms for.
    s.do(RFactor(a, tuple(around), name, exact=not isinstance(size, int)))
    return name, tuple(around)


def reorder(s: Scheduler, order: tuple[str, ...]) -> None:
    present = tuple(x for x in order if s.loops(x))
    if len(present) > 1:
        s.attempt(Reorder(present))


def lanes_of_tile(s: Scheduler, loop: str, lanes: int) -> None:
    found = [x.extent for x in s.loops(loop)]
    short = all(D.bounds(e)[1] <= lanes for e in found)
    if short and not all(isinstance(e, int) for e in found) and lanes_and_rest(s, loop):
        return  # whole vectors are one, and so is what is left over
    s.do(Split(loop, lanes))
    s.attempt(Peel(f"{loop}.0"))
    if s.loops(f"{loop}.0"):
        s.attempt(Unroll(f"{loop}.0"))
    if s.loops(f"{loop}.1"):
        lanes_and_rest(s, f"{loop}.1")


def unroll_reduction(s: Scheduler, red: list[str]) -> None:
    found = [(x, s.loops(x)[0].extent) for x in red if s.loops(x)]
    last, e = next((x for x in reversed(found) if x[1] != 1), ("", 1))
    if isinstance(e, int) and 1 < e <= WINDOW:
        s.attempt(Unroll(last))
    elif e != 1 and s.attempt(Split(last, 4)):
        s.attempt(Peel(f"{last}.0"))
        s.attempt(Unroll(f"{last}.1"))
