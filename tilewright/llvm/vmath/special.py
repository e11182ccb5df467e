"""erf, erfc, erfinv, lgamma, digamma.

lgamma and digamma of float32 are computed in float64. Near the zeros of either on the negative axis
only the absolute error is small: there the result is a difference of larger terms.
"""

from __future__ import annotations

from tilewright.llvm.vmath import coefficients as c
from tilewright.llvm.vmath.builder import (
    INF,
    NAN,
    Value,
    at_most,
    corrective,
    fma,
    polynomial,
    power_of_two,
    where,
)
from tilewright.llvm.vmath.double_word import split_constant, two_product
from tilewright.llvm.vmath.exponential import expm1_parts, fall_parts, scaled
from tilewright.llvm.vmath.logarithm import log

_DIGAMMA_ZERO = "1.46163214496836234126265954232572132846819620400644629512959840859878"

# From here on 1 - erf rounds to zero, and erfc itself does.
_ERF_SATURATES = {"f32": 4.0, "f64": 6.0}
_ERFC_VANISHES = {"f32": 10.15, "f64": 27.3}


def _erf_small(a: Value) -> Value:
    """erf(a) for 0 <= a <= 1."""
    return fma(a, polynomial(a * a, c.ERF[a.format.elem]), a)


def _erfc_large(a: Value) -> Value:
    """erfc(a) for a >= 0.45 below where it vanishes: exp(-a*a) times a smooth function."""
    t = (a - 4.0) / (a + 4.0)
    table = c.ERFCX["f32"] if a.format.elem == "f32" else c.ERFCX_WIDE["f64"]
    smooth = polynomial(t, table) / fma(a, 2.0, 1.0)
    square = two_product(a, a)
    p, t = expm1_parts(-square.high, -square.low)
    return scaled(fma(p, smooth, smooth), t)


def erf(x: Value) -> Value:
    a, f = x.abs(), x.format
    clamped = at_most(a, _ERF_SATURATES[f.elem])
    if f.elem == "f64":
        result = where(a < 1.0, _erf_small(a), 1.0 - _erfc_large(clamped))
        return result.with_sign_of(x)
    # 1 - exp(-y) with a smooth y: one formula for all arguments.
    y = fma(clamped, corrective(clamped, c.ERF_FALL["f32"], clamped * clamped), clamped)
    p, t = fall_parts(y, c.EXPM1, f.bias)
    scale = power_of_two(t)
    return fma(scale, p, 1.0 - scale).with_sign_of(x)


def erfc(x: Value) -> Value:
    a = x.abs()
    small = _erf_small(a).with_sign_of(x)
    complement = _erfc_large(at_most(a, _ERFC_VANISHES[x.format.elem]))
    large = where(x < 0.0, 2.0 - complement, complement)
    return where(a < 0.75, 1.0 - small, large)


def erfinv(x: Value) -> Value:
    """Smooth in w = -log(1 - x*x) for most x and in sqrt(w) for those near 1."""
    w = -log((1.0 - x) * (1.0 + x))
    v = w.sqrt()
    if x.format.elem == "f32":
        near = polynomial(w - 1.0, c.ERFINV_SHORT["f32"])
        ratio = where(w < 5.0, near, polynomial(v - 2.6, c.ERFINV_SHORT_TAIL["f32"]))
    else:
        near = polynomial(w - 1.0, c.ERFINV["f64"])
        middle = polynomial(v - 2.75, c.ERFINV_TAIL["f64"])
        far = polynomial(v - 4.5, c.ERFINV_FAR["f64"])
        ratio = where(v < 2.5, near, where(v < 4.0, middle, far))
    return where(x.abs().eq(1.0), x * INF, x * ratio)


def _in_float64(x: Value) -> tuple[Value, bool]:
    return (x.wide(), True) if x.format.elem == "f32" else (x, False)


def _fraction(a: Value) -> Value:
    """a minus the nearest integer, for a >= 0; from 2**52 on every float64 is one."""
    whole = (a + 2.0**52) - 2.0**52
    return where(a < 2.0**52, a - whole, 0.0)


def _sine_over_pi(r: Value) -> Value:
    """sin(pi*r) / pi for |r| <= 1/2."""
    z = r * r
    return fma(r * z, polynomial(z, c.SINPI["f64"]), r)


# Closer to zero than this, lgamma(x) is -log|x| and digamma(x) is -1/x.
_TINY = 2.0**-60


def lgamma(x: Value) -> Value:
    x, single = _in_float64(x)
    a = x.abs()
    positive = _lgamma_positive(a)

    def reflected() -> tuple[Value]:
        """log(pi / (a * |sin(pi*a)|)) - lgamma(a)."""
        sine = _sine_over_pi(_fraction(a)).abs()
        value = -log(a * sine) - positive
        # A pole at every integer, and every number is one from 2^52 on.
        value = where(sine.eq(0.0), INF, where(a.eq(INF), INF, value))
        value = where(a < _TINY, positive, value)
        return (where(x < 0.0, value, positive),)

    (result,) = x.builder.if_any(x < 0.0, (positive,), reflected)
    return result.narrow() if single else result


def _lgamma_positive(a: Value) -> Value:
    """Stirling's series from 8 on, below it lgamma(2+y) with |y| <= 1/2 and the recurrence."""
    large, below_half, below_three_halves = a >= 8.0, a < 0.5, a < 1.5
    t, product = a, a.like(1.0)
    for _ in range(6):
        high = t >= 2.5
        t = where(high, t - 1.0, t)
        product = where(high, product * t, product)
    y = where(below_half, a, where(below_three_halves, a - 1.0, t - 2.0))
    argument = where(large, a, where(below_three_halves, a, product))
    argument = where(below_half, fma(a, a, a), argument)
    logarithm = log(argument)
    signed = where(below_three_halves, -logarithm, logarithm)
    small = fma(y, polynomial(y, c.LGAMMA["f64"]), signed)
    inverse = 1.0 / a
    rest = inverse * polynomial(inverse * inverse, c.STIRLING["f64"])
    series = fma(a - 0.5, logarithm - 1.0, rest + (0.91893853320467274178 - 0.5))
    return where(large, series, small)


def digamma(x: Value) -> Value:
    x, single = _in_float64(x)
    a = x.abs()
    positive = _digamma_positive(a)

    def reflected() -> tuple[Value]:
        """digamma(a) + 1/a + pi / tan(pi*a)."""
        r = _fraction(a)
        z = r * r
        cosine = fma(z, polynomial(z, c.COSPI["f64"]), 1.0)
        sine = _sine_over_pi(r)
        value = positive + (1.0 / a + cosine / sine)
        value = where(a < _TINY, 1.0 / a, where(sine.eq(0.0), NAN, value))
        return (where(x < 0.0, value, positive),)

    (result,) = x.builder.if_any(x < 0.0, (positive,), reflected)
    result = where(x.eq(0.0), result.like(-INF).with_sign_of(-x), result)
    return result.narrow() if single else result


def _digamma_positive(a: Value) -> Value:
    """The asymptotic series from 8 on, below it a polynomial on [1, 2] and the recurrence."""
    large = a >= 8.0
    below_one = a < 1.0
    # The reciprocals that the recurrence adds, as one fraction.
    top = where(below_one, a.like(-1.0), 0.0)
    bottom = where(below_one, a, 1.0)
    t = where(below_one, a + 1.0, a)
    for _ in range(6):
        high = t >= 2.0
        t = where(high, t - 1.0, t)
        top = where(high, fma(top, t, bottom), top)
        bottom = where(high, bottom * t, bottom)
    zero_high, zero_low = split_constant(_DIGAMMA_ZERO, a.format)
    from_zero = (t - zero_high) - zero_low
    small = fma(from_zero, polynomial(t - 1.5, c.DIGAMMA["f64"]), top / bottom)
    inverse = 1.0 / a
    w = inverse * inverse
    series = log(a) - fma(w, polynomial(w, c.DIGAMMA_TAIL["f64"]), inverse * 0.5)
    return where(large, series, small)
