"""Normal forms of values, and when two values are equal for all inputs and sizes.

A value is a sum of products (terms.py) over what stands for itself: elements of inputs, functions
and reductions whose arguments are in normal form. What a sum and a product may do depends on the
dtype and on how floats are read:

  integers   modulo two to the number of bits (integers.py)
  bools      sums of products of tests, which are 1 or 0
  "bits"     a float stands for itself: floats are equal where they are the same operations in the
             same order, after the laws of ieee.py. Where conditions choose between floats, exactly
             one product of the sum is not 0 in every case, so that equal sums are equal floats.
  "numbers"  the same, but for the sign of zero
  "reals"    the field of real numbers (reals.py)

Summed indices are named by their order in the smallest text of a product; a condition that cuts a
summed index cuts its range instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import chain, groupby, permutations, product

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import (
    Const,
    Fn,
    Index,
    Load,
    Reduce,
    Value,
    const,
    extent,
    fn,
    load,
)
from tilewright.ir.scalar import SCALARS, applied
from tilewright.ir.types import DType, b1, i64
from tilewright.ir.value_text import dim_text
from tilewright.rewrites.proofs import integers, reals, signs
from tilewright.rewrites.proofs.element import fresh
from tilewright.rewrites.proofs.factored import (
    compared,
    factored,
    is_positive,
    terms_are_positive,
)
from tilewright.rewrites.proofs.ieee import Floats, sign_blind
from tilewright.rewrites.proofs.logic import (
    assumed,
    decided_by,
    is_connective,
    without_neutral,
)
from tilewright.rewrites.proofs.terms import (
    ONE,
    Condition,
    Factor,
    Term,
    Terms,
    at_least,
    atom,
    dim_terms,
    is_test,
    negated,
    number,
    substituted,
    symbols,
    times,
)

READINGS = ("bits", "numbers", "reals")
# Of more summed indices all orders are too many to try.
MAX_SUMMED = 6
# From so many on, only those that are used alike change places.
MANY_SUMMED = 3
PRIME = "'"
# Semilattices: the order, the grouping and the number of equal arguments make no difference.
LATTICE = frozenset(("max", "min", "and", "or"))
SWAPPED = {"gt": "lt", "ge": "le"}

Form = dict[str, Term]


class Forms:
    """Normal forms under one reading of floats, cached. Sums over up to `written_out` elements,
    where that is a number, are written out. What is known of the signs of inputs is used for real
    numbers. Maxima of maxima are those of all, unless they are not `flat`: then each is of two."""

    def __init__(
        self,
        reading: str,
        written_out: int = 1,
        never_negative: frozenset[str] = frozenset(),
        flat: bool = True,
    ) -> None:
        assert reading in READINGS
        self.flat = flat
        self.written_out = written_out
        self.never_negative = never_negative  # names of inputs
        self.real = reading == "reals"
        self.floats = Floats(numbers=reading == "numbers")
        # Of arguments where the sign of a zero makes a difference to more than that.
        self.exactly = Forms("bits") if reading == "numbers" else self
        self._terms: dict[Value, Terms] = {}
        self._texts: dict[Value, str] = {}
        self._same: dict[str, Value] = {}
        self._heights: dict[Value, int] = {}

    # ---- a value as terms

    def terms(self, v: Value) -> Terms:
        """The value as a sum of products; factors are not yet in normal form themselves."""
        found = self._terms.get(v)
        if found is None:
            found = self._terms[v] = self._of(v)
        return found

    def _of(self, v: Value) -> Terms:
        if isinstance(v, Const):
            return self._constant(v)
        if isinstance(v, Index):
            return dim_terms(v.dim)
        if v.dtype.is_bool:
            return self.cases(v)[0]
        if isinstance(v, Fn):
            return self._function(v)
        if isinstance(v, Reduce):
            return self._reduction(v)
        return atom(v)

    def _constant(self, v: Const) -> Terms:
        if not v.dtype.is_float:
            return number(int(v.value))
        return reals.constant(v) if self.real else atom(self.floats.canonical(v))

    def _is_ring(self, dtype: DType) -> bool:
        return dtype.is_int or (dtype.is_float and self.real)

    def _function(self, v: Fn) -> Terms:
        if v.name == "select":
            yes, no = self.cases(v.args[0])
            if not yes or not no:  # decided: what is not chosen need not be a number
                return self.terms(v.args[1] if yes else v.args[2])
            return times(yes, self.terms(v.args[1])) + times(no, self.terms(v.args[2]))
        found: Terms | None = None
        if v.dtype.is_int:
            found = integers.function(self, v)
        elif v.dtype.is_float and self.real:
            found = reals.function(self, v)
        return self.opaque(v) if found is None else found

    def opaque(self, v: Value) -> Terms:
        """What stands for itself, in each case of the tests that decide its arguments."""
        test = decided_by(v)
        if test is not None:
            yes, no = self.cases(test)
            either = (self.terms(assumed(v, test, holds)) for holds in (True, False))
            return times(yes, next(either)) + times(no, next(either))
        if isinstance(v, Fn) and not self.real:
            canonical = self.floats.canonical(v)
            if canonical is not v:
                return self.terms(canonical)
        if isinstance(v, Fn) and v.name in LATTICE and not v.dtype.is_bool:
            left = self._bounds_apart(v)
            if len(left) == 1:
                return self.terms(left[0])
        return atom(self.same(v)) if self.real else atom(v)

    def same(self, v: Value) -> Value:
        """One value of all that have its normal form: factors that are equal are the same."""
        return self._same.setdefault(self._factor_text(v, {}), v)

    def _bounds_apart(self, v: Fn) -> list[Value]:
        """What a maximum is of, without repetitions and what changes nothing."""
        found = {self.text(a): a for a in signs.flat(v)}
        neutral = identity(v.name, v.dtype)
        left = [a for a in found.values() if a is not neutral]
        strongest = {
            "max": v.dtype.highest,
            "min": v.dtype.lowest,
            "and": 0,
            "or": -1,
        }[v.name]
        if v.dtype.is_int:  # of floats, NaN is stronger
            most = const(strongest, v.dtype)
            if most in left:
                return [most]
        return left or [neutral]

    def _reduction(self, v: Reduce) -> Terms:
        if v.combine == "add" and self._is_ring(v.dtype):
            inside = self.terms(v.body)
            return tuple(Term(t.number, t.summed + v.axes, t.factors) for t in inside)
        if self.real and v.dtype.is_float and v.combine in ("max", "min"):
            if decided_by(v) is None and (found := signs.extreme(self, v)) is not None:
                return found
        return self.opaque(v)

    # ---- truth values

    def cases(self, c: Value) -> tuple[Terms, Terms]:
        """(1 where c holds, 1 where it does not)."""
        if isinstance(c, Const):
            return (ONE, ()) if c.value else ((), ONE)
        if is_connective(c):
            assert isinstance(c, Fn)
            return self._connective(c.name, *map(self.cases, c.args))
        if isinstance(c, Fn) and c.name == "cast":  # a number as a truth value
            return self.cases(fn("ne", c.args[0], const(0, c.args[0].dtype)))
        if isinstance(c, Fn) and len(c.args) == 2 and c.name in _COMPARISONS:
            return self._comparison(c)
        yes = self._opaque_test(c)
        return yes, negated(yes)

    def _connective(self, name: str, *args: tuple[Terms, Terms]) -> tuple[Terms, Terms]:
        (y0, n0), (y1, n1) = args[0], args[-1]
        if name == "not":
            return n0, y0
        if name in ("and", "mul", "min"):
            return times(y0, y1), n0 + times(y0, n1)
        if name in ("or", "add", "max"):
            return y0 + times(n0, y1), times(n0, n1)
        if name in ("xor", "ne", "eq"):
            other, same = times(y0, n1) + times(n0, y1), times(y0, y1) + times(n0, n1)
            return (same, other) if name == "eq" else (other, same)
        if name in ("lt", "gt", "le", "ge"):
            if name in ("gt", "ge"):
                y0, n0, y1, n1 = y1, n1, y0, n0
            if name in ("lt", "gt"):
                return times(n0, y1), y0 + times(n0, n1)
            return n0 + times(y0, y1), times(y0, n1)
        assert name == "select"
        (_, _), (a, not_a), (b, not_b) = args
        return times(y0, a) + times(n0, b), times(y0, not_a) + times(n0, not_b)

    def _comparison(self, c: Fn) -> tuple[Terms, Terms]:
        name, (x, y) = c.name, c.args
        if name in SWAPPED:
            name, x, y = SWAPPED[name], y, x
        if all(isinstance(a, (Index, Const)) and a.dtype is i64 for a in (x, y)):
            return _of_indices(name, x.as_dim(), y.as_dim())
        if name == "ne":
            yes, no = self.cases(fn("eq", x, y))
            return no, yes
        ordered = not x.dtype.is_float or self.real  # no NaN: one of <, = and > holds
        if name == "le" and ordered:
            yes, no = self.cases(fn("lt", y, x))
            return no, yes
        if self.real and x.dtype.is_float and (known := compared(self, name, x, y)) is not None:
            return self.cases(const(known, b1))
        test = decided_by(c)
        if test is not None:
            first, second = (self.cases(assumed(c, test, holds)) for holds in (True, False))
            yes, no = self.cases(test)
            return (
                times(yes, first[0]) + times(no, second[0]),
                times(yes, first[1]) + times(no, second[1]),
            )
        if not self.real:
            x, y = self.floats.canonical(x), self.floats.canonical(y)
        if isinstance(x, Const) and isinstance(y, Const):
            arrays = [np.array(a.value, a.dtype.numpy) for a in (x, y)]
            return self.cases(const(bool(applied(name, arrays, b1)), b1))
        if name == "lt" and x.dtype.is_int and _nothing_between(x, y):
            return (), ONE
        if self.text(x) == self.text(y):
            if name == "lt":
                return (), ONE
            if ordered:
                return ONE, ()
            name = "eq"  # that of x with itself: is it a number?
        yes = atom(fn(name, x, y))
        return yes, negated(yes)

    def _opaque_test(self, c: Value) -> Terms:
        test = decided_by(c)
        if test is None:
            return atom(c)
        yes, no = self.cases(test)
        first, second = (self.terms(assumed(c, test, holds)) for holds in (True, False))
        return times(yes, first) + times(no, second)

    # ---- normal form

    def text(self, v: Value) -> str:
        """The normal form of a value as text."""
        known = self._texts.get(v)
        if known is None:
            form = self.collected(self.terms(v), v.dtype)
            parts = sorted(f"{t.number} {text}" for text, t in form.items())
            known = self._texts[v] = " + ".join(parts) or "0"
        return known

    def simplified(self, ts: Terms, dtype: DType) -> list[Term]:
        return list(self.collected(ts, dtype).values())

    def factor_texts(self, x: Value) -> list[str]:
        """What is zero where x is, and only there: its factors, and what is left of a sum; in
        either case where a condition decides what x is."""
        test = decided_by(x)
        if test is not None:
            cases = (self.factor_texts(assumed(x, test, holds)) for holds in (True, False))
            return [text for found in cases for text in found]
        form = self.collected(self.terms(x), x.dtype)
        if not form or any(is_test(f) for t in form.values() for f in t.factors):
            return [self.text(x)]
        common, rest = factored(self, form, x.dtype)
        found = [self._factor_text(f, {}) for f in common.factors if not is_positive(self, f)]
        if rest != ONE and not terms_are_positive(self, rest):
            found.append(self.text(signs.as_value(rest, x.dtype)))
        return found

    def without_sign(self, x: Value) -> Value:
        """x or -x, the same one for both."""
        form = self.collected(self.terms(x), x.dtype)
        if not form:
            return x
        first = form[min(form)].number
        if x.dtype.is_int:
            first = first if first <= 1 << (x.dtype.bits - 1) else first - (1 << x.dtype.bits)
        return fn("neg", x) if first < 0 else x

    def collected(self, ts: Terms, dtype: DType) -> Form:
        """Equal products added up."""
        form: Form = {}
        stack = list(ts)
        while stack:
            got = self._step(stack.pop())
            if not isinstance(got, Term):
                stack.extend(got)
                continue
            text = self._term_text(got)
            total = got.number + (form[text].number if text in form else 0)
            if dtype.is_int:
                total %= 1 << dtype.bits
            form[text] = Term(Fraction(total), got.summed, got.factors)
        return {text: t for text, t in form.items() if t.number}

    def _step(self, t: Term) -> Term | Terms:
        """Conditions decided or turned into ranges, unused sums counted: the term itself where
        nothing is left to do, else those that are its sum."""
        if not t.number:
            return ()
        factors: list[Factor] = []
        for f in t.factors:
            if not isinstance(f, Condition):
                factors.append(f)
                continue
            if D.nonneg(f.dim):
                continue
            if D.nonneg(f.negated()):
                return ()
            if f not in factors:
                if any(isinstance(g, Condition) and g.dim is f.negated() for g in factors):
                    return ()
                factors.append(f)
        t = Term(t.number, t.summed, tuple(factors))
        for s in t.summed:
            made = _summed(t, s, self.written_out)
            if made is not None:
                return made
        return self._products(t)

    def _products(self, t: Term) -> Term | Terms:
        """Laws of products of factors."""
        found = [f for f in t.factors if isinstance(f, Fn) and f.name == "abs"]
        for k, f in enumerate(found):
            if f in found[:k]:  # |x|² = x², also where it wraps
                rest = list(t.factors)
                rest.remove(f)
                rest.remove(f)
                square = times(self.terms(f.args[0]), self.terms(f.args[0]))
                return times((Term(t.number, t.summed, tuple(rest)),), square)
        if not self.real:
            return t
        parts = [f for f in t.factors if isinstance(f, Fn) and signs.part_of(f) is not None]
        for k, f in enumerate(parts):
            if f in parts[:k]:
                rest = list(t.factors)
                rest.remove(f)
                inside = signs.part_of(f)
                assert inside is not None
                return times((Term(t.number, t.summed, tuple(rest)),), self.terms(inside))
        shorter = reals.cancelled(self, t)
        if shorter is not None:
            return shorter
        one = reals.merged(t)
        if one is not t:
            last = one.factors[-1]
            assert isinstance(last, Value)
            return times((Term(one.number, one.summed, one.factors[:-1]),), self.terms(last))
        return t

    def _term_text(self, t: Term) -> str:
        """The smallest text over all orders of the summed indices."""
        if len(t.summed) > MAX_SUMMED:
            raise Unsupported(f"{len(t.summed)} summed indices are too many for a normal form")
        texts = []
        # Functions of sums have sums of their own: those have fewer primes.
        prefix = f"Σ{PRIME * self._height_within(t)}" if t.summed else ""
        for heads, table in _orders(t.summed, prefix, signature=self._signatures(t)):
            tests = {self._factor_text(f, table) for f in t.factors if is_test(f)}
            values = [self._factor_text(f, table) for f in t.factors if not is_test(f)]
            text = "*".join((*sorted(tests), *sorted(values)))
            texts.append(f"sum<{heads}>{text}" if heads else text)
        return min(texts)

    def _height(self, v: Value) -> int:
        """How deep sums and other reductions stand in each other in a normal form, so that bound
        indices of those that do have names of their own."""
        found = self._heights.get(v)
        if found is None:
            parts = self.simplified(self.terms(v), v.dtype)
            found = max((bool(t.summed) + self._height_within(t) for t in parts), default=0)
            if self.exactly is not self:
                found = max(found, self.exactly._height(v))
            self._heights[v] = found
        return found

    def _height_within(self, t: Term) -> int:
        return max(map(self._factor_height, t.factors), default=0)

    def _factor_height(self, f: Factor) -> int:
        if isinstance(f, Reduce):
            body, where = f.body, f.body
            if self.real and isinstance(f.combine, str) and f.combine in LATTICE:
                body, where = without_neutral(body, identity(f.combine, f.dtype))
            return 1 + max(self._height(body), self._height(where))
        if isinstance(f, Fn):
            return max(map(self._height, f.args), default=0)
        dims = f.index if isinstance(f, Load) else (f.dim,) if isinstance(f, Index) else ()
        if isinstance(f, Condition):
            dims = (f.dim,)
        return max((self._height(v) for d in dims for v in D.data_values(d)), default=0)

    def _signatures(self, t: Term) -> dict[Sym, str]:
        """How each summed index is used, whatever the others are called: fewer orders are left."""
        if len(t.summed) < MANY_SUMMED:
            return {}
        out: dict[Sym, str] = {}
        for s in t.summed:
            table: dict[Sym, Dim] = {o: D.var("@" if o is s else "_", extent(o)) for o in t.summed}
            mine = (f for f in t.factors if s in symbols(f))
            out[s] = " ".join(sorted(self._factor_text(f, table) for f in mine))
        return out

    def _factor_text(self, f: Factor, table: dict[Sym, Dim]) -> str:
        if isinstance(f, Condition):
            return f"[{dim_text(D.substitute(f.dim, table))}>=0]"
        v = f.substitute(table) if table else f
        if isinstance(v, Load):
            return f"{v.source}:{v.dtype}[{','.join(self._dim(i) for i in v.index)}]"
        if isinstance(v, Fn):
            return self._fn_text(v)
        if isinstance(v, Reduce):
            return self._reduce_text(v)
        if isinstance(v, Index):
            return f"#{self._dim(v.dim)}"
        assert isinstance(v, Const)
        return repr(v)

    def _fn_text(self, v: Fn) -> str:
        if v.name in LATTICE and not v.dtype.is_bool:
            args = sorted({self.text(a) for a in signs.flat(v)})
        else:
            readers = (self if sign_blind(v, k) else self.exactly for k in range(len(v.args)))
            args = [forms.text(a) for forms, a in zip(readers, v.args, strict=True)]
            if v.name in SCALARS and SCALARS[v.name].commutative:
                args.sort()
        kinds = ",".join(str(a.dtype) for a in v.args)
        return f"{v.name}<{kinds}>{v.dtype}({'; '.join(args)})"

    def _reduce_text(self, v: Reduce) -> str:
        # In what order floats are added up, or what a user's function combines, makes a difference.
        fixed = not isinstance(v.combine, str) or (
            v.combine in ("add", "mul") and v.dtype.is_float and not self.real
        )
        depth = self._factor_height(v) - 1
        name = str(v.combine)
        if not isinstance(v.combine, str):
            name += repr((v.combine.results, v.combine.neutral))
        reader = self if isinstance(v.combine, str) else self.exactly
        texts = []
        for heads, table in _orders(v.axes, f"ρ{depth}.", fixed):
            body, where = v.body.substitute(table), ""
            if self.real and isinstance(v.combine, str) and v.combine in LATTICE:
                # Infinity is no real number: what is left out of a maximum is said apart.
                body, chosen = without_neutral(body, identity(v.combine, v.dtype))
                where = f" where {self.text(chosen)}"
            texts.append(f"{name}<{heads}>{v.dtype}({reader.text(body)}{where})")
        return min(texts)

    def _dim(self, x: Dim) -> str:
        """An index; what it reads from data is in normal form too."""
        if not D.data_values(x):
            return dim_text(x)
        return dim_text(D.substitute(x, {}, lambda v: load(self.text(v), (), v.dtype)))


_COMPARISONS = frozenset("lt le gt ge eq ne".split())


def _nothing_between(x: Value, y: Value) -> bool:
    """Is x < y never true: is one of them at its end of the range?"""
    return (isinstance(y, Const) and y.value == y.dtype.lowest) or (
        isinstance(x, Const) and x.value == x.dtype.highest
    )


def _of_indices(name: str, x: Dim, y: Dim) -> tuple[Terms, Terms]:
    if name in ("lt", "le"):
        return at_least(y - x - (name == "lt"))
    (up, below), (down, above) = at_least(x - y), at_least(y - x)
    same, other = times(up, down), below + above
    return (same, other) if name == "eq" else (other, same)


def _orders(
    axes: tuple[Sym, ...],
    prefix: str,
    fixed: bool = False,
    signature: Mapping[Sym, str] | None = None,
) -> Iterator[tuple[str, dict[Sym, Dim]]]:
    """Names for bound indices, in every order of those of one size and signature: (their sizes, the
    names)."""
    told = signature or {}

    def kind(s: Sym) -> tuple[str, str]:
        return dim_text(extent(s)), told.get(s, "")

    if fixed:
        orders: Iterator[tuple[Sym, ...]] = iter((axes,))
    else:
        alike = (tuple(g) for _, g in groupby(sorted(axes, key=kind), key=kind))
        orders = (tuple(chain(*x)) for x in product(*(tuple(permutations(g)) for g in alike)))
    for order in orders:
        table: dict[Sym, Dim] = {}
        heads = []
        for k, s in enumerate(order):
            size = D.substitute(extent(s), table)
            table[s] = D.var(f"{prefix}{k}", size)
            heads.append(dim_text(size))
        yield ",".join(heads), table


def _summed(t: Term, s: Sym, written_out: int) -> Terms | None:
    """A summed index that can be left out or has a smaller range; None where it stays."""
    size = extent(s)
    rest = tuple(x for x in t.summed if x is not s)
    inner = any(s in D.symbols(extent(o)) for o in rest)
    if isinstance(size, int) and size <= written_out and not inner:
        one = Term(t.number, rest, t.factors)
        return tuple(substituted(one, {s: k}) for k in range(size))
    if not inner and not any(s in symbols(f) for f in t.factors):
        return times((Term(t.number, rest, t.factors),), dim_terms(size))
    for f in t.factors:
        cut = _cut(s, f) if isinstance(f, Condition) and not inner else None
        if cut is not None:
            low, left = cut
            new = fresh(left)
            others = tuple(g for g in t.factors if g is not f)
            names = tuple(D.the_sym(new) if x is s else x for x in t.summed)
            return (substituted(Term(t.number, names, others), {s: new + low}),)
    return None


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
