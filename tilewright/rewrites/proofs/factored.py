"""What all terms of a sum of real numbers have in common: a number, factors, parts of exponents.

    exp(a - c) x + exp(b - c) x = exp(-c) x (exp(a) + exp(b))

So the inverse and the logarithm of a sum have one form, whatever was taken out of it before.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, Reduce, Value, cast, extent, fn, walk
from tilewright.ir.types import DType
from tilewright.rewrites.proofs.signs import as_value, is_never_negative, sign_of
from tilewright.rewrites.proofs.terms import (
    ONE,
    Factor,
    Term,
    Terms,
    is_test,
    minus,
    scaled,
    symbols,
    times,
)

if TYPE_CHECKING:
    from tilewright.rewrites.proofs.form import Form, Forms

# Functions that are positive wherever they are defined.
_POSITIVE = frozenset(("exp", "exp2", "cosh"))


def factored(forms: Forms, form: Form, dtype: DType) -> tuple[Term, Terms]:
    """(what is common, the rest): their product is the sum. What depends on a summed index or is a
    test stays in the rest."""
    parts = tuple(form.values())
    exponent = _common_exponent(forms, parts, dtype)
    bound = {s for t in parts for s in t.summed}
    common: list[Factor] = []
    for f in dict.fromkeys(parts[0].factors):
        if not is_test(f) and not _is_exp(f) and not symbols(f) & bound:
            common += [f] * min(t.factors.count(f) for t in parts)
    rest = tuple(x for t in parts for x in _without(forms, t, common, exponent, dtype))
    if exponent:
        common.append(fn("exp", as_value(exponent, dtype)))
    left = forms.collected(rest, dtype)
    first = left[min(left)].number
    found = scaled(tuple(left.values()), 1 / first)
    return Term(first, (), tuple(common)), ONE if found == ONE else found


def _is_exp(f: Factor) -> bool:
    return isinstance(f, Fn) and f.name == "exp"


def _exponent(t: Term) -> Value | None:
    """Of its exponential: products of them are one (reals.merged)."""
    return next((f.args[0] for f in t.factors if isinstance(f, Fn) and f.name == "exp"), None)


def _common_exponent(forms: Forms, parts: Terms, dtype: DType) -> Terms:
    found: Form | None = None
    for t in parts:
        x = _exponent(t)
        if x is None:
            return ()
        mine = {
            key: part
            for key, part in forms.collected(forms.terms(x), dtype).items()
            if not _free(part) & set(t.summed)
        }
        if found is None:
            found = mine
        else:
            both = found.keys() & mine.keys()
            found = {k: found[k] for k in sorted(both) if found[k].number == mine[k].number}
    return tuple((found or {}).values())


def _free(t: Term) -> frozenset[D.Sym]:
    return frozenset(s for f in t.factors for s in symbols(f)) - set(t.summed)


def _without(forms: Forms, t: Term, common: list[Factor], exponent: Terms, dtype: DType) -> Terms:
    left = list(t.factors)
    for f in common:
        left.remove(f)
    x = _exponent(t)
    if not exponent or x is None:
        return (Term(t.number, t.summed, tuple(left)),)
    others = tuple(f for f in left if not _is_exp(f))
    lower = fn("exp", fn("sub", cast(x, dtype), as_value(exponent, dtype)))
    return times((Term(t.number, t.summed, others),), forms.terms(lower))


# ---- what is known of a value's sign


def is_positive(forms: Forms, f: Factor) -> bool:
    """Is it more than 0 wherever it is defined?"""
    if isinstance(f, Index):
        return D.known_le(1, f.dim)
    if not isinstance(f, Fn):
        return False
    if f.name == "sqrt":
        return value_is_positive(forms, f.args[0])
    if f.name == "div":
        return all(value_is_positive(forms, a) for a in f.args)
    return f.name in _POSITIVE


def value_is_positive(forms: Forms, v: Value) -> bool:
    """Is a sum of products more than 0: are all terms, and is there one?"""
    return terms_are_positive(forms, tuple(forms.simplified(forms.terms(v), v.dtype)))


def terms_are_positive(forms: Forms, parts: Terms) -> bool:
    """Is none negative, and one more than 0?"""
    return all(sign_of(forms, t) > 0 for t in parts) and any(
        all(is_positive(forms, f) for f in t.factors)
        and all(D.known_le(1, extent(s)) for s in t.summed)
        for t in parts
    )


def is_never_below_zero(forms: Forms, v: Value) -> bool:
    return all(sign_of(forms, t) > 0 for t in forms.simplified(forms.terms(v), v.dtype))


def compared(forms: Forms, name: str, x: Value, y: Value) -> bool | None:
    """Is x < y, or x = y, for all real numbers, or for none? None: neither is known."""
    infinite = [_is_infinite(a) for a in (x, y)]
    if any(infinite):
        if all(infinite) or not _is_real(y if infinite[0] else x):
            return None
        if name == "eq":
            return False
        end = x if infinite[0] else y
        assert isinstance(end, Const)
        return (end.value > 0) == infinite[1]
    less = tuple(forms.simplified(minus(forms.terms(x), forms.terms(y)), x.dtype))
    more = tuple(Term(-t.number, t.summed, t.factors) for t in less)
    if name == "lt":
        if terms_are_positive(forms, more):
            return True
        return False if all(sign_of(forms, t) > 0 for t in less) else None
    return False if any(terms_are_positive(forms, ts) for ts in (less, more)) else None


def _is_infinite(v: Value) -> bool:
    return isinstance(v, Const) and v.dtype.is_float and abs(v.value) == float("inf")


def _is_real(v: Value) -> bool:
    """Is it a number for sure: is nothing infinite in it, and no maximum of nothing?"""
    return not any(
        _is_infinite(x) or (isinstance(x, Reduce) and not _has_elements(x)) for x in walk(v)
    )


def _has_elements(r: Reduce) -> bool:
    return r.combine == "add" or all(D.known_le(1, extent(a)) for a in r.axes)


def root(forms: Forms, x: Value) -> Terms | None:
    """The square root of a product: of squares, and of factors that are never negative."""
    parts = forms.simplified(forms.terms(x), x.dtype)
    if len(parts) != 1 or parts[0].summed or any(map(is_test, parts[0].factors)):
        return None
    (t,) = parts
    odd: list[Value] = []
    outside: list[Factor] = []
    for f in t.factors:
        assert isinstance(f, Value)
        if f in odd:
            odd.remove(f)
            outside.append(f if is_never_negative(forms, f) else fn("abs", f))
        else:
            odd.append(f)
    if t.number < 0 or not all(is_never_negative(forms, f) for f in odd):
        return None
    if t.number == 1 and not outside and len(odd) <= 1:
        return None
    outside += [fn("sqrt", cast(f, x.dtype)) for f in odd]
    number = _rational_root(t.number)
    if number is None:
        number = Fraction(1)
        outside.append(fn("sqrt", as_value((Term(t.number, (), ()),), x.dtype)))
    return (Term(number, (), tuple(outside)),)


def _rational_root(x: Fraction) -> Fraction | None:
    above, below = isqrt(x.numerator), isqrt(x.denominator)
    exact = above * above == x.numerator and below * below == x.denominator
    return Fraction(above, below) if exact else None
