"""The incomplete gamma functions and Hurwitz's zeta function, composed in float64.

As the other special functions (`aten_special.py`) they are good to about ten digits: enough for a
float32 result, so double precision is left to eager.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tilewright import ops
from tilewright.capture.torch.aten_special import bernoulli, double
from tilewright.capture.torch.context import Context, Operand, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, constant
from tilewright.ir.types import DType, f64

# Series and fraction take as many steps as a first argument up to LARGE needs; beyond, the
# integrand is close to a bell, and a few points of a quadrature are enough.
STEPS, LARGE, POINTS = 48, 32.0, 32


def _result(c: Context) -> DType:
    out = c.out().dtype
    if out is f64:
        raise Untranslated("it has no native form in double precision")
    return out


def _series(a: Node, x: Node) -> Node:
    """Σ x^k / ((a + 1) … (a + k))."""
    term = total = double(1)
    for k in range(1, STEPS):
        term = ops.mul(term, ops.div(x, ops.add(a, double(k))))
        total = ops.add(total, term)
    return total


def _fraction(a: Node, x: Node) -> Node:
    """Legendre's continued fraction of Γ(a, x) x^-a e^x, from the inside out."""
    behind = ops.sub(x, a)
    out = ops.add(behind, double(2 * STEPS + 1))
    for k in range(STEPS, 0, -1):
        numerator = ops.mul(double(k), ops.sub(double(k), a))
        out = ops.sub(ops.add(behind, double(2 * k - 1)), ops.div(numerator, out))
    return ops.reciprocal(out)


def _bell(a: Node, x: Node) -> Node:
    """For large a: the part of the integral on the far side of x, seen from the maximum."""
    points, weights = np.polynomial.legendre.leggauss(POINTS)
    top = ops.sub(a, double(1))
    width = ops.sqrt(top)
    beyond = ops.maximum(
        ops.add(top, ops.mul(width, double(11.5))), ops.add(x, ops.mul(width, double(6)))
    )
    before = ops.minimum(
        ops.sub(top, ops.mul(width, double(7.5))), ops.sub(x, ops.mul(width, double(5)))
    )
    end = ops.where(ops.gt(x, top), beyond, ops.maximum(before, double(0)))
    length = ops.sub(end, x)
    last = a.rank
    shape: tuple[Dim, ...] = (*x.shape, 1)
    share = constant((points + 1) / 2, f64)
    # The exponent is small: distances from the maximum are never differences of large numbers.
    away = ops.add(ops.reshape(ops.sub(x, top), shape), ops.mul(ops.reshape(length, shape), share))
    top = ops.reshape(top, shape)
    power = ops.sub(ops.mul(ops.log1p(ops.div(away, top)), top), away)
    terms = ops.mul(ops.exp(power), constant(weights / 2, f64))
    total = ops.mul(ops.sum(terms, (last,)), ops.abs(length))
    # top^top e^-top / Γ(a), by Stirling's series.
    inverse = ops.reciprocal(ops.reshape(top, x.shape))
    coefficients = (1 / 12, -1 / 360, 1 / 1260)
    square = ops.mul(inverse, inverse)
    rest = double(coefficients[-1])
    for k in coefficients[-2::-1]:
        rest = ops.add(ops.mul(rest, square), double(k))
    scale = ops.sqrt(ops.mul(inverse, double(0.5 / math.pi)))
    return ops.mul(total, ops.mul(scale, ops.exp(ops.neg(ops.mul(rest, inverse)))))


def _incomplete(a: Node, x: Node, upper: bool) -> Node:
    one, zero, inf = double(1), double(0), double(math.inf)
    near = ops.lt(x, ops.add(a, one))
    power = ops.sub(ops.mul(a, ops.log(x)), x)
    lower = ops.mul(ops.exp(ops.sub(power, ops.lgamma(ops.add(a, one)))), _series(a, x))
    higher = ops.mul(ops.exp(ops.sub(power, ops.lgamma(a))), _fraction(a, x))
    many = ops.ge(a, double(LARGE))
    bell = _bell(ops.maximum(a, double(LARGE)), x)
    # Each way gives the smaller part of the whole, or nearly so: the other one is the rest.
    low = ops.where(many, ops.le(x, ops.sub(a, one)), near)
    part = ops.where(many, bell, ops.where(near, lower, higher))
    rest = ops.sub(one, part)
    out = ops.where(low, rest, part) if upper else ops.where(low, part, rest)
    all_of_it, none = (zero, one) if upper else (one, zero)
    out = ops.where(ops.eq(x, zero), none, out)
    out = ops.where(ops.logical_or(ops.eq(a, zero), ops.eq(x, inf)), all_of_it, out)
    out = ops.where(ops.eq(a, inf), none, out)
    both = ops.logical_or(
        ops.logical_and(ops.eq(a, zero), ops.eq(x, zero)),
        ops.logical_and(ops.eq(a, inf), ops.eq(x, inf)),
    )
    outside = ops.logical_or(ops.lt(a, zero), ops.lt(x, zero))
    unknown = ops.logical_or(ops.isnan(a), ops.isnan(x))
    wrong = ops.logical_or(ops.logical_or(both, outside), unknown)
    return ops.where(wrong, double(math.nan), out)


@aten("igamma.default", "special_gammainc.default")
def igamma(c: Context, a: Operand, x: Operand) -> Node:
    return _of_both(c, a, x, upper=False)


@aten("igammac.default", "special_gammaincc.default")
def igammac(c: Context, a: Operand, x: Operand) -> Node:
    return _of_both(c, a, x, upper=True)


def _of_both(c: Context, a: Operand, x: Operand, upper: bool) -> Node:
    out, shape = _result(c), c.out().shape
    first, second = (ops.expand(c.node(v, f64), shape) for v in (a, x))
    return cast(_incomplete(first, second, upper), out)


# ---- zeta

TERMS = 10


def _zeta(s: Node, q: Node) -> Node:
    """Σ (q + k)^-s for q > 0: ten terms, then the Euler-Maclaurin remainder."""
    power = ops.neg(s)
    total = ops.pow(q, power)
    for k in range(1, TERMS):
        total = ops.add(total, ops.pow(ops.add(q, double(k)), power))
    a = ops.add(q, double(TERMS))
    last = ops.pow(a, power)
    total = ops.add(total, ops.div(ops.mul(last, a), ops.sub(s, double(1))))
    total = ops.add(total, ops.mul(last, double(0.5)))
    inverse = ops.reciprocal(a)
    square = ops.mul(inverse, inverse)
    term = ops.mul(ops.mul(last, inverse), s)
    for j, b in enumerate(bernoulli(10), start=1):
        factor = float(b / Fraction(math.factorial(2 * j)))
        total = ops.add(total, ops.mul(term, double(factor)))
        rising = ops.mul(ops.add(s, double(2 * j - 1)), ops.add(s, double(2 * j)))
        term = ops.mul(ops.mul(term, rising), square)
    return total


@aten("special_zeta", "prims.zeta.default")
def zeta(c: Context, s: Operand, q: Operand) -> Node:
    out = _result(c)
    x, at = c.node(s, f64), c.node(q, f64)
    one, zero = double(1), double(0)
    # Below zero: the terms up to the first positive place are those of a sum in the other
    # direction, with the sign that a whole power has.
    low = ops.le(at, zero)
    steps = ops.where(low, ops.sub(one, ops.ceil(at)), zero)
    first = ops.add(at, steps)
    mirror = ops.where(low, ops.sub(one, first), one)
    left = ops.sub(_zeta(x, mirror), _zeta(x, ops.add(mirror, steps)))
    odd = ops.ne(ops.mod(x, double(2)), zero)
    left = ops.where(odd, ops.neg(left), left)
    value = ops.add(_zeta(x, first), ops.where(low, left, zero))
    whole = ops.eq(at, ops.floor(at))
    value = ops.where(ops.logical_and(low, ops.ne(x, ops.floor(x))), double(math.nan), value)
    value = ops.where(ops.logical_and(low, whole), double(math.inf), value)
    value = ops.where(ops.lt(x, one), double(math.nan), value)
    value = ops.where(ops.eq(x, one), double(math.inf), value)
    unknown = ops.logical_or(ops.isnan(x), ops.isnan(at))
    return cast(ops.where(unknown, double(math.nan), value), out)
