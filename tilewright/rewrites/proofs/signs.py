"""Maxima of real numbers, and what the signs of factors do to them.

max(s x, 0) = s max(x, 0)       where s is not negative: a number, a square, an exponential
max(-x, 0) = max(x, 0) - x      so that x and -x have one positive part
max(x, 0)^2 = x max(x, 0)
max(x, y) = y + max(x - y, 0)
max over i of s x[i] = s times the max over i of x[i]; of -x[i], it is -min
max over i of x[i] + y = y plus the max over i of x[i]
max over i of max(x[i], 0) = max(the max over i of x[i], 0), where there is an i
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Sym
from tilewright.ir.expr import (
    Const,
    Fn,
    Index,
    Load,
    Reduce,
    Value,
    all_of,
    cast,
    const,
    extent,
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

PLACES = 64  # of a window that are looked at

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
    if _never_negative(forms, x):
        return forms.terms(x)
    if isinstance(x, Fn) and x.name == "mul":
        for a, b in (x.args, x.args[::-1]):
            if _never_negative(forms, b):
                return times(forms.terms(b), forms.terms(fn("max", a, const(0, x.dtype))))
    parts = tuple(forms.simplified(forms.terms(x), x.dtype))
    signs = {sign_of(forms, t) for t in parts}
    if signs <= {1}:
        return parts
    if signs == {-1}:
        return ()
    common = _common(forms, parts)
    rest, first = _normed(forms, parts, common, x.dtype)
    if first == 1 and not common:
        return None
    outside = (Term(abs(first), (), tuple(common)),)
    if first > 0:
        inside = atom(forms.same(fn("max", as_value(rest, x.dtype), const(0, x.dtype))))
        return times(outside, inside)
    inside = atom(forms.same(fn("max", as_value(rest, x.dtype), const(0, x.dtype))))
    return times(outside, minus(inside, rest))


def _normed(
    forms: Forms, parts: Terms, common: list[Factor], dtype: DType
) -> tuple[Terms, Fraction]:
    """(terms without common factors, over a number, so that the first of them has the number 1; the
    number)."""
    rest = tuple(Term(t.number, t.summed, _without(t.factors, common)) for t in parts)
    form = forms.collected(rest, dtype)
    first = form[min(form)].number
    return scaled(rest, 1 / first), first


def larger(forms: Forms, v: Fn) -> Terms | None:
    """A maximum or minimum of several: of two by the positive part of their difference, of more
    without what all have in common. None where that is nothing, or a condition decides."""
    if decided_by(v) is not None:
        return None
    neutral = identity(v.name, v.dtype)  # infinite: no real number
    several = [a for a in (flat(v) if forms.flat else v.args) if a is not neutral]
    args = {forms.text(a): a for a in several}
    names = sorted(args)
    if len(names) == 1:
        return forms.terms(args[names[0]])
    if len(names) == 2:
        a, b = (args[name] for name in names)
        over = fn("sub", a, b) if v.name == "max" else fn("sub", b, a)
        part = forms.terms(fn("max", over, const(0, v.dtype)))
        return forms.terms(b) + (part if v.name == "max" else scaled(part, -1))
    found = [forms.collected(forms.terms(args[name]), v.dtype) for name in names]
    common = {
        key: t
        for key, t in found[0].items()
        if all(key in o and o[key].number == t.number for o in found[1:])
    }
    if not common:
        return None
    rests = [
        as_value(tuple(t for key, t in o.items() if key not in common), v.dtype) for o in found
    ]
    return tuple(common.values()) + atom(forms.same(reduce(lambda a, b: fn(v.name, a, b), rests)))


def flat(v: Fn) -> Iterator[Value]:
    """The arguments of nested applications of one function."""
    for a in v.args:
        if isinstance(a, Fn) and a.name == v.name and a.dtype is v.dtype:
            yield from flat(a)
        else:
            yield a


def extreme(forms: Forms, v: Reduce) -> Terms | None:
    """A maximum or minimum over axes, without factors and summands that are the same for all; None
    where there are none."""
    assert isinstance(v.combine, str)
    neutral = identity(v.combine, v.dtype)
    body, where = without_neutral(v.body, neutral)
    part = part_of(body) if isinstance(body, Fn) and v.combine == "max" else None
    if part is not None and _is_of_some(forms, v.axes, where):
        inside = make_reduce("max", v.axes, select(where, part, neutral))
        return forms.terms(fn("max", inside, const(0, v.dtype)))
    parts = tuple(forms.simplified(forms.terms(body), v.dtype))
    if not parts:
        return None
    fixed = tuple(t for t in parts if not any(symbols(f) & set(v.axes) for f in t.factors))
    if fixed and len(fixed) < len(parts):
        inside = as_value(tuple(t for t in parts if t not in fixed), v.dtype)
        chosen = select(where, inside, neutral)
        return fixed + forms.terms(make_reduce(v.combine, v.axes, chosen))
    free = tuple(Term(t.number, t.summed + v.axes, t.factors) for t in parts)
    common = _common(forms, free)
    rest, first = _normed(forms, parts, common, v.dtype)
    if first == 1 and not common:
        return None
    name = v.combine if first > 0 else {"max": "min", "min": "max"}[v.combine]
    inside = select(where, as_value(rest, v.dtype), identity(name, v.dtype))
    return times((Term(first, (), tuple(common)),), forms.terms(make_reduce(name, v.axes, inside)))


def _is_of_some(forms: Forms, axes: tuple[Sym, ...], where: Value) -> bool:
    """Is there always a place of these axes that is meant? It is sought among few."""
    sizes = [extent(a) for a in axes]
    if not all(D.known_le(1, n) for n in sizes):
        return False
    few = [range(n) if isinstance(n, int) else range(1) for n in sizes]
    if prod(map(len, few)) > PLACES:
        return False
    for place in product(*few):
        at = where.substitute(dict(zip(axes, place, strict=True)))
        if not forms.cases(at)[1]:
            return True
    return False


def sign_of(forms: Forms, t: Term) -> int:
    """1 or -1 where the term cannot have the other sign, else 0."""
    odd: list[Factor] = []
    for f in t.factors:
        if f in odd:
            odd.remove(f)  # a square
        else:
            odd.append(f)
    return (1 if t.number > 0 else -1) if all(is_never_negative(forms, f) for f in odd) else 0


def _never_negative(forms: Forms, v: Value) -> bool:
    """Is a value never negative as it is written: a sum of squares, say, before it is multiplied
    out?"""
    if isinstance(v, Const):
        return v.value >= 0
    if isinstance(v, Reduce):
        return v.combine == "add" and _never_negative(forms, v.body)
    if isinstance(v, Fn) and v.name in ("add", "mul"):
        a, b = v.args
        square = v.name == "mul" and forms.text(a) == forms.text(b)
        return square or (_never_negative(forms, a) and _never_negative(forms, b))
    return is_never_negative(forms, v)


def is_never_negative(forms: Forms, f: Factor) -> bool:
    if is_test(f):
        return True
    if isinstance(f, Load):
        return f.source in forms.never_negative
    if isinstance(f, Index):
        return D.nonneg(f.dim)
    if isinstance(f, Reduce):
        some = all(D.known_le(1, extent(a)) for a in f.axes)
        return f.combine in ("max", "min") and some and _is_sum_of_those(forms, f.body)
    if not isinstance(f, Fn):
        return False
    if f.name in ("div", "min"):
        return all(_is_sum_of_those(forms, a) for a in f.args)
    if f.name == "max":
        return any(_is_sum_of_those(forms, a) for a in f.args)
    return f.name in _NEVER_NEGATIVE


def _is_sum_of_those(forms: Forms, v: Value) -> bool:
    try:
        parts = forms.simplified(forms.terms(v), v.dtype)
    except Unsupported:  # infinity, where a maximum leaves something out
        return False
    return all(sign_of(forms, t) > 0 for t in parts)


def _common(forms: Forms, parts: Terms) -> list[Factor]:
    """Factors of all terms that are never negative, squares and tests too, and no function of
    summed indices."""
    out: list[Factor] = []
    for f in dict.fromkeys(parts[0].factors):
        if any(set(t.summed) & symbols(f) for t in parts):
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
    if not ts:
        return const(0, dtype)
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
            values.append(cast(f, dtype))
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
