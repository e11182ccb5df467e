"""Maxima of real numbers, and what the signs of factors do to them.

max(s x, 0) = s max(x, 0)       where s is not negative: a number, a square, an exponential
max(-x, 0) = max(x, 0) - x      so that x and -x have one positive part
max(x, 0)^2 = x max(x, 0)
max over i of s x[i] = s times the max over i of x[i]; of -x[i], it is -min
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING

from tilewright.ir.combine import identity
from tilewright.ir.expr import (
    Const,
    Fn,
    Load,
    Reduce,
    Value,
    all_of,
    const,
    fn,
    index,
    make_reduce,
    select,
)
from tilewright.ir.types import DType
from tilewright.rewrites.proofs.logic import decided_by, without_neutral
from tilewright.rewrites.proofs.terms import (
    Condition,
    Factor,
    Term,
    Terms,
    atom,
    is_test,
    minus,
    scaled,
    symbols,
    times,
)

if TYPE_CHECKING:
    from tilewright.rewrites.proofs.form import Forms

# Functions that are never negative.
_NEVER_NEGATIVE = frozenset(("exp", "exp2", "abs", "sqrt", "rsqrt", "sigmoid"))


def part_of(v: Fn) -> Value | None:
    """x of max(x, 0)."""
    if v.name != "max" or len(v.args) != 2:
        return None
    for x, zero in (v.args, v.args[::-1]):
        if isinstance(zero, Const) and zero.value == 0 and not isinstance(x, Const):
            return x
    return None


def positive_part(forms: Forms, x: Value) -> Terms | None:
    """max(x, 0); None where nothing is gained over what stands for itself, or a condition decides
    what x is."""
    if decided_by(x) is not None:
        return None
    form = forms.collected(forms.terms(x), x.dtype)
    parts = tuple(form.values())
    signs = {_sign(forms, t) for t in parts}
    if signs <= {1}:
        return parts
    if signs == {-1}:
        return ()
    common, first = _common(forms, parts), form[min(form)].number
    if first == 1 and not common:
        return None
    scale = abs(first)
    rest = tuple(Term(t.number / scale, t.summed, _without(t.factors, common)) for t in parts)
    outside = (Term(scale, (), tuple(common)),)
    rest_form = forms.collected(rest, x.dtype)
    if rest_form[min(rest_form)].number > 0:
        inside = atom(fn("max", as_value(rest, x.dtype), const(0, x.dtype)))
        return times(outside, inside)
    turned = scaled(rest, -1)
    inside = atom(fn("max", as_value(turned, x.dtype), const(0, x.dtype)))
    return times(outside, minus(inside, turned))


def extreme(forms: Forms, v: Reduce) -> Terms | None:
    """A maximum or minimum over axes, without factors that are the same for all; None where there
    are none."""
    assert isinstance(v.combine, str)
    neutral = identity(v.combine, v.dtype)
    body, where = without_neutral(v.body, neutral)
    form = forms.collected(forms.terms(body), v.dtype)
    parts = tuple(form.values())
    if not parts:
        return None
    free = tuple(Term(t.number, t.summed + v.axes, t.factors) for t in parts)
    common, first = _common(forms, free), form[min(form)].number
    if first == 1 and not common:
        return None
    name = v.combine if first > 0 else {"max": "min", "min": "max"}[v.combine]
    rest = tuple(Term(t.number / first, t.summed, _without(t.factors, common)) for t in parts)
    inside = select(where, as_value(rest, v.dtype), identity(name, v.dtype))
    return times((Term(first, (), tuple(common)),), forms.terms(make_reduce(name, v.axes, inside)))


def _sign(forms: Forms, t: Term) -> int:
    """1 or -1 where the term cannot have the other sign, else 0."""
    odd: list[Factor] = []
    for f in t.factors:
        if f in odd:
            odd.remove(f)  # a square
        else:
            odd.append(f)
    return (1 if t.number > 0 else -1) if all(is_never_negative(forms, f) for f in odd) else 0


def is_never_negative(forms: Forms, f: Factor) -> bool:
    if is_test(f):
        return True
    if isinstance(f, Load):
        return f.source in forms.never_negative
    return isinstance(f, Fn) and (f.name in _NEVER_NEGATIVE or part_of(f) is not None)


def _common(forms: Forms, parts: Terms) -> list[Factor]:
    """Factors of all terms that are never negative, squares too, and no function of summed
    indices."""
    out: list[Factor] = []
    for f in dict.fromkeys(parts[0].factors):
        if is_test(f) or any(set(t.summed) & symbols(f) for t in parts):
            continue
        count = min(t.factors.count(f) for t in parts)
        out += [f] * (count if is_never_negative(forms, f) else count - count % 2)
    return out


def _without(factors: tuple[Factor, ...], gone: list[Factor]) -> tuple[Factor, ...]:
    left = list(factors)
    for f in gone:
        left.remove(f)
    return tuple(left)


def as_value(ts: Terms, dtype: DType) -> Value:
    """A sum of products as a value."""
    return reduce(lambda a, b: fn("add", a, b), [_term(t, dtype) for t in ts])


def _term(t: Term, dtype: DType) -> Value:
    values: list[Value] = []
    tests: list[Value] = []
    for f in t.factors:
        if isinstance(f, Condition):
            tests.append(index(f.dim) >= 0)
        elif is_test(f):
            tests.append(f)
        else:
            values.append(f)
    body = reduce(lambda a, b: fn("mul", a, b), values) if values else const(1, dtype)
    body = _scaled(body, t.number, dtype)
    if tests:
        body = select(all_of(*tests), body, const(0, dtype))
    return make_reduce("add", t.summed, body) if t.summed else body


def _scaled(v: Value, by: Fraction, dtype: DType) -> Value:
    """Exactly: a quotient of whole numbers where the factor is none."""
    if by.numerator != 1:
        v = fn("mul", v, const(by.numerator, dtype))
    return v if by.denominator == 1 else fn("div", v, const(by.denominator, dtype))
