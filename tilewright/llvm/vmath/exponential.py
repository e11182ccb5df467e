"""exp, exp2, expm1, sigmoid, tanh, sinh, cosh.

exp(x) = 2**n * exp(r) with n = round(x / log 2) and |r| <= log(2)/2. Arguments are first clamped to
just past where the result is 0 or infinite, so that n stays small; NaN passes through everything.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.llvm.vmath import coefficients as c
from tilewright.llvm.vmath.builder import (
    Value,
    at_least,
    at_most,
    corrective,
    fma,
    polynomial,
    power_of_two,
    round_to_integer,
    where,
)
from tilewright.llvm.vmath.double_word import split_constant

LN2 = "0.693147180559945309417232121458176568075500134360255254120680009493393622"
LOG2_E = 1.4426950408889634074

# Exponentials of larger arguments overflow, of smaller ones round to zero.
_OVERFLOWS = {"f32": 89.0, "f64": 710.0}
_VANISHES = {"f32": -105.0, "f64": -746.0}


def ln2_parts(x: Value) -> tuple[float, float]:
    """log(2) as high + low, such that high times any exponent of the format is exact."""
    return split_constant(LN2, x.format, {"f32": 15, "f64": 41}[x.format.elem])


def reduced(x: Value, bias: int) -> tuple[Value, Value, Value]:
    """(n, t, r): x = n*log(2) + r, and the low bits of t hold n + bias."""
    n, t = round_to_integer(x, LOG2_E, bias)
    high, low = ln2_parts(x)
    return n, t, fma(n, -low, fma(n, -high, x))


def expm1_parts(x: Value, low: Value | None = None, bias: int | None = None) -> tuple[Value, Value]:
    """(p, t): exp(x + low) = (1 + p) * 2**n with n + bias in the low bits of t; x must be clamped.

    The default bias is the one that `scaled` takes.
    """
    _, t, r = reduced(x, 2 * x.format.bias if bias is None else bias)
    if low is not None:
        r = r + low
    square = r * r
    return fma(square, corrective(r, c.EXP[x.format.elem], square), r), t


def halves(t: Value) -> tuple[Value, Value]:
    """2**n as a product of two powers, because it may itself be too large or too small for the
    format; t holds n and twice the format's bias."""
    f = t.format
    first = (t << f.mantissa - 1) & -(1 << f.mantissa)
    return first.as_float(), ((t << f.mantissa) - first).as_float()


def scaled(p: Value, t: Value) -> Value:
    """p * 2**n in two steps; t holds n and twice the format's bias."""
    first, second = halves(t)
    return p * first * second


def scaled_sum(p: Value, t: Value) -> Value:
    """(1 + p) * 2**n, likewise."""
    first, second = halves(t)
    return fma(p, first, first) * second


def vanishing(x: Value, limit: float, function: Callable[[Value], Value]) -> Value:
    """A function of x that is 0 below a limit. Nothing is computed there: results that are too
    small for the format take processors a hundred times as long, and masks of attention are full
    of them."""
    gone = x < limit
    return where(gone, 0.0, function(where(gone, 0.0, x)))


def exp(x: Value) -> Value:
    elem = x.format.elem
    most = at_most(x, _OVERFLOWS[elem])
    return vanishing(most, _VANISHES[elem], lambda y: scaled_sum(*expm1_parts(y)))


def exp2(x: Value) -> Value:
    f = x.format

    def within(y: Value) -> Value:
        n, t = round_to_integer(y, bias=2 * f.bias)
        r = y - n
        return scaled_sum(r * polynomial(r, c.EXP2[f.elem]), t)

    return vanishing(at_most(x, f.bias + 2.0), -1.0 * (f.bias + f.digits + 1), within)


def expm1(x: Value) -> Value:
    f = x.format
    clamped = at_least(at_most(x, _OVERFLOWS[f.elem]), -0.75 * f.digits)
    # Half of 2**n, because 2**n overflows before the result does.
    n, t, r = reduced(clamped, f.bias - 1)
    square = r * r
    p = fma(square, corrective(r, c.EXPM1[f.elem], square), r)
    half = power_of_two(t)
    result = fma(half, p, half - 0.5)
    return where(n.eq(0.0), p, result + result).with_sign_of(x)


def fall_parts(x: Value, table: c.Coefficients, bias: int) -> tuple[Value, Value]:
    """(p, t): exp(-x) = (1 - p) * 2**n with n + bias in the low bits of t; x must be clamped."""
    n, t = round_to_integer(x, -LOG2_E, bias)
    high, low = ln2_parts(x)
    r = fma(n, low, fma(n, high, x))
    square = r * r
    turned = [a if k % 2 else -a for k, a in enumerate(table[x.format.elem])]
    return fma(square, corrective(r, turned, square), r), t


# Sigmoids of larger arguments are 1.
_SATURATES = {"f32": 18.0, "f64": 38.0}


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)), both scaled down so that the sum does not overflow before the result
    vanishes."""
    f = x.format
    less = 32 if f.elem == "f32" else 64
    x = at_least(at_most(x, _SATURATES[f.elem]), _VANISHES[f.elem])
    p, t = fall_parts(x, c.EXP, f.bias - less)
    scale, one = power_of_two(t), 2.0**-less
    # scale + one may round; the part of the scale that is added last leaves it exact.
    some = at_most(scale, one)
    return one / (fma(scale, -p, some + one) + (scale - some))


def tanh(x: Value) -> Value:
    """(1 - e) / (1 + e) with e = exp(-2*|x|): sums of exact terms and one product."""
    a, f = x.abs(), x.format
    p, t = fall_parts(at_most(a + a, {"f32": 20.0, "f64": 40.0}[f.elem]), c.EXPM1, f.bias)
    scale = power_of_two(t)
    return (fma(scale, p, 1.0 - scale) / fma(scale, -p, 1.0 + scale)).with_sign_of(x)


def _half_exp(a: Value) -> Value:
    """exp(a)/2 for a >= 0, which overflows where sinh and cosh do."""
    clamped = at_most(a, _OVERFLOWS[a.format.elem] + 1.0)
    return scaled_sum(*expm1_parts(clamped, bias=2 * a.format.bias - 1))


def sinh(x: Value) -> Value:
    a = x.abs()
    z = x * x
    small = fma(a * z, corrective(z, c.SINH[x.format.elem], z * z), a)
    half = _half_exp(a)
    return where(a < 1.0, small, half - 0.25 / half).with_sign_of(x)


def cosh(x: Value) -> Value:
    half = _half_exp(x.abs())
    return half + 0.25 / half
