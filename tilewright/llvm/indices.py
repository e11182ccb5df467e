"""Index functions as integers of 64 bits, or vectors of them where they differ between lanes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

from tilewright.ir import dim as D
from tilewright.ir.dim import Data, Dim, Quo, Sym
from tilewright.ir.expr import Const, Fn, Index, Value
from tilewright.ir.types import i32, i64
from tilewright.llvm.context import LANE, Context
from tilewright.llvm.scalar_types import register_type, vector
from tilewright.llvm.text import rounded_down
from tilewright.llvm.writer import Writer

# By level: coefficients and what they are multiplied with.
Terms = dict[int, list[tuple[int, tuple[str, ...]]]]

_ON_NUMBERS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_NEAR = 1 << 30  # fits 32 bits, and so do its sums with constants and lanes
_FAR = 1 << 61  # half of what 64 bits hold, and room for a few sums


class Evaluates(Protocol):
    """What computes the values that an index function reads (llvm/values.py)."""

    def value(self, v: Value, guarded: bool = False) -> str: ...

    def lanes_of(self, v: Value, guarded: bool = False) -> str: ...


def _whole_number(v: Value) -> int | None:
    """A constant that an index can be compared with."""
    if not isinstance(v, Const) or v.dtype.kind not in "iu":
        return None
    return int(v.value) if i64.lowest <= v.value <= i64.highest else None


def _is_far(x: Dim) -> bool:
    """May an index function be so large that a difference does not fit 64 bits? Programs and loops
    are not counted so far; an argument or a number out of memory may be anything it can hold."""
    if isinstance(x, int):
        return abs(x) >= _FAR
    if any(abs(c) >= _FAR for _, c in x.terms):
        return True
    ends = (e for s in D.symbols(x) for e in (s.lo, s.hi))
    if any(isinstance(e, int) and abs(e) >= _FAR for e in ends):
        return True
    return any(v.dtype.bits == 64 for v in D.data_values(x))


class Indices:
    values: Evaluates  # set by `Values`, which in turn needs indices

    def __init__(self, w: Writer, c: Context, short: bool) -> None:
        self.w, self.c = w, c
        self.put, self.arith = w.put, w.arith
        self.short = short  # half as many bits take the machine less time

    # ---- one number

    def dim(self, x: Dim) -> str:
        """An i64; no lane in it."""
        if isinstance(x, int):
            return str(x)
        key = (x, self.c.constants(D.symbols(x)), self.epochs(x))
        if (found := self.w.known(key)) is not None:
            return found
        const, total, where = self._apart(x)
        if not total:
            return str(const)
        if const:
            with self.w.at(where):
                total = self.put(f"add i64 {total}, {const}")
        self.w.remember(key, where, total)
        return total

    def _apart(self, x: Dim) -> tuple[int, str, int]:
        """The constant of an index function without a lane, the rest of it as an i64 ("": there is
        none), and the level of that."""
        const, terms, lane = self.terms(x)
        assert lane == 0, f"{x} has a lane where a scalar is needed"
        key = ("apart", tuple((k, *terms[k]) for k in sorted(terms)))
        where = max(terms, default=0)
        if (found := self.w.known(key)) is not None:
            return const, found, where
        total = ""
        for level in sorted(terms):
            with self.w.at(level):
                part = self._sum(terms[level])
                total = part if not total else self.put(f"add i64 {total}, {part}")
        if total:
            self.w.remember(key, where, total)
        return const, total, where

    def _sum(self, terms: list[tuple[int, tuple[str, ...]]]) -> str:
        total = ""
        for c, factors in terms:
            p = factors[0]
            for f in factors[1:]:
                p = self.put(f"mul i64 {p}, {f}")
            if c != 1:
                p = self.put(f"mul i64 {p}, {c}")
            total = p if not total else self.put(f"add i64 {total}, {p}")
        return total

    def offset(self, terms: list[tuple[int, tuple[str, ...]]], level: int) -> str:
        """A sum of terms, shared between the addresses that need it."""
        key = ("sum", tuple(terms))
        if (found := self.w.known(key)) is not None:
            return found
        with self.w.at(level):
            r = self._sum(terms)
        self.w.remember(key, level, r)
        return r

    def epochs(self, x: Dim) -> tuple[Any, ...]:
        """The state of the memory that an index function reads."""
        vals = list(D.data_values(x))
        return tuple(e for v in vals for e in (*self.c.epochs(v), *self.c.masks(v)))

    def terms(self, x: Dim) -> tuple[int, Terms, int | None]:
        """(constant, terms by level, coefficient of the lane; None where it is not affine)."""
        const, lane = 0, 0
        terms: Terms = {}
        if isinstance(x, int):
            return x, terms, 0
        env, own = self.c.env, self.c.lane
        for mono, c in x.terms:
            factors: list[str] = []
            level, lanes = 0, 0
            for atom in mono:
                if isinstance(atom, Sym):
                    e = env[atom]
                    if isinstance(e, int):
                        c *= e
                        continue
                    if e == LANE:
                        lanes += 1
                        continue
                    ssa, lv = e
                else:
                    if own and own[0] in D.symbols(D.from_atom(atom)):
                        return 0, {}, None
                    got = self._atom(atom)
                    if isinstance(got, int):
                        c *= got
                        continue
                    ssa, lv = got
                factors.append(ssa)
                level = max(level, lv)
            if lanes:
                if lanes > 1 or factors:
                    return 0, {}, None
                lane += c
            elif not factors:
                const += c
            elif c:
                terms.setdefault(level, []).append((c, tuple(factors)))
        return const, terms, lane

    def level(self, x: Dim) -> int:
        """Where all that an index function depends on is known."""
        level = 0
        for s in D.symbols(x):
            e = self.c.env.get(s)
            if isinstance(e, tuple):
                level = max(level, e[1])
        for v in D.data_values(x):
            level = max(level, self.c.level(v, self.w.depth))
        return min(level, self.w.depth)

    def _atom(self, atom: D.Atom) -> Any:
        if isinstance(atom, Data):
            level = self.c.level(atom.value, self.w.depth)
            with self.w.at(level):
                ssa = self._extended(self.values.value(atom.value), atom.value, 1)
            return ssa, level
        assert isinstance(atom, Quo)
        whole = D.from_atom(atom)
        level = self.level(whole)
        key = ("atom", atom, self.c.constants(D.symbols(whole)), self.epochs(whole))
        for lv, l in enumerate(self.w.levels[: self.w.depth + 1]):
            if key in l.memo:
                found = l.memo[key]
                return found if isinstance(found, int) else (found, lv)
        counters = self.w.levels[level].counters
        if counters is not None and not self.c.constants(D.symbols(whole)):
            counted = counters.of(atom, level, self.dim)
            if counted is not None:
                self.w.levels[level].memo[key] = counted
                return counted, level
        with self.w.at(level):
            a, b = self.dim(atom.a), self.dim(atom.b)
            if a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
                r: Any = _ON_NUMBERS[atom.op](int(a), int(b))
                self.w.remember(key, level, r)
                return r
            r = self._quotient(atom, a, b)
        self.w.remember(key, level, r)
        return r, level

    def _quotient(self, atom: Quo, a: str, b: str) -> str:
        if atom.op in ("min", "max"):
            return self.w.integer("s" + atom.op, a, b)
        if (
            D.bounds(atom.b)[0] < 1
        ):  # loops over as many are never run, but it is computed before them
            b = self.w.integer("smax", b, "1")
        if D.bounds(atom.a)[0] >= 0:
            code = "udiv" if atom.op == "floordiv" else "urem"
            if self._fits(atom):
                return self._short(code, a, b)
            return self.put(f"{code} i64 {a}, {b}")
        return rounded_down(self.put, atom.op, a, b)

    def _fits(self, q: Quo) -> bool:
        ends = (*D.bounds(q.a), *D.bounds(q.b))
        return self.short and all(0 <= e < 1 << 32 for e in ends)

    def _short(self, code: str, a: str, b: str) -> str:
        a, b = map(self._half, (a, b))
        return self.put(f"zext i32 {self.put(f'{code} i32 {a}, {b}')} to i64")

    def _half(self, x: str) -> str:
        """The lower half of 64 bits."""
        return x if x.lstrip("-").isdigit() else self.put(f"trunc i64 {x} to i32")

    def _extended(self, x: str, v: Value, w: int) -> str:
        """An integer out of memory in 64 bits."""
        d = v.dtype
        if d.bits == 64 and not d.is_bool:
            return x
        how = "sext" if d.kind == "i" else "zext"
        return self.put(f"{how} {vector(register_type(d), w)} {x} to {vector('i64', w)}")

    # ---- a number for every lane

    def vector(self, x: Dim, w: int) -> str:
        """An index function of the lane in all lanes; one that is not affine, one by one."""
        lane_of = self.c.lane
        assert lane_of is not None
        const, terms, lane = self.terms(x)
        if lane is None:
            return self._one_by_one(x, w)
        steps = (
            "<" + ", ".join(f"i64 {const + lane * k}" for k in range(w)) + ">"
            if w > 1
            else str(const)
        )
        if not terms:
            return steps
        rest = x - lane * D.as_int(lane_of[0]) - const
        base = self.dim(rest)
        if w == 1:
            return self.put(f"add i64 {base}, {steps}")
        v = self.arith.splat(base, "i64", w)
        return self.put(f"add <{w} x i64> {v}, {steps}")

    def lanes(self, x: Dim, w: int) -> str:
        """Any index function in all lanes."""
        assert self.c.lane is not None
        own = self.c.lane[0]
        if own not in D.symbols(x):
            return self.arith.splat(self.dim(x), "i64", w)
        if self.terms(x)[2] is not None:
            return self.vector(x, w)
        assert isinstance(x, D.Int)
        v = f"<{w} x i64>"
        same: Dim = 0
        total = ""
        for mono, c in x.terms:
            fixed: Dim = c
            moving: list[str] = []
            for atom in mono:
                if own in D.symbols(D.from_atom(atom)):
                    moving.append(self._atom_lanes(atom, w))
                else:
                    fixed = fixed * D.from_atom(atom)
            if not moving:
                same = same + fixed
                continue
            if fixed != 1:
                moving.append(self.arith.splat(self.dim(fixed), "i64", w))
            p = moving[0]
            for f in moving[1:]:
                p = self.put(f"mul {v} {p}, {f}")
            total = p if not total else self.put(f"add {v} {total}, {p}")
        if same == 0:
            return total
        return self.put(f"add {v} {total}, {self.arith.splat(self.dim(same), 'i64', w)}")

    def _atom_lanes(self, atom: D.Atom, w: int) -> str:
        """An atom that differs between lanes."""
        if isinstance(atom, Sym):
            return self.vector(D.as_int(atom), w)
        if isinstance(atom, Data):
            return self._extended(self.values.lanes_of(atom.value), atom.value, w)
        assert isinstance(atom, Quo)
        if atom.op in ("min", "max"):
            a, b = self.lanes(atom.a, w), self.lanes(atom.b, w)
            return self.arith.intrinsic(f"s{atom.op}", "i64", w, a, b)
        whole = D.from_atom(atom)
        if atom.op == "mod" and self._steps_by_one(atom):
            return self._remainders(atom, w)
        return self._one_by_one(whole, w)

    def _one_by_one(self, x: Dim, w: int) -> str:
        """A number of each lane; where memory is read for it, those that do not exist have that of
        the last one that does."""
        assert self.c.lane is not None
        own, each = self.c.lane[0], [x] * w
        if self.c.existing is not None and any(own in v.symbols() for v in D.data_values(x)):
            last = self.c.existing[0] - 1
            each = [D.substitute(x, {own: D.minimum(k, last)}) for k in range(w)]
        found = [self.c.with_lane(k, lambda k=k: self.dim(each[k])) for k in range(w)]
        return self.w.build(found, "i64")

    def _steps_by_one(self, atom: Quo) -> bool:
        assert self.c.lane is not None
        own = self.c.lane[0]
        return D.coefficient(atom.a, own) == 1 and own not in D.symbols(atom.b)

    def _remainders(self, atom: Quo, w: int) -> str:
        """Remainders of neighbours: one division, and each that follows is one more, or 0."""
        whole = D.from_atom(atom)
        key = ("remainders", atom, w, self.c.constants(D.symbols(whole)), self.epochs(whole))
        if (found := self.w.known(key)) is not None:
            return found
        level = self.level(whole)
        with self.w.at(level):
            each = [self.c.with_lane(0, lambda: self.dim(whole))]
            divisor = self.dim(atom.b)
            for _ in range(w - 1):
                more = self.put(f"add i64 {each[-1]}, 1")
                end = self.put(f"icmp eq i64 {more}, {divisor}")
                each.append(self.put(f"select i1 {end}, i64 0, i64 {more}"))
            r = self.w.build(each, "i64")
        self.w.remember(key, level, r)
        return r

    def compared(self, v: Fn, w: int) -> str | None:
        """A comparison of index functions in fewer bits than they have; None for any other."""
        return self._compared_lanes(v, w) if w > 1 else self._compared_halves(v)

    def _compared_halves(self, v: Fn) -> str | None:
        if (
            v.name not in _COMPARISONS
            or not self.short
            or not any(isinstance(x, Index) for x in v.args)
        ):
            return None
        dims = [x.dim if isinstance(x, Index) else _whole_number(x) for x in v.args]
        a, b = dims
        if a is None or b is None:
            return None
        if not all(i32.lowest <= e <= i32.highest for x in (a, b) for e in D.bounds(x)):
            return None
        return self.arith.apply(v.name, i32, 1, [self._half(self.dim(x)) for x in (a, b)])

    def _compared_lanes(self, v: Fn, w: int) -> str | None:
        """A comparison of two index functions that differ by the lane and one number: the lanes
        before or after that number. Numbers of lanes are small where indices have 64 bits."""
        dims = [x.dim if isinstance(x, Index) else _whole_number(x) for x in v.args]
        if v.name not in ("lt", "le", "gt", "ge") or None in dims or self.c.lane is None:
            return None
        a, b = (x for x in dims if x is not None)
        small, large = (a, b) if v.name in ("lt", "le") else (b, a)
        lane = self.terms(large - small)[2]
        if lane not in (1, -1):
            return None
        one = int(v.name in ("le", "ge"))
        if not _is_far(large) and not _is_far(small):
            const, rest, level = self._apart(D.substitute(large - small, {self.c.lane[0]: 0}))
            if rest and abs(const) < _NEAR // 2:
                limit = self.arith.splat(self._near(rest, level), "i32", w)
                numbers = ", ".join(f"i32 {-lane * k - const - one}" for k in range(w))
                return self.put(f"icmp slt <{w} x i32> <{numbers}>, {limit}")
        more = self._more(small, large, one)
        if more is None:
            return None
        low, high = (0, w) if lane == -1 else (1 - w, 1)
        base = self.w.integer("smin", self.w.integer("smax", more, str(low)), str(high))
        limit = self.arith.splat(self.put(f"trunc i64 {base} to i32"), "i32", w)
        numbers = ", ".join(f"i32 {-lane * k}" for k in range(w))
        return self.put(f"icmp slt <{w} x i32> <{numbers}>, {limit}")

    def _near(self, x: str, level: int) -> str:
        """A number of 64 bits as one of 32, or the most that is far from all lanes."""
        key = ("near", x)
        if (found := self.w.known(key)) is not None:
            return found
        with self.w.at(level):
            base = self.w.integer("smin", self.w.integer("smax", x, str(-_NEAR)), str(_NEAR))
            out = self.put(f"trunc i64 {base} to i32")
        self.w.remember(key, level, out)
        return out

    def _more(self, small: Dim, large: Dim, one: int) -> str | None:
        """By how much one index function is more than another in lane 0, and one more on request.
        Of numbers that need all 64 bits the difference may not fit: then the most that does."""
        assert self.c.lane is not None
        first = {self.c.lane[0]: 0}
        if not _is_far(large) and not _is_far(small):
            return self.dim(D.substitute(large - small, first) + one)
        if self.terms(small)[2] is None or self.terms(large)[2] is None:
            return None
        ends = (self.dim(D.substitute(x, first)) for x in (large, small))
        more = self.w.integer("ssub.sat", *ends)
        return self.w.integer("sadd.sat", more, "1") if one else more
