"""libdevice: the functions of CUDA's mathematical library under their names, as far as scalar
functions and what can be composed of them give them. Most are in the files whose names begin like
this one's.

Functions that a float32 would lose digits in are computed in float64 and rounded once.
"""

from __future__ import annotations

from typing import Any

from tilewright.lang.tile.front.functions import constexpr_function, function
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.refusals import refused
from tilewright.lang.tile.library.libdevice_bessel import (
    cyl_bessel_i0,
    cyl_bessel_i1,
    j0,
    j1,
    y0,
    y1,
)
from tilewright.lang.tile.library.libdevice_bits import (
    brev,
    byte_perm,
    clz,
    double2hiint,
    double2loint,
    double_as_longlong,
    ffs,
    float_as_int,
    float_as_uint,
    hadd,
    hiloint2double,
    int_as_float,
    longlong_as_double,
    mul24,
    mulhi,
    popc,
    rcp64h,
    rhadd,
    sad,
    uint_as_float,
)
from tilewright.lang.tile.library.libdevice_map import mapped
from tilewright.lang.tile.library.libdevice_rounding import ROUNDED, to_int

abs, floor, ceil, fma = core.abs, core.floor, core.ceil, core.fma
trunc = mapped("trunc")
rint, nearbyint = mapped("round", "rint"), mapped("round", "nearbyint")
sqrt, rsqrt, rsqrt_rn = mapped("sqrt"), mapped("rsqrt"), mapped("rsqrt", "rsqrt_rn")
exp, exp2, expm1 = mapped("exp"), mapped("exp2"), mapped("expm1")
log, log2, log10, log1p = mapped("log"), mapped("log2"), mapped("log10"), mapped("log1p")
sin, cos, tan = mapped("sin"), mapped("cos"), mapped("tan")
asin, acos, atan, atan2 = mapped("asin"), mapped("acos"), mapped("atan"), mapped("atan2")
sinh, cosh, tanh = mapped("sinh"), mapped("cosh"), mapped("tanh")
asinh, acosh, atanh = mapped("asinh"), mapped("acosh"), mapped("atanh")
erf, erfc, erfinv = mapped("erf"), mapped("erfc"), mapped("erfinv")
lgamma = mapped("lgamma")
fmod, copysign, nextafter = mapped("rem", "fmod"), mapped("copysign"), mapped("nextafter")
_pow, _signbit = mapped("pow"), mapped("signbit")

# Fast functions may be as exact as the others.
fast_sinf, fast_cosf, fast_tanf, fast_tanhf = sin, cos, tan, tanh
fast_expf, fast_logf, fast_log2f, fast_log10f = exp, log, log2, log10
fast_dividef = core.fdiv

jn = refused("libdevice.jn", "Bessel functions of any order are not there", "j0 and j1 are")
yn = refused("libdevice.yn", "Bessel functions of any order are not there", "y0 and y1 are")


@constexpr_function
def _wide(dtype):
    return core.float64 if dtype == core.float32 else dtype


@function
def pow(x, y):
    """x to the power of y, which may be an integer."""
    x, y = core.to_tensor(x), core.to_tensor(y)
    if y.dtype.is_int():
        y = y.to(x.dtype)
    return _pow(x, y)


@function
def exp10(x):
    return _pow(core.full(x.shape, 10, x.dtype), x)


fast_exp10f, fast_powf = exp10, pow


@function
def saturatef(x):
    """Cut to [0, 1]; NaN is 0."""
    return core.where(x > 0, core.minimum(x, 1.0), 0.0)


# ---- kinds of numbers


@function
def isnan(x):
    return x != x


@function
def isinf(x):
    return core.abs(x) == float("inf")


@function
def finitef(x):
    return core.abs(x) < float("inf")


@function
def isfinited(x):
    return core.abs(x) < float("inf")


@function
def signbit(x):
    return _signbit(x).to(core.int32)


# ---- whole numbers, remainders, exponents


@function
def round(x):
    """To the nearest whole number, halves away from zero."""
    whole = trunc(x)
    return core.where(core.abs(x - whole) >= 0.5, whole + copysign(1.0, x), whole)


@function
def llrint(x):
    """The nearest int64, halves to even."""
    return to_int(x, core.int64, "rn")


@function
def llround(x):
    """The nearest int64, halves away from zero."""
    return to_int(round(x), core.int64, "rz")


@function
def remainder(x, y):
    """x less the multiple of y that is nearest to x / y, of two as near the even one."""
    divisor = core.abs(y)
    twice = divisor + divisor
    rest = core.where(twice < float("inf"), fmod(core.abs(x), twice), core.abs(x))
    # Both differences are exact where they decide.
    nearer = core.where(rest > divisor - rest, rest - divisor, rest)
    more = (rest > divisor - rest) & (nearer >= divisor - nearer)
    nearer = core.where(more, nearer - divisor, nearer)
    bad = (core.abs(x) == float("inf")) | (y == 0) | (x != x) | (y != y)
    return core.where(bad, float("nan"), nearer * copysign(1.0, x))


@function
def fdim(x, y):
    """x - y where that is positive, else 0."""
    return core.where(x <= y, 0.0, x - y)


@function
def _power_of_two(n):
    """2**n as float64, for exponents that it has as a normal number."""
    return ((n.to(core.int64) + 1023) << 52).to(core.float64, bitcast=True)


@function
def ldexp(x, n):
    """x · 2**n."""
    n = core.maximum(core.minimum(core.to_tensor(n).to(core.int32), 2200), -2200)
    y = x.to(core.float64)
    # In three steps, each of which is in range where the result is.
    third = n // 3
    y = y * _power_of_two(third) * _power_of_two(third)
    return (y * _power_of_two(n - third - third)).to(x.dtype)


scalbn = ldexp


@function
def _exponent(x):
    """The exponent of numbers that are neither 0 nor infinite nor NaN."""
    y = core.abs(x).to(core.float64)
    tiny = y < 2.2250738585072014e-308  # below the least normal one
    bits = core.where(tiny, y * 18014398509481984.0, y).to(core.int64, bitcast=True)
    return (bits >> 52).to(core.int32) - core.where(tiny, 1023 + 54, 1023)


@function
def ilogb(x):
    """The exponent as int32; of 0 and NaN the least one, of infinity the greatest."""
    least = core.full(x.shape, -2147483648, core.int32)
    greatest = core.full(x.shape, 2147483647, core.int32)
    special = core.where(core.abs(x) == float("inf"), greatest, least)
    return core.where((x == 0) | ~finitef(x), special, _exponent(x))


@function
def logb(x):
    """The exponent as a float."""
    exponent = _exponent(x).to(x.dtype)
    exponent = core.where(finitef(x), exponent, core.abs(x))
    return core.where(x == 0, float("-inf"), exponent)


# ---- roots and lengths


@function
def cbrt(x):
    y = core.abs(x).to(_wide(x.dtype))
    root = _pow(y, core.full(y.shape, 1 / 3, y.dtype))
    # One step of Newton's, for 1 / 3 is no float.
    plain = (y > 0) & (y < float("inf"))
    safe = core.where(plain, root, 1.0)
    root = core.where(plain, safe - (safe - y / (safe * safe)) / 3, root)
    return copysign(root.to(x.dtype), x)


@function
def rcbrt(x):
    return 1.0 / cbrt(x)


@function
def _length(a, b, c, d):
    """√(a² + b² + c² + d²) as float64, without overflow on the way; infinity wins over NaN."""
    a = core.abs(a.to(core.float64))
    b = core.abs(b.to(core.float64))
    c = core.abs(c.to(core.float64))
    d = core.abs(d.to(core.float64))
    infinite = ~((a != float("inf")) & (b != float("inf")))
    infinite = infinite | ~((c != float("inf")) & (d != float("inf")))
    most = core.maximum(core.maximum(a, b), core.maximum(c, d))
    scale = core.where((most > 0) & (most < float("inf")), most, 1.0)
    a = a / scale
    b = b / scale
    c = c / scale
    d = d / scale
    return core.where(infinite, float("inf"), scale * core.sqrt(a * a + b * b + c * c + d * d))


@function
def hypot(x, y):
    zero = core.full(x.shape, 0, x.dtype)
    return _length(x, y, zero, zero).to(x.dtype)


@function
def rhypot(x, y):
    zero = core.full(x.shape, 0, x.dtype)
    return (1.0 / _length(x, y, zero, zero)).to(x.dtype)


@function
def norm3d(x, y, z):
    return _length(x, y, z, core.full(x.shape, 0, x.dtype)).to(x.dtype)


@function
def rnorm3d(x, y, z):
    return (1.0 / _length(x, y, z, core.full(x.shape, 0, x.dtype))).to(x.dtype)


@function
def norm4d(x, y, z, w):
    return _length(x, y, z, w).to(x.dtype)


@function
def rnorm4d(x, y, z, w):
    return (1.0 / _length(x, y, z, w)).to(x.dtype)


# ---- multiples of π


@function
def _quarters(x):
    """x = n / 2 + rest with |rest| ≤ 1/4: n modulo 4, sin(π·rest), cos(π·rest)."""
    n = rint(x * 2.0)
    rest = (x - n * 0.5) * 3.141592653589793
    return n - 4.0 * core.floor(n * 0.25), sin(rest), cos(rest)


@function
def sinpi(x):
    """sin(π·x), exact at multiples of a half."""
    n, s, c = _quarters(x)
    value = core.where((n == 0) | (n == 2), s, c)
    return core.where(n >= 2, -value, value)


@function
def cospi(x):
    """cos(π·x), exact at multiples of a half."""
    n, s, c = _quarters(x)
    value = core.where((n == 0) | (n == 2), c, s)
    return core.where((n == 1) | (n == 2), -value, value)


# ---- around the error function and the gamma function

_ERFCX_TERMS = core.constexpr(12)


@function
def erfcx(x):
    """exp(x²)·erfc(x)."""
    y = x.to(core.float64)
    near = core.minimum(y, 10.0)
    square = near * near
    close = exp(square) * exp(core.fma(near, near, -square)) * erfc(near)
    far = core.maximum(y, 10.0)
    # 1 - 1/(2x²) + 1·3/(2x²)² - …, from its end.
    t = 0.5 / (far * far)
    series = core.full(y.shape, 1, core.float64)
    for k in core.static_range(_ERFCX_TERMS):
        series = 1.0 - series * t * (2 * (_ERFCX_TERMS - k) - 1)
    tail = series / (far * 1.772453850905516)
    return core.where(y > 10.0, tail, close).to(x.dtype)


@function
def erfcinv(x):
    """The inverse of erfc."""
    p = x.to(core.float64)
    inner = erfinv(1.0 - p)
    # Near the ends 1 - p has no digits left: start from a rational function and improve with erfc.
    tail = core.where(p < 1.0, p, 2.0 - p)
    tail = core.where((tail > 0.0) & (tail < 0.5), tail, 0.5)
    w = core.sqrt(-2.0 * core.log(tail * 0.5))
    y = (w - (2.30753 + 0.27061 * w) / (1.0 + (0.99229 + 0.04481 * w) * w)) * 0.7071067811865476
    for _ in core.static_range(3):
        error = erfc(y) - tail
        y = y + error / (1.1283791670955126 * core.exp(-y * y) - y * error)
    outer = core.where(p < 1.0, y, -y)
    middle = (p >= 0.5) & (p <= 1.5)
    at_end = (p == 0.0) | (p == 2.0)
    result = core.where(middle | at_end | ~((p > 0.0) & (p < 2.0)), inner, outer)
    return result.to(x.dtype)


@function
def normcdf(x):
    """The probability that a normal number is less than x."""
    return (0.5 * erfc(x.to(core.float64) * -0.7071067811865476)).to(x.dtype)


@function
def normcdfinv(x):
    """The inverse of normcdf."""
    return (-1.4142135623730951 * erfcinv(2.0 * x.to(core.float64))).to(x.dtype)


@function
def tgamma(x):
    """The gamma function."""
    y = x.to(core.float64)
    left = y < 0.5
    value = core.exp(lgamma(core.where(left, 1.0 - y, y)))
    reflected = 3.141592653589793 / (sinpi(y) * value)
    pole = (y < 0.0) & (y == core.floor(y))
    result = core.where(left, reflected, value)
    return core.where(pole, float("nan"), result).to(x.dtype)


def __getattr__(name: str) -> Any:
    """Functions with a direction of rounding, of which there are many."""
    if name not in ROUNDED:
        raise AttributeError(f"libdevice has no function {name}")
    return ROUNDED[name]


def __dir__() -> list[str]:
    return [*__all__, *ROUNDED]


__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "brev",
    "byte_perm",
    "cbrt",
    "ceil",
    "clz",
    "copysign",
    "cos",
    "cosh",
    "cospi",
    "cyl_bessel_i0",
    "cyl_bessel_i1",
    "double2hiint",
    "double2loint",
    "double_as_longlong",
    "erf",
    "erfc",
    "erfcinv",
    "erfcx",
    "erfinv",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "fast_cosf",
    "fast_dividef",
    "fast_exp10f",
    "fast_expf",
    "fast_log2f",
    "fast_log10f",
    "fast_logf",
    "fast_powf",
    "fast_sinf",
    "fast_tanf",
    "fast_tanhf",
    "fdim",
    "ffs",
    "finitef",
    "float_as_int",
    "float_as_uint",
    "floor",
    "fma",
    "fmod",
    "hadd",
    "hiloint2double",
    "hypot",
    "ilogb",
    "int_as_float",
    "isfinited",
    "isinf",
    "isnan",
    "j0",
    "j1",
    "jn",
    "ldexp",
    "lgamma",
    "llrint",
    "llround",
    "log",
    "log1p",
    "log2",
    "log10",
    "logb",
    "longlong_as_double",
    "mul24",
    "mulhi",
    "nearbyint",
    "nextafter",
    "norm3d",
    "norm4d",
    "normcdf",
    "normcdfinv",
    "popc",
    "pow",
    "rcbrt",
    "rcp64h",
    "remainder",
    "rhadd",
    "rhypot",
    "rint",
    "rnorm3d",
    "rnorm4d",
    "round",
    "rsqrt",
    "rsqrt_rn",
    "sad",
    "saturatef",
    "scalbn",
    "signbit",
    "sin",
    "sinh",
    "sinpi",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
    "uint_as_float",
    "y0",
    "y1",
    "yn",
]
