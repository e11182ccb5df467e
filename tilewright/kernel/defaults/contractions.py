"""Contractions: a register tile of rows times lanes, with the reduction inside it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.pack import register_tile
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Fn, Load, Value, extent
from tilewright.ir.value_text import value_text
from tilewright.kernel.defaults.scheduler import (
    PIECE,
    Scheduler,
    affine_pair,
    grain,
    store_reads,
    vector_loop,
)
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize


def is_contraction(s: Scheduler, st: Stage) -> bool:
    return bool(_operands(s.store(st.name).value)) and bool(st.raxes) and st.combine == "add"


def _operands(v: Value) -> tuple[Load, Load] | None:
    """The two loads of a product, through casts."""
    if isinstance(v, Fn) and v.name == "mul":
        a, b = (_through_casts(x) for x in v.args)
        if isinstance(a, Load) and isinstance(b, Load):
            return a, b
    return None


def _through_casts(v: Value) -> Value:
    while isinstance(v, Fn) and v.name == "cast":
        v = v.args[0]
    return v


def schedule_contraction(s: Scheduler, acc: Stage, outs: list[Stage]) -> bool:
    """A register tile: rows of one operand times lanes of the other. False where none fits."""
    host, a = outs[0].name, acc.name
    path = s.path(host)
    reads = [r for r in store_reads(s.store(host)) if r.source == a]
    if len(reads) != 1 or len(reads[0].index) != len(path):
        return False
    for i, p in zip(reads[0].index, path, strict=True):
        if not (D.is_sym(i) and D.the_sym(i) is p.var) and not (i == 0 and p.extent == 1):
            return False
    ops = _operands(s.store(a).value)
    assert ops is not None
    dtype = s.group.buffer(a).dtype
    tile = register_tile(s.target.vector_bits, s.target.vector_registers, dtype)
    lanes = s.target.lanes(dtype.bits)
    choice = _lane_choice(s, acc, ops, tile.columns)
    row = None if choice is None else _row_choice(acc, choice[0])
    if choice is None or row is None:
        return False
    col, width = choice
    vectors = max(1, width // lanes)
    # Other outputs of the same shape are stored in the same loops, before any of them is split.
    for other in outs[1:]:
        if not s.attempt(ComputeWith(other.name, path[-1].name)):
            return False
    names = [p.name for p in path]
    axes = [f"i{k}" for k in range(len(names))]
    beside, large = _beside(s, acc, ops, row), _large(s, acc, ops, row)
    image = row >= 1 and row - 1 != col and _one_image(acc, ops, row)
    copy = _copied(s, acc, ops, row, tile.beside, beside) if image else None
    # Only an instruction loads rows in vectors; elsewhere it matters no more how they lie.
    beside = beside and bool(s.target.instructions)
    # Height and width become one row axis, so that small images fill the tile.
    if copy is not None or (image and _walks_together(s, acc, ops, row, beside)):
        s.do(FuseAxes(a, row - 1))
        s.do(Fuse(names[row - 1], names[row], f"{host}.p"))
        names[row - 1 : row + 1] = [f"{host}.p"]
        axes[row - 1 : row + 1] = ["p"]
        col, row = (col - 1 if col > row else col), row - 1
    rows = tile.beside if beside or copy else tile.rows
    # Panels that do not stay in the cache together are read once, not for each row of the image.
    height = names[row - 1] if image and large and len(names) == len(path) else None
    _tile(s, a, host, _Tile(names, axes, row, col, rows, lanes, vectors, copy, height))
    return True


@dataclass
class _Tile:
    """A register tile: host loops and accumulator axes by position; which are rows and lanes."""

    names: list[str]
    axes: list[str]
    row: int
    col: int
    rows: int
    lanes: int
    vectors: int
    copy: tuple[str, int] | None = None  # of the row operand, in blocks of so many rows
    height: str | None = None  # of an image all of which passes by a panel before the next one


def _lane_choice(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], columns: int
) -> tuple[int, int] | None:
    """(output axis for lanes, width of the tile): an axis that is contiguous in one operand, within
    a packed block, and absent from the other."""
    best: tuple[int, int, int] | None = None
    for k, a in enumerate(acc.axes):
        if extent(a) == 1 and len(acc.axes) > 1:
            continue
        packed = _block(ops, a)
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
        if score and (best is None or score >= best[0]):
            best = (score, k, width)
    return best[1:] if best else None


def _block(ops: tuple[Load, Load], a: Sym) -> int | None:
    """The width of the blocks in which an operand was packed along an axis."""
    for x in ops:
        for i in x.index:
            for atom in D.atoms(i):
                if not isinstance(atom, D.Quo) or atom.op != "mod" or not isinstance(atom.b, int):
                    continue
                if D.is_sym(atom.a) and D.the_sym(atom.a) is a:
                    return atom.b
    return None


def _row_choice(acc: Stage, col: int) -> int | None:
    """The last other axis with more than one point."""
    others = [k for k in range(len(acc.axes)) if k != col]
    many = [k for k in others if extent(acc.axes[k]) != 1] or others
    return many[-1] if many else None


def _beside(s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int) -> bool:
    """Do the elements that the rows multiply lie beside each other?"""
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
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int, beside: bool
) -> bool:
    """Is an image better one row of pixels? Where pixels lie beside each other, only if no edge of
    the image cuts them."""
    hi, lo = acc.axes[row - 1], acc.axes[row]
    x = next(x for x in ops if lo in x.symbols())
    wide = D.bounds(extent(lo))[0] >= s.target.lanes(32)
    return not (beside and wide) or affine_pair(s.nest.buffer(str(x.source)), x.index, hi, lo)


# Where one step of the reduction is this many bytes away from the next, every one of them is on
# another page, and more of them are under way than a processor has translations for.
FAR = 2048
# A block of rows that stays in the second cache while the columns pass by.
BLOCK_BYTES = 128 * 1024


def _copied(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int, rows: int, beside: bool
) -> tuple[str, int] | None:
    """The operand of an image's pixels in a stage of its own, pixels beside each other, and how
    many of them are a block (0: all); where they are not, or are walked through in far steps."""
    a, hi, lo = acc.name, acc.axes[row - 1], acc.axes[row]
    x = next(x for x in ops if lo in x.symbols())
    long = [r for r in acc.raxes if r in x.symbols() and extent(r) != 1]
    if len(long) != 1:
        return None
    step = D.coefficient(linear_index(s.nest.buffer(str(x.source)), x.index), long[0])
    if not isinstance(step, int) or (beside and step * x.dtype.bytes < FAR):
        return None
    deep, pixels = D.bounds(extent(long[0]))[1], D.bounds(extent(hi) * extent(lo))[1]
    # Whole blocks only: in the cache, and enough of them for the threads.
    most = min(BLOCK_BYTES // (deep * x.dtype.bytes), pixels // (4 * s.target.cores))
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


def _tile(s: Scheduler, a: str, host: str, t: _Tile) -> None:
    m, n = t.names[t.row], t.names[t.col]
    em, en = s.loops(m)[0].extent, s.loops(n)[0].extent
    rows, width = t.rows, t.lanes * t.vectors
    if isinstance(em, int) and em < rows:
        # Few rows: more vectors keep enough sums in flight.
        rows = em
        width *= max(1, 16 // (em * t.vectors))
    if isinstance(en, int):
        width = min(width, en)
    ragged = not (isinstance(en, int) and en % width == 0)
    # Zero padding in the packed operand lets every tile be full; only the store is ragged then.
    padded = ragged and t.axes[t.col] != "p" and s.attempt(Pad(a, int(t.axes[t.col][1:]), width))
    blocks = _blocked(s, a, CHAIN if rows == t.rows else SHORT_CHAIN)
    rest = [x for x in t.names if x not in (m, n)]
    if t.copy is not None and t.copy[1]:
        s.do(Split(m, t.copy[1]))
        rest, m = [*rest, f"{m}.0"], f"{m}.1"
    s.do(Split(m, rows))
    s.do(Split(n, width))
    count_n = D.ceildiv(en, width)
    # A panel of the lane operand stays in the cache while the rows pass by, unless there are too
    # few panels to share among threads.
    panels = not isinstance(count_n, int) or count_n >= 4 or (isinstance(em, int) and em <= rows)
    tiles = (f"{n}.0", f"{m}.0") if panels else (f"{m}.0", f"{n}.0")
    inside: list[str] = []
    if t.height is not None and panels:
        rest, inside = [x for x in rest if x != t.height], [t.height]
    s.do(Reorder((*rest, tiles[0], *inside, tiles[1], f"{m}.1", f"{n}.1")))
    s.do(ComputeAt(a, tiles[1]))
    if t.copy is not None:
        if t.copy[1]:
            s.do(ComputeAt(t.copy[0], rest[-1]))
        _copy_lanes(s, t.copy[0])
    own = [f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"]
    stems = [own, [f"{a}.init.{t.axes[t.row]}", f"{a}.init.{t.axes[t.col]}"]]
    inmost = a
    if blocks is not None:
        _reorder(s, (f"{a}.r0.0", *own))
        s.do(ComputeAt(blocks, f"{a}.r0.0"))
        inmost = blocks
        own = [f"{blocks}.{t.axes[t.row]}", f"{blocks}.{t.axes[t.col]}"]
        stems += [own, [f"{blocks}.init.i{k}" for k in (t.row, t.col)]]
    s.attempt(SetScope(inmost, "register"))
    for stage in dict.fromkeys((a, inmost)):
        last = len(s.nest.buffer(stage).shape) - 1
        if t.col != last:
            s.do(Permute(stage, (*(k for k in range(last + 1) if k != t.col), t.col)))
    red = [p.name for p in s.path(inmost) if p.name.startswith(f"{inmost}.r")]
    for x in tiles:
        if not (padded and x == f"{n}.0"):
            s.attempt(Peel(x))
    if _instruction(s, inmost, own, red):
        stems.remove(own)
        red = []
    else:
        _reorder(s, (*red, *own))
    for r, c in stems:
        if s.loops(r):
            s.attempt(Unroll(r))
        if s.loops(c):
            _lanes_of_tile(s, c, t.lanes)
    s.attempt(Unroll(f"{m}.1"))
    if padded:
        s.do(Split(f"{n}.1", t.lanes))
        s.do(Unroll(f"{n}.1.0", guarded=True))
        s.do(Vectorize(f"{n}.1.1", masked=True))
    else:
        _lanes_of_tile(s, f"{n}.1", t.lanes)
    _unroll_reduction(s, red)
    _parallel_tiles(s, a, host, rest, tiles)


def _large(s: Scheduler, acc: Stage, ops: tuple[Load, Load], row: int) -> bool:
    """Does the lane operand leave no room in the cache for the other one?"""
    sizes = [s.nest.buffer(str(x.source)).size for x in ops if acc.axes[row] not in x.symbols()]
    return any(D.bounds(n)[1] * ops[0].dtype.bytes > s.target.l2 // 2 for n in sizes)


def _copy_lanes(s: Scheduler, copy: str) -> None:
    """Pixels of the copy in vectors, one row after the other."""
    loops = [p.name for p in s.path(copy) if p.name.startswith(f"{copy}.")]
    pixels = f"{copy}.p"
    if pixels in loops:
        _reorder(s, (*(x for x in loops if x != pixels), pixels))
        vector_loop(s, pixels, 4 * s.target.lanes(32))


def _instruction(s: Scheduler, stage: str, own: list[str], red: list[str]) -> bool:
    """The tile as one instruction of the target, its longest reduction loop innermost."""
    if not red or not all(s.loops(x) for x in (*own, *red)):
        return False
    nest, trace = s.nest, list(s.trace)
    longest = max(red, key=lambda x: D.bounds(s.loops(x)[0].extent)[1])
    order = [*(x for x in red if x != longest), *own, longest]
    now = [p.name for p in s.path(stage) if p.name in order]
    if now == order or s.attempt(Reorder(tuple(order))):
        for name in s.target.instructions:
            if s.attempt(Tensorize(own[0], name)):
                return True
    s.nest, s.trace = nest, trace
    return False


# A chain of more additions than this loses accuracy against a library that sums in blocks.
CHAIN = 512
# With few rows memory is the limit, blocks cost nothing, and libraries sum along their lanes.
SHORT_CHAIN = 64


def _blocked(s: Scheduler, a: str, chain: int) -> str | None:
    """Sum in blocks of the first reduction axis: the name of the stage of partial sums."""
    loops = [p for p in s.path(a) if p.name.startswith(f"{a}.r")]
    if not loops or not all(isinstance(p.extent, int) for p in loops):
        return None
    sizes = [p.extent for p in loops if isinstance(p.extent, int)]
    inner = 1
    for size in sizes[1:]:
        inner *= size
    if sizes[0] * inner <= chain:
        return None
    fits = [d for d in range(1, sizes[0]) if sizes[0] % d == 0 and 16 <= d * inner <= chain]
    if not fits:
        return None
    s.do(Split(loops[0].name, fits[-1]))
    name = f"{a}b"
    s.do(RFactor(a, (f"{loops[0].name}.0",), name))
    return name


def _reorder(s: Scheduler, order: tuple[str, ...]) -> None:
    present = tuple(x for x in order if s.loops(x))
    if len(present) > 1:
        s.attempt(Reorder(present))


def _lanes_of_tile(s: Scheduler, loop: str, lanes: int) -> None:
    s.do(Split(loop, lanes))
    s.attempt(Peel(f"{loop}.0"))
    if s.loops(f"{loop}.0"):
        s.attempt(Unroll(f"{loop}.0"))
    if s.loops(f"{loop}.1"):
        s.attempt(Vectorize(f"{loop}.1"))


def _unroll_reduction(s: Scheduler, red: list[str]) -> None:
    if not red:
        return
    last = s.loops(red[-1])
    e = last[0].extent if last else 1
    if isinstance(e, int) and 1 < e <= 4:
        s.attempt(Unroll(red[-1]))
    elif not isinstance(e, int) or e > 4:
        if s.attempt(Split(red[-1], 4)):
            s.attempt(Peel(f"{red[-1]}.0"))
            s.attempt(Unroll(f"{red[-1]}.1"))


def _parallel_tiles(
    s: Scheduler, a: str, host: str, rest: list[str], tiles: tuple[str, str]
) -> None:
    """Threads over the outer loops, fused as far as needed for enough pieces."""
    outer = [x for x in (*rest, tiles[0]) if s.loops(x)]
    top = outer[0]
    for k, nxt in enumerate(outer[1:]):
        into = f"{host}.q{k}"
        if not s.attempt(Fuse(top, nxt, into)):
            break
        top = into
    found = s.loops(top)
    if not found:
        return
    total: Dim = 1
    st = s.group.stage(a)
    for axis in (*st.axes, *st.raxes):
        total = total * extent(axis)
    trips = D.bounds(found[0].extent)[1]
    per = D.bounds(total)[1] // max(1, min(trips, D.INF // 2))
    if not isinstance(total, int):
        per = PIECE
    s.attempt(Parallel(top, grain(per // 8)))  # eight multiply-adds are one simple operation
