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
from tilewright.kernel.nest import Alloc, Atomic, If, Stmt, Store, walk, writes

MOST = 1 << 30  # what 0 is a multiple of
DEEPEST = 4  # definitions that are looked into, one inside the other
_ROUNDS = 8  # rounds over buffers whose values depend on each other


class Divisors:
    """The divisors of integers that a kernel stores in its own buffers."""

    def __init__(self, body: tuple[Stmt, ...]) -> None:
        stores: dict[str, list[Store]] = {}
        # Other memory has contents from before, and may be stored to under another name. What an
        # atomic operation finds and stores is any number.
        own = {s.buffer for s, _ in walk(body) if isinstance(s, Alloc)}
        own -= writes(tuple(s for s, _ in walk(body) if isinstance(s, Atomic)))
        for s, _ in walk(body):
            if isinstance(s, Store) and s.value.dtype.is_int and s.buffer in own:
                stores.setdefault(s.buffer, []).append(s)
        self.definitions = {b: x[0] for b, x in stores.items() if len(x) == 1 and _plain(x[0])}
        # What values share is looked at once.
        self._values: dict[tuple[Value, int], int] = {}
        self._signs: dict[tuple[Value, int], bool] = {}
        self.lanes: dict[tuple[Value, Sym, int], tuple[int, int] | None] = {}
        self.of: dict[str, int] = dict.fromkeys(stores, MOST)
        for _ in range(_ROUNDS):
            found = {b: self._of_buffer(x) for b, x in stores.items()}
            if found == self.of:
                break
            self.of = found
            self._values.clear()
        else:
            self.of = dict.fromkeys(stores, 1)
            self._values.clear()

    def _of_buffer(self, stores: list[Store]) -> int:
        if any(s.combine is not None for s in stores):
            return 1
        return gcd(*(self.value(s.value) for s in stores))

    def defined(self, v: Load) -> Value | None:
        """What was stored where something is read: of the same form, at another time perhaps."""
        s = self.definitions.get(str(v.source))
        if s is None or len(s.index) != len(v.index):  # another view of the same memory
            return None
        pairs = zip(s.index, v.index, strict=True)
        return s.value.substitute({D.the_sym(i): j for i, j in pairs if D.is_sym(i)})

    def value(self, v: Value, depth: int = 0) -> int:
        """A power of two (or 0's divisor) that a value is a multiple of."""
        found = self._values.get((v, depth))
        if found is None:
            found = self._values[v, depth] = self._value(v, depth)
        return found

    def _value(self, v: Value, depth: int) -> int:
        if isinstance(v, Const):
            return _two(int(v.value)) if v.dtype.is_int else 1
        if isinstance(v, Index):
            return self.dim(v.dim)
        if isinstance(v, Load):
            known = self.of.get(str(v.source), 1)
            made = self.defined(v) if depth < DEEPEST else None
            return known if made is None else max(known, self.value(made, depth + 1))
        if not isinstance(v, Fn) or not v.dtype.is_int:
            return 1
        if v.name == "cast":
            return self.value(v.args[0], depth) if v.args[0].dtype.is_int else 1
        parts = v.args[1:] if v.name == "select" else v.args
        if v.name in ("add", "sub", "min", "max", "select", "rem", "mod", "neg"):
            return gcd(*(self.value(x, depth) for x in parts))
        if v.name == "mul":
            a, b = (self.value(x, depth) for x in parts)
            return min(MOST, a * b)
        return 1

    def dim(self, x: Dim) -> int:
        """The same of an index function."""
        if isinstance(x, int):
            return _two(x)
        return gcd(*(self.term(mono, c) for mono, c in x.terms))

    def term(self, mono: tuple[D.Atom, ...], c: int) -> int:
        out = _two(c)
        for a in mono:
            if isinstance(a, Data):
                out = min(MOST, out * self.value(a.value))
            elif isinstance(a, Sym) and a.multiple > 1:
                out = min(MOST, out * _two(a.multiple))
        return out

    def not_negative(self, v: Value, depth: int = 0) -> bool:
        """Is an integer surely at least 0, unless it overflows? Numbers of programs and of elements
        are, and so is a remainder of what is: its sign is that of the dividend."""
        known = self._signs.get((v, depth))
        if known is None:
            known = self._signs[v, depth] = self._not_negative(v, depth)
        return known

    def _not_negative(self, v: Value, depth: int) -> bool:
        if isinstance(v, Const):
            return v.dtype.is_int and int(v.value) >= 0
        if isinstance(v, Index):
            return self.place_not_negative(v.dim, depth)
        if isinstance(v, Load):
            made = self.defined(v) if depth < DEEPEST else None
            return made is not None and self.not_negative(made, depth + 1)
        if not isinstance(v, Fn) or not v.dtype.is_int:
            return False
        if v.name == "cast":
            of = v.args[0].dtype
            return of.is_int and of.bits <= v.dtype.bits and self.not_negative(v.args[0], depth)
        signs = [self.not_negative(x, depth) for x in v.args if x.dtype.is_int]
        if v.name in ("add", "mul", "min", "floordiv", "quo", "select"):
            return all(signs)
        if v.name == "max":
            return any(signs)
        return signs[0] if v.name == "rem" else v.name == "mod" and signs[1]

    def place_not_negative(self, x: Dim, depth: int = 0) -> bool:
        """The same of an index function."""
        if D.nonneg(x):
            return True
        return not isinstance(x, int) and all(
            c > 0 and all(self._atom_not_negative(a, depth) for a in mono) for mono, c in x.terms
        )

    def _atom_not_negative(self, a: D.Atom, depth: int) -> bool:
        if isinstance(a, Data):
            return self.not_negative(a.value, depth)
        return D.nonneg(D.from_atom(a))

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


def _plain(s: Store) -> bool:
    """Is it known what is stored at every index?"""
    return s.combine is None and all(D.is_sym(i) or i == 0 for i in s.index)


def _two(n: int) -> int:
    """The largest power of two that divides a number."""
    return MOST if n == 0 else min(MOST, n & -n)


def lane_part(v: Value, lane: Sym, known: Divisors, depth: int = 0) -> tuple[int, int] | None:
    """(c, d) of an integer that is c*lane + a multiple of d, which is the same for all lanes.

    The remainder of lane + m by n, both multiples of the number of lanes, is lane + the remainder
    of m, if m is not negative: then the remainders of -16 to -9 by 16 would be 0, -15, …, -9.
    """
    key = v, lane, depth
    if key not in known.lanes:
        known.lanes[key] = _lane_part(v, lane, known, depth)
    return known.lanes[key]


def _lane_part(v: Value, lane: Sym, known: Divisors, depth: int) -> tuple[int, int] | None:
    if lane not in v.symbols():
        return 0, known.value(v)
    if isinstance(v, Index):
        return dim_part(v.dim, lane, known)
    if isinstance(v, Load):
        made = known.defined(v) if depth < DEEPEST else None
        return None if made is None else lane_part(made, lane, known, depth + 1)
    if not isinstance(v, Fn) or not v.dtype.is_int or v.name == "select":
        return None
    parts = [lane_part(x, lane, known, depth) for x in v.args]
    both = [x for x in parts if x is not None]
    if len(both) < len(parts):
        return None
    if v.name == "cast":
        return both[0]
    if len(both) != 2:
        return None
    (a, d), (b, e) = both
    if v.name in ("add", "sub"):
        return (a + b if v.name == "add" else a - b), gcd(d, e)
    if v.name == "mul" and isinstance(v.args[1], Const):
        k = int(v.args[1].value)
        return a * k, min(MOST, d * _two(k))
    width = D.bounds(extent(lane))[1]
    if v.name in ("rem", "mod") and b == 0 and a in (0, 1) and gcd(d, e) % width == 0:
        signed = v.args[1] if v.name == "mod" else v.args[0]  # whose sign the result has
        return (a, gcd(d, e)) if known.not_negative(signed, depth) else None
    return None


def dim_part(x: Dim, lane: Sym, known: Divisors) -> tuple[int, int] | None:
    """The same of an index function."""
    if isinstance(x, int):
        return 0, _two(x)
    c, d = 0, 0
    for mono, k in x.terms:
        moving = [a for a in mono if lane in D.symbols(D.from_atom(a))]
        if not moving:
            d = gcd(d, known.term(mono, k))
        elif len(mono) > 1:
            return None
        elif moving[0] is lane:
            c += k
        elif isinstance(moving[0], Data):
            part = lane_part(moving[0].value, lane, known)
            if part is None:
                return None
            c, d = c + k * part[0], gcd(d, min(MOST, part[1] * _two(k)))
        else:
            return None
    return c, d or MOST


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
    """The same statement with conditions that are equal in all lanes written without the lane."""
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
