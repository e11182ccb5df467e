"""The part of a buffer that one iteration of a loop touches, and stages shrunk to it.

A box is a product of intervals. Whatever moves into a loop of another stage computes the box that
an iteration there needs or has just made: ComputeAt, ReverseComputeAt, InitAt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Quo, Sym
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.dependence import carried
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    BRANCH,
    Alloc,
    Block,
    Loop,
    Nest,
    OnAccess,
    Path,
    Prefetch,
    Stmt,
    Store,
    bodies,
    stages_in,
    substitute,
    transform,
    walk,
)
from tilewright.kernel.step import Step

Box = list[tuple[Dim, Dim]]  # per axis: where it begins, how long it is
OnLoad = Callable[[Load], Value]


def own_statements(n: Nest, stage: str) -> list[tuple[Stmt, Path]]:
    """The outermost statements that compute a stage and nothing else, with the loops around."""
    found: list[tuple[Stmt, Path]] = []
    wanted = ("stage", stage)

    def visit(body: tuple[Stmt, ...], path: Path) -> None:
        for s in body:
            if isinstance(s, Store):
                if s.stage == stage:
                    found.append((s, path))
            elif isinstance(s, Block) and (wanted in s.marks or BRANCH in s.marks):
                if isinstance(s, Loop) and stages_in(s) == {stage}:
                    found.append((s, path))
                    continue
                around = (*path, s) if isinstance(s, Loop) else path
                for x in bodies(s):
                    visit(x, around)

    visit(n.body, ())
    return found


def without(body: tuple[Stmt, ...], gone: Sequence[Stmt], buffer: str) -> tuple[Stmt, ...]:
    """The body without these statements, without the buffer's allocation and prefetches of it."""

    def forgotten(s: Stmt) -> bool:
        return s == Alloc(buffer) or (isinstance(s, Prefetch) and s.load.source == buffer)

    ids = {id(s) for s in gone}
    return transform(body, lambda s: () if id(s) in ids or forgotten(s) else (s,))


def whole_axes(
    step: Step, stage: str, tops: Sequence[Stmt], b: Buffer, ends: Sequence[Dim] = ()
) -> list[list[Sym]]:
    """Per axis, the variables of the loops in `tops` that write along it, each over all of it, or
    up to one of the given ends."""
    out: list[list[Sym]] = [[] for _ in b.shape]
    for s, p in walk(tuple(tops)):
        for k, i in enumerate(s.index) if isinstance(s, Store) else ():
            if i == 0 and b.shape[k] == 1:
                continue
            whole = any(
                D.known_eq(D.as_int(q.var), i)
                and any(D.known_eq(q.extent, x[k]) for x in (b.shape, ends) if x)
                and q.kind == "serial"
                for q in p
            )
            broken = f"{stage} is no longer one whole loop per axis"
            step.need(whole, broken, "place first, then split, pad or align")
            once = isinstance(s, Store) and s.index.count(i) == 1
            step.need(once, f"{stage} is written along {i} in two axes")
            if D.the_sym(i) not in out[k]:
                out[k].append(D.the_sym(i))
    return out


def written_ends(tops: Sequence[Stmt], b: Buffer) -> tuple[Dim, ...]:
    """Per axis, where the cells end that statements write: before the axis does, where loops around
    them say how many there are, as in the last block of many. Nothing reads what is behind. Axes
    that are longer for another reason, such as where rows begin, stay as they are."""
    found: list[list[Dim]] = [[] for _ in b.shape]
    own = {s.var for s, _ in walk(tuple(tops)) if isinstance(s, Loop)}
    for s, p in walk(tuple(tops)):
        for k, i in enumerate(s.index) if isinstance(s, Store) else ():
            for q in p:
                along = D.known_eq(D.as_int(q.var), i) and not D.symbols(q.extent) & own
                along = along and not D.symbols(q.extent) <= D.symbols(b.shape[k])
                new = not any(D.known_eq(q.extent, x) for x in (b.shape[k], *found[k]))
                if along and new and D.known_le(q.extent, b.shape[k]):
                    found[k].append(q.extent)
    return tuple(x[0] if len(x) == 1 else d for x, d in zip(found, b.shape, strict=True))


def clipped(base: Dim, size: Dim, full: Dim) -> tuple[Dim, Dim]:
    """(where it begins, how many points) of the part of [base, base+size) that lies in [0, full).
    A box may reach beyond the buffer on either side where what is read there is not used."""
    low = base if D.nonneg(base) else D.maximum(base, 0)
    if size == 1 and low is base and _is_below(base, full):
        return base, 1
    count = D.minimum(size, full - base) if low is base else D.minimum(base + size, full) - low
    return low, count if D.nonneg(count) else D.maximum(count, 0)


def _is_below(x: Dim, end: Dim, depth: int = 4) -> bool:
    """Is x < end for all values of the loops that it mentions? Their last values are tried, each
    end of a ragged loop alone."""
    if D.known_le(x + 1, end):
        return True
    for v in sorted(D.symbols(x), key=lambda v: v.name, reverse=True) if depth else ():
        c = D.coefficient(x, v)
        if v.hi is not None and isinstance(c, int) and c > 0:
            rest = x - c * D.as_int(v)
            if any(_is_below(rest + c * last, end, depth - 1) for last in _alternatives(v.hi)):
                return True
    return False


def narrowed_axes(
    axes: Sequence[Sequence[Sym]], box: Box, full: Sequence[Dim], written: Sequence[Dim] = ()
) -> dict[Sym, Dim]:
    """What the variables over each axis become when they run over the box only. Where the box is
    part of what is `written`, not just read, one cell is surely inside."""
    table: dict[Sym, Dim] = {}
    for k, (names, (base, size), end) in enumerate(zip(axes, box, full, strict=True)):
        low, count = clipped(base, size, end)
        if size == 1 and written and D.known_eq(written[k], end):
            low, count = base, size
        for a in names:
            once = isinstance(count, int) and count == 1
            table[a] = low if once else low + D.var(a.name, count)
    return table


def rebased(buffer: str, box: Box) -> tuple[OnLoad, OnAccess]:
    """Accesses to a buffer, counted from where the box begins."""

    def move(index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(i - base for i, (base, _) in zip(index, box, strict=True))

    def on_load(x: Load) -> Value:
        return load(buffer, move(x.index), x.dtype) if x.source == buffer else x

    def on_store(name: str, index: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
        return name, move(index) if name == buffer else index

    return on_load, on_store


def narrow(
    s: Stmt,
    table: dict[Sym, Dim],
    on_load: OnLoad | None = None,
    on_store: OnAccess | None = None,
) -> list[Stmt]:
    """Loops over the axes in `table` shrink to the box (or are removed when it is one wide)."""
    if not isinstance(s, Loop):
        return [substitute(s, table, on_load, on_store)]
    if s.var in table:
        new = [y for x in s.body for y in narrow(x, table, on_load, on_store)]
        inner = [v for v in D.symbols(table[s.var]) if v.name == s.var.name]
        return [replace(s, var=inner[0], body=tuple(new))] if inner else new
    e = D.substitute(s.extent, table)
    if e != s.extent:  # ragged along an axis that shrank
        v = D.var(s.name, e)
        table, s = {**table, s.var: v}, replace(s, var=D.the_sym(v))
    body = (y for x in s.body for y in narrow(x, table, on_load, on_store))
    return [replace(s, body=tuple(body))]


def own_cells(n: Nest, loop: Loop, buffer: str) -> bool:
    """Do different iterations of a loop write different cells of a buffer?"""

    def plain(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store):
            return (replace(s, combine=None),) if s.buffer == buffer else ()
        return (s,) if isinstance(s, Loop) else ()

    return not carried(n, replace(loop, body=transform(loop.body, plain)))


# ---- does a store reach every cell?


def covers(index: Sequence[Dim], loops: Path, sizes: Sequence[Dim], always: Path = ()) -> bool:
    """Is every cell of the box [0, size) per axis written by a store at `index` in these loops?
    Those in `always` that do not choose the cell run at least once."""
    axes = [(i, d) for i, d in zip(index, sizes, strict=True) if not (i == 0 and d == 1)]
    axes = _unfused(axes)
    chosen: set[Sym] = set()
    for i, _ in axes:
        if chosen & D.symbols(i):
            return False
        chosen |= D.symbols(i)
    if any(q.var not in chosen and D.bounds(q.extent)[0] < 1 for q in always):
        return False
    extents = {q.var: q.extent for q in loops}
    return all(_sweeps(i, d, extents) for i, d in axes)


def _unfused(axes: list[tuple[Dim, Dim]]) -> list[tuple[Dim, Dim]]:
    """Axes at x//m and x%m of a fused loop are one axis at x."""
    for j, (low, m) in enumerate(axes):
        found = next(iter(low.terms), None) if isinstance(low, D.Int) else None
        atom = found[0][0] if found and len(found[0]) == 1 else None
        if not isinstance(atom, Quo) or atom.op != "mod" or low != D.mod(atom.a, m):
            continue
        for k, (high, size) in enumerate(axes):
            if k != j and D.known_eq(high, D.floordiv(atom.a, m)):
                rest = [a for i, a in enumerate(axes) if i not in (j, k)]
                return _unfused([*rest, (atom.a, size * m)])
    return axes


def _sweeps(x: Dim, size: Dim, extents: dict[Sym, Dim]) -> bool:
    """Does x take every value in [0, size) while its variables run over their extents?"""
    if isinstance(x, int):
        return x == 0 and D.known_le(size, 1)
    affine = all(len(m) == 1 and c > 0 and isinstance(m[0], Sym) for m, c in x.terms)
    if not affine or not D.symbols(x) <= extents.keys():
        return False
    fine = [m[0] for m, c in x.terms if c == 1]
    if not fine:
        return False
    v = fine[-1]
    assert isinstance(v, Sym)
    rest = x - D.as_int(v)
    if isinstance(rest, int):
        return D.known_le(size, extents[v])
    step = D.divisor(rest)
    coarse = D.floordiv(rest, step)
    # Each stretch of `step` values is complete, up to where the axis ends.
    full = all(D.known_le(step, e) or D.known_le(size - rest, e) for e in _alternatives(extents[v]))
    return full and _sweeps(coarse, D.ceildiv(size, step), extents)


def _alternatives(e: Dim) -> list[Dim]:
    """Integers of which e is the least."""
    for mono, c in e.terms if isinstance(e, D.Int) else ():
        atom = mono[0] if len(mono) == 1 else None
        if c < 0 or not isinstance(atom, Quo):
            continue
        ends = list(_ends(atom))
        if len(ends) > 1:
            rest = e - c * D.from_atom(atom)
            return [y for x in ends for y in _alternatives(rest + c * x)]
    return [e]


def _ends(atom: Quo) -> Iterator[Dim]:
    if atom.op == "min":
        yield from (atom.a, atom.b)
    elif atom.op == "floordiv":
        yield from (D.floordiv(x, atom.b) for x in _alternatives(atom.a))
