from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Load, Value, const, fn, load, loads
from tilewright.ir.parts import replaced
from tilewright.kernel.box import own_statements
from tilewright.kernel.earlier import earlier
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, Store, on_loops, store_loads, walk
from tilewright.kernel.nest import transform as transformed
from tilewright.kernel.step import Step

Index = tuple[Dim, ...]
Row = Callable[[Index], Index]  # the places that a maximum is read at, for a place of a buffer


@dataclass(frozen=True)
class Rebase(Step):
    """Powers relative to the greatest value of a part become powers relative to the greatest value
    so far, by which their sums would be rescaled afterwards.

    e[i,j] = exp(x[i,j] - m[i])             n[i] = max(l[i], m[i])
    s[i] add= e[i,j]                        e[i,j] = exp(x[i,j] - n[i])
    n[i] = max(l[i], m[i])                  s[i] add= e[i,j]
    f[i] = exp(m[i] - n[i])                 y[i] = y[i] * g[i] + s[i]
    y[i] = y[i] * g[i] + s[i] * f[i]

    All that is computed of e has to be sums of it, or of its multiples, and these times f. A factor
    that is 1 where m is n, and a maximum that is 0 where it is -inf, are the same.
    """

    stage: str
    factor: str

    def apply(self, n: Nest) -> Nest:
        self.need(n.precision != "strict", "it rounds differently, and the precision is strict")
        self.internal(n, self.stage)
        self.internal(n, self.factor)
        homes = {p[-1].name if p else "" for _, p in own_statements(n, self.stage)}
        self.need(len(homes) == 1 and "" not in homes, f"{self.stage} is not in one loop")
        (home,) = homes
        (loop, _), *others = self.loops(n, home)
        self.need(not others, f"there are several loops {home}")
        made = _Rebased(self, n, loop)
        out = on_loops(n, home, lambda x: (replace(x, body=tuple(made.body(list(x.body)))),))
        return out.without_buffer(self.factor)


class _Rebased:
    def __init__(self, step: Rebase, n: Nest, loop: Loop) -> None:
        self.step, self.nest, self.loop = step, n, loop
        powers, factor = self._store(step.stage), self._store(step.factor)
        self.difference = _difference(powers.value)
        step.need(self.difference is not None, f"{step.stage} is not exp of a difference")
        assert self.difference is not None
        base = self.difference[1]
        found = _factor(factor.value)
        what = f"{step.factor} does not rescale to a greater maximum"
        step.need(found is not None, what, "exp(m - n), n the greater of m and another value")
        assert found is not None
        own, self.new = found
        greater = self._store(str(self.new.source))
        self.greater = greater.buffer
        # The maximum so far as it is made, in the places of `own`.
        there = _unified(self.new, load(greater.buffer, greater.index, self.new.dtype))
        value = None if there is None else greater.value
        both = value.args if isinstance(value, Fn) and value.name == "max" else ()
        step.need(
            there is not None and any(_same(x, own, there) for x in both),
            f"{self.greater} is not the greater of what {step.stage} is relative to",
        )
        table = _unified(own, base)
        step.need(table is not None, f"{step.stage} is relative to another value than {own!r}")
        assert table is not None
        at = tuple(D.substitute(i, table) for i in self.new.index)
        moving = frozenset().union(*map(D.symbols, at))
        known = frozenset().union(*map(D.symbols, powers.index))
        step.need(moving <= known, f"{self.greater} has other places than {step.stage}")
        self.base = load(self.greater, at, self.new.dtype)
        self.finals: dict[Store, Value] = {}
        rows = _places(own)
        self.factor_row = _row(factor, rows)
        self._follow(step.stage, _row(powers, _places(base)), sums=False)

    def _store(self, buffer: str) -> Store:
        found = [s for s, _ in walk(self.nest.body) if isinstance(s, Store) and s.buffer == buffer]
        plain = len(found) == 1 and found[0].combine is None
        inside = any(s is found[0] for s, _ in walk(self.loop.body)) if plain else False
        self.step.need(inside, f"{buffer} is not written once, in {self.loop.name}")
        return found[0]

    def _follow(self, buffer: str, row: Row, sums: bool) -> None:
        """What is computed of a buffer is sums, or has the factor."""
        for s, _ in walk(self.nest.body):
            if not isinstance(s, Store) or buffer not in s.value.sources:
                continue
            read = list(dict.fromkeys(x for x in store_loads(s) if x.source == buffer))
            self.step.need(len(read) == 1, f"{s.buffer} reads several places of {buffer}")
            (x,) = read
            if sums:
                self._final(s, x, row)
                continue
            linear = s.combine == "add" and _multiple(s.value, x)
            copied = s.combine is None and _multiple(s.value, x)
            self.step.need(linear or copied, f"{s.buffer} is neither a sum nor a copy of {buffer}")
            if linear:
                self._from_zero(s)
            places = row(x.index)
            own = frozenset().union(*map(D.symbols, s.index))
            fixed = all(D.symbols(i) <= own for i in places)
            self.step.need(fixed, f"{s.buffer} adds up what is relative to several values")
            self._follow(s.buffer, _row(s, places), sums=linear)

    def _from_zero(self, s: Store) -> None:
        for x, _ in walk(self.nest.body):
            if isinstance(x, Store) and x.buffer == s.buffer and x is not s:
                zero = x.combine is None and isinstance(x.value, Const) and x.value.value == 0
                self.step.need(zero, f"{s.buffer} does not begin with 0")

    def _final(self, s: Store, x: Load, row: Row) -> None:
        """A sum is read times the factor of its row."""
        value = self.finals.get(s, s.value)
        factors = [y for y in loads(value) if y.source == self.step.factor]
        for f in dict.fromkeys(factors):
            same = zip(row(x.index), self.factor_row(f.index), strict=True)
            if all(D.known_eq(a, b) for a, b in same):
                for product in (fn("mul", x, f), fn("mul", f, x)):
                    value = replaced(value, product, x)
        alone = replaced(value, x, const(0, x.dtype))
        left = [y for y in loads(value) if y.source == self.step.factor]
        here = len(left) < len(factors) and x.source not in alone.sources
        self.step.need(here, f"{s.buffer} reads {x.source} without {self.step.factor}")
        self.finals[s] = value

    def body(self, body: list[Stmt]) -> list[Stmt]:
        step = self.step
        for s, _ in walk(self.nest.body):
            if isinstance(s, Store):
                left = step.factor in self.finals.get(s, s.value).sources
                step.need(not left, f"{s.buffer} reads {step.factor} for something else")
        at = next(k for k, s in enumerate(body) if step.stage in _stored(s))
        moved = earlier(body, at, {self.greater})
        step.need(moved is not None, f"{self.greater} is made of what comes after {step.stage}")
        assert moved is not None and self.difference is not None
        x, base = self.difference

        def changed(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, (Alloc, Store)) and s.buffer == step.factor:
                return ()
            if isinstance(s, Loop) and not s.body:
                return ()
            if isinstance(s, Store) and s.buffer == step.stage:
                nothing = fn("eq", self.base, const(-inf, base.dtype))
                safe = fn("select", nothing, const(0.0, base.dtype), self.base)
                return (replace(s, value=fn("exp", fn("sub", x, safe))),)
            return (replace(s, value=self.finals[s]),) if s in self.finals else (s,)

        return list(transformed(tuple(moved[0]), changed))


def _stored(s: Stmt) -> set[str]:
    return {x.buffer for x, _ in walk((s,)) if isinstance(x, Store)}


def _multiple(v: Value, x: Load) -> bool:
    """Is it x times something that does not depend on it?"""
    if v is x:
        return True
    if not isinstance(v, Fn):
        return False
    if v.name == "cast":
        return v.dtype.is_float and _multiple(v.args[0], x)
    if v.name != "mul":
        return False
    inner = [y for y in v.args if x.source in y.sources]
    return len(inner) == 1 and _multiple(inner[0], x)


def _row(s: Store, places: Index) -> Row:
    """Places as a function of where a store writes."""

    def of(index: Index) -> Index:
        pairs = zip(s.index, index, strict=True)
        table: dict[Sym, Dim] = {D.the_sym(i): at for i, at in pairs if D.is_sym(i)}
        return tuple(D.substitute(i, table) for i in places)

    return of


def _places(v: Value) -> Index:
    return tuple(i for x in loads(v) for i in x.index)


def _difference(v: Value) -> tuple[Value, Value] | None:
    """(x, m) of exp(x - m), where m may be 0 in place of -inf."""
    if not isinstance(v, Fn) or v.name != "exp":
        return None
    (inner,) = v.args
    if not isinstance(inner, Fn) or inner.name != "sub":
        return None
    x, m = inner.args
    if isinstance(m, Fn) and m.name == "select":
        condition, zero, m = m.args
        nothing = fn("eq", m, const(-inf, m.dtype))
        if condition is not nothing or zero is not const(0.0, m.dtype):
            return None
    return x, m


def _factor(v: Value) -> tuple[Value, Load] | None:
    """(m, n) of exp(m - n), or of what is 1 where they are equal."""
    equal = None
    if isinstance(v, Fn) and v.name == "select":
        equal, one, v = v.args
        if one is not const(1.0, one.dtype):
            return None
    found = _difference(v)
    if found is None:
        return None
    m, n = found
    if not isinstance(n, Load):
        return None
    if equal is None:
        return m, n
    # min(l, m) is m where m is not the greater of both.
    both = m.args if isinstance(m, Fn) and m.name == "min" else (m,)
    own = [x for x in both if equal is fn("eq", x, n)]
    return (own[0], n) if own else None


def _unified(pattern: Value, given: Value) -> dict[Sym, Dim] | None:
    """What to put in place of the symbols of one value to get another one."""
    table: dict[Sym, Dim] = {}
    pairs: list[tuple[Value, Value]] = [(pattern, given)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, Load) and isinstance(b, Load):
            if a.source != b.source or not _match(a.index, b.index, table):
                return None
        elif isinstance(a, Fn) and isinstance(b, Fn):
            if a.name != b.name or len(a.args) != len(b.args):
                return None
            pairs += zip(a.args, b.args, strict=True)
        elif a is not b:
            return None
    return table


def _match(a: Sequence[Dim], b: Sequence[Dim], table: dict[Sym, Dim]) -> bool:
    for i, j in zip(a, b, strict=True):
        if D.is_sym(i):
            if not D.known_eq(table.setdefault(D.the_sym(i), j), j):
                return False
        elif not D.known_eq(i, j):
            return False
    return True


def _same(x: Value, own: Value, table: dict[Sym, Dim]) -> bool:
    """Is x what another value is at other places?"""
    found = _unified(own, x)
    return found is not None and all(D.known_eq(table.get(s, i), i) for s, i in found.items())
