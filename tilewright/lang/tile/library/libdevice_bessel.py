"""libdevice's Bessel functions of orders 0 and 1, in float64: power series near zero, the
asymptotic series of Hankel beyond, each where the other loses its digits."""

from __future__ import annotations

from fractions import Fraction
from math import factorial
from typing import TYPE_CHECKING

from tilewright.lang.tile.front.functions import constexpr_function, function
from tilewright.lang.tile.language import core

if TYPE_CHECKING:
    from typing import Any as constexpr  # a constant may be any value of Python's
else:
    from tilewright.lang.tile.language.types import constexpr

_EULER = 0.5772156649015329
# Beyond these arguments terms of alternating sign cancel too much, or too many are needed.
_FAR_OSCILLATING = core.constexpr(12.0)
_FAR_GROWING = core.constexpr(20.0)


@constexpr_function
def _series(order, sign, terms):
    """signᵏ / (k!·(k + order)!): J and I over powers of x²/4, without (x/2)**order."""
    return tuple(
        float(Fraction(sign**k, factorial(k) * factorial(k + order))) for k in range(terms)
    )


def _harmonic(k: int) -> Fraction:
    return sum((Fraction(1, j) for j in range(1, k + 1)), Fraction(0))


@constexpr_function
def _second_series(order, terms):
    """What Y adds to its logarithm times J, over the same powers, up to a factor."""
    return tuple(
        float(Fraction((-1) ** k, factorial(k) * factorial(k + order)))
        * float(_harmonic(k) + _harmonic(k + order) - 2 * Fraction(_EULER))
        for k in range(terms)
    )


def _hankel(order: int, k: int) -> Fraction:
    value = Fraction(1)
    for j in range(1, k + 1):
        value *= Fraction(4 * order * order - (2 * j - 1) ** 2, 8 * j)
    return value


@constexpr_function
def _hankel_even(order, terms):
    return tuple(float((-1) ** k * _hankel(order, 2 * k)) for k in range(terms))


@constexpr_function
def _hankel_odd(order, terms):
    return tuple(float((-1) ** k * _hankel(order, 2 * k + 1)) for k in range(terms))


@constexpr_function
def _hankel_growing(order, terms):
    return tuple(float((-1) ** k * _hankel(order, k)) for k in range(terms))


@function
def _polynomial(x, coefficients: constexpr):
    value = core.full(x.shape, coefficients[-1], x.dtype)
    for k in core.static_range(1, len(coefficients)):
        value = value * x + coefficients[len(coefficients) - 1 - k]
    return value


@function
def _far(x, order: constexpr):
    """√(2/πx)·P, √(2/πx)·Q, and the cosine and sine of x - (2·order + 1)·π/4."""
    t = 1.0 / x
    scale = core.sqrt(t * 0.6366197723675814)
    p = scale * _polynomial(t * t, _hankel_even(order, 10))
    q = scale * t * _polynomial(t * t, _hankel_odd(order, 10))
    # Angle differences: subtracting from a large x first would lose digits.
    c = core.cos(x)
    s = core.sin(x)
    if order == 0:
        return p, q, (c + s) * 0.7071067811865476, (s - c) * 0.7071067811865476
    else:
        return p, q, (s - c) * 0.7071067811865476, (c + s) * -0.7071067811865476


@function
def _first(x, order: constexpr):
    """J of arguments that are not negative, as float64."""
    near = core.minimum(x, _FAR_OSCILLATING)
    close = _polynomial(near * near * 0.25, _series(order, -1, 36))
    if order == 1:
        close = close * near * 0.5
    p, q, c, s = _far(core.maximum(x, _FAR_OSCILLATING), order)
    value = core.where(x < _FAR_OSCILLATING, close, p * c - q * s)
    value = core.where(x == float("inf"), 0.0, value)
    return core.where(x != x, x, value)


@function
def _second(x, order: constexpr):
    """Y as float64; of negative arguments NaN, of 0 minus infinity."""
    near = core.minimum(x, _FAR_OSCILLATING)
    square = near * near * 0.25
    logarithm = core.log(near * 0.5) * 2.0
    if order == 0:
        j = _polynomial(square, _series(0, -1, 36))
        close = (logarithm * j - _polynomial(square, _second_series(0, 36))) * 0.3183098861837907
    else:
        j = _polynomial(square, _series(1, -1, 36)) * near * 0.5
        rest = _polynomial(square, _second_series(1, 36)) * near * 0.5
        close = (logarithm * j - rest - 2.0 / near) * 0.3183098861837907
    p, q, c, s = _far(core.maximum(x, _FAR_OSCILLATING), order)
    value = core.where(x < _FAR_OSCILLATING, close, p * s + q * c)
    value = core.where(x == float("inf"), 0.0, value)
    value = core.where(x == 0, float("-inf"), value)
    return core.where(x >= 0, value, float("nan"))


@function
def _growing(x, order: constexpr):
    """I of arguments that are not negative, as float64."""
    near = core.minimum(x, _FAR_GROWING)
    close = _polynomial(near * near * 0.25, _series(order, 1, 50))
    if order == 1:
        close = close * near * 0.5
    far = core.maximum(x, _FAR_GROWING)
    t = 1.0 / far
    # In two factors: exp alone would overflow a little earlier than the whole.
    half = core.exp(far * 0.5)
    tail = half * (half * core.sqrt(t * 0.15915494309189535))
    tail = tail * _polynomial(t, _hankel_growing(order, 24))
    value = core.where(x < _FAR_GROWING, close, tail)
    return core.where(x != x, x, value)


@function
def j0(x):
    """Of the first kind, order 0."""
    return _first(core.abs(x).to(core.float64), 0).to(x.dtype)


@function
def j1(x):
    """Of the first kind, order 1."""
    value = _first(core.abs(x).to(core.float64), 1)
    return core.where(x < 0, -value, value).to(x.dtype)


@function
def y0(x):
    """Of the second kind, order 0."""
    return _second(x.to(core.float64), 0).to(x.dtype)


@function
def y1(x):
    """Of the second kind, order 1."""
    return _second(x.to(core.float64), 1).to(x.dtype)


@function
def cyl_bessel_i0(x):
    """Modified, of the first kind, order 0."""
    return _growing(core.abs(x).to(core.float64), 0).to(x.dtype)


@function
def cyl_bessel_i1(x):
    """Modified, of the first kind, order 1."""
    value = _growing(core.abs(x).to(core.float64), 1)
    return core.where(x < 0, -value, value).to(x.dtype)
