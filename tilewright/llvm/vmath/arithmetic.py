"""rsqrt and fmod."""

from __future__ import annotations

from tilewright.llvm.vmath.builder import (
    INF,
    NAN,
    Value,
    Values,
    fma,
    power_of_two,
    round_to_integer,
    where,
)
from tilewright.llvm.vmath.double_word import split
from tilewright.llvm.vmath.exponential import scaled


def rsqrt(x: Value) -> Value:
    return 1.0 / x.sqrt()


def _significand(a: Value) -> tuple[Value, Value]:
    """(e, m) with a = 2**e * m, m in [1, 2), for positive finite a."""
    f = a.format
    unit, lift = 2.0**f.mantissa, f.digits
    tiny = a < f.min_normal
    bits = where(tiny, a * 2.0**lift, a).bits()
    m = ((bits & ((1 << f.mantissa) - 1)) | f.one_bits).as_float()
    bias = where(tiny, a.like(unit + f.bias + lift), unit + f.bias)
    return ((bits >> f.mantissa) | f.bits(unit)).as_float() - bias, m


def fmod(x: Value, y: Value) -> Value:
    """The exact remainder: long division of the significands, many quotient bits per round."""
    a, b, form = x.abs(), y.abs(), x.format
    exponent, r = _significand(a)
    scale, m = _significand(b)
    high, low = split(m)
    fused = x.builder.fma
    # Few enough that the rounded quotient is off by one at most and r - q*m exact: with a fused
    # operation because the result is a float, else because both products and differences are.
    digits = float(form.digits - 4 if fused else form.digits // 2 - 3)
    gap = exponent - scale

    def step(state: Values) -> tuple[Values, Value]:
        r, gap = state
        shift = where(gap > digits, digits, gap)
        r = r * power_of_two((shift + (form.magic + form.bias)).bits())
        q, _ = round_to_integer(r / m)
        r = fma(q, -m, r) if fused else (r - q * high) - q * low
        gap = gap - shift
        return (where(r < 0.0, r + m, r), gap), gap > 0.0

    r, _ = x.builder.repeat((r, where(gap > 0.0, gap, 0.0)), step)
    rest = scaled(r, (scale + (form.magic + 2 * form.bias)).bits())
    result = where(a < b, a, rest).with_sign_of(x)
    return where((a < INF) & (b > 0.0), result, NAN)
