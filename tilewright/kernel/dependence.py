"""What the order of iterations carries, from index functions alone.

Two uses of memory depend on each other when they may touch one cell and one of them writes it. They
are an "order", or a "reduction" where both accumulate in the same way: those may be exchanged,
unless they round and the nest's precision is strict. Each function here answers one question: do
iterations of a loop depend on each other at all (`carried`), and would a step run two that do in
the wrong order (`reordered`, `across_lanes`, `interleaved`).

Windows (`_window`) quickly decide the most common case: different iterations touch different pieces
of every buffer. What they leave open is decided pair by pair, in kernel/overlap.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.combine import Combiner
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import const, loads, loads_among
from tilewright.ir.types import b1
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    FENCES,
    Alloc,
    Atomic,
    Loop,
    Nest,
    Path,
    Report,
    Stmt,
    Store,
    While,
    own_values,
    substitute_all,
    transform,
    walk,
    writes,
)
from tilewright.kernel.overlap import (
    EARLIER,
    LATER,
    OTHER,
    SAME,
    Relation,
    Use,
    overlap,
    same_last,
    uses,
)
from tilewright.kernel.variables import free_vars, inner_vars

# Statements that are never reordered, whatever they touch.
_STOPS = (While, Atomic, Report)


@dataclass(frozen=True)
class Carried:
    """Two uses that depend on each other, in different iterations of a loop or (None) one after
    the other."""

    kind: str  # "reduction" or "order"
    loop: Loop | None
    first: Use | None = None  # None: a barrier, or a statement that is never reordered
    second: Use | None = None
    stop: Stmt | None = None

    @property
    def reason(self) -> str:
        loop, a, b = self.loop.name if self.loop else "", self.first, self.second
        if isinstance(self.stop, _STOPS):
            where = f" in {loop}" if loop else ""
            return f"there is {_said(self.stop)}{where}, which nothing crosses"
        if a is None or b is None:
            return f"there is a barrier in {loop}"
        if self.loop is None:
            did = ["written" if x.writes else "read" for x in (a, b)]
            return f"{a} is {did[0]} before {b} is {did[1]}"
        if self.kind == "reduction":
            return f"every iteration of {loop} accumulates into {_both(a, b)}"
        if a.writes and b.writes:
            return f"different iterations of {loop} write {_both(a, b)}"
        read, write = (b, a) if a.writes else (a, b)
        how = "accumulates into" if write.combine else "writes"
        return f"an iteration of {loop} reads {read}, which another one {how} as {write}"


def _both(a: Use, b: Use) -> str:
    return str(a) if str(a) == str(b) else f"{a} and {b}"


def _said(s: While | Atomic | Report) -> str:
    if isinstance(s, While):
        return f"while {s.name}"
    return f"the atomic {s.stage}" if isinstance(s, Atomic) else f"{s.kind} {s.site}"


def _stops(body: tuple[Stmt, ...], loop: Loop | None) -> list[Carried]:
    found = (s for s, _ in walk(body) if isinstance(s, _STOPS))
    return [Carried("order", loop, stop=s) for s in found]


def _fences(loop: Loop) -> list[Carried]:
    """Threads that wait for one another in every iteration."""
    barriers = any(isinstance(s, FENCES) for s, _ in walk(loop.body))
    return [Carried("order", loop)] if barriers else []


def linear_index(b: Buffer, index: tuple[Dim, ...]) -> Dim:
    total: Dim = 0
    for i, s in zip(index, b.strides(), strict=True):
        total = total + i * s
    return total


def rounds(s: Store) -> bool:
    """Does the order of accumulation change the result?"""
    if isinstance(s.combine, Combiner):
        return any(x.dtype.is_float for x in s.combine.neutral)
    return s.combine in ("add", "mul") and s.value.dtype.is_float


# ---- queries


def carried(n: Nest, loop: Loop) -> list[Carried]:
    """What different iterations of a loop do to each other."""
    if not _kinds(n, loop):
        return []
    out = _stops(loop.body, loop) + _fences(loop)
    here = _Pairs(n, (loop,))
    return [*out, *here.faults(here.all(), [({loop.var: OTHER}, loop)], reductions=True)]


def reordered(n: Nest, chain: Sequence[Loop], order: Sequence[Loop]) -> list[Carried]:
    """What goes wrong when loops, each alone in the one before, stand in another order."""
    strict = n.precision == "strict"
    # What a loop carries that stays around all others, or inside all of them, keeps its order.
    # Lanes are not where they stand.
    differ = [k for k, (x, y) in enumerate(zip(chain, order, strict=True)) if x.var is not y.var]
    moved = chain[differ[0] : differ[-1] + 1] if differ else ()
    if any(x.kind == "lane" for x in chain):
        moved = chain
    kinds = set().union(*(_kinds(n, x) for x in moved))
    if "order" not in kinds and not (strict and "reduction" in kinds):
        return []
    if stopped := _stops(chain[0].body, chain[0]):
        return stopped
    # Lanes are the innermost loop, wherever they stand.
    old, new = (sorted(c, key=lambda x: x.kind == "lane") for c in (chain, order))
    place = {x.name: k for k, x in enumerate(new)}
    relations: list[tuple[Relation, Loop]] = []
    for p, x in enumerate(old):
        for y in old[p + 1 :]:
            if place[y.name] < place[x.name]:
                same = [*old[:p], *new[: place[y.name]]]
                relation: dict[Sym, str] = dict.fromkeys((z.var for z in same), SAME)
                relations.append(({**relation, x.var: LATER, y.var: EARLIER}, x))
    here = _Pairs(n, (chain[0],))
    orders = [x.var for x in old], [x.var for x in new]

    def harmless(use: Use | None) -> bool:
        """What one store alone writes over and over is in the end what it wrote last."""
        return use is not None and here.alone(use) and same_last(use, *orders)

    return [c for c in here.faults(here.all(), relations) if not harmless(c.first)]


def across_lanes(n: Nest, loop: Loop) -> list[Carried]:
    """What goes wrong when every statement inside runs for all iterations at once, reading before
    it writes."""
    strict = n.precision == "strict"
    kinds = _kinds(n, loop)
    if "order" not in kinds and not (strict and "reduction" in kinds):
        return []
    out = _stops(loop.body, loop) + _fences(loop)
    here = _Pairs(n, (loop,))
    for a, b in here.all():
        if a is b and a.combine is None and loop.var not in free_vars(a.store):
            continue  # every lane writes the same
        shared = [q for q in _common(a.path, b.path) if q.var is not loop.var]
        relations: list[tuple[Relation, Loop]] = []
        for k, q in enumerate(shared):
            same: dict[Sym, str] = dict.fromkeys((x.var for x in shared[:k]), SAME)
            relations.append(({**same, loop.var: LATER, q.var: EARLIER}, loop))
        late = a.place > b.place or (a.place == b.place and a.writes)
        if late:
            same = dict.fromkeys((x.var for x in shared), SAME)
            relations.append(({**same, loop.var: LATER}, loop))
        out += here.faults([(a, b)], relations)
    return out


def interleaved(
    n: Nest, outer: Loop, moved: Sequence[Sequence[Stmt]], before: bool
) -> list[Carried]:
    """What goes wrong where statements that ran one after the other, before (or after) everything
    else in a loop, are now interleaved with each other and with the rest."""
    here = _Pairs(n, (outer,))
    part_of = {id(s): k for k, part in enumerate(moved) for s in part}
    others = len(moved) if before else -1

    def turn(u: Use) -> int:
        around = (part_of.get(id(s)) for s in (u.store, *u.path))
        return next((k for k in around if k is not None), others)

    turns = {id(u): turn(u) for u in here.uses}
    out = _stops(outer.body, outer)
    for a, b in here.all():
        if turns[id(a)] < turns[id(b)]:
            relations: list[tuple[Relation, Loop]] = []
            shared = _common(a.path, b.path)
            for j, q in enumerate(shared):
                same: dict[Sym, str] = dict.fromkeys((x.var for x in shared[:j]), SAME)
                relations.append(({**same, q.var: EARLIER}, q))
            if b.place < a.place:
                relations.append((dict.fromkeys((x.var for x in shared), SAME), shared[-1]))
            out += here.faults([(a, b)], relations)
    return out


def exchanged(n: Nest, first: Stmt, second: Stmt) -> list[Carried]:
    """What goes wrong when two neighbouring statements are exchanged."""
    here = _Pairs(n, (first, second))
    if stopped := _stops((first, second), None):
        return stopped
    clashes = here.clashes(*(uses((s,)) for s in (first, second)))
    met = (p for p in clashes if overlap(n.buffer(p[0].buffer), *p, {}, here.written))
    return [Carried("order", None, a, b) for a, b in met]


def _common(a: Path, b: Path) -> list[Loop]:
    out: list[Loop] = []
    for x, y in zip(a, b):
        if x is not y:
            break
        out.append(x)
    return out


def _by_buffer(found: Iterable[Use]) -> dict[str, list[Use]]:
    out: dict[str, list[Use]] = {}
    for u in found:
        out.setdefault(u.buffer, []).append(u)
    return out


class _Pairs:
    """The uses in some statements, and which of them conflict. Two pointers into the same memory do
    not: the author of one loop around both is assumed to know that."""

    def __init__(self, n: Nest, body: tuple[Stmt, ...]) -> None:
        self.n = n
        inside = [s for s, _ in walk(body)]
        self.own = {s.buffer for s in inside if isinstance(s, Alloc)}
        self.written = {s.buffer for s in inside if isinstance(s, Store)}
        self.uses = uses(body, self.written)  # what is only read conflicts with nothing
        self.of = _by_buffer(self.uses)

    def all(self) -> Iterator[tuple[Use, Use]]:
        return self.clashes(self.uses, self.uses)

    def alone(self, use: Use) -> bool:
        """Is this plain store all that touches its buffer?"""
        plain = use.writes and use.combine is None and use.sure
        return plain and all(u is use for u in self.of[use.buffer])

    def clashes(self, first: Sequence[Use], second: Sequence[Use]) -> Iterator[tuple[Use, Use]]:
        """Pairs of uses of one buffer that outlives an iteration, at least one of which writes."""
        others = self.of if second is self.uses else _by_buffer(second)
        for a in first:
            if a.buffer not in self.written or a.buffer in self.own:
                continue
            for b in others.get(a.buffer, ()):
                if a.writes or b.writes:
                    yield a, b

    def faults(
        self,
        pairs: Iterable[tuple[Use, Use]],
        relations: list[tuple[Relation, Loop]],
        reductions: bool = False,
    ) -> Iterator[Carried]:
        """The pairs that touch one cell in one of the relations. Accumulations may be exchanged,
        unless `reductions` is set or their order changes the result."""
        strict = self.n.precision == "strict"
        for a, b in pairs:
            both = a.combine is not None and a.combine == b.combine
            if both and not reductions and not (strict and rounds(a.target)):
                continue
            for relation, loop in relations:
                if overlap(self.n.buffer(a.buffer), a, b, relation, self.written):
                    yield Carried("reduction" if both else "order", loop, a, b)
                    break


# ---- what would help


def apart_hint(n: Nest, found: Sequence[Carried]) -> str | None:
    """What makes iterations independent of each other, where something does."""
    if found and all(c.kind == "reduction" for c in found):
        return "RFactor first" if n.precision != "strict" else None
    return _free_loops(n, found[0].loop) if found else None


def lanes_hint(n: Nest, loop: Loop, found: Sequence[Carried]) -> str | None:
    if all(c.kind == "reduction" for c in found):
        return None  # it matters only with strict precision
    return _free_loops(n, loop)


def anew_hint(n: Nest, found: Sequence[Carried]) -> str | None:
    """Where a stage is read too early or too late, it may be computed again."""
    for c in found:
        for writer, reader in ((c.first, c.second), (c.second, c.first)):
            if writer is None or reader is None or not writer.writes or reader.writes:
                continue
            if n.buffer(writer.buffer).scope not in ("in", "out"):
                return f"ComputeAt('{writer.target.stage}', …) computes it again where it is read"
    return None


def _free_loops(n: Nest, loop: Loop | None) -> str | None:
    """The loops around and inside that carry nothing."""
    if loop is None:
        return None
    inside = [x for x, _ in walk(loop.body) if isinstance(x, Loop)]
    outside = next((p for x, p in walk(n.body) if x is loop), ())
    free = [x.name for x in (*outside, *inside) if x.kind == "serial" and not _kinds(n, x)]
    return f"nothing is carried by {', '.join(dict.fromkeys(free))}" if free else None


# ---- at once, by windows


def _kinds(n: Nest, loop: Loop) -> set[str]:
    """What a loop may carry: a fast, conservative answer."""
    if D.bounds(loop.extent)[1] <= 1:
        return set()  # there is one iteration at most
    found = _windowed(n, loop)
    if not found:
        return found
    # A fused loop writes at (v//m, v%m): it is free where both loops that it was are free.
    apart = _unfused(loop)
    if apart is None:
        return found
    (inner,) = apart.body
    assert isinstance(inner, Loop)
    return _kinds(n, apart) | _kinds(n, inner)


def _unfused(loop: Loop) -> Loop | None:
    """The loop as two, by the first m for which something inside is indexed by v//m or v%m."""
    m = next((m for s, _ in walk(loop.body) for m in _moduli(s, loop.var)), None)
    if m is None or m in (1, loop.extent):
        return None
    outer, inner = D.var(f"{loop.name}/", D.ceildiv(loop.extent, m)), D.var(f"{loop.name}%", m)
    if D.known_eq(loop.extent, m * D.floordiv(loop.extent, m)):
        outer = D.var(f"{loop.name}/", D.floordiv(loop.extent, m))
    body = substitute_all(_uses(loop), {loop.var: outer * m + inner})
    return Loop(D.the_sym(outer), loop.kind, (Loop(D.the_sym(inner), "serial", body),))


def _uses(loop: Loop) -> tuple[Stmt, ...]:
    """The body without values that read nothing which is written in it: windows do not depend on
    them, and substituting in them is most of the work."""
    written = writes(loop.body)

    def one(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store) and s.value.sources.isdisjoint(written):
            return (replace(s, value=_ANYTHING),)
        return (s,)

    return transform(loop.body, one)


_ANYTHING = const(False, b1)


def _moduli(s: Stmt, v: Sym) -> Iterator[Dim]:
    if not isinstance(s, Store):
        return
    for i in s.index:
        for a in D.atoms(i):
            if isinstance(a, D.Quo) and a.op in ("floordiv", "mod"):
                if D.is_sym(a.a) and D.the_sym(a.a) is v:
                    yield a.b


def _windowed(n: Nest, loop: Loop) -> set[str]:
    inner = set().union(*(inner_vars(s) for s in loop.body))
    inside = list(walk(loop.body))
    own = {s.buffer for s, _ in inside if isinstance(s, Alloc)}
    stores = [s for s, _ in inside if isinstance(s, Store)]
    written = {s.buffer for s in stores}
    out: set[str] = set()
    windows: dict[str, list[tuple[int, Dim, Dim]]] = {}
    sums: dict[str, object] = {}  # buffers that different iterations accumulate into, and how
    if any(isinstance(s, (*FENCES, *_STOPS)) for s, _ in inside):
        out.add("order")
    for s in stores:
        if s.buffer in own:
            continue
        w = _window(n.buffer(s.buffer), s.index, loop.var, inner)
        if any(
            str(x.source) in written for i in s.index for v in D.data_values(i) for x in loads(v)
        ):
            w = None  # where it writes changes meanwhile
        if w is not None:
            windows.setdefault(s.buffer, []).append(w)
        elif s.combine:
            if sums.setdefault(s.buffer, s.combine) != s.combine:
                out.add("order")
            out.add("reduction")
        else:
            out.add("order")
    for s in stores:
        if s.combine != sums.get(s.buffer, s.combine):
            out.add("order")
    for s, _ in inside:
        for x in (x for v in own_values(s) for x in loads_among(v, written)):
            name = str(x.source)
            if name in sums:
                out.add("order")
            for w in windows.get(name, ()):
                if not _same_iteration(n.buffer(name), x.index, w, loop.var):
                    out.add("order")
    for ws in windows.values():
        if any(not _equal_window(ws[0], w) for w in ws[1:]):
            out.add("order")
    return out


def _window(
    b: Buffer, index: tuple[Dim, ...], v: Sym, inner: set[Sym]
) -> tuple[int, Dim, Dim] | None:
    """(which, coefficient, base): iterations of v touch [c*v + base, c*v + base + |c|) along the
    axis `which` (-1: of linear memory)."""
    for which, i in [*enumerate(index), (-1, linear_index(b, index))]:
        c = D.coefficient(i, v)
        if c is None or c == 0:
            continue
        rest = i - c * D.as_int(v)
        fixed, moving = split_terms(rest, inner)
        lo, hi = D.bounds(moving)
        if isinstance(c, int):
            if lo <= -D.INF or hi - lo >= abs(c):
                continue
        elif not (lo == 0 and D.known_lt(moving, c)):
            continue
        return which, c, fixed + lo
    return None


def split_terms(x: Dim, moving: set[Sym]) -> tuple[Dim, Dim]:
    """x as (part without the moving symbols) + (part with them)."""
    if isinstance(x, int):
        return x, 0
    a: Dim = 0
    b: Dim = 0
    for mono, c in x.terms:
        t: Dim = c
        dep = False
        for atom in mono:
            p = D.from_atom(atom)
            dep = dep or bool(D.symbols(p) & moving)
            t = t * p
        if dep:
            b = b + t
        else:
            a = a + t
    return a, b


def _same_iteration(b: Buffer, index: tuple[Dim, ...], w: tuple[int, Dim, Dim], v: Sym) -> bool:
    which, c, base = w
    i = linear_index(b, index) if which < 0 else index[which]
    if D.coefficient(i, v) != c:
        return False
    rest = i - c * D.as_int(v) - base
    size = abs(c) if isinstance(c, int) else c
    return D.nonneg(rest) and D.known_lt(rest, size)


def _equal_window(a: tuple[int, Dim, Dim], b: tuple[int, Dim, Dim]) -> bool:
    return a[0] == b[0] and D.known_eq(a[1], b[1]) and D.known_eq(a[2], b[2])


def region(
    indices: list[tuple[Dim, ...]], moving: set[Sym], shape: tuple[Dim, ...]
) -> list[tuple[Dim, Dim]]:
    """Per axis (base, extent) of a box that holds every index while the moving symbols take all
    their values; the whole axis where the box would be no smaller or is not known."""
    out: list[tuple[Dim, Dim]] = []
    for d, size in enumerate(shape):
        box: tuple[Dim, Dim] | None = None
        for idx in indices:
            fixed, mv = split_terms(idx[d], moving)
            lo, hi = extremes(mv, moving)
            here = None if lo is None or hi is None else (fixed + lo, hi - lo + 1)
            box = here if box is None else _join(box, here)
            if box is None:
                break
        gathered = any(True for idx in indices for _ in D.data_values(idx[d]))
        if box is not None and (gathered or D.known_le(size, box[1])):
            box = None
        out.append(box if box is not None else (0, size))
    return out


def _join(a: tuple[Dim, Dim], b: tuple[Dim, Dim] | None) -> tuple[Dim, Dim] | None:
    if b is None:
        return None
    gap = b[0] - a[0]
    if not isinstance(gap, int):
        return None
    base = a[0] if gap >= 0 else b[0]
    end_a, end_b = a[0] + a[1] - base, b[0] + b[1] - base
    return base, D.maximum(end_a, end_b)


def extremes(x: Dim, moving: set[Sym]) -> tuple[Dim | None, Dim | None]:
    """Least and greatest value of x over the moving symbols, symbolic in the others."""
    lo, hi = D.bounds(x)
    if lo > -D.INF and hi < D.INF:
        return lo, hi
    return _extreme(x, moving, False), _extreme(x, moving, True)


def _extreme(x: Dim, moving: set[Sym], top: bool) -> Dim | None:
    for _ in range(16):
        left = sorted((s for s in D.symbols(x) if s in moving), key=lambda s: s.name)
        if not left:
            return x
        # A variable whose bound mentions another one goes first.
        s = max(
            left, key=lambda a: sum(a in D.symbols(b.hi) for b in left if b.hi is not None) == 0
        )
        c = D.coefficient(x, s)
        if c is None:
            b = D.bounds(x)[1 if top else 0]
            return b if abs(b) < D.INF else None
        up = D.nonneg(c)
        if not up and not D.nonneg(-c):
            return None
        end = s.hi if up == top else s.lo
        if end is None:
            return None
        x = x - c * D.as_int(s) + c * end
    return None
