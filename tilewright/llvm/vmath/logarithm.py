"""log, log2, log10, log1p, asinh, acosh, atanh and pow.

x = 2**e * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2); then log(1+f) = f + tail(f), where f is
exact and the tail small, so that its rounding hardly counts.
"""

from __future__ import annotations

from tilewright.llvm.vmath import coefficients as c
from tilewright.llvm.vmath.builder import (
    INF,
    NAN,
    Operand,
    Value,
    at_least,
    at_most,
    fma,
    polynomial,
    power_of_two,
    round_to_integer,
    where,
)
from tilewright.llvm.vmath.double_word import (
    Pair,
    add,
    fast_two_sum,
    multiply,
    split_constant,
    two_product,
    two_sum,
)
from tilewright.llvm.vmath.exponential import LOG2_E, expm1_parts, ln2_parts, scaled_sum

_LOG2_E_DIGITS = "1.44269504088896340735992468100189213742664595415298593413544940693"
_LOG10_E_DIGITS = "0.434294481903251827651128918916605082294397005803666566114453783165865"
_LOG10_2_DIGITS = "0.301029995663981195213738894724493026768189881462108541310427461127108"
_SQRT_HALF = 0.70710678118654752440


def decomposed(x: Value, subnormals: bool = True) -> tuple[Value, Value]:
    """(e, m) with x = 2**e * m, m in [sqrt(1/2), sqrt(2)), for positive finite x."""
    f = x.format
    unit = 2.0**f.mantissa
    bias: Operand = unit + f.bias
    if subnormals:
        lift = f.digits + 1
        tiny = x < f.min_normal
        x = where(tiny, x * 2.0**lift, x)
        bias = where(tiny, x.like(unit + f.bias + lift), unit + f.bias)
    root = f.bits(_SQRT_HALF)
    shifted = x.bits() + (f.one_bits - root)
    m = ((shifted & ((1 << f.mantissa) - 1)) + root).as_float()
    # The exponent becomes a float by standing in the low bits of a power of two.
    e = ((shifted >> f.mantissa) | f.bits(unit)).as_float() - bias
    return e, m


def tail(f: Value) -> Value:
    """log(1 + f) - f."""
    if f.format.elem == "f32":
        z = f * f
        return fma(f * z, polynomial(f, c.LOG["f32"]), z * -0.5)
    half_square = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    return fma(s, fma(z, polynomial(z, c.LOG_ATANH["f64"]), half_square), -half_square)


def _with_specials(x: Value, zero: float, result: Value) -> Value:
    """-inf where x is the logarithm's zero, NaN below it, x itself for inf and NaN."""
    special = where(x.eq(zero), -INF, where(x < zero, NAN, x))
    return where((x > zero) & (x < INF), result, special)


def log(x: Value) -> Value:
    e, m = decomposed(x)
    f = m - 1.0
    high, low = ln2_parts(x)
    return _with_specials(x, 0.0, fma(e, high, f + fma(e, low, tail(f))))


def _log_to_base(x: Value, factor: str, per_exponent: tuple[float, float]) -> Value:
    """log(x) times a constant, whose product with f is carried to twice the precision."""
    e, m = decomposed(x)
    f = m - 1.0
    high, low = split_constant(factor, x.format)
    product = two_product(f, f.like(high))
    rest = fma(tail(f), high, fma(f, low, product.low))
    if per_exponent[1]:
        rest = fma(e, per_exponent[1], rest)
    return _with_specials(x, 0.0, fma(e, per_exponent[0], product.high + rest))


def log2(x: Value) -> Value:
    return _log_to_base(x, _LOG2_E_DIGITS, (1.0, 0.0))


def log10(x: Value) -> Value:
    high_bits = {"f32": 15, "f64": 41}[x.format.elem]
    return _log_to_base(x, _LOG10_E_DIGITS, split_constant(_LOG10_2_DIGITS, x.format, high_bits))


def log1p(x: Value) -> Value:
    u = 1.0 + x
    e, m = decomposed(u, subnormals=False)
    # What rounding took from 1 + x; where e is 0, f is x itself.
    lost = where(x >= 1.0, 1.0 - (u - x), x - (u - 1.0)) / u
    direct = e.eq(0.0)
    f = where(direct, x, m - 1.0)
    high, low = ln2_parts(x)
    rest = fma(e, low, where(direct, 0.0, lost))
    result = fma(e, high, f + (tail(f) + rest))
    return _with_specials(x, -1.0, result).with_sign_of(x)


def _log1p_of_large(large: Value, u: Value) -> Value:
    """log1p(u), plus log(2) where `large`: there u + 1 is half of the logarithm's argument."""
    return log1p(u) + where(large, u.like(0.69314718055994530942), 0.0)


def asinh(x: Value) -> Value:
    a = x.abs()
    large = a > 2.0 ** (x.format.digits // 2 + 2)
    square = a * a
    u = where(large, a - 1.0, a + square / (1.0 + (1.0 + square).sqrt()))
    return _log1p_of_large(large, u).with_sign_of(x)


def acosh(x: Value) -> Value:
    t = x - 1.0
    large = x > 2.0 ** (x.format.digits // 2 + 2)
    u = where(large, t, t + fma(t, t, t + t).sqrt())
    return where(x < 1.0, NAN, _log1p_of_large(large, u))


def atanh(x: Value) -> Value:
    a = x.abs()
    return (0.5 * log1p((a + a) / (1.0 - a))).with_sign_of(x)


def pow(x: Value, y: Value) -> Value:
    if x.format.elem == "f64":
        return _power(x, y, _power_f64(x.abs(), y))
    x, y = x.wide(), y.wide()
    return _power(x, y, _power_f32(x.abs(), y)).narrow()


def _is_integer(a: Value) -> Value:
    """Of a >= 0: from 2**52 on every float64 is one."""
    unit = 2.0**52
    return ((a + unit) - unit).eq(a) | (a >= unit)


def _power(x: Value, y: Value, magnitude: Value) -> Value:
    """pow(x, y) in float64 from |x|**y for finite nonzero x and finite y."""
    a, b = x.abs(), y.abs()
    grows = (a > 1.0) ^ (y < 0.0)
    extreme = a.eq(0.0) | a.eq(INF) | b.eq(INF)
    result = where(extreme, where(grows, magnitude.like(INF), 0.0), magnitude)
    whole = _is_integer(b)
    odd = whole & ~_is_integer(b * 0.5)
    sign = where(odd, x.bits() & (1 << 63), x.bits().like(0))
    result = (result.bits() ^ sign).as_float()
    result = where((x < 0.0) & (x > -INF) & ~whole, NAN, result)
    result = where(x.is_nan() | y.is_nan(), NAN, result)
    return where(y.eq(0.0) | x.eq(1.0) | (a.eq(1.0) & b.eq(INF)), 1.0, result)


def _power_f32(a: Value, y: Value) -> Value:
    """a**y to float32 accuracy in float64, where nothing of it under- or overflows."""
    e, m = decomposed(a, subnormals=False)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    logarithm = fma(s * z, polynomial(z, c.LOG_ATANH_SHORT["f64"]), s + s)
    power = y * fma(logarithm, LOG2_E, e)
    power = at_least(at_most(power, 200.0), -200.0)
    n, t = round_to_integer(power, bias=power.format.bias)
    r = power - n
    return fma(r, polynomial(r, c.EXP2_SHORT["f64"]), 1.0) * power_of_two(t)


def _log_pair(a: Value) -> Pair:
    """log(a) to about 2**-66 relative: log((1+s)/(1-s)) = 2*s + s*z*(2/3 + z*r(z))."""
    e, m = decomposed(a)
    f = m - 1.0
    d = two_sum(m, m.like(1.0))
    inverse = 1.0 / d.high
    s = f * inverse
    quotient = two_product(s, d.high)
    remainder = fma(s, -d.low, (f - quotient.high) - quotient.low)
    s = fast_two_sum(s, remainder * inverse)
    z = multiply(s, s)
    third, third_low = split_constant("0." + "6" * 60 + "7", a.format)
    inner = z.high * polynomial(z.high, c.LOG_ATANH_TAIL["f64"])
    factor = fast_two_sum(s.high.like(third), inner)
    factor = Pair(factor.high, factor.low + fma(z.low, c.LOG_ATANH_TAIL["f64"][0], third_low))
    cubic = multiply(multiply(s, z), factor)
    fraction = add(Pair(s.high + s.high, s.low + s.low), cubic)
    high, low = ln2_parts(a)
    return add(Pair(e * high, e * low), fraction)


def _power_f64(a: Value, y: Value) -> Value:
    logarithm = _log_pair(a)
    product = two_product(y, logarithm.high)
    low = fma(y, logarithm.low, product.low)
    # Past the clamp the low word may be NaN, and no longer counts.
    low = where(product.high.abs() < 800.0, low, 0.0)
    return scaled_sum(*expm1_parts(at_least(at_most(product.high, 710.0), -746.0), low))
