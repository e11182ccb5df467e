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
from tilewright.ir.expr import Const, Fn, Value, cast, const, fn, walk
from tilewright.ir.scalar import SCALARS
from tilewright.rewrites.facts import holds_exactly
from tilewright.rewrites.proofs import signs
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
    if v.name == "log" and isinstance(a[0], Fn) and a[0].name == "exp":
        return forms.terms(a[0].args[0])
    if v.name == "exp":
        return ONE if not forms.simplified(forms.terms(a[0]), v.dtype) else None
    inside = signs.part_of(v)
    if inside is not None:
        return signs.positive_part(forms, inside)
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
        if not x.dtype.is_bool and not (x.dtype.is_float and holds_exactly(x.dtype, v.dtype)):
            return forms.opaque(v)
        return forms.terms(x)
    return forms.terms(v)


def inverse(forms: Forms, y: Value) -> Terms:
    """1 / y; that of a product is the product of those of its factors."""
    if isinstance(y, Const) and y.value == 0:
        raise Unsupported("a division by zero is no real number")
    parts = forms.simplified(forms.terms(y), y.dtype)
    if len(parts) == 1 and not parts[0].summed and not any(map(is_test, parts[0].factors)):
        out: Terms = number(1 / parts[0].number)
        for f in parts[0].factors:
            assert isinstance(f, Value)
            out = times(out, atom(_inverse_of_factor(f)))
        return out
    return forms.opaque(fn("div", const(1, y.dtype), y))


def _inverse_of_factor(f: Value) -> Value:
    if isinstance(f, Fn) and f.name == "exp":
        return fn("exp", fn("neg", f.args[0]))
    return fn("div", const(1, f.dtype), f)


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
        partial = x.name != "cast" and SCALARS[x.name].partial
        if partial and not (x.name == "pow" and _is_whole_power(x.args[1])):
            found.add(f"{x.name.removeprefix('r')}({', '.join(map(forms.text, x.args))})")
        if x.name == "div":
            found |= {f"nonzero {t}" for t in forms.factor_texts(x.args[1])}
        if x.name == "rsqrt":
            found |= {f"nonzero {t}" for t in forms.factor_texts(fn("sqrt", x.args[0]))}
    return {_BOUND.sub("_", t) for t in found}


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
