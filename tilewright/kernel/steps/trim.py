from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim, Quo, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, rewrite
from tilewright.kernel.nest import (
    FENCES,
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    on_loops,
    store_loads,
    substitute_all,
    walk,
)
from tilewright.kernel.step import Step
from tilewright.kernel.variables import inner_vars


@dataclass(frozen=True)
class Trim(Step):
    """A loop runs only where it matters: not where all it does is to add a neutral element or to
    write cells that nothing reads.

    for r in 64:                                    for r in i+1:
      s[i] += select(r <= i, x[i,r], 0)               s[i] += select(r <= i, x[i,r], 0)

    Unless the precision is strict, a zero that a condition has put there stays zero whatever it is
    multiplied with, and -inf stays so whatever is added. The weight of such a score in a softmax is
    not needed either. Where -inf may be the maximum of a row, an iteration has to be left for that:
    a row of which all weights are no numbers has one still. A number near the lowest counts as -inf
    where each row surely has a greater one.
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        shorter = 0

        def one(x: Loop) -> tuple[Stmt, ...]:
            nonlocal shorter
            begin, end = self._range(n, x, around[id(x)])
            if begin == 0 and D.known_eq(end, x.extent):
                return (x,)
            shorter += 1
            size = end - begin
            v = D.var(x.name, size if D.nonneg(size) else D.maximum(size, 0))
            body = substitute_all(x.body, {x.var: begin + v})
            return (replace(x, var=D.the_sym(v), body=body),)

        around: dict[int, frozenset[Sym]] = {}
        for x, path in self.loops(n, self.loop):
            around[id(x)] = frozenset((x.var, *(q.var for q in path)))
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}", "trim first")
        out = on_loops(n, self.loop, one)
        self.need(shorter, f"every iteration of {self.loop} may matter")
        return self.bounded(out)

    def _range(self, n: Nest, x: Loop, around: frozenset[Sym]) -> tuple[Dim, Dim]:
        """Where the iterations that matter begin and end, or the whole of the loop."""
        if self._each_sees(n, x, around):
            return self._ends(n, x, around, _EACH)
        begin, end = self._ends(n, x, around, _SOME)
        return (begin, end) if D.known_lt(begin, end) else self._ends(n, x, around, _NONE)

    def _ends(self, n: Nest, x: Loop, around: frozenset[Sym], left: int) -> tuple[Dim, Dim]:
        """The same, where so much is known of what is left."""
        whole: tuple[Dim, Dim] = (0, x.extent)
        found: tuple[Dim, Dim] | None = None
        moving = {q.var for q, _ in walk(n.body) if isinstance(q, Loop)} - around
        for s, _ in _lasting(x):
            if not isinstance(s, Store):
                return whole
            for needed in _needed(n, s, left, around):
                begin, end = whole
                for low, high in _limits(needed, x.var, moving):
                    if low is not None:
                        begin = D.maximum(begin, low)
                    if high is not None:
                        end = D.minimum(end, high + 1)
                if (begin, end) == whole:
                    return whole
                joined = (D.minimum(found[0], begin), D.maximum(found[1], end)) if found else None
                found = joined or (begin, end)
        return found or whole

    def _each_sees(self, n: Nest, x: Loop, around: frozenset[Sym]) -> bool:
        """Does each row, whichever the inner loops come to, surely need the first iteration, or
        does each need the last?"""
        ends: set[bool] = set()
        for s, path in _lasting(x):
            if not isinstance(s, Store):
                return False
            alternatives = _needed(n, s, _EACH, around)
            if len(alternatives) != 1 or not alternatives[0]:
                return False
            (needed,) = alternatives
            own = frozenset().union(*map(D.symbols, s.index))
            summed = {q.var for q in path if q.kind == "lane" or q.var not in own}
            for c in needed:
                slope = D.coefficient(c, x.var)
                if not isinstance(slope, int) or any(True for _ in D.data_values(c)):
                    return False
                ends |= {slope > 0} if slope else set()
                at = c - slope * D.as_int(x.var) + (slope * (x.extent - 1) if slope > 0 else 0)
                best = furthest(at, summed, True)
                worst = best if best is None else furthest(best, {q.var for q in path}, False)
                if worst is None or not D.nonneg(worst):
                    return False
        return len(ends) == 1 and D.known_lt(0, x.extent)


def _lasting(x: Loop) -> Iterator[tuple[Stmt, Path]]:
    """Stores that outlast an iteration, with the loops around them in it; and what waits."""
    gone = {s.buffer for s, _ in walk(x.body) if isinstance(s, Alloc)}
    for s, path in walk(x.body):
        if isinstance(s, FENCES) or (isinstance(s, Store) and s.buffer not in gone):
            yield s, path


# What is known of the iterations that are left: nothing; there are some; there are some for each
# value of the inner loops, such as each of several rows.
_NONE, _SOME, _EACH = range(3)


def _limits(
    conditions: Iterable[Dim], v: Sym, moving: set[Sym]
) -> Iterator[tuple[Dim | None, Dim | None]]:
    """(least, greatest) value of v for which an integer can be at least 0, for each of them."""
    for x in conditions:
        c = D.coefficient(x, v)
        if not isinstance(c, int) or c == 0 or any(True for _ in D.data_values(x)):
            continue
        # v itself may be left in what bounds an inner variable.
        rest = furthest(x - c * D.as_int(v), moving | {v}, True)
        if rest is None:
            continue
        if c < 0:
            yield None, D.floordiv(rest, -c)
        else:
            yield D.ceildiv(-rest, c), None


def furthest(x: Dim, moving: set[Sym], top: bool) -> Dim | None:
    """A bound of x, the least or the greatest, while the moving symbols take all their values."""
    if isinstance(x, int):
        return x
    total: Dim = 0
    for mono, c in x.terms:
        term: Dim = c
        for atom in mono:
            term = term * D.from_atom(atom)
        if D.symbols(term) & moving:
            if len(mono) > 1:
                return None
            part = _atom_end(next(iter(mono)), moving, top == (c > 0))
            if part is None:
                return None
            term = c * part
        total = total + term
    return total


def _atom_end(a: D.Atom, moving: set[Sym], top: bool) -> Dim | None:
    if isinstance(a, Sym):
        end = a.hi if top else a.lo
        return None if end is None else furthest(end, moving, top)
    if isinstance(a, Quo) and a.op in ("min", "max"):
        ends = [furthest(e, moving, top) for e in (a.a, a.b)]
        combine = D.minimum if a.op == "min" else D.maximum
        return None if ends[0] is None or ends[1] is None else combine(ends[0], ends[1])
    if isinstance(a, Quo) and isinstance(a.b, int) and a.b > 0:
        if a.op == "mod":
            return a.b - 1 if top else 0
        end = furthest(a.a, moving, top)
        return None if end is None else D.floordiv(end, a.b)
    return None


# ---- what has to hold for a store to matter: integers that are at least 0


def _needed(n: Nest, s: Store, left: int, around: frozenset[Sym]) -> list[list[Dim]]:
    """Alternatives, of each of which all integers are at least 0: a tuple matters where one of its
    components does."""
    if s.combine is None:
        return [list(_read_cells(n, s))]
    neutral = _neutral(n, s)
    if neutral is None:
        return [[]]
    if not isinstance(s.combine, str):
        lax = n.precision != "strict"
        parts = s.value.args if isinstance(s.value, Fn) and s.value.name == "tuple" else (s.value,)
        how = _Lax(lax, False, False, around)
        return [list(_not_neutral(n, v, x, how, 4)) for v, x in zip(parts, neutral, strict=True)]
    if s.combine not in ("add", "max", "min"):
        return [[]]
    lax = n.precision != "strict" or not n.buffer(s.buffer).dtype.is_float
    how = _Lax(lax, lax and left >= _SOME, lax and left == _EACH, around)
    return [list(_not_neutral(n, s.value, neutral[0], how, 4))]


def _neutral(n: Nest, s: Store) -> tuple[object, ...] | None:
    """What a reduction begins with, by component, if all of it is the neutral element. Then no sum
    is ever -0.0."""
    assert s.combine is not None
    neutral = _numbers(identity(s.combine, n.buffer(s.buffer).dtype))
    first = [
        _numbers(x.value)
        for x, _ in walk(n.body)
        if isinstance(x, Store) and x.buffer == s.buffer and x.combine is None
    ]
    return neutral if first and all(str(v) == str(neutral) for v in first) else None


def _numbers(v: Value) -> tuple[object, ...] | None:
    """A number, or those of a tuple."""
    parts = v.args if isinstance(v, Fn) and v.name == "tuple" else (v,)
    found = tuple(x.value for x in parts if isinstance(x, Const))
    return found if len(found) == len(parts) else None


@dataclass(frozen=True)
class _Lax:
    """What counts as neutral although some numbers would make it no number."""

    numbers: bool  # zero times anything, -inf with anything added
    weights: bool  # -inf less a maximum that may be -inf itself; the exponential of it, over a sum
    lowest: bool  # a number near the lowest one, for -inf
    around: frozenset[Sym]  # variables of the loop that is trimmed and of those around it


def _not_neutral(n: Nest, v: Value, neutral: object, lax: _Lax, depth: int) -> Iterator[Dim]:
    """Conditions without which a value is the neutral element."""
    if isinstance(v, Load):
        made = _made(n, v, neutral, lax.around) if depth else None
        if made is not None:
            value, reduced = made
            if reduced:  # what is left is of the loop that is trimmed, not of this reduction
                lax = replace(lax, weights=False, lowest=False)
            yield from _not_neutral(n, value, neutral, lax, depth - 1)
        return
    if not isinstance(v, Fn):
        return
    if v.name == "cast" and v.args[0].dtype.is_float and v.dtype.is_float:
        yield from _not_neutral(n, v.args[0], neutral, lax, depth)
    elif v.name == "mul" and neutral == 0 and lax.numbers:
        for x in v.args:
            yield from _not_neutral(n, x, neutral, lax, depth)
    elif v.name == "mul" and neutral == -inf and _positive(v.args[1]):
        yield from _not_neutral(n, v.args[0], neutral, lax, depth)
    elif v.name == "div" and neutral == 0 and lax.weights:
        yield from _not_neutral(n, v.args[0], neutral, lax, depth)
    elif v.name == "exp" and neutral == 0:
        yield from _not_neutral(n, v.args[0], -inf, lax, depth)
    elif v.name == "sub" and neutral == -inf and (lax.weights or _finite(v.args[1], lax)):
        yield from _not_neutral(n, v.args[0], -inf, lax, depth)
    elif v.name == "add" and neutral == -inf and lax.numbers:
        for x in v.args:
            yield from _not_neutral(n, x, -inf, lax, depth)
    elif v.name == "select":
        condition, then, other = v.args
        lowest = lax.lowest and neutral == -inf and is_exact(condition, True)
        if lowest and isinstance(other, Const) and float(other.value) < LOWEST:
            yield from conditions_of(condition, True)
            yield from _not_neutral(n, then, neutral, lax, depth)
        elif isinstance(other, Const) and other.value == neutral:
            yield from conditions_of(condition, True)
            yield from _not_neutral(n, then, neutral, lax, depth)
        elif isinstance(then, Const) and then.value == neutral:
            yield from conditions_of(condition, False)
            yield from _not_neutral(n, other, neutral, lax, depth)


def _positive(v: Value) -> bool:
    return isinstance(v, Const) and 0 < float(v.value) < inf


def _finite(v: Value, lax: _Lax) -> bool:
    """Is it a maximum that is not -inf: `select(x == -inf, 0, x)`?"""
    if (
        not lax.numbers
        or not isinstance(v, Fn)
        or v.name != "select"
        or not isinstance(v.args[1], Const)
    ):
        return False
    condition, _, x = v.args
    return (
        isinstance(condition, Fn)
        and condition.name == "eq"
        and condition.args[0] is x
        and isinstance(condition.args[1], Const)
        and condition.args[1].value == -inf
    )


# Less than this counts as -inf: no sum of scores comes near it.
LOWEST = -1e30

_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def conditions_of(v: Value, truth: bool) -> Iterator[Dim]:
    """Integers that are at least 0 where a condition is as said."""
    if not isinstance(v, Fn):
        return
    if v.name == "not":
        yield from conditions_of(v.args[0], not truth)
    elif v.name == ("and" if truth else "or"):
        for x in v.args:
            yield from conditions_of(x, truth)
    elif v.name in _OPPOSITE:
        a, b = (_whole(x) for x in v.args)
        if a is None or b is None:
            return
        name = v.name if truth else _OPPOSITE[v.name]
        if name in ("gt", "ge"):
            a, b = b, a
        yield b - a - (name in ("lt", "gt"))


def is_exact(v: Value, truth: bool) -> bool:
    """Is a condition as said exactly where the integers of `conditions_of` are at least 0?"""
    if not isinstance(v, Fn):
        return False
    if v.name == "not":
        return is_exact(v.args[0], not truth)
    if v.name == ("and" if truth else "or"):
        return all(is_exact(x, truth) for x in v.args)
    return v.name in _OPPOSITE and all(_whole(x) is not None for x in v.args)


def _whole(v: Value) -> Dim | None:
    """The index function that an integer value is."""
    if isinstance(v, Index):
        return v.dim
    if isinstance(v, Const) and isinstance(v.value, int) and not isinstance(v.value, bool):
        return v.value
    if isinstance(v, Fn) and v.dtype.is_int and all(x.dtype is v.dtype for x in v.args):
        parts = [_whole(x) for x in v.args]
        if v.name in ("add", "sub") and len(parts) == 2:
            a, b = parts
            if a is not None and b is not None:
                return a + b if v.name == "add" else a - b
    return None


def _made(n: Nest, x: Load, neutral: object, around: frozenset[Sym]) -> tuple[Value, bool] | None:
    """What a cell of an internal buffer was given, where one plain store writes all of them; or
    what is reduced to it from the neutral element, for whichever iterations of the reduction. And
    is it reduced?"""
    stores = [(s, p) for s, p in walk(n.body) if isinstance(s, Store) and s.buffer == x.source]
    stores = [(s, p) for s, p in stores if s.combine is not None] or stores
    if len(stores) != 1 or n.buffer(str(x.source)).scope in ("in", "out"):
        return None
    s, path = stores[0]
    home = next((p for y, p in walk(n.body) if y == Alloc(s.buffer)), ())
    own = {q.var for q in path[len(home) :]}
    axes = [D.the_sym(i) for i in s.index if D.is_sym(i)]
    if len(set(axes)) < len(axes) or not own.issuperset(axes):
        return None
    if any(i != 0 for i in s.index if not D.is_sym(i)):
        return None
    reduced = own.difference(axes)
    if s.combine is None and reduced:
        return None
    if s.combine is not None:
        first = _neutral(n, s)
        if s.combine not in ("add", "max", "min") or first != (neutral,) or reduced & around:
            return None
    table: dict[Sym, Dim] = {
        D.the_sym(i): at for i, at in zip(s.index, x.index, strict=True) if D.is_sym(i)
    }
    return rewrite(s.value, table), s.combine is not None


def _read_cells(n: Nest, s: Store) -> Iterator[Dim]:
    """Conditions under which a cell that a plain store writes lies in a box around all that is
    ever read of its buffer."""
    b = n.buffer(s.buffer)
    home = next((p for x, p in walk(n.body) if x == Alloc(s.buffer)), None)
    if home is None or b.scope in ("in", "out", "shared"):
        return
    body = home[-1].body if home else n.body
    moving = set().union(*(inner_vars(x) for x in body))
    indices = [
        x.index
        for y, _ in walk(body)
        if isinstance(y, Store)
        for x in store_loads(y)
        if x.source == s.buffer
    ]
    indices += [
        y.index
        for y, _ in walk(body)
        if isinstance(y, Store) and y.buffer == s.buffer and y.combine is not None
    ]
    for k, at in enumerate(s.index):
        ends = [furthest(i[k], moving, True) for i in indices]
        starts = [furthest(i[k], moving, False) for i in indices]
        if any(True for i in indices for _ in D.data_values(i[k])):
            continue
        highest, lowest = _outermost(ends, True), _outermost(starts, False)
        if highest is not None:
            yield highest - at
        if lowest is not None:
            yield at - lowest


def _outermost(found: list[Dim | None], top: bool) -> Dim | None:
    out: Dim | None = None
    for x in found:
        if x is None:
            return None
        out = x if out is None else (D.maximum if top else D.minimum)(out, x)
    return out
