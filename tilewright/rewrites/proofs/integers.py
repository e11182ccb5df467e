"""The laws of integers of n bits: a ring modulo two to the n, for signed and unsigned ones alike.

Nothing here is true of the integers only: `x < x + 1` is no law, `2 * x // 2` is not `x`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from tilewright.ir.expr import Const, Fn, Value, cast, fn
from tilewright.ir.types import DType
from tilewright.rewrites.proofs.ieee import shortened
from tilewright.rewrites.proofs.terms import (
    ONE,
    RING,
    Condition,
    Factor,
    Term,
    Terms,
    atom,
    is_test,
    minus,
    scaled,
    times,
)

if TYPE_CHECKING:
    from tilewright.rewrites.proofs.form import Forms

# Of a sum that is cast to more bits: each has two numbers and up to two values to try.
MOST_PARTS = 4


def function(forms: Forms, v: Fn) -> Terms | None:
    """A function of integers as a sum of products; None where it stands for itself."""
    if v.name == "cast":
        return _cast(forms, shortened(v.args[0], v.dtype))
    if any(a.dtype is not v.dtype for a in v.args):
        return None
    a = v.args
    if v.name in RING:
        return RING[v.name](*map(forms.terms, a))
    if v.name == "not":  # two's complement
        return minus(scaled(forms.terms(a[0]), -1), ONE)
    if v.name == "abs":
        return _abs(forms, a[0])
    if len(a) == 2 and isinstance(a[1], Const):
        return _by_constant(forms, v, int(a[1].value))
    return None


def _by_constant(forms: Forms, v: Fn, n: int) -> Terms | None:
    x, divisor = v.args
    if v.name in ("floordiv", "quo") and n == 1:
        return forms.terms(x)
    # Euclid: a division by 0 gives 0 for quotient and remainder, so the divisor is another.
    for rest, quotient in (("mod", "floordiv"), ("rem", "quo")):
        if v.name == rest and n != 0:
            whole = forms.terms(fn(quotient, x, divisor))
            return minus(forms.terms(x), scaled(whole, n))
    if v.name == "shl" and 0 <= n < v.dtype.bits:
        return scaled(forms.terms(x), 1 << n)
    return None


def _abs(forms: Forms, x: Value) -> Terms | None:
    """The lowest number of all is its own negative, and its own absolute value."""
    if x.dtype.kind == "u" or (isinstance(x, Fn) and x.name == "abs"):
        return forms.terms(x)
    if isinstance(x, Const):
        return forms.terms(x if x.value >= 0 else fn("neg", x))
    positive = forms.without_sign(x)
    return None if positive is x else forms.terms(fn("abs", positive))


def _cast(forms: Forms, v: Value) -> Terms | None:
    if not (isinstance(v, Fn) and v.name == "cast"):
        return forms.terms(v)
    (x,) = v.args
    if x.dtype.is_bool:
        return forms.terms(x)
    if not x.dtype.is_int:
        return None
    if v.dtype.bits > x.dtype.bits:
        return _widened(forms, x, v.dtype)
    # Leaving out upper bits commutes with sums and products.
    out: Terms = ()
    for t in forms.terms(x):
        made: Terms = (Term(t.number, t.summed, ()),)
        for f in t.factors:
            if is_test(f):
                made = times(made, atom(f))
            else:
                assert isinstance(f, Value)
                made = times(made, _narrowed(forms, f, v.dtype))
        out += made
    return out


def _narrowed(forms: Forms, f: Value, dtype: DType) -> Terms:
    new = shortened(f, dtype)
    same = isinstance(new, Fn) and new.name == "cast" and new.args[0] is f
    return atom(new) if same else forms.terms(new)


def _widened(forms: Forms, x: Value, to: DType) -> Terms | None:
    """A cast to more bits, term by term, where their sum does not wrap: where a sum of the same
    remainder stays within the dtype of x for all values of its operands."""
    parts = forms.simplified(forms.terms(x), x.dtype)
    if len(parts) > MOST_PARTS or any(t.summed or len(t.factors) > 1 for t in parts):
        return None
    if len(parts) == 1 and parts[0].number == 1:
        return None  # nothing to take apart
    numbers = [(int(t.number), int(t.number) - (1 << x.dtype.bits)) for t in parts]
    factors = [_same_remainder(t.factors, x.dtype) for t in parts]
    for chosen in product(*numbers):
        for values in product(*factors):
            ranges = [_range(v, n) for v, n in zip(values, chosen, strict=True)]
            low, high = (sum(r[k] for r in ranges) for k in (0, 1))
            if x.dtype.lowest <= low and high <= x.dtype.highest:
                out: Terms = ()
                for v, n in zip(values, chosen, strict=True):
                    out += scaled(ONE if v is None else forms.terms(cast(v, to)), n)
                return out
    return None


def _same_remainder(factors: tuple[Factor, ...], dtype: DType) -> list[Value | None]:
    """Values that a factor is equal to modulo two to the number of bits; None for the number 1."""
    if not factors:
        return [None]
    (f,) = factors
    if isinstance(f, Condition):
        return []
    same: list[Value | None] = [f]
    if isinstance(f, Fn) and f.name == "cast" and f.args[0].dtype.is_int:
        if f.args[0].dtype.bits <= dtype.bits:
            same.append(f.args[0])
    return same


def _range(v: Value | None, n: int) -> tuple[int, int]:
    if v is None:
        return n, n
    ends = (n * int(v.dtype.lowest), n * int(v.dtype.highest))
    return min(ends), max(ends)
