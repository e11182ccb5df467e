"""The laws of real numbers, for rules that say that they round differently.

Both sides are the same function where floats are real numbers: every number is finite and no step
rounds. Where one side is defined (no division by zero, no root of a negative number) the other has
to be too, so that `x / x` is not 1. A cast to a float that holds every value changes nothing; one
to a narrower float stands for itself.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.expr import Const, Fn, Index, Value, cast, const, fn, walk
from tilewright.ir.scalar import SCALARS
from tilewright.ir.types import DType
from tilewright.rewrites.facts import holds_exactly
from tilewright.rewrites.proofs import signs
from tilewright.rewrites.proofs.factored import (
    factored,
    is_never_below_zero,
    root,
    value_is_positive,
)
from tilewright.rewrites.proofs.ieee import shortened
from tilewright.rewrites.proofs.terms import (
    ONE,
    RING,
    Term,
    Terms,
    atom,
    is_test,
    number,
    scaled,
    times,
)

if TYPE_CHECKING:
    from tilewright.rewrites.proofs.form import Forms

MAX_POWER = 8
_BOUND = re.compile(r"_\d+")  # names of summed indices (element.fresh)


def constant(v: Const) -> Terms:
    if not math.isfinite(v.value):
        raise Unsupported(f"{v.value} is no real number")
    return number(Fraction(v.value))


def function(forms: Forms, v: Fn) -> Terms | None:
    """A function of real numbers as a sum of products; None where it stands for itself."""
    a = v.args
    if v.name == "cast":
        return _cast(forms, shortened(a[0], v.dtype))
    if v.name in RING:
        return RING[v.name](*map(forms.terms, a))
    if v.name == "fma":
        return times(forms.terms(a[0]), forms.terms(a[1])) + forms.terms(a[2])
    if v.name == "div":
        return times(forms.terms(a[0]), inverse(forms, a[1]))
    if v.name == "rsqrt":
        return inverse(forms, fn("sqrt", a[0]))
    if v.name == "pow":
        return _power(forms, *a)
    if v.name == "sigmoid":
        one = const(1, v.dtype)
        return forms.terms(fn("div", one, fn("add", one, fn("exp", fn("neg", a[0])))))
    if v.name == "log":
        return _log(forms, a[0])
    if v.name == "sqrt":
        return root(forms, a[0])
    if v.name == "exp":
        return ONE if not forms.simplified(forms.terms(a[0]), v.dtype) else None
    inside = signs.part_of(v)
    if inside is not None:
        return signs.positive_part(forms, inside)
    if v.name in ("max", "min"):
        return signs.larger(forms, v)
    known = SCALARS.get(v.name)  # an item of a tuple is no scalar function
    parity = known.parity if known is not None else ""
    if parity:
        positive = forms.without_sign(a[0])
        if positive is not a[0]:
            return scaled(forms.terms(fn(v.name, positive)), -1 if parity == "odd" else 1)
    return None


def _cast(forms: Forms, v: Value) -> Terms:
    if isinstance(v, Fn) and v.name == "cast":
        (x,) = v.args
        if isinstance(x, Index):
            return forms.terms(x)  # a whole number is a real one
        if not x.dtype.is_bool and not (x.dtype.is_float and holds_exactly(x.dtype, v.dtype)):
            return forms.opaque(v)
        return forms.terms(x)
    return forms.terms(v)


def inverse(forms: Forms, y: Value) -> Terms:
    """1 / y; that of a product is the product of those of its factors, and of a sum without what
    all its terms have in common."""
    form = forms.collected(forms.terms(y), y.dtype)
    if not form:
        raise Unsupported("a division by zero is no real number")
    if any(is_test(f) for t in form.values() for f in t.factors):
        return forms.opaque(fn("div", const(1, y.dtype), y))
    common, rest = factored(forms, form, y.dtype)
    out: Terms = number(1 / common.number)
    for f in common.factors:
        assert isinstance(f, Value)
        out = times(out, atom(forms.same(_inverse_of_factor(f, y.dtype))))
    if rest == ONE:
        return out
    return times(out, forms.opaque(fn("div", const(1, y.dtype), signs.as_value(rest, y.dtype))))


def _inverse_of_factor(f: Value, dtype: DType) -> Value:
    if isinstance(f, Fn) and f.name == "exp":
        return fn("exp", fn("neg", f.args[0]))
    return fn("div", const(1, dtype), cast(f, dtype))


def _log(forms: Forms, x: Value) -> Terms | None:
    """log(exp(a) x) = a + log(x)."""
    form = forms.collected(forms.terms(x), x.dtype)
    if not form or any(is_test(f) for t in form.values() for f in t.factors):
        return None
    common, rest = factored(forms, form, x.dtype)
    exponents = [f.args[0] for f in common.factors if isinstance(f, Fn) and f.name == "exp"]
    if not exponents:
        return None
    left = tuple(f for f in common.factors if not (isinstance(f, Fn) and f.name == "exp"))
    inside = times((Term(common.number, (), left),), rest)
    out = forms.terms(exponents[0])
    if inside == ONE:
        return out
    return out + forms.terms(fn("log", signs.as_value(inside, x.dtype)))


def _is_whole_power(n: Value) -> bool:
    return isinstance(n, Const) and n.value in range(1, MAX_POWER + 1)


def _power(forms: Forms, x: Value, n: Value) -> Terms | None:
    if not isinstance(n, Const) or not _is_whole_power(n):
        return None
    out = ONE
    for _ in range(int(n.value)):
        out = times(out, forms.terms(x))
    return out


def domain(forms: Forms, v: Value) -> set[str]:
    """Where a value is defined, as the arguments of what is not defined everywhere. A product with
    0 and a difference of equals drop out of the normal form, and with them their own conditions."""
    found: set[str] = set()
    for x in walk(v):
        if not isinstance(x, Fn) or not x.dtype.is_float:
            continue
        known = SCALARS.get(x.name)  # a cast and an item of a tuple are no scalar functions
        if known is not None and known.partial and not _is_defined(forms, x):
            found.add(f"{x.name.removeprefix('r')}({', '.join(map(forms.text, x.args))})")
        if x.name == "div":
            found |= {f"nonzero {t}" for t in forms.factor_texts(x.args[1])}
        if x.name == "rsqrt":
            found |= {f"nonzero {t}" for t in forms.factor_texts(fn("sqrt", x.args[0]))}
    return {_BOUND.sub("_", t) for t in found}


def _is_defined(forms: Forms, x: Fn) -> bool:
    """Is a function that is not defined everywhere defined here?"""
    if x.name == "pow":
        return _is_whole_power(x.args[1])
    if x.name in ("sqrt", "rsqrt"):
        return is_never_below_zero(forms, x.args[0])
    return x.name.startswith("log") and value_is_positive(forms, x.args[0])


def cancelled(forms: Forms, t: Term) -> Terms | None:
    """sqrt(x)² = x, and n / n = 1 where n is a size of at least 1; None where neither is there."""
    for k, f in enumerate(t.factors):
        if not isinstance(f, Fn):
            continue
        if f.name == "sqrt" and f in t.factors[:k]:
            rest = list(t.factors)
            rest.remove(f)
            rest.remove(f)
            return times((Term(t.number, t.summed, tuple(rest)),), forms.terms(f.args[0]))
        if f.name == "div" and isinstance(f.args[1], Fn) and f.args[1].name == "cast":
            size = f.args[1].args[0]
            if isinstance(size, Index) and size in t.factors and D.known_le(1, size.dim):
                rest = list(t.factors)
                rest.remove(f)
                rest.remove(size)
                return (Term(t.number, t.summed, tuple(rest)),)
    return None


def merged(t: Term) -> Term:
    """exp(a) exp(b) as exp(a + b)."""
    exponents = [f.args[0] for f in t.factors if isinstance(f, Fn) and f.name == "exp"]
    if len(exponents) < 2:
        return t
    rest = tuple(f for f in t.factors if not (isinstance(f, Fn) and f.name == "exp"))
    total = exponents[0]
    for x in exponents[1:]:
        total = fn("add", total, cast(x, total.dtype))
    return Term(t.number, t.summed, (*rest, fn("exp", total)))
