"""The default schedule of a group: an ordinary trace, chosen from the group and the target's numbers alone.

Three shapes cover what fusion makes. *Maps*: contiguous axes fused, lanes over the innermost one, threads over the rest.
*Rows*: everything of one row inside one iteration; reductions as partial sums over lanes. *Contractions*: a register tile of rows
times lanes, the reduction inside it. What fits none of them keeps its naive loops where a step refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.errors import Refused
from tilewright.graph.pack import register_tile
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import Fn, Index, Load, Value, extent, loads, walk
from tilewright.ir.target import Target
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Buffer, Group, Stage
from tilewright.kernel.nest import Loop, Nest, Store, find, start
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.step import Step, Trace
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

# Functions worth computing once rather than in every reader.
EXPENSIVE = frozenset(
    "exp exp2 expm1 log log2 log10 log1p tanh sigmoid sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh erf erfc "
    "erfinv lgamma digamma pow rem mod floordiv".split()
)
# A piece of parallel work should cost tens of microseconds: about this many simple element operations.
PIECE = 16384
# Values of this many bytes or fewer per row are worth keeping in a local buffer.
ROW_BYTES = 192 * 1024


@dataclass
class Scheduler:
    """A nest under construction with the trace that led to it."""

    group: Group
    target: Target
    nest: Nest = field(init=False)
    trace: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nest = start(self.group)

    def do(self, step: Step) -> None:
        self.nest = step.apply(self.nest)
        self.trace.append(step)

    def attempt(self, step: Step) -> bool:
        try:
            self.do(step)
        except Refused:
            return False
        return True

    def loops(self, name: str) -> list[Loop]:
        return [x for x, _ in find(self.nest, name)]

    def store(self, stage: str) -> Store:
        """The last store of a stage (its update, where it has an init)."""
        return [
            s for s, _ in walk_nest(self.nest.body) if isinstance(s, Store) and s.stage == stage
        ][-1]

    def path(self, stage: str) -> list[Loop]:
        return [
            list(p)
            for s, p in walk_nest(self.nest.body)
            if isinstance(s, Store) and s.stage == stage
        ][-1]


def default_schedule(group: Group, target: Target) -> tuple[Trace, Nest]:
    """The trace and the nest it leads to."""
    s = Scheduler(group, target)
    kept = _inline(s)
    outs = [x for x in kept if group.buffer(x.name).scope == "out"]
    inner = [x for x in kept if x not in outs]
    if any(x.ordered for x in kept):
        _program(s, inner, outs)
    elif not inner:
        _map(s, outs)
    elif len(inner) == 1 and _contraction(s, inner[0]) and len(outs) == 1:
        if not _contract(s, inner[0], outs[0]):
            s = Scheduler(group, target)
            kept = _inline(s)
            _rows(s, [x for x in kept if x not in outs], outs)
    else:
        _rows(s, inner, outs)
    return tuple(s.trace), s.nest


# ---- inlining


def _cost(v: Value) -> int:
    return sum(1 for x in walk(v) if isinstance(x, Fn) and x.name in EXPENSIVE)


def _inline(s: Scheduler) -> list[Stage]:
    """Inline every map that is cheap or read once; the stages that stay, in order."""
    kept: list[Stage] = []
    for st in s.group.stages:
        if st.is_map and s.group.buffer(st.name).scope == "local":
            users = [x for x, _ in walk_nest(s.nest.body) if isinstance(x, Store) and any(r.source == st.name for r in _store_reads(x))]  # fmt: skip
            reads = {r for u in users for r in _store_reads(u) if r.source == st.name}
            value = s.store(st.name).value
            once = len(reads) <= 1 and not any(_reused(s, u, st) for u in users)
            if (once or not _cost(value)) and s.attempt(ComputeInline(st.name)):
                continue
        kept.append(st)
    return kept


def _store_reads(x: Store) -> list[Load]:
    vals = [x.value, *(v for i in x.index for v in D.data_values(i))]
    return [r for v in vals for r in loads(v)]


def _reused(s: Scheduler, user: Store, st: Stage) -> bool:
    """Would inlining st into the user compute its points more than once?"""
    points = s.group.buffer(st.name).size
    total: Dim = 1
    for p in s.path(user.stage):
        total = total * p.extent
    return not D.known_le(total, points)


# ---- maps


def _affine_pair(b: Buffer, index: tuple[Dim, ...], outer: Sym, inner: Sym) -> bool:
    lin = linear_index(b, index)
    o, i = D.coefficient(lin, outer), D.coefficient(lin, inner)
    if o is None or i is None:
        return False
    return D.known_eq(o, i * extent(inner))


def _accesses(s: Scheduler, st: Store) -> list[tuple[Buffer, tuple[Dim, ...]]]:
    out = [(s.nest.buffer(st.buffer), st.index)]
    out += [
        (s.nest.buffer(x.source), x.index) for x in _store_reads(st) if isinstance(x.source, str)
    ]
    return out


def _can_fuse(s: Scheduler, st: Store, outer: Sym, inner: Sym) -> bool:
    """Do both loops walk through memory as one, in every access?"""
    for v in walk(st.value):
        if isinstance(v, Index) and D.symbols(v.dim) & {outer, inner}:
            return False
        if isinstance(v, Load) and any(True for i in v.index for _ in D.data_values(i)):
            data = [d for i in v.index for d in D.data_values(i)]
            if any(d.symbols() & {outer, inner} for d in data):
                return False
    return all(_affine_pair(b, i, outer, inner) for b, i in _accesses(s, st))


def _collapse(s: Scheduler, stages: list[str], first: int = 0) -> list[str]:
    """Fuse neighbouring loops that are one walk through memory, the same way in all stages; the loops of stages[0]."""
    names = [p.name for p in s.path(stages[0])]
    k = len(names) - 2
    fused = 0
    while k >= first:
        ok = True
        for st in stages:
            path = s.path(st)
            store = s.store(st)
            ok = ok and len(path) > k + 1 and _can_fuse(s, store, path[k].var, path[k + 1].var)
        if ok:
            for st in stages:
                path = s.path(st)
                s.do(Fuse(path[k].name, path[k + 1].name, f"{st}.f{fused}"))
            fused += 1
        k -= 1
    return [p.name for p in s.path(stages[0])]


def _fuse_outer(s: Scheduler, stages: list[str], count: int) -> None:
    """The first `count` loops of each stage become one."""
    for j in range(count - 1):
        for st in stages:
            path = s.path(st)
            s.do(Fuse(path[0].name, path[1].name, f"{st}.o{j}"))


def _lanes(s: Scheduler, stage: str, wide: int = 16) -> int:
    """Lanes for the inner loop of a map: several registers' worth for instruction-level parallelism."""
    st = s.store(stage)
    dtypes = [s.nest.buffer(b.name).dtype for b, _ in _accesses(s, st)]
    bits = max([min(d.bits, 64) for d in dtypes] or [32])
    one = max(1, s.target.vector_bits // max(bits, 32))
    return min(wide, max(one * (2 if _cost(st.value) else 4), 4))


def _vector_loop(s: Scheduler, loop: str, lanes: int) -> str | None:
    """Split off lanes and peel the tail; the name of the loop over vectors (None when it is one vector)."""
    found = s.loops(loop)
    if not found:
        return None
    e = found[0].extent
    if isinstance(e, int) and e <= lanes:
        s.attempt(Vectorize(loop))
        return None
    s.do(Split(loop, lanes))
    if not (isinstance(e, int) and e % lanes == 0):
        s.attempt(Peel(f"{loop}.0"))
    s.attempt(Vectorize(f"{loop}.1"))
    return f"{loop}.0"


def _work(s: Scheduler, stage: str) -> int:
    """Rough operations per element of a stage's value."""
    v = s.store(stage).value
    return 1 + sum(1 for x in walk(v) if isinstance(x, (Fn, Load))) + 12 * _cost(v)


def _grain(work: int) -> int:
    return max(1, PIECE // max(1, work))


def _map(s: Scheduler, outs: list[Stage]) -> None:
    host = outs[0].name
    names = [x.name for x in outs]
    loops = _collapse(s, names) if all(len(s.path(n)) == len(s.path(host)) for n in names) else []
    for other in names[1:]:
        path = s.path(host)
        if path and not s.attempt(ComputeWith(other, path[-1].name)):
            _alone(s, other)
    loops = [p.name for p in s.path(host)]
    if not loops:
        return
    _alone(s, host)


def _alone(s: Scheduler, host: str) -> None:
    """Lanes and threads for a stage's own perfect nest."""
    path = s.path(host)
    if not path:
        return
    if len(path) > 2:
        _fuse_outer(s, [host], len(path) - 1)
        path = s.path(host)
    work = _work(s, host)
    lanes = _lanes(s, host)
    inner = path[-1].name
    e = path[-1].extent
    over = _vector_loop(s, inner, lanes)
    if len(path) == 1:
        if over is not None and s.loops(over):
            s.attempt(Parallel(over, _grain(work * lanes // 2)))
    else:
        size = e if isinstance(e, int) else 256
        s.attempt(Parallel(path[0].name, _grain(work * max(size, 1) // 2)))


# ---- rows


def _rows(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> None:
    """Everything of one row in one iteration of the host output's outer loops."""
    host = max(outs, key=lambda x: len(x.axes)).name
    prefix = _prefix(s, inner, outs, host)
    if prefix == 0:
        for st in inner:
            _reduction(s, st.name)
        for o in outs:
            _alone(s, o.name)
        return
    names = [o.name for o in outs]
    if prefix == len(s.path(host)) and len(names) == 1 and _lane_axis(s, inner):
        _columns(s, inner[0].name, host)
        return
    for o in names:
        for j in range(prefix - 1):
            p = s.path(o)
            if not s.attempt(Fuse(p[0].name, p[1].name, f"{o}.o{j}")):
                break
    # From the last output back, each with what it alone reads: no nest on the way reads ahead of its producer.
    for later, earlier in zip(names[:0:-1], names[-2::-1], strict=True):
        for st in reversed(inner):
            s.attempt(ComputeAt(st.name, s.path(later)[0].name))
        s.attempt(ComputeWith(later, s.path(earlier)[0].name))
    at = s.path(host)[0].name
    for st in reversed(inner):
        s.attempt(ComputeAt(st.name, at))
    row = 1
    for st in inner:
        row += _work(s, st.name) * _points(s, st.name)
        if st.is_reduce:
            _reduction(s, st.name)
        else:
            _inner_vector(s, st.name)
    for o in names:
        row += _work(s, o) * _points(s, o)
        _inner_vector(s, o)
    if s.loops(at):
        s.attempt(Parallel(at, _grain(row)))


def _columns(s: Scheduler, stage: str, host: str) -> None:
    """A reduction whose results lie next to each other: a vector of results per iteration."""
    path = s.path(host)
    last, e = path[-1].name, path[-1].extent
    lanes = _lanes(s, host)
    s.do(Split(last, lanes))
    s.do(ComputeAt(stage, f"{last}.0"))
    if not (isinstance(e, int) and e % lanes == 0):
        s.attempt(Peel(f"{last}.0"))
    work = _work(s, stage) * _points(s, stage)
    _reduction(s, stage)
    s.attempt(Vectorize(f"{last}.1"))
    for j in range(len(path) - 2):
        s.attempt(Fuse(s.path(host)[0].name, s.path(host)[1].name, f"{host}.o{j}"))
    top = s.path(host)[0].name
    if s.loops(top):
        s.attempt(Parallel(top, _grain(work if len(path) == 1 else work * 4)))


def _points(s: Scheduler, stage: str) -> int:
    """Points of a stage inside one outer iteration."""
    n = 1
    for p in s.path(stage)[1:]:
        n *= p.extent if isinstance(p.extent, int) else 64
    return min(n, 1 << 24)


def _prefix(s: Scheduler, inner: list[Stage], outs: list[Stage], host: str) -> int:
    """How many leading loops of the host index every internal stage in the same way."""
    path = s.path(host)
    deepest = len(path)
    for st in inner:
        for x, p in walk_nest(s.nest.body):
            if not isinstance(x, Store):
                continue
            for r in _store_reads(x):
                if r.source != st.name:
                    continue
                common = 0
                for k, i in enumerate(r.index):
                    var = p[k].var if k < len(p) else None
                    if var is not None and (
                        (D.is_sym(i) and D.the_sym(i) is var) or (i == 0 and p[k].extent == 1)
                    ):
                        common += 1
                    else:
                        break
                deepest = min(deepest, common)
    for o in outs:
        if o.name != host:
            other = s.path(o.name)
            same = 0
            while same < min(len(other), len(path)) and D.known_eq(
                other[same].extent, path[same].extent
            ):
                same += 1
            deepest = min(deepest, same)
    return deepest


def _lane_axis(s: Scheduler, inner: list[Stage]) -> bool:
    """Is the host's last axis the contiguous one in what the (single) reduction reads?"""
    if len(inner) != 1 or not inner[0].is_reduce or not inner[0].axes:
        return False
    st = s.store(inner[0].name)
    last = inner[0].axes[-1]
    found = False
    for b, idx in _accesses(s, st)[1:]:
        c = D.coefficient(linear_index(b, idx), last)
        if c is None or (isinstance(c, int) and c not in (0, 1)) or isinstance(c, Int):
            return False
        found = found or c == 1
    return found


def _inner_vector(s: Scheduler, stage: str) -> None:
    """Lanes for the innermost loop of a stage inside a row."""
    path = s.path(stage)
    own = [p for p in path if p.name.startswith(stage + ".")]
    if not own or own[-1] is path[0]:
        return
    names = _collapse_own(s, stage, own)
    loop = names[-1]
    _vector_loop(s, loop, _lanes(s, stage))


def _collapse_own(s: Scheduler, stage: str, own: list[Loop]) -> list[str]:
    names = [p.name for p in own]
    count = 0
    while len(names) >= 2:
        path = {p.name: p for p in s.path(stage)}
        o, i = path[names[-2]], path[names[-1]]
        if (
            len(o.body) != 1
            or o is s.path(stage)[0]
            or not _can_fuse(s, s.store(stage), o.var, i.var)
        ):
            break
        into = f"{stage}.g{count}"
        if not s.attempt(Fuse(o.name, i.name, into)):
            break
        count += 1
        names = [*names[:-2], into]
    return names


def _reduction(s: Scheduler, stage: str) -> None:
    """Partial results over lanes for a reduction over the contiguous axis; lanes over data otherwise."""
    path = s.path(stage)
    st = s.store(stage)
    used: set[Sym] = set().union(*(D.symbols(i) for i in st.index)) if st.index else set()
    own = [p for p in path if p.name.startswith(stage + ".")]
    red = [p for p in own if p.var not in used]
    data = [p for p in own if p.var in used]
    if not red:
        return
    lanes = _lanes(s, stage)
    if data and _contiguous(s, st, data[-1].var) and _extent_at_least(data[-1], 4):
        # Lanes over data: the reduction loops go outside the last data loop.
        order = tuple(p.name for p in (*data[:-1], *red, data[-1]))
        if [p.name for p in own] != list(order):
            s.attempt(Reorder(order))
        _vector_loop(s, data[-1].name, lanes)
        init = f"{stage}.init.i{len(s.nest.buffer(stage).shape) - 1}"
        if s.loops(init):
            _vector_loop(s, init, lanes)
        return
    names = [p.name for p in red]
    count = 0
    while len(names) >= 2:
        p = {q.name: q for q in s.path(stage)}
        o, i = p[names[-2]], p[names[-1]]
        if not _can_fuse_reads(s, s.store(stage), o.var, i.var) or not s.attempt(Fuse(o.name, i.name, f"{stage}.k{count}")):  # fmt: skip
            break
        names = [*names[:-2], f"{stage}.k{count}"]
        count += 1
    loop = next(q for q in s.path(stage) if q.name == names[-1])
    if not _contiguous(s, s.store(stage), loop.var):
        return
    if isinstance(loop.extent, int) and loop.extent <= lanes:
        return
    if not s.attempt(Split(loop.name, lanes)):
        return
    part = f"{stage}p"
    if not s.attempt(RFactor(stage, (f"{loop.name}.1",), part)):
        return
    tail = loop.name.split(".", 1)[-1]
    host = data[-1].name if data else None
    if host and s.loops(host):
        s.attempt(ComputeAt(part, host))
    s.attempt(Peel(f"{part}.{tail}.0"))
    for name in (f"{part}.{tail}.1", f"{loop.name}.1"):
        if s.loops(name):
            s.attempt(Vectorize(name))
    width = len(s.nest.buffer(part).shape) - 1
    if s.loops(f"{part}.init.i{width}"):
        s.attempt(Vectorize(f"{part}.init.i{width}"))


def _extent_at_least(p: Loop, n: int) -> bool:
    return not isinstance(p.extent, int) or p.extent >= n


def _can_fuse_reads(s: Scheduler, st: Store, outer: Sym, inner: Sym) -> bool:
    for v in walk(st.value):
        if isinstance(v, Index) and D.symbols(v.dim) & {outer, inner}:
            return False
        if isinstance(v, Load) and any(True for i in v.index for _ in D.data_values(i)):
            return False
    return all(_affine_pair(b, i, outer, inner) for b, i in _accesses(s, st)[1:])


def _contiguous(s: Scheduler, st: Store, v: Sym) -> bool:
    """Does v walk through memory with stride one (or not at all) in every read, with one somewhere?"""
    some = False
    for b, idx in _accesses(s, st)[1:]:
        c = D.coefficient(linear_index(b, idx), v)
        if c is None or isinstance(c, Int) or c not in (0, 1):
            return False
        some = some or c == 1
    return some


# ---- programs


def _program(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> None:
    """Scans and scatters: one iteration per outer index where that is legal, naive loops inside."""
    for st in [*inner, *outs]:
        path = s.path(st.name)
        if len(path) > 1 and path[0].kind == "serial":
            size = 1
            for p in path[1:]:
                size *= p.extent if isinstance(p.extent, int) else 64
            s.attempt(Parallel(path[0].name, _grain(_work(s, st.name) * size)))
        init = s.loops(f"{st.name}.init.i0")
        if init:
            last = f"{st.name}.init.i{len(s.nest.buffer(st.name).shape) - 1}"
            _vector_loop(s, last, 16)


# ---- contractions


def _contraction(s: Scheduler, st: Stage) -> bool:
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


def _contract(s: Scheduler, acc: Stage, out: Stage) -> bool:
    """A register tile: rows of one operand times lanes of the other. False where the group has no such shape."""
    host, a = out.name, acc.name
    path = s.path(host)
    reads = [r for r in _store_reads(s.store(host)) if r.source == a]
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
    rows, vectors = tile.rows, max(1, width // lanes)
    names = [p.name for p in path]
    axes = [f"i{k}" for k in range(len(names))]
    # Height and width become one row axis, so that small images fill the tile.
    if row >= 1 and row - 1 != col and _walks_together(acc, ops, row):
        s.do(FuseAxes(a, row - 1))
        s.do(Fuse(names[row - 1], names[row], f"{host}.p"))
        names[row - 1 : row + 1] = [f"{host}.p"]
        axes[row - 1 : row + 1] = ["p"]
        col, row = (col - 1 if col > row else col), row - 1
    _tile(s, a, host, _Tile(names, axes, row, col, rows, lanes, vectors))
    return True


@dataclass
class _Tile:
    """A register tile: host loops and accumulator axes by position, which are rows and lanes, and how many."""

    names: list[str]
    axes: list[str]
    row: int
    col: int
    rows: int
    lanes: int
    vectors: int


def _lane_choice(
    s: Scheduler, acc: Stage, ops: tuple[Load, Load], columns: int
) -> tuple[int, int] | None:
    """(output axis for lanes, width of the tile): contiguous in one operand, within a packed block, absent from the other."""
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
                if isinstance(atom, D.Quo) and atom.op == "mod" and isinstance(atom.b, int) and D.is_sym(atom.a) and D.the_sym(atom.a) is a:  # fmt: skip
                    return atom.b
    return None


def _row_choice(acc: Stage, col: int) -> int | None:
    """The last other axis with more than one point."""
    others = [k for k in range(len(acc.axes)) if k != col]
    many = [k for k in others if extent(acc.axes[k]) != 1] or others
    return many[-1] if many else None


def _walks_together(acc: Stage, ops: tuple[Load, Load], row: int) -> bool:
    """Do axes row-1 and row appear in the same operand only (height and width of an image)?"""
    hi, lo = acc.axes[row - 1], acc.axes[row]
    a = [hi in x.symbols() for x in ops]
    b = [lo in x.symbols() for x in ops]
    return a == b and sum(a) == 1 and isinstance(extent(lo), int) and isinstance(extent(hi), int)


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
    s.do(Split(m, rows))
    s.do(Split(n, width))
    rest = [x for x in t.names if x not in (m, n)]
    count_n = D.ceildiv(en, width)
    # A panel of the lane operand stays in the cache while the rows pass by, unless there are too few panels to share.
    panels = not isinstance(count_n, int) or count_n >= 4 or (isinstance(em, int) and em <= rows)
    tiles = (f"{n}.0", f"{m}.0") if panels else (f"{m}.0", f"{n}.0")
    s.do(Reorder((*rest, *tiles, f"{m}.1", f"{n}.1")))
    s.do(ComputeAt(a, tiles[1]))
    s.attempt(SetScope(a, "register"))
    last = len(s.nest.buffer(a).shape) - 1
    if t.col != last:
        s.do(Permute(a, (*(k for k in range(last + 1) if k != t.col), t.col)))
    red = [p.name for p in s.path(a) if p.name.startswith(f"{a}.r")]
    inner = tuple(x for x in (f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}") if s.loops(x))
    if red and inner:
        s.attempt(Reorder((*red, *inner)))
    for x in tiles:
        if not (padded and x == f"{n}.0"):
            s.attempt(Peel(x))
    for stem in (a, f"{a}.init"):
        r, c = f"{stem}.{t.axes[t.row]}", f"{stem}.{t.axes[t.col]}"
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
    per = 1
    for p in s.path(a)[1:]:
        per *= p.extent if isinstance(p.extent, int) else 64
    s.attempt(Parallel(top, _grain(per)))
