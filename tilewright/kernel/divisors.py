"""What integers of a tile kernel are multiples of: which places in memory vectors may begin at, and
which conditions all lanes of a vector fulfil alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import gcd

from tilewright.ir import dim as D
from tilewright.ir.atom import Data
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, cast, const, extent, fn, replaced
from tilewright.ir.types import i64
from tilewright.kernel.nest import If, Stmt, Store, walk

MOST = 1 << 30  # what 0 is a multiple of
_ROUNDS = 8  # of looking at buffers whose values depend on each other


class Divisors:
    """The divisors of integers that a kernel holds in its own buffers."""

    def __init__(self, body: tuple[Stmt, ...]) -> None:
        stores: dict[str, list[Store]] = {}
        for s, _ in walk(body):
            if isinstance(s, Store) and s.value.dtype.is_int:
                stores.setdefault(s.buffer, []).append(s)
        self.of: dict[str, int] = dict.fromkeys(stores, MOST)
        for _ in range(_ROUNDS):
            found = {b: self._of_buffer(x) for b, x in stores.items()}
            if found == self.of:
                break
            self.of = found
        else:
            self.of = dict.fromkeys(stores, 1)

    def _of_buffer(self, stores: list[Store]) -> int:
        if any(s.combine is not None for s in stores):
            return 1
        return gcd(*(self.value(s.value) for s in stores))

    def value(self, v: Value) -> int:
        """A power of two (or 0's divisor) that a value is a multiple of."""
        if isinstance(v, Const):
            return _two(int(v.value)) if v.dtype.is_int else 1
        if isinstance(v, Index):
            return self.dim(v.dim)
        if isinstance(v, Load):
            return self.of.get(str(v.source), 1)
        if not isinstance(v, Fn) or not v.dtype.is_int:
            return 1
        if v.name == "cast":
            return self.value(v.args[0]) if v.args[0].dtype.is_int else 1
        if v.name in ("add", "sub", "min", "max"):
            return gcd(*map(self.value, v.args))
        if v.name == "select":
            return gcd(*map(self.value, v.args[1:]))
        if v.name == "mul":
            a, b = map(self.value, v.args)
            return min(MOST, a * b)
        if v.name in ("rem", "mod"):
            return gcd(*map(self.value, v.args))
        if v.name == "neg":
            return self.value(v.args[0])
        return 1

    def dim(self, x: Dim) -> int:
        """The same of an index function."""
        if isinstance(x, int):
            return _two(x)
        return gcd(*(self._term(mono, c) for mono, c in x.terms))

    def _term(self, mono: tuple[D.Atom, ...], c: int) -> int:
        out = _two(c)
        for a in mono:
            if isinstance(a, Data):
                out = min(MOST, out * self.value(a.value))
            elif isinstance(a, Sym) and a.multiple > 1:
                out = min(MOST, out * _two(a.multiple))
        return out

    def factored(self, x: Dim) -> Dim:
        """The same index, with data written as a multiple of what they are known to be one of."""
        if isinstance(x, int) or not D.data_values(x):
            return x
        out: Dim = 0
        for mono, c in x.terms:
            term: Dim = c
            for a in mono:
                by = min(16, self.value(a.value)) if isinstance(a, Data) else 1
                if by > 1:
                    assert isinstance(a, Data)
                    part = fn("floordiv", cast(a.value, i64), const(by, i64))
                    term = term * by * part.as_dim()
                else:
                    term = term * D.from_atom(a)
            out = out + term
        return out


def _two(n: int) -> int:
    """The largest power of two that divides a number."""
    return MOST if n == 0 else min(MOST, n & -n)


def lane_part(v: Value, lane: Sym, known: Divisors) -> tuple[int, int] | None:
    """(c, d) of an integer that is c*lane + a multiple of d."""
    if lane not in v.symbols():
        return 0, known.value(v)
    if isinstance(v, Index):
        return dim_part(v.dim, lane, known)
    if not isinstance(v, Fn) or not v.dtype.is_int:
        return None
    parts = [lane_part(x, lane, known) for x in v.args]
    if any(x is None for x in parts):
        return None
    both = [x for x in parts if x is not None]
    if v.name == "cast":
        return both[0]
    if v.name in ("add", "sub"):
        (a, d), (b, e) = both
        return (a + b if v.name == "add" else a - b), gcd(d, e)
    return None


def dim_part(x: Dim, lane: Sym, known: Divisors) -> tuple[int, int] | None:
    c = D.coefficient(x, lane)
    if not isinstance(c, int):
        return None
    return c, known.dim(x - c * D.as_int(lane))


def settled(v: Fn, lane: Sym, width: int, known: Divisors) -> bool:
    """Is a comparison the same for all lanes? Of lane + m < n, where m and n are multiples of the
    number of lanes, it is; also of m <= lane + n, and of what these are not."""
    a, b = (lane_part(x, lane, known) for x in v.args)
    if a is None or b is None or gcd(a[1], b[1]) % width:
        return False
    step = a[0] - b[0]
    if step == 0:
        return True
    return step == (1 if v.name in ("lt", "ge") else -1)


def comparisons(v: Value, lane: Sym) -> Iterable[Fn]:
    """The comparisons of integers in a value that differ between lanes."""
    todo, seen = [v], {v}
    while todo:
        x = todo.pop()
        if lane not in x.symbols():
            continue
        if isinstance(x, Fn) and x.name in ("lt", "le", "gt", "ge") and x.args[0].dtype.is_int:
            yield x
        for y in x.operands():
            if y not in seen:
                seen.add(y)
                todo.append(y)


def whole_lanes(s: Stmt, lane: Sym, known: Divisors) -> Stmt:
    """The same statement with conditions that all lanes fulfil alike said without the lane."""
    width = D.bounds(extent(lane))[1]

    def one(v: Value) -> Value:
        for x in list(comparisons(v, lane)):
            if settled(x, lane, width, known):
                v = replaced(v, x, x.substitute({lane: 0}))
        return v

    if isinstance(s, Store):
        return replace(s, value=one(s.value))
    if isinstance(s, If):
        inside = (tuple(whole_lanes(x, lane, known) for x in body) for body in (s.then, s.other))
        return If(one(s.condition), *inside)
    return s
