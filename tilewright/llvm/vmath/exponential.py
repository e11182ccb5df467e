"""exp, exp2, expm1, sigmoid, tanh, sinh, cosh.

exp(x) = 2**n * exp(r) with n = round(x / log 2) and |r| <= log(2)/2. Arguments are first clamped to
just past where the result is 0 or infinite, so that n stays small; NaN passes through everything.
"""

from __future__ import annotations

from tilewright.llvm.vmath import coefficients as c
from tilewright.llvm.vmath.builder import (
    Value,
    at_least,
    at_most,
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


def reduced(x: Value) -> tuple[Value, Value, Value]:
    """(n, t, r): x = n*log(2) + r, and t holds n in its low bits."""
    n, t = round_to_integer(x, LOG2_E)
    high, low = ln2_parts(x)
    return n, t, fma(n, -low, fma(n, -high, x))


def expm1_parts(x: Value, low: Value | None = None) -> tuple[Value, Value]:
    """(p, t): exp(x + low) = (1 + p) * 2**n with n in the low bits of t; x must be clamped."""
    _, t, r = reduced(x)
    if low is not None:
        r = r + low
    return fma(r * r, polynomial(r, c.EXP[x.format.elem]), r), t


def exp_parts(x: Value, low: Value | None = None) -> tuple[Value, Value]:
    """(p, t): exp(x + low) = p * 2**n with n in the low bits of t; x must be clamped."""
    p, t = expm1_parts(x, low)
    return p + 1.0, t


def scaled(p: Value, t: Value) -> Value:
    """p * 2**n in two steps: 2**n itself may be too large or too small for the format."""
    half = t >> 1
    return p * power_of_two(half) * power_of_two(t - half)


def exp(x: Value) -> Value:
    elem = x.format.elem
    return scaled(*exp_parts(at_least(at_most(x, _OVERFLOWS[elem]), _VANISHES[elem])))


def exp2(x: Value) -> Value:
    f = x.format
    x = at_least(at_most(x, f.bias + 2.0), -1.0 * (f.bias + f.digits + 1))
    n, t = round_to_integer(x)
    r = x - n
    return scaled(fma(r, polynomial(r, c.EXP2[f.elem]), 1.0), t)


def expm1(x: Value) -> Value:
    f = x.format
    n, t, r = reduced(at_least(at_most(x, _OVERFLOWS[f.elem]), -0.75 * f.digits))
    p = fma(r * r, polynomial(r, c.EXPM1[f.elem]), r)
    # Half of 2**n, because 2**n overflows before the result does.
    half = power_of_two(t - 1)
    result = fma(half, p, half - 0.5)
    return where(n.eq(0.0), p, result + result).with_sign_of(x)


def sigmoid(x: Value) -> Value:
    # exp(-|x|) never overflows: 1/(1+e) for positive x, e/(1+e) for negative.
    p, t = expm1_parts(at_least(-x.abs(), _VANISHES[x.format.elem]))
    one_p = 1.0 + p
    e = scaled(one_p, t)
    d = 1.0 + e
    negative = x < 0.0
    quotient = where(negative, e, 1.0) / d
    # Makes up for the rounding of 1 + e, which would cost up to one more ulp.
    lost = (d - 1.0) - e
    if x.format.elem == "f64":
        # And of 1 + p. All of float32 was tried and stays below 2 ulp without it.
        lost = lost + where(negative, p - (one_p - 1.0), 0.0)
    return fma(quotient, lost, quotient)


def tanh(x: Value) -> Value:
    a, elem = x.abs(), x.format.elem
    z = x * x
    small = fma(a * z, polynomial(z, c.TANH[elem]), a)
    # 1 - 2/(exp(2a) + 1) is 1 long before the clamp.
    p, t = exp_parts(at_most(a + a, {"f32": 20.0, "f64": 40.0}[elem]))
    large = 1.0 - 2.0 / (p * power_of_two(t) + 1.0)
    return where(a < 0.5625, small, large).with_sign_of(x)


def _half_exp(a: Value) -> Value:
    """exp(a)/2 for a >= 0, which overflows where sinh and cosh do."""
    p, t = exp_parts(at_most(a, _OVERFLOWS[a.format.elem] + 1.0))
    return scaled(p * 0.5, t)


def sinh(x: Value) -> Value:
    a = x.abs()
    z = x * x
    small = fma(a * z, polynomial(z, c.SINH[x.format.elem]), a)
    half = _half_exp(a)
    return where(a < 1.0, small, half - 0.25 / half).with_sign_of(x)


def cosh(x: Value) -> Value:
    half = _half_exp(x.abs())
    return half + 0.25 / half
