"""What a loop carries, from index functions alone.

A loop is free when different iterations touch different cells of every buffer that outlives an
iteration. Otherwise it carries a "reduction" (an associative update of one cell, which nothing else
in the loop reads or writes) or an "order". Gathered indices are conservative: an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.combine import Combine
from tilewright.ir.dim import Dim, Sym
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Barrier,
    Loop,
    Nest,
    Stmt,
    Store,
    inner_vars,
    store_loads,
    substitute,
    walk,
)


@dataclass(frozen=True)
class Carried:
    kind: str  # "reduction" or "order"
    reason: str


def linear_index(b: Buffer, index: tuple[Dim, ...]) -> Dim:
    total: Dim = 0
    for i, s in zip(index, b.strides(), strict=True):
        total = total + i * s
    return total


def carried(n: Nest, loop: Loop) -> list[Carried]:
    """What different iterations of a loop do to each other."""
    if D.bounds(loop.extent)[1] <= 1:
        return []  # there is one iteration at most
    found = _carried(n, loop)
    if not found:
        return found
    # A fused loop writes at (v//m, v%m): it is free where both loops that it was are free.
    apart = _unfused(loop)
    if apart is None:
        return found
    (inner,) = apart.body
    assert isinstance(inner, Loop)
    return [*carried(n, apart), *carried(n, inner)]


def _unfused(loop: Loop) -> Loop | None:
    """The loop as two, by the first m for which something inside is indexed by v//m or v%m."""
    m = next((m for s, _ in walk(loop.body) for m in _moduli(s, loop.var)), None)
    if m is None or m in (1, loop.extent):
        return None
    outer, inner = D.var(f"{loop.name}/", D.ceildiv(loop.extent, m)), D.var(f"{loop.name}%", m)
    if D.known_eq(loop.extent, m * D.floordiv(loop.extent, m)):
        outer = D.var(f"{loop.name}/", D.floordiv(loop.extent, m))
    body = tuple(substitute(s, {loop.var: outer * m + inner}) for s in loop.body)
    return Loop(D.the_sym(outer), loop.kind, (Loop(D.the_sym(inner), "serial", body),))


def _moduli(s: Stmt, v: Sym) -> Iterator[Dim]:
    if not isinstance(s, Store):
        return
    for i in s.index:
        for a in D.atoms(i):
            if isinstance(a, D.Quo) and a.op in ("floordiv", "mod"):
                if D.is_sym(a.a) and D.the_sym(a.a) is v:
                    yield a.b


def _carried(n: Nest, loop: Loop) -> list[Carried]:
    inner = set().union(*(inner_vars(s) for s in loop.body))
    inside = list(walk(loop.body))
    own = {s.buffer for s, _ in inside if isinstance(s, Alloc)}
    stores = [s for s, _ in inside if isinstance(s, Store)]
    out: list[Carried] = []
    windows: dict[str, list[tuple[int, Dim, Dim]]] = {}
    sums: dict[str, Combine] = {}  # buffers that different iterations accumulate into, and how
    order = lambda why: out.append(Carried("order", why))  # noqa: E731
    if any(isinstance(s, Barrier) for s, _ in inside):
        order(f"there is a barrier in {loop.name}")
    for s in stores:
        if s.buffer in own:
            continue
        w = _window(n.buffer(s.buffer), s.index, loop.var, inner)
        at = f"{s.buffer}[{','.join(map(str, s.index))}]"
        if w is not None:
            windows.setdefault(s.buffer, []).append(w)
        elif s.combine:
            sums[s.buffer] = s.combine
            why = f"every iteration of {loop.name} accumulates into {at}"
            out.append(Carried("reduction", why))
        else:
            order(f"different iterations of {loop.name} write {at}")
    for s in stores:
        if s.combine != sums.get(s.buffer, s.combine):
            order(f"{s.buffer} is accumulated and written in {loop.name}")
        for x in store_loads(s):
            name = str(x.source)
            if name in sums:
                order(f"{x!r} is read in {loop.name} while it is accumulated")
            for w in windows.get(name, ()):
                if not _same_iteration(n.buffer(name), x.index, w, loop.var):
                    order(f"an iteration of {loop.name} reads {x!r}, which another one writes")
    for b, ws in windows.items():
        if len(ws) > 1 and any(not _equal_window(ws[0], w) for w in ws[1:]):
            order(f"two statements write {b} at different places in {loop.name}")
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
            p = D._from_atom(atom)
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
        left = [s for s in D.symbols(x) if s in moving]
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
