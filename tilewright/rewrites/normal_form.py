"""The normal form that proves rules for all sizes: a polynomial over what is read from the inputs.

The definitions of a side are composed into one value at a symbolic index. That value is a sum of
terms: a rational number, summed indices with their extents, and factors — elements of inputs,
conditions on indices (1 or 0), and functions of values that stand for themselves. Casts between
floats are taken as exact: what rounds is the business of exact evaluation, not of this form.

Summed indices are named by their order in the smallest text of the term; a condition that cuts a
summed index cuts its range instead. Two values are equal where the difference of their terms
vanishes, in every case of the conditions on free indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, permutations, product
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int, Sym
from tilewright.ir.expr import (
    Const,
    Fn,
    Index,
    Load,
    Reduce,
    Tensor,
    Value,
    cast,
    const,
    extent,
    fn,
    index,
    load,
    make_reduce,
    rewrite,
)
from tilewright.ir.node import Constant, Input, Item, Node
from tilewright.ir.operator import definition, expand, is_composed
from tilewright.ir.pattern import filled_value
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import b1
from tilewright.ir.value_text import dim_text

_fresh = count()
# Larger sums of summed indices, or more conditions, are beyond this method.
MAX_SUMMED, MAX_CASES = 6, 8


# ---- a graph as one value


def element(n: Node, at: Sequence[Dim]) -> Value:
    """The element of n at an index, in terms of elements of the inputs."""
    op = n.op
    if isinstance(op, Input):
        return load(op.label, at, n.dtype)
    if isinstance(op, Constant):
        value = filled_value(n)
        if value is None:
            return load(f"literal {hash(op.literal):x}", at, n.dtype)
        return const(value, n.dtype)
    maker, k = (n.inputs[0], op.k) if isinstance(op, Item) else (n, 0)
    if is_composed(maker.op):
        return element(expand(n), at)
    if hasattr(maker.op, "interpret"):
        raise Unsupported(f"{maker.op.name} has no normal form")
    places, outs = definition(maker.op, tuple(x.ttype for x in maker.inputs))
    return _at(outs[k], at, dict(zip(places, maker.inputs, strict=True)))


def _at(t: Tensor, at: Sequence[Dim], inputs: dict[Tensor, Node]) -> Value:
    if t in inputs:
        return element(inputs[t], at)
    if t.kind != "compute" or t.body is None:
        raise Unsupported(f"a {t.kind} has no normal form")

    def read(x: Load) -> Value:
        assert isinstance(x.source, Tensor)
        return _at(x.source, x.index, inputs)

    body = _renamed(t.body)
    return rewrite(body, dict(zip(t.axes, at, strict=True)), on_load=read)


def _renamed(v: Value) -> Value:
    """Summed indices under names of their own, so that what is put inside is not captured."""

    def rename(r: Reduce) -> Value:
        new = [D.var(f"_{next(_fresh)}", extent(a)) for a in r.axes]
        axes = tuple(D.the_sym(a) for a in new if isinstance(a, Int))
        if len(axes) != len(new):
            return r  # an axis of one element: its index is 0 already
        table: dict[Sym, Dim] = dict(zip(r.axes, new, strict=True))
        return make_reduce(r.combine, axes, r.body.substitute(table))

    return rewrite(v, on_reduce=rename)


# ---- a value as terms


@dataclass(frozen=True)
class Condition:
    """1 where `dim` >= 0, else 0."""

    dim: Int

    def negated(self) -> Dim:
        return -self.dim - 1

    def text(self) -> str:
        return f"[{dim_text(self.dim)}>=0]"


Factor = Value | Condition


@dataclass(frozen=True)
class Term:
    number: Fraction
    summed: tuple[Sym, ...]
    factors: tuple[Factor, ...]

    def times(self, o: Term) -> Term:
        return Term(self.number * o.number, self.summed + o.summed, self.factors + o.factors)


Terms = tuple[Term, ...]
ONE: Terms = (Term(Fraction(1), (), ()),)


def _scaled(ts: Terms, by: Fraction) -> Terms:
    return tuple(Term(t.number * by, t.summed, t.factors) for t in ts)


def _times(a: Terms, b: Terms) -> Terms:
    return tuple(x.times(_apart(y, x)) for x, y in product(a, b))


def _apart(t: Term, other: Term) -> Term:
    """t with summed indices that `other` does not use: a square sums twice, not once."""
    clash = set(t.summed) & set(other.summed)
    if not clash:
        return t
    names = {s: D.the_sym(D.var(f"_{next(_fresh)}", extent(s))) for s in t.summed}
    renamed = Term(t.number, tuple(names[s] for s in t.summed), t.factors)
    return _replace(renamed, {a: D.as_int(b) for a, b in names.items()})


def _substituted(f: Factor, table: dict[Sym, Dim]) -> Any:
    if isinstance(f, Condition):
        x = D.substitute(f.dim, table)
        return Condition(x) if isinstance(x, Int) else x
    return f.substitute(table)


def dim_terms(x: Dim) -> Terms:
    """An index used as a number."""
    if isinstance(x, int):
        return (Term(Fraction(x), (), ()),) if x else ()
    out = []
    for mono, c in x.terms:
        factors = tuple(_whole(a) for a in mono)
        out.append(Term(Fraction(c), (), factors))
    return tuple(out)


def _whole(a: D.Atom) -> Value:
    return index(D.from_atom(a))


def terms(v: Value) -> Terms:
    """The value as a sum of products; factors are not yet in normal form themselves."""
    if isinstance(v, Const):
        if v.dtype.is_bool or (isinstance(v.value, float) and not _finite(v.value)):
            return (Term(Fraction(1), (), (v,)),)
        return (Term(Fraction(v.value), (), ()),) if v.value else ()
    if isinstance(v, Index):
        return dim_terms(v.dim)
    if isinstance(v, Fn):
        return _function(v)
    if isinstance(v, Reduce) and v.combine == "add" and not v.dtype.is_bool:
        axes = tuple(v.axes)
        return tuple(Term(t.number, t.summed + axes, t.factors) for t in terms(v.body))
    return (Term(Fraction(1), (), (v,)),)


def _finite(x: float) -> bool:
    return x == x and abs(x) != float("inf")


def _function(v: Fn) -> Terms:
    opaque: Terms = (Term(Fraction(1), (), (v,)),)
    if v.dtype.is_bool:
        return opaque
    a = v.args
    if v.name == "add":
        return terms(a[0]) + terms(a[1])
    if v.name == "sub":
        return terms(a[0]) + _scaled(terms(a[1]), Fraction(-1))
    if v.name == "neg":
        return _scaled(terms(a[0]), Fraction(-1))
    if v.name == "mul":
        return _times(terms(a[0]), terms(a[1]))
    if v.name == "div":
        if isinstance(a[1], Const) and a[1].value and _finite(float(a[1].value)):
            return _scaled(terms(a[0]), 1 / Fraction(a[1].value))
        one = fn("div", const(1, a[1].dtype), a[1])
        return _times(terms(a[0]), (Term(Fraction(1), (), (one,)),))
    if v.name == "cast" and v.dtype.is_float and a[0].dtype.is_float:
        return terms(a[0])
    if v.name == "select":
        yes, no = conditions(a[0])
        return _times(yes, terms(a[1])) + _times(no, terms(a[2]))
    for k, x in enumerate(a):
        if isinstance(x, Fn) and x.name == "select" and not x.dtype.is_bool:
            # A function of a choice is a choice of functions.
            yes, no = conditions(x.args[0])
            first, second = (_with_argument(v, k, y) for y in x.args[1:])
            return _times(yes, terms(first)) + _times(no, terms(second))
    return opaque


def _with_argument(v: Fn, k: int, x: Value) -> Value:
    args = (*v.args[:k], x, *v.args[k + 1 :])
    return cast(args[0], v.dtype) if v.name == "cast" else fn(v.name, *args)


def conditions(c: Value) -> tuple[Terms, Terms]:
    """(1 where c holds, 1 where it does not), as disjoint products."""
    if isinstance(c, Const):
        return (ONE, ()) if c.value else ((), ONE)
    if isinstance(c, Fn) and c.name in ("and", "or") and c.dtype is b1:
        (y0, n0), (y1, n1) = conditions(c.args[0]), conditions(c.args[1])
        if c.name == "and":
            return _times(y0, y1), n0 + _times(y0, n1)
        return y0 + _times(n0, y1), _times(n0, n1)
    if isinstance(c, Fn) and c.name == "not" and c.dtype is b1:
        yes, no = conditions(c.args[0])
        return no, yes
    if (
        isinstance(c, Fn)
        and len(c.args) == 2
        and all(isinstance(x, (Index, Const)) for x in c.args)
    ):
        x, y = (a.as_dim() for a in c.args)
        if c.name in ("lt", "le", "gt", "ge"):
            low, high = (x, y) if c.name in ("lt", "le") else (y, x)
            return _at_least(high - low - (c.name in ("lt", "gt")))
        if c.name in ("eq", "ne"):
            up, down = _at_least(x - y), _at_least(y - x)
            same, other = _times(up[0], down[0]), up[1] + down[1]
            return (same, other) if c.name == "eq" else (other, same)
    holds: Terms = (Term(Fraction(1), (), (_holds(c),)),)
    return holds, ONE + _scaled(holds, Fraction(-1))


def _at_least(x: Dim) -> tuple[Terms, Terms]:
    if isinstance(x, int):
        return (ONE, ()) if x >= 0 else ((), ONE)
    c = Condition(x)
    return (Term(Fraction(1), (), (c,)),), (Term(Fraction(1), (), (Condition(c.negated()),)),)  # type: ignore[arg-type]


def _holds(c: Value) -> Value:
    """A condition on data as a number: 1 or 0, so its square is itself."""
    return fn("select", c, load("yes", (), b1), load("no", (), b1))


def _is_test(f: Factor) -> bool:
    return isinstance(f, Fn) and f.name == "select" and f.dtype is b1


# ---- normal form


Form = dict[str, tuple[Fraction, frozenset[Condition]]]


class Normal:
    """Normal forms, remembered. One instance serves a comparison."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.keep: list[Value] = []

    def text(self, v: Value) -> str:
        """The normal form of a value as text."""
        known = self.texts.get(id(v))
        if known is None:
            form = self.collected(terms(v))
            known = " + ".join(f"{c} {t}" for t, (c, _) in sorted(form.items())) or "0"
            self.texts[id(v)] = known
            self.keep.append(v)
        return known

    def collected(self, ts: Terms) -> Form:
        form: Form = {}
        stack = list(ts)
        while stack:
            got = self.simplified(stack.pop())
            if got is None:
                continue
            if isinstance(got, list):
                stack.extend(got)
                continue
            text = self.term_text(got)
            free = frozenset(f for f in got.factors if isinstance(f, Condition))
            number = form.get(text, (Fraction(0), free))[0] + got.number
            form[text] = (number, free)
        return {t: x for t, x in form.items() if x[0]}

    def simplified(self, t: Term) -> Term | list[Term] | None:
        """Conditions decided or turned into ranges, unused sums counted. None: the term is 0."""
        factors: list[Factor] = []
        for f in t.factors:
            if not isinstance(f, Condition):
                if not (_is_test(f) and f in factors):
                    factors.append(f)
                continue
            if D.nonneg(f.dim):
                continue
            if D.nonneg(f.negated()):
                return None
            if f not in factors:
                if any(isinstance(g, Condition) and g.dim is f.negated() for g in factors):
                    return None
                factors.append(f)
        t = Term(t.number, t.summed, tuple(factors))
        for s in t.summed:
            e = extent(s)
            if isinstance(e, int) and e <= 1:
                if e == 0:
                    return None
                rest = tuple(x for x in t.summed if x is not s)
                return [_replace(Term(t.number, rest, t.factors), {s: 0})]
            if not any(s in _symbols(f) for f in t.factors) and not any(
                s in D.symbols(extent(o)) for o in t.summed
            ):
                rest = Term(t.number, tuple(x for x in t.summed if x is not s), t.factors)
                return [rest.times(x) for x in dim_terms(e)]
            for f in t.factors:
                cut = _cut(s, f) if isinstance(f, Condition) else None
                if cut is not None:
                    low, size = cut
                    new = D.var(f"_{next(_fresh)}", size)
                    kept = tuple(g for g in t.factors if g is not f)
                    if not isinstance(new, Int):
                        continue
                    names = tuple(D.the_sym(new) if x is s else x for x in t.summed)
                    return [_replace(Term(t.number, names, kept), {s: new + low})]
        return t

    def term_text(self, t: Term) -> str:
        """The smallest text over all orders of the summed indices."""
        if len(t.summed) > MAX_SUMMED:
            raise Unsupported(f"{len(t.summed)} summed indices are too many for a normal form")
        best: str | None = None
        groups = sorted(t.summed, key=lambda s: dim_text(extent(s)))
        for order in permutations(groups):
            if any(
                dim_text(extent(a)) != dim_text(extent(b))
                for a, b in zip(order, groups, strict=True)
            ):
                continue
            table: dict[Sym, Dim] = {}
            heads = []
            for k, s in enumerate(order):
                size = D.substitute(extent(s), table)
                table[s] = D.var(f"s{k}", size)
                heads.append(dim_text(size))
            text = "*".join(sorted(self.factor_text(f, table) for f in t.factors))
            whole = f"sum<{','.join(heads)}>{text}" if heads else text
            if best is None or whole < best:
                best = whole
        return best or "1"

    def factor_text(self, f: Factor, table: dict[Sym, Dim]) -> str:
        if isinstance(f, Condition):
            x = D.substitute(f.dim, table)
            return f"[{dim_text(x)}>=0]"
        v = f.substitute(table)
        if isinstance(v, Load):
            return f"{v.source}[{','.join(self.dim(i) for i in v.index)}]"
        if isinstance(v, Fn):
            args = [self.text(a) for a in v.args]
            if SCALARS[v.name].commutative if v.name in SCALARS else False:
                args.sort()
            return f"{v.name}<{v.dtype}>({'; '.join(args)})"
        if isinstance(v, Reduce):
            names: dict[Sym, Dim] = {}
            heads = []
            depth = sum(1 for _ in self._reduces(v.body))
            for k, a in enumerate(v.axes):
                size = D.substitute(extent(a), names)
                names[a] = D.var(f"m{depth}_{k}", size)
                heads.append(dim_text(size))
            body = self.text(v.body.substitute(names))
            return f"{v.combine}<{','.join(heads)}>({body})"
        if isinstance(v, Index):
            return f"#{self.dim(v.dim)}"
        assert isinstance(v, Const)
        return f"{v.value}:{v.dtype}"

    def dim(self, x: Dim) -> str:
        """An index; what it reads from data is in normal form too."""
        if not any(True for _ in D.data_values(x)):
            return dim_text(x)
        table = {id(v): f"${{{self.text(v)}}}" for v in D.data_values(x)}
        return dim_text(x) + "|" + ",".join(sorted(table.values()))

    def _reduces(self, v: Value) -> Iterator[Value]:
        if isinstance(v, Reduce):
            yield v
        for a in v.args:
            yield from self._reduces(a)


def _replace(t: Term, table: dict[Sym, Dim]) -> Term:
    number = t.number
    factors: list[Factor] = []
    for f in t.factors:
        new = _substituted(f, table)
        if isinstance(new, int):  # a condition that became a number
            if new < 0:
                number = Fraction(0)
            continue
        factors.append(new)
    return Term(number, t.summed, tuple(factors))


def _symbols(f: Factor) -> frozenset[Sym]:
    return D.symbols(f.dim) if isinstance(f, Condition) else f.symbols()


def _cut(s: Sym, c: Condition) -> tuple[Dim, Dim] | None:
    """(first, how many) values of s that the condition leaves, where it bounds s on one side."""
    k = D.coefficient(c.dim, s)
    if not isinstance(k, int) or k not in (1, -1):
        return None
    rest = c.dim - k * D.as_int(s)
    size = extent(s)
    if k == 1:  # s >= -rest
        low = -rest
        return (low, size - low) if D.nonneg(low) and D.known_le(low, size) else None
    high = rest + 1  # s < rest + 1
    return (0, high) if D.nonneg(high) and D.known_le(high, size) else None


# ---- equality


def equal(a: Value, b: Value) -> bool:
    """Are the values equal for all inputs and sizes? False: not proved."""
    return _vanishes(Normal(), terms(a) + _scaled(terms(b), Fraction(-1)), MAX_CASES)


def _vanishes(normal: Normal, ts: Terms, cases: int) -> bool:
    form = normal.collected(ts)
    if not form:
        return True
    free = sorted(
        {c for _, cs in form.values() for c in cs if not _bound(c)}, key=lambda c: dim_text(c.dim)
    )
    if not free or cases == 0:
        return False
    # A condition on free indices holds or does not: the difference has to vanish either way.
    c = free[0]
    return all(_vanishes(normal, _assuming(ts, c, holds), cases - 1) for holds in (True, False))


def _bound(c: Condition) -> bool:
    return any(s.name.startswith("_") for s in D.symbols(c.dim))


def _assuming(ts: Terms, c: Condition, holds: bool) -> Terms:
    """The terms where the condition holds or does not, with what follows from that."""
    known = c.dim if holds else c.negated()  # is >= 0
    out = []
    for t in ts:
        tests = [f for f in t.factors if isinstance(f, Condition)]
        if any(D.nonneg(f.negated() - known) for f in tests):
            continue
        kept = tuple(
            f for f in t.factors if not (isinstance(f, Condition) and D.nonneg(f.dim - known))
        )
        out.append(Term(t.number, t.summed, kept))
    return tuple(out)


def nodes_equal(a: Node, b: Node) -> bool:
    """Do two nodes over the same inputs have the same elements, for all sizes?"""
    if a.type != b.type:
        return False
    at = [0 if D.known_eq(d, 1) else D.var(f"i{k}", d) for k, d in enumerate(a.shape)]
    return equal(element(a, at), element(b, at))
