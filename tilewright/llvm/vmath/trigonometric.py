"""sin, cos, tan, asin, acos, atan, atan2.

|x| = n*(pi/2) + r with |r| <= pi/4. From moderate arguments n times pi/2 is subtracted in parts;
should a lane exceed that range, all lanes go through `reduction.py`, good for every argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.llvm.vmath import coefficients as c
from tilewright.llvm.vmath.builder import (
    INF,
    Value,
    Values,
    fma,
    polynomial,
    round_to_integer,
    where,
)
from tilewright.llvm.vmath.double_word import (
    fast_two_sum,
    split_constant,
    split_constant_in,
    two_sum,
)
from tilewright.llvm.vmath.reduction import PI_HALVES, reduce_any

_TWO_OVER_PI = 0.63661977236758134308
_PI_QUARTERS = "0.785398163397448309615660845819875721049292349843776455243736148076954102"

# Where the parts of pi/2 below still leave a remainder correct to the last bit.
_LIMITS = {"f32": 1.0e5, "f64": 1.0e6}


@dataclass(frozen=True, eq=False)
class Angle:
    """high + low in [-pi/4, pi/4], and the number of quarter turns in the low bits of `turns`."""

    high: Value
    low: Value | None
    turns: Value


def _reduced(a: Value) -> Angle:
    """The angle of a >= 0."""
    n, t = round_to_integer(a, _TWO_OVER_PI)
    usual = _subtract_f32(a, n) if a.format.elem == "f32" else _subtract_f64(a, n)
    large = a > _LIMITS[a.format.elem]

    def rare() -> Values:
        return tuple(where(large, r, u) for r, u in zip(reduce_any(a), (t, *usual), strict=True))

    turns, high, *low = a.builder.if_any(large, (t, *usual), rare)
    return Angle(high, low[0] if low else None, turns)


def _subtract_f32(a: Value, n: Value) -> Values:
    """a - n*pi/2. The first difference is exact, and so is the second where much cancels."""
    if a.builder.fma:
        for part in split_constant_in(PI_HALVES, a.format, [24, 24, 24]):
            a = fma(n, -part, a)
        return (a,)
    n = n.wide()
    first, second = split_constant_in(PI_HALVES, n.format, [33, 53])
    return (((a.wide() - n * first) - n * second).narrow(),)


def _subtract_f64(a: Value, n: Value) -> Values:
    if a.builder.fma:
        first, second, third = split_constant_in(PI_HALVES, a.format, [53, 53, 53])
        r = fma(n, -first, a)
        high = fma(n, -second, r)
        low = fma(n, -third, fma(n, -second, r - high))
    else:
        # 33 bits: the products with n, which has 20, are exact.
        first, second, third, fourth = split_constant_in(PI_HALVES, a.format, [33, 33, 33, 53])
        one = two_sum(a - n * first, n * -second)
        two = two_sum(one.high, n * -third)
        high, low = two.high, one.low + two.low - n * fourth
    total = fast_two_sum(high, low)
    return total.high, total.low


def _sine(angle: Angle) -> Value:
    r, elem = angle.high, angle.high.format.elem
    z = r * r
    rest = r * z * polynomial(z, c.SIN[elem])
    if angle.low is not None:
        rest = rest + fma(z * -0.5, angle.low, angle.low)
    return r + rest


def _cosine(angle: Angle) -> Value:
    r, elem = angle.high, angle.high.format.elem
    z = r * r
    half = 0.5 * z
    base = 1.0 - half
    rest = z * z * polynomial(z, c.COS[elem])
    if angle.low is not None:
        # What rounding took from 1 - z/2, and the sine times the low word.
        rest = ((1.0 - base) - half) + (rest - r * angle.low)
    return base + rest


def _turned(angle: Angle, turns: Value, sign: Value | None) -> Value:
    """sin(angle + turns*pi/2), its sign flipped where the sign bit of `sign` is set."""
    form = angle.high.format
    even = (turns & 1).eq(0)
    result = where(even, _sine(angle), _cosine(angle))
    to_sign_bit = form.sign_bit.bit_length() - 2
    flip = (turns << to_sign_bit) & form.sign_bit
    if sign is not None:
        flip = flip ^ (sign.bits() & form.sign_bit)
    return (result.bits() ^ flip).as_float()


def sin(x: Value) -> Value:
    angle = _reduced(x.abs())
    return _turned(angle, angle.turns, x)


def cos(x: Value) -> Value:
    angle = _reduced(x.abs())
    return _turned(angle, angle.turns + 1, None)


def tan(x: Value) -> Value:
    angle = _reduced(x.abs())
    even = (angle.turns & 1).eq(0)
    if x.format.elem == "f32":
        r = angle.high
        z = r * r
        tangent = fma(r * z, polynomial(z, c.TAN["f32"]), r)
        ratio = where(even, tangent, -1.0) / where(even, 1.0, tangent)
    else:
        sine, cosine = _sine(angle), _cosine(angle)
        ratio = where(even, sine, -cosine) / where(even, cosine, sine)
    return (ratio.bits() ^ (x.bits() & x.format.sign_bit)).as_float()


def _asin_rest(a: Value, z: Value) -> Value:
    """asin(a) - a for a = sqrt(z) <= 1/2."""
    return a * z * polynomial(z, c.ASIN[a.format.elem])


def asin(x: Value) -> Value:
    # asin(a) = pi/2 - 2*asin(sqrt((1-a)/2)) brings a > 1/2 below 1/2.
    a = x.abs()
    folded = a > 0.5
    z = where(folded, 0.5 - 0.5 * a, a * a)
    s = where(folded, z.sqrt(), a)
    rest = _asin_rest(s, z)
    high, low = split_constant(PI_HALVES, x.format)
    large = high - ((s + s) - (low - (rest + rest)))
    return where(folded, large, s + rest).with_sign_of(x)


def acos(x: Value) -> Value:
    a = x.abs()
    folded = a > 0.5
    z = where(folded, 0.5 - 0.5 * a, a * a)
    s = where(folded, z.sqrt(), a)
    rest = _asin_rest(s, z)
    high, low = split_constant(PI_HALVES, x.format)
    negative = x < 0.0
    near_one = s + s + (rest + rest)
    near_minus_one = 2.0 * high - (near_one - 2.0 * low)
    signed, signed_rest = s.with_sign_of(x), rest.with_sign_of(x)
    middle = high - (signed - (low - signed_rest))
    return where(folded, where(negative, near_minus_one, near_one), middle)


def _atan_rest(t: Value) -> Value:
    """atan(t) - t for |t| <= tan(pi/8)."""
    z = t * t
    return t * z * polynomial(z, c.ATAN[t.format.elem])


_TAN_PI_EIGHTH = 0.41421356237309504880


def atan(x: Value) -> Value:
    a = x.abs()
    far = a > 1.0 / _TAN_PI_EIGHTH
    middle = a > _TAN_PI_EIGHTH
    top = where(far, -1.0, where(middle, a - 1.0, a))
    bottom = where(far, a, where(middle, a + 1.0, 1.0))
    t = top / bottom
    high, low = split_constant(PI_HALVES, x.format)
    base = where(far, x.like(high), where(middle, x.like(high / 2), 0.0))
    base_low = where(far, x.like(low), where(middle, x.like(low / 2), 0.0))
    return (base + (t + (_atan_rest(t) + base_low))).with_sign_of(x)


def atan2(y: Value, x: Value) -> Value:
    form = x.format
    ax, ay = x.abs(), y.abs()
    steep = ay > ax
    small, large = where(steep, ax, ay), where(steep, ay, ax)
    # 0/0 counts as 0 and inf/inf as 1.
    both = (ax.eq(INF)) & (ay.eq(INF))
    small = where(both, 1.0, small)
    large = where(both | large.eq(0.0), 1.0, large)
    middle = small > large * _TAN_PI_EIGHTH
    # Halved against overflow of the sum; not where that could cost bits of a subnormal.
    factor = where(large > 1.0, large.like(0.5), 1.0)
    p, q = small * factor, large * factor
    t = where(middle, p - q, small) / where(middle, p + q, large)
    # The angle is a multiple of pi/4 plus or minus atan(t).
    negative = x.bits() < 0
    quarters = where(middle, t.like(1.0), 0.0)
    quarters = where(steep, 2.0 - quarters, quarters)
    quarters = where(negative, 4.0 - quarters, quarters)
    flip = where(steep ^ negative, x.bits().like(form.sign_bit), 0)
    t = (t.bits() ^ flip).as_float()
    # Three bits spare: the multiple of the high word is exact.
    high, low = split_constant(_PI_QUARTERS, form, form.digits - 3)
    angle = fma(quarters, high, t + (_atan_rest(t) + quarters * low))
    return angle.with_sign_of(y)
