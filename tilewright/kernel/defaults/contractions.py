"""Contractions: a register tile of rows times lanes, with the reduction inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Const, Fn, Load, Value, extent, walk
from tilewright.ir.product import Product
from tilewright.ir.register_tile import (
    LINE,
    dividing_rows,
    operand_level,
    products_of,
    register_tile,
    window_rows,
)
from tilewright.ir.value_text import value_text
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.few_rows import few_rows, schedule_few_rows
from tilewright.kernel.defaults.long_products import schedule_long_product
from tilewright.kernel.defaults.own_panels import own_panels, place_panels, prefetch_panels
from tilewright.kernel.defaults.scheduler import (
    USUAL,
    Scheduler,
    affine_pair,
    store_reads,
    vector_loop,
)
from tilewright.kernel.defaults.tiles import Placed, Tile, fill_tile, place_tile
from tilewright.kernel.defaults.window_sums import schedule_window_sums
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.nest import Store
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.permute import Permute


def is_contraction(s: Scheduler, st: Stage) -> bool:
    return bool(product_operands(s.store(st.name).value)) and bool(st.raxes) and st.combine == "add"


def product_operands(v: Value) -> tuple[Load, Load] | None:
    """The two loads of a product, through casts, and where a condition picks one or a number."""
    if isinstance(v, Fn) and v.name == "mul":
        a, b = (_through_casts(_guarded(_through_casts(x))) for x in v.args)
        if isinstance(a, Load) and isinstance(b, Load):
            return a, b
    return None


def _through_casts(v: Value) -> Value:
    while isinstance(v, Fn) and v.name == "cast":
        v = v.args[0]
    return v


def _guarded(v: Value) -> Value:
    """What is read inside the edges of an image; elsewhere it is a number."""
    if isinstance(v, Fn) and v.name == "select" and isinstance(v.args[2], Const):
        return v.args[1]
    return v


def find_tile(s: Scheduler, acc: Stage, host: str) -> Tile | None:
    """A register tile for the sums of a contraction in the loops of the one stage that reads them:
    rows of one operand times lanes of the other. None where none fits."""
    path = s.path(host)
    reads = [r for r in store_reads(s.store(host)) if r.source == acc.name]
    if len(reads) != 1 or len(reads[0].index) != len(path):
        return None
    for i, p in zip(reads[0].index, path, strict=True):
        if not (D.is_sym(i) and D.the_sym(i) is p.var) and not (i == 0 and p.extent == 1):
            return None
    ops = product_operands(s.store(acc.name).value)
    assert ops is not None
    dtype = s.nest.buffer(acc.name).dtype
    tile = register_tile(s.target, dtype)
    lanes = s.target.lanes(dtype.bits)
    columns = lanes * s.choices.vectors if s.choices.vectors else tile.columns
    choice = _lane_choice(s, acc, ops, columns)
    row = None if choice is None else _row_choice(acc, ops, choice[0])
    if choice is None or row is None:
        return None
    col, width = choice
    # Only an instruction loads rows in vectors; elsewhere their layout does not matter.
    adjacent = _adjacent(s, acc, ops, row) and _loads_rows(s)
    group = _group(s, acc, ops)
    product = _tile_product(s, acc, ops, group, width) if group else None
    wide = extent(acc.axes[col])
    if group:
        tile = register_tile(s.target, dtype, product=product)
    else:
        fits = min(width, -(-wide // lanes) * lanes) if isinstance(wide, int) else width
        tile = register_tile(s.target, dtype, fits)
    rows = tile.adjacent if adjacent and not group else tile.rows
    if not isinstance(wide, int) and not isinstance(extent(acc.axes[row]), int):
        # Panels are narrow since columns may be few: more rows would hide no more latency, and each
        # number of them that is left over is code of its own.
        rows = min(rows, register_tile(s.target, dtype).rows)
    names = [p.name for p in path]
    axes = [f"i{k}" for k in range(len(names))]
    vectors = max(1, width // lanes)
    large, plain = product is not None, _block(s, ops, acc.axes[col]) is None
    most = tile.most if rows == tile.rows else rows
    made = Tile(acc.name, host, names, axes, row, col, rows, lanes, vectors, group, plain, large)
    return replace(made, most=most, chain=acc.chain)


def _loads_rows(s: Scheduler) -> bool:
    """Has the target an instruction for rows that are adjacent in memory?"""
    return any(p.loads == "rows" for p in s.target.products)


def _blocks(s: Scheduler, ops: tuple[Load, Load]) -> Iterator[tuple[Sym, int]]:
    """The axes along which an operand was packed in several blocks, and their width."""
    for x in ops:
        by = s.nest.buffer(str(x.source)).layout
        if by is None:
            continue
        plain = by.inverse().apply(x.index)
        for d in by.digits():
            if d is None or d.count is None or d.step != 1 or not D.is_sym(plain[d.axis]):
                continue
            axis = D.the_sym(plain[d.axis])
            if not D.known_le(extent(axis), d.count):
                yield axis, d.count


def _group(s: Scheduler, acc: Stage, ops: tuple[Load, Load]) -> int:
    """How many adjacent steps of the sum an operand was packed in, if it was."""
    return next((width for axis, width in _blocks(s, ops) if axis in acc.raxes), 0)


def _tile_product(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], group: int, width: int
) -> Product | None:
    """The target's instruction with registers of its own for the sums, if they fill these."""
    deep = extent(acc.raxes[-1])
    if not isinstance(deep, int):
        return None
    (a, b), c = (x.dtype for x in ops), s.nest.buffer(acc.name).dtype
    for p in (*products_of(s.target, (a, b, c)), *products_of(s.target, (b, a, c))):
        if p.tile is not None and p.group == group and width <= p.columns and deep % p.depth == 0:
            return p
    return None


def schedule_contraction(
    s: Scheduler, acc: Stage, outs: list[Stage], images: Sequence[Stage] = ()
) -> bool:
    """The sums in register tiles of the output, `images` that they read copied into the cache right
    before. False where none fits."""
    host, a = outs[0].name, acc.name
    t = find_tile(s, acc, host)
    if t is None:
        return False
    ops = product_operands(s.store(a).value)
    assert ops is not None
    row, col, names, axes = t.row, t.col, t.names, t.axes
    # Other outputs of the same shape are stored in the same loops, before any of them is split.
    for other in outs[1:]:
        if not s.attempt(ComputeWith(other.name, names[-1])):
            return False
    wide = [str(x.source) for x in ops if acc.axes[col] in x.symbols()]
    joined = _joined_rows(s, acc, ops, t) if not images else None
    if (
        joined is None
        and not images
        and len(wide) == 1
        and s.choices == Choices()
        and few_rows(s, t)
    ):
        if schedule_few_rows(s, t, wide[0]):
            return True
    if joined is None and not images and len(outs) == 1 and schedule_long_product(s, t, ops):
        return True
    t.choices, t.rows = s.choices, t.rows if t.group else s.choices.rows or t.rows
    if all(acc.axes[col] in x.symbols() for x in ops):
        if not images and schedule_window_sums(s, t, ops):
            return True
        # No panel serves all rows (a depthwise convolution): whole pixels are read and stored.
        t.choices = replace(s.choices, outer=s.choices.outer or "rows")
        t.window, t.vectors = True, min(t.vectors, s.choices.vectors or 2)
    if t.plain and not t.group and not isinstance(extent(acc.axes[col]), int):
        # What is left of columns of any number is part of one vector: its sums are registers too.
        t.vectors = s.choices.vectors or 1
    dtype = s.group.buffer(a).dtype
    adjacent, large = _adjacent(s, acc, ops, row), _large(s, acc, ops, row)
    image = row >= 1 and row - 1 != col and _one_image(acc, ops, row)
    most = register_tile(s.target, dtype)
    t.passing = _passing(s, acc, ops, t, row - 1 if image else row)
    may_copy = image and s.choices.copy is not False and joined is None
    tall = s.choices.rows or most.adjacent
    copy = _copied(s, acc, ops, row, tall, adjacent) if may_copy else None
    # Only an instruction loads rows in vectors; elsewhere their layout does not matter.
    adjacent = adjacent and _loads_rows(s)
    # Height and width become one row axis, so that small images fill the tile.
    if joined is not None:
        first, t.rows = joined
        count = len(names) - 1
        s.do(FuseAxes(a, first, count))
        inner = names[-1] if col == 0 else names[-2]
        for k in range(first + count - 2, first - 1, -1):
            s.do(Fuse(names[k], inner, inner := f"{host}.p{k}"))
        names[first : first + count], axes[first : first + count] = [inner], ["p"]
        t.row, t.col = (1, 0) if col == 0 else (0, 1)
        image = False
    elif copy is not None or (image and _walks_together(s, acc, ops, row, adjacent)):
        s.do(FuseAxes(a, row - 1))
        s.do(Fuse(names[row - 1], names[row], f"{host}.p"))
        names[row - 1 : row + 1] = [f"{host}.p"]
        axes[row - 1 : row + 1] = ["p"]
        t.col, t.row = (col - 1 if col > row else col), row - 1
    if copy is not None:
        t.copy, t.rows = copy, tall
    elif t.window:
        pixels = s.loops(names[t.row])[0].extent
        t.rows = s.choices.rows or window_rows(s.target, t.vectors, pixels)
        if isinstance(pixels, int) and pixels <= t.rows:
            t.choices = s.choices  # all rows are one tile: threads share the columns
    elif s.choices.rows is None and joined is None:
        t.rows = dividing_rows(t.rows, t.most, s.loops(names[t.row])[0].extent)
    # Panels that do not stay in the cache together are read once, not for each row of the image.
    if image and large and len(names) == len(acc.axes):
        t.height = names[t.row - 1]
    free = not images and joined is None and copy is None and not image
    panels = own_panels(s, acc, ops, t) if free else None
    if panels is None:
        placed = place_tile(s, t)
    else:
        t.vectors = panels.width // t.lanes
        t.rows = s.choices.rows or register_tile(s.target, dtype, panels.width).rows
        placed = place_panels(s, t, panels)
    for x in images:
        if not _copied_before(s, x, placed):
            return False
    _join_single(s, placed)
    fill_tile(s, placed)
    top = parallel_tiles(s, placed)
    if top is not None and panels is None:
        _prefetch(s, placed, top, ops)
    elif top is not None and panels is not None:
        prefetch_panels(s, placed, panels, top)
    return True


def _passing(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], t: Tile, first: int
) -> tuple[str, ...]:
    """The host's loops of rows besides those of an image (`first` up to the tile's rows), such as
    that over a batch, if all of them should pass by a panel of the lane operand: then the other
    operand is read once for each panel, where otherwise all panels are for each of them."""
    column = acc.axes[t.col]
    lanes = [x for x in ops if column in x.symbols()]
    known = all(isinstance(extent(x), int) for x in acc.axes)
    if len(lanes) != 1 or not known or t.group or t.window:
        return ()
    own = range(first, t.row + 1)
    free = [k for k, x in enumerate(acc.axes) if x not in lanes[0].symbols() and k not in own]
    sizes = [D.bounds(s.nest.buffer(str(x.source)).size)[1] * x.dtype.bytes for x in ops]
    wide = sizes[ops.index(lanes[0])]
    if wide <= s.target.l2 // 2:
        return ()
    times = prod(D.bounds(extent(acc.axes[k]))[1] for k in free)
    panels = -(-D.bounds(extent(column))[1] // (t.lanes * t.vectors))
    if panels * (sum(sizes) - wide) >= times * wide:
        return ()
    return tuple(t.names[k] for k in free if extent(acc.axes[k]) != 1)


def _joined_rows(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], t: Tile
) -> tuple[int, int] | None:
    """The first of several axes that are rows, and rows of a tile, where the sum is so long that it
    has to be in parts, which is done for one axis of rows: the gradient of a convolution's weights,
    a sum over all pixels, has channels and taps as rows. Taps are in one tile together."""
    others = [k for k in range(len(acc.axes)) if k != t.col]
    wide, deep = t.lanes * t.vectors, prod(D.bounds(extent(x))[1] for x in acc.raxes)
    size = s.nest.buffer(acc.name).dtype.bytes
    long = deep * wide * size > s.target.l2 // 2
    if len(others) < 2 or t.col not in (0, len(acc.axes) - 1) or t.group or t.window or not long:
        return None
    apart = any(sum(acc.axes[k] in x.symbols() for x in ops) != 1 for k in others)
    lanes = next(x for x in ops if acc.axes[t.col] in x.symbols())
    if apart or any(acc.axes[k] in lanes.symbols() for k in others) or s.choices != Choices():
        return None
    sizes = [e for k in others if isinstance(e := extent(acc.axes[k]), int)]
    taps = prod(sizes[1:])
    if len(sizes) < len(others) or taps > t.rows:
        return None
    each = t.rows // taps
    while each > 1 and sizes[0] % each:
        each -= 1
    return others[0], taps * each


def _copied_before(s: Scheduler, image: Stage, p: Placed) -> bool:
    """An image where the tiles of a product use it, if so much of it fits the second cache."""
    around = [x for x in p.rest if s.loops(x)]
    if not around or not s.attempt(ComputeAt(image.name, around[-1])):
        return False
    b = s.nest.buffer(image.name)
    if guess(b.size) * b.dtype.bytes > s.target.l2 // 4:
        return False
    vector_loop(s, s.path(image.name)[-1].name, 4 * s.target.lanes(b.dtype.bits))
    return True


# Vectors that a processor has written and that wait for their lines, while it goes on. Those of a
# tile with one result wait while the next tile adds up; where there are more, it stops.
WAITING = 32


def _prefetch(s: Scheduler, p: Placed, top: str, ops: tuple[Load, Load]) -> None:
    """The next panel of an operand that no cache holds arrives while the rows pass by this one, and
    what the next tile's sums are put together with while those of this one are added up: so do the
    lines of its results, if these are many."""
    t, inmost = p.tile, p.blocks or p.tile.acc
    stores = [(x, q) for x, q in walk_nest(s.nest.body) if isinstance(x, Store)]
    paths = [q for x, q in stores if x.stage == inmost and q and q[-1].kind == "tensor"]
    longest = max(paths, key=len, default=())
    around = [q.name for q in longest if q.kind == "serial" and q.name != top]
    if not around:
        return
    columns = s.group.stage(t.acc).axes[t.col]
    level = operand_level(s.target, next(q.instruction for q in longest if q.instruction))
    for x in ops:
        b = s.nest.buffer(str(x.source))
        large = D.bounds(b.size)[0] * b.dtype.bytes > s.target.l2
        if columns in x.symbols() and b.scope == "in" and large:
            # Where all columns pass by a part of the sum, the next panel of that part.
            ahead = f"{t.acc}.{t.axes[t.col]}.0" if p.wide else top
            s.prefetch(b.name, ahead, around[-1], level)
    own = {str(x.source) for x in ops}
    for b in s.nest.buffers:
        large = D.bounds(b.size)[0] * b.dtype.bytes > s.target.l2
        if b.scope == "in" and b.name not in own and large:
            s.prefetch(b.name, around[-1], around[-1])
    outs = [b for b in s.nest.buffers if b.scope == "out"]
    written = sum(t.rows * t.lanes * t.vectors * b.dtype.bytes for b in outs)
    if written > WAITING * LINE and not (p.parts or t.large) and p.tiles[1] != top:
        for b in outs:
            if D.bounds(b.size)[0] * b.dtype.bytes > s.target.l2:
                s.prefetch(b.name, p.tiles[1], p.tiles[1])


def _join_single(s: Scheduler, p: Placed) -> None:
    """One iteration around tiles of rows is no work to share among threads, and once the last
    tile is peeled off, loops cannot be fused."""
    while p.rest and p.tiles[0] != f"{p.n}.0" and s.loops(p.rest[-1])[0].extent == 1:
        into = f"{p.tile.host}.m{len(p.rest)}"
        if not s.attempt(Fuse(p.rest[-1], p.tiles[0], into)):
            return
        p.rest, p.tiles = p.rest[:-1], (into, p.tiles[1])


def _lane_choice(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], columns: int
) -> tuple[int, int] | None:
    """(output axis for lanes, width of the tile): an axis that is contiguous in one operand, within
    a packed block, and absent from the other."""
    best: tuple[int, int, bool, int, int] | None = None
    for k, a in enumerate(acc.axes):
        if extent(a) == 1 and len(acc.axes) > 1:
            continue
        packed = _block(s, ops, a)
        width = packed or columns
        strides = []
        for x in ops:
            lin = linear_index(s.nest.buffer(str(x.source)), x.index)
            outer, inner = D.var("?o", D.ceildiv(extent(a), width)), D.var("?i", width)
            lin = D.substitute(lin, {a: outer * width + inner})
            strides.append(D.coefficient(lin, D.the_sym(inner)))
        small = any(isinstance(c, int) and 1 < c <= 4 for c in strides)
        score = (
            (4 if packed else 3)
            if 0 in strides and 1 in strides
            else 2
            if 0 in strides and small
            else 1
            if strides == [1, 1]
            else 0
        )
        filled = D.bounds(extent(a))[1]
        filled = min(s.target.lanes(32), int(filled)) if score else 0  # of a vector
        laid = _laid_for(s, ops, a)
        if score and (best is None or (score, filled, laid) >= best[:3]):
            best = (score, filled, laid, k, width)
    return best[3:] if best else None


def _laid_for(s: Scheduler, ops: tuple[Load, Load], a: Sym) -> bool:
    """Was an operand laid out so that this axis is innermost, in one block or in several?"""
    by = [(s.nest.buffer(str(x.source)).layout, x) for x in ops]
    return any(m is not None and x.index and a in D.symbols(x.index[-1]) for m, x in by)


def _block(s: Scheduler, ops: tuple[Load, Load], a: Sym) -> int | None:
    """The width of the blocks in which an operand was packed along an axis."""
    return next((width for axis, width in _blocks(s, ops) if axis is a), None)


def _row_choice(acc: Stage, ops: tuple[Load, Load], col: int) -> int | None:
    """The last other axis with more than one point that shares an operand; of a batch, which shares
    none, rows are a tile's only where there is no axis of one point."""
    others = [k for k in range(len(acc.axes)) if k != col]
    shared = [k for k in others if not all(acc.axes[k] in x.symbols() for x in ops)]
    many = [k for k in shared if extent(acc.axes[k]) != 1] or shared or others
    return many[-1] if many else None


def _adjacent(s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int) -> bool:
    """Are the elements that the rows multiply adjacent?"""
    axis = acc.axes[row]
    return any(
        axis in x.symbols()
        and D.coefficient(linear_index(s.nest.buffer(str(x.source)), x.index), axis) == 1
        for x in ops
    )


def _one_image(acc: Stage, ops: tuple[Load, Load], row: int) -> bool:
    """Are axes row-1 and row in the same operand only: height and width of an image?"""
    hi, lo = acc.axes[row - 1], acc.axes[row]
    a = [hi in x.symbols() for x in ops]
    b = [lo in x.symbols() for x in ops]
    return a == b and sum(a) == 1 and all(isinstance(extent(x), int) for x in (hi, lo))


def _walks_together(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int, adjacent: bool
) -> bool:
    """Is an image better one row of pixels? Where pixels are adjacent, only if no edge of the
    image cuts them."""
    hi, lo = acc.axes[row - 1], acc.axes[row]
    x = next(x for x in ops if lo in x.symbols())
    wide = D.bounds(extent(lo))[0] >= s.target.lanes(32)
    if any(isinstance(v, Fn) and v.name == "select" for v in walk(s.store(acc.name).value)):
        return False  # pixels of one line need fewer conditions
    sums = s.nest.buffer(acc.name).dtype
    known = any(p.c is sums for p in s.target.products)
    if not wide or not (adjacent or known):
        return True
    return affine_pair(s.nest.buffer(str(x.source)), x.index, hi, lo)


# Where one step of the reduction is this many bytes away from the next, every one of them is on
# another page, and more of them are under way than a processor has translations for.
FAR = 2048


def _copied(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int, rows: int, adjacent: bool
) -> tuple[str, int] | None:
    """The operand of an image's pixels in a stage of its own, pixels adjacent, and how
    many of them are a block (0: all); where they are not, or are walked through in far steps."""
    a, hi, lo = acc.name, acc.axes[row - 1], acc.axes[row]
    x = next(x for x in ops if lo in x.symbols())
    long = [r for r in acc.raxes if r in x.symbols() and extent(r) != 1]
    if len(long) != 1:
        return None
    step = D.coefficient(linear_index(s.nest.buffer(str(x.source)), x.index), long[0])
    if not isinstance(step, int) or step == 1 or (adjacent and step * x.dtype.bytes < FAR):
        return None
    deep, pixels = D.bounds(extent(long[0]))[1], D.bounds(extent(hi) * extent(lo))[1]
    # Whole blocks only: in the cache while the columns pass by, and enough of them for the threads.
    most = min(s.target.scratch // 2 // (deep * x.dtype.bytes), pixels // (4 * s.target.cores))
    blocks = [d for d in range(rows, most + 1, rows) if pixels % d == 0]
    loops = [q.var for q in s.path(a) if q.var in x.symbols()]
    at, into = loops.index(hi), f"{a}p"
    small = deep * pixels * x.dtype.bytes <= s.target.l2 // 2
    if not (blocks or small) or loops[at + 1] is not lo:
        return None
    if not s.attempt(Materialise(a, value_text(x), into)):
        return None
    s.do(FuseAxes(into, at))
    last = len(loops) - 2
    s.do(Permute(into, (*(k for k in range(last + 1) if k != at), at)))
    return into, blocks[-1] if blocks else 0


def _large(s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int) -> bool:
    """Does the lane operand leave no room in the cache for the other one?"""
    sizes = [s.nest.buffer(str(x.source)).size for x in ops if acc.axes[row] not in x.symbols()]
    return any(D.bounds(n)[1] * ops[0].dtype.bytes > s.target.l2 // 2 for n in sizes)


# Rows of a product, where their number is not known and threads share its columns.
FEW = 8


def parallel_tiles(s: Scheduler, t: Placed) -> str | None:
    """Threads over the outer loops, fused as far as needed for enough pieces: their loop, if the
    product is more than one tile."""
    outer = [x for x in (*t.rest, t.tiles[0], *t.passing) if s.loops(x)]
    if not outer:
        return None
    top = outer[0]
    for k, nxt in enumerate(outer[1:]):
        if t.tile.window and D.bounds(s.loops(top)[0].extent)[0] >= 4 * s.target.cores:
            break  # lines are enough, and their conditions are evaluated once for all pixels
        into = f"{t.tile.host}.q{k}"
        if not s.attempt(Fuse(top, nxt, into)):
            break
        top = into
    found = s.loops(top)
    if not found:
        return None
    st = s.group.stage(t.tile.acc)
    sizes, few = [extent(axis) for axis in (*st.axes, *st.raxes)], USUAL
    if all(isinstance(d, int) for d in sizes):
        per = D.bounds(prod(sizes))[1] // max(1, min(D.bounds(found[0].extent)[1], D.INF // 2))
    else:  # what is inside, with a few rows where that is not known
        sums = t.blocks or t.tile.acc
        stores = [(x, p) for x, p in walk_nest(found[0].body) if isinstance(x, Store)]
        paths = [p for x, p in stores if x.stage == sums]
        few = USUAL if t.tile.plain else FEW  # pixels are many
        per = max(prod(max(1, guess(q.extent, few)) for q in p) for p in paths)
    s.parallel(top, per // 8, few)  # eight multiply-adds are one simple operation
    return top
