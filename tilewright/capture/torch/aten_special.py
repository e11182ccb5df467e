"""Special functions, composed in float64 from series whose coefficients are computed here.

Each is a power series near the origin and an asymptotic series beyond, joined where both are good
to about ten digits: enough for a float32 result, so double precision is left to eager.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from tilewright import ops
from tilewright.capture.torch.context import Context, Operand, cast
from tilewright.capture.torch.promote import as_float
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import f64, i32

EULER = 0.57721566490153286
TERMS = 48


def double(value: float) -> Node:
    return ops.full((), value, f64)


def _horner(coefficients: Sequence[float], z: Node) -> Node:
    """c0 + c1 z + c2 z² + …"""
    out = double(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = ops.add(ops.mul(out, z), double(c))
    return out


def _apply(c: Context, x: Node, fn: Callable[[Node], Node]) -> Node:
    """`fn` in float64, rounded to the operand's own float."""
    out = as_float(x.dtype)
    if out is f64:
        raise Untranslated("it has no native form in double precision")
    return cast(fn(ops.cast(x, f64)), out)


# ---- Bessel functions


def _factorials(
    order: int, sign: int, weight: Callable[[int], float] = lambda k: 1.0
) -> list[float]:
    """weight(k) * sign^k / (k! (k + order)!): the power series in z = x²/4."""
    return [
        weight(k) * sign**k / (math.factorial(k) * math.factorial(k + order)) for k in range(TERMS)
    ]


def _harmonic(k: int) -> float:
    return float(sum(Fraction(1, j) for j in range(1, k + 1)))


def _psi_sum(k: int) -> float:
    """digamma(k + 1) + digamma(k + 2)."""
    return _harmonic(k) + _harmonic(k + 1) - 2 * EULER


def _hankel(order: int, count: int) -> list[float]:
    """a_k of the asymptotic series in 1/x."""
    out, a = [], Fraction(1)
    for k in range(count):
        out.append(float(a))
        a = a * (4 * order * order - (2 * k + 1) ** 2) / (8 * (k + 1))
    return out


def _quarter_square(x: Node) -> Node:
    return ops.mul(ops.mul(x, x), double(0.25))


def _wave(x: Node, order: int) -> tuple[Node, Node]:
    """(J, Y) for large positive x."""
    a = _hankel(order, 20)
    inverse = ops.reciprocal(x)
    square = ops.mul(inverse, inverse)
    p = _horner([(-1) ** k * a[2 * k] for k in range(10)], square)
    q = ops.mul(_horner([(-1) ** k * a[2 * k + 1] for k in range(10)], square), inverse)
    phase = ops.sub(x, double((order / 2 + 0.25) * math.pi))
    cos, sin = ops.cos(phase), ops.sin(phase)
    size = ops.sqrt(ops.mul(inverse, double(2 / math.pi)))
    j = ops.mul(size, ops.sub(ops.mul(p, cos), ops.mul(q, sin)))
    y = ops.mul(size, ops.add(ops.mul(p, sin), ops.mul(q, cos)))
    return j, y


def _joined(x: Node, at: float, near: Callable[[Node], Node], far: Callable[[Node], Node]) -> Node:
    """Each series gets only arguments in the range where it is accurate."""
    edge = double(at)
    inner, outer = near(ops.minimum(x, edge)), far(ops.maximum(x, edge))
    return ops.where(ops.isnan(x), x, ops.where(ops.lt(x, edge), inner, outer))


WAVE_EDGE = 12.0


def _j_series(x: Node, order: int) -> Node:
    series = _horner(_factorials(order, -1), _quarter_square(x))
    return series if order == 0 else ops.mul(series, ops.mul(x, double(0.5)))


@aten("special_bessel_j0.default")
def bessel_j0(c: Context, x: Node) -> Node:
    def j0(v: Node) -> Node:
        a = ops.abs(v)
        return _joined(a, WAVE_EDGE, lambda t: _j_series(t, 0), lambda t: _wave(t, 0)[0])

    return _apply(c, x, j0)


@aten("special_bessel_j1.default")
def bessel_j1(c: Context, x: Node) -> Node:
    def j1(v: Node) -> Node:
        a = ops.abs(v)
        out = _joined(a, WAVE_EDGE, lambda t: _j_series(t, 1), lambda t: _wave(t, 1)[0])
        return ops.where(ops.lt(v, double(0)), ops.neg(out), out)

    return _apply(c, x, j1)


def _log_half(x: Node) -> Node:
    return ops.log(ops.mul(x, double(0.5)))


def _positive(v: Node, out: Node, at_zero: float) -> Node:
    """NaN below zero, a pole at it."""
    out = ops.where(ops.eq(v, double(0)), double(at_zero), out)
    return ops.where(ops.lt(v, double(0)), double(math.nan), out)


@aten("special_bessel_y0.default")
def bessel_y0(c: Context, x: Node) -> Node:
    def near(t: Node) -> Node:
        z = _quarter_square(t)
        head = ops.mul(ops.add(_log_half(t), double(EULER)), _j_series(t, 0))
        return ops.mul(
            ops.sub(head, _horner(_factorials(0, -1, _harmonic), z)), double(2 / math.pi)
        )

    return _apply(
        c,
        x,
        lambda v: _positive(v, _joined(v, WAVE_EDGE, near, lambda t: _wave(t, 0)[1]), -math.inf),
    )


@aten("special_bessel_y1.default")
def bessel_y1(c: Context, x: Node) -> Node:
    def near(t: Node) -> Node:
        z = _quarter_square(t)
        pole = ops.div(double(-2 / math.pi), t)
        log = ops.mul(ops.mul(_log_half(t), _j_series(t, 1)), double(2 / math.pi))
        tail = ops.mul(_horner(_factorials(1, -1, _psi_sum), z), ops.mul(t, double(0.5 / math.pi)))
        return ops.sub(ops.add(pole, log), tail)

    return _apply(
        c,
        x,
        lambda v: _positive(v, _joined(v, WAVE_EDGE, near, lambda t: _wave(t, 1)[1]), -math.inf),
    )


@aten("special_spherical_bessel_j0.default")
def spherical_bessel_j0(c: Context, x: Node) -> Node:
    def j0(v: Node) -> Node:
        out = ops.div(ops.sin(v), v)
        out = ops.where(ops.isinf(v), double(0), out)
        return ops.where(ops.eq(v, double(0)), double(1), out)

    return _apply(c, x, j0)


GROWTH_EDGE = 16.0
DECAY_EDGE = 9.0


def _i_scaled(v: Node, order: int) -> Node:
    """exp(-|x|) I(x)."""

    def near(t: Node) -> Node:
        series = _horner(_factorials(order, 1), _quarter_square(t))
        series = series if order == 0 else ops.mul(series, ops.mul(t, double(0.5)))
        return ops.mul(series, ops.exp(ops.neg(t)))

    def far(t: Node) -> Node:
        inverse = ops.reciprocal(t)
        a = _hankel(order, 20)
        series = _horner([(-1) ** k * a[k] for k in range(20)], inverse)
        return ops.mul(series, ops.sqrt(ops.mul(inverse, double(0.5 / math.pi))))

    out = _joined(ops.abs(v), GROWTH_EDGE, near, far)
    return ops.where(ops.lt(v, double(0)), ops.neg(out), out) if order else out


def _i(v: Node, order: int) -> Node:
    return ops.mul(_i_scaled(v, order), ops.exp(ops.abs(v)))


@aten("i0.default", "special_i0.default", "special_modified_bessel_i0.default")
def i0(c: Context, x: Node) -> Node:
    return _apply(c, x, lambda v: _i(v, 0))


@aten("special_i0e.default")
def i0e(c: Context, x: Node) -> Node:
    return _apply(c, x, lambda v: _i_scaled(v, 0))


@aten("special_i1.default", "special_modified_bessel_i1.default")
def i1(c: Context, x: Node) -> Node:
    return _apply(c, x, lambda v: _i(v, 1))


@aten("special_i1e.default")
def i1e(c: Context, x: Node) -> Node:
    return _apply(c, x, lambda v: _i_scaled(v, 1))


def _k_scaled(v: Node, order: int) -> Node:
    """exp(x) K(x)."""

    def near(t: Node) -> Node:
        z = _quarter_square(t)
        if order == 0:
            growing = _horner(_factorials(0, 1), z)
            head = ops.mul(ops.neg(ops.add(_log_half(t), double(EULER))), growing)
            out = ops.add(head, _horner(_factorials(0, 1, _harmonic), z))
        else:
            growing = ops.mul(_horner(_factorials(1, 1), z), ops.mul(t, double(0.5)))
            head = ops.add(ops.reciprocal(t), ops.mul(_log_half(t), growing))
            tail = ops.mul(_horner(_factorials(1, 1, _psi_sum), z), ops.mul(t, double(0.25)))
            out = ops.sub(head, tail)
        return ops.mul(out, ops.exp(t))

    def far(t: Node) -> Node:
        inverse = ops.reciprocal(t)
        size = ops.sqrt(ops.mul(inverse, double(math.pi / 2)))
        return ops.mul(_horner(_hankel(order, 18), inverse), size)

    return _positive(v, _joined(v, DECAY_EDGE, near, far), math.inf)


@aten("special_modified_bessel_k0.default", "special_modified_bessel_k1.default")
def modified_bessel_k(c: Context, x: Node) -> Node:
    order = 0 if "k0" in str(c.fx.target) else 1

    def decaying(v: Node) -> Node:
        out = ops.mul(_k_scaled(v, order), ops.exp(ops.neg(v)))
        return ops.where(ops.eq(v, double(math.inf)), double(0), out)

    return _apply(c, x, decaying)


@aten("special_scaled_modified_bessel_k0.default", "special_scaled_modified_bessel_k1.default")
def scaled_modified_bessel_k(c: Context, x: Node) -> Node:
    order = 0 if "k0" in str(c.fx.target) else 1
    return _apply(c, x, lambda v: _k_scaled(v, order))


# ---- Airy


def _airy_u(count: int) -> list[float]:
    out, u = [], Fraction(1)
    for k in range(count):
        out.append(float(u))
        u = u * (6 * k + 1) * (6 * k + 3) * (6 * k + 5) / (216 * (k + 1) * (2 * k + 1))
    return out


def _airy_series(x: Node) -> Node:
    cube = ops.mul(ops.mul(x, x), x)
    f, g = [Fraction(1)], [Fraction(1)]
    for k in range(1, 40):
        f.append(f[-1] / ((3 * k - 1) * (3 * k)))
        g.append(g[-1] / ((3 * k) * (3 * k + 1)))
    first = ops.mul(double(3 ** (-2 / 3) / math.gamma(2 / 3)), _horner([float(v) for v in f], cube))
    second = _horner([float(v) for v in g], cube)
    return ops.sub(first, ops.mul(ops.mul(x, second), double(3 ** (-1 / 3) / math.gamma(1 / 3))))


@aten("special_airy_ai.default")
def airy_ai(c: Context, x: Node) -> Node:
    def ai(v: Node) -> Node:
        middle = _airy_series(ops.maximum(ops.minimum(v, double(6.0)), double(-8.0)))
        u = _airy_u(18)
        high, low = ops.maximum(v, double(6.0)), ops.maximum(ops.neg(v), double(8.0))

        def zeta(t: Node) -> Node:
            return ops.mul(ops.mul(t, ops.sqrt(t)), double(2 / 3))

        def fourth_root(t: Node) -> Node:
            return ops.mul(ops.sqrt(ops.sqrt(t)), double(math.sqrt(math.pi)))

        z = zeta(high)
        series = _horner([(-1) ** k * u[k] for k in range(12)], ops.reciprocal(z))
        above = ops.div(ops.mul(ops.exp(ops.neg(z)), series), ops.mul(fourth_root(high), double(2)))
        z = zeta(low)
        inverse = ops.reciprocal(z)
        square = ops.mul(inverse, inverse)
        p = _horner([(-1) ** k * u[2 * k] for k in range(8)], square)
        q = ops.mul(_horner([(-1) ** k * u[2 * k + 1] for k in range(8)], square), inverse)
        turn = ops.add(z, double(math.pi / 4))
        wave = ops.sub(ops.mul(ops.sin(turn), p), ops.mul(ops.cos(turn), q))
        below = ops.div(wave, fourth_root(low))
        out = ops.where(ops.gt(v, double(6.0)), above, middle)
        out = ops.where(ops.lt(v, double(-8.0)), below, out)
        return ops.where(ops.isfinite(v), out, double(math.nan))

    return _apply(c, x, ai)


# ---- the error function's relatives


def _erfcx(v: Node) -> Node:
    """exp(x²) erfc(x)."""
    edge = double(10.0)
    near = ops.minimum(v, edge)
    inner = ops.mul(ops.exp(ops.mul(near, near)), ops.erfc(near))
    far = ops.maximum(v, edge)
    half = ops.div(double(0.5), ops.mul(far, far))
    odd = [1.0]
    for k in range(1, 10):
        odd.append(-odd[-1] * (2 * k - 1))
    outer = ops.div(_horner(odd, half), ops.mul(far, double(math.sqrt(math.pi))))
    return ops.where(ops.lt(v, edge), inner, ops.where(ops.isnan(v), v, outer))


@aten("special_erfcx.default")
def erfcx(c: Context, x: Node) -> Node:
    return _apply(c, x, _erfcx)


@aten("special_ndtri.default")
def ndtri(c: Context, x: Node) -> Node:
    """The inverse of the normal distribution: a first guess for the tail, then Newton's steps."""

    def inverse(p: Node) -> Node:
        tail = ops.minimum(p, ops.sub(double(1), p))
        safe = ops.minimum(ops.maximum(tail, double(1e-300)), double(0.1))
        t = ops.mul(ops.log(safe), double(-2))
        guess = ops.sqrt(ops.sub(t, ops.log(ops.mul(t, double(2 * math.pi)))))
        for _ in range(5):
            miss = ops.sub(
                ops.mul(ops.erfc(ops.mul(guess, double(math.sqrt(0.5)))), double(0.5)), safe
            )
            slope = ops.mul(
                ops.exp(ops.mul(ops.mul(guess, guess), double(-0.5))),
                double(-1 / math.sqrt(2 * math.pi)),
            )
            guess = ops.sub(guess, ops.div(miss, slope))
        low = ops.where(ops.lt(p, double(0.5)), ops.neg(guess), guess)
        middle = ops.mul(
            ops.erfinv(ops.sub(ops.mul(p, double(2)), double(1))), double(math.sqrt(2))
        )
        out = ops.where(ops.lt(tail, double(0.1)), low, middle)
        out = ops.where(ops.eq(p, double(0)), double(-math.inf), out)
        out = ops.where(ops.eq(p, double(1)), double(math.inf), out)
        outside = ops.logical_or(ops.lt(p, double(0)), ops.gt(p, double(1)))
        return ops.where(outside, double(math.nan), out)

    return _apply(c, x, inverse)


# ---- polygamma


def _zeta_positive(n: int, x: Node) -> Node:
    """Σ (x + k)^-(n+1) for x > 0: ten terms, then the Euler-Maclaurin remainder."""
    s = n + 1

    def power(v: Node, e: int) -> Node:
        out = v
        for _ in range(e - 1):
            out = ops.mul(out, v)
        return out

    total = ops.reciprocal(power(x, s))
    for k in range(1, 10):
        total = ops.add(total, ops.reciprocal(power(ops.add(x, double(k)), s)))
    a = ops.add(x, double(10))
    inverse = ops.reciprocal(a)
    total = ops.add(total, ops.div(power(inverse, n), double(n)))
    last = power(inverse, s)
    total = ops.add(total, ops.mul(last, double(0.5)))
    square = ops.mul(inverse, inverse)
    term, rising = ops.mul(last, inverse), Fraction(s)
    for j, b in enumerate(bernoulli(10), start=1):
        total = ops.add(total, ops.mul(term, double(float(b * rising / math.factorial(2 * j)))))
        rising *= (s + 2 * j - 1) * (s + 2 * j)
        term = ops.mul(term, square)
    return total


def bernoulli(count: int) -> list[Fraction]:
    """B2, B4, …"""
    b = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        b.append(-sum(math.comb(m + 1, k) * b[k] for k in range(m)) / Fraction(m + 1))
    return [b[2 * k] for k in range(1, count + 1)]


def _cotangent_derivative(n: int, x: Node) -> Node:
    """The n-th derivative of π cot(πx), a polynomial in the cotangent."""
    poly = [0, 1]  # in t = cot(πx); d/dx t = -π (1 + t²)
    for _ in range(n):
        slope = [k * poly[k] for k in range(1, len(poly))]
        poly = [0] * (len(slope) + 2)
        for k, v in enumerate(slope):
            poly[k] -= v
            poly[k + 2] -= v
    whole = ops.round(x)
    turn = ops.mul(ops.sub(x, whole), double(math.pi))
    t = ops.div(ops.cos(turn), ops.sin(turn))
    return ops.mul(_horner([float(v) for v in poly], t), double(math.pi ** (n + 1)))


@aten("polygamma.default", "special_polygamma.default")
def polygamma(c: Context, n: int, x: Node) -> Node:
    if n == 0:
        return c.compute(ops.digamma, x, to_float=True)
    sign = (-1.0) ** (n + 1) * math.factorial(n)

    def derivative(v: Node) -> Node:
        positive = ops.gt(v, double(0))
        # ψn(x) = (-1)^n ψn(1 - x) - (d/dx)^n π cot(πx)
        mirrored = ops.where(positive, v, ops.sub(double(1), v))
        value = ops.mul(_zeta_positive(n, mirrored), double(sign))
        turn = _cotangent_derivative(n, ops.where(positive, double(0.5), v))
        reflected = ops.sub(ops.mul(value, double((-1.0) ** n)), turn)
        out = ops.where(positive, value, reflected)
        pole = ops.logical_and(ops.le(v, double(0)), ops.eq(v, ops.floor(v)))
        return ops.where(pole, double(math.copysign(math.inf, sign)), out)

    return _apply(c, x, derivative)


# ---- Chebyshev polynomials of a degree that is data


def _even(n: Node) -> Node:
    return ops.eq(ops.mod(n, double(2)), double(0))


def _chebyshev(kind: str, x: Node, n: Node) -> Node:
    """Trigonometric inside [-1, 1], hyperbolic outside, the limits at the ends."""
    one, half = double(1), double(0.5)
    inside = ops.lt(ops.abs(x), one)
    angle = ops.acos(ops.where(inside, x, double(0)))
    size = ops.abs(x)
    t = ops.acosh(ops.maximum(size, one))
    flip = ops.logical_and(ops.lt(x, double(0)), ops.logical_not(_even(n)))
    up, middle = ops.add(n, one), ops.add(n, half)
    h, ht = ops.mul(angle, half), ops.mul(t, half)
    ratio = {
        "t": (ops.cos(ops.mul(n, angle)), ops.cosh(ops.mul(n, t)), one),
        "u": (
            ops.div(ops.sin(ops.mul(up, angle)), ops.sin(angle)),
            ops.div(ops.sinh(ops.mul(up, t)), ops.sinh(t)),
            up,
        ),
        "v": (
            ops.div(ops.cos(ops.mul(middle, angle)), ops.cos(h)),
            ops.div(ops.cosh(ops.mul(middle, t)), ops.cosh(ht)),
            one,
        ),
        "w": (
            ops.div(ops.sin(ops.mul(middle, angle)), ops.sin(h)),
            ops.div(ops.sinh(ops.mul(middle, t)), ops.sinh(ht)),
            ops.mul(middle, double(2)),
        ),
    }
    trig, hyper, end = ratio[kind]
    if kind in "vw":  # V(-x) = ±W(x): the other one on the negative side
        _, hyper_other, end_other = ratio["w" if kind == "v" else "v"]
        negative = ops.lt(x, double(0))
        hyper = ops.where(negative, hyper_other, hyper)
        end = ops.where(negative, end_other, end)
    outside = ops.where(ops.eq(size, one), end, hyper)
    outside = ops.where(flip, ops.neg(outside), outside)
    out = ops.where(inside, trig, outside)
    out = ops.where(ops.eq(n, double(0)), one, out)
    out = ops.where(ops.lt(n, double(0)), double(0), out)
    return ops.where(ops.isnan(x), x, out)


_CHEBYSHEV = [f"special_{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"]


@aten(*_CHEBYSHEV)
def chebyshev(c: Context, x: Operand, n: Operand) -> Node:
    name = str(c.fx.target).split(".")[1]
    out = c.out().dtype
    if out is f64:
        raise Untranslated("it has no native form in double precision")
    v, degree = c.node(x, f64), ops.trunc(c.node(n, f64))
    if "shifted" in name:
        v = ops.sub(ops.add(v, v), double(1))
    return cast(_chebyshev(name[-1], v, degree), out)


# ---- parts of a float


@aten("frexp.Tensor", "prims.frexp.default")
def frexp(c: Context, x: Node) -> tuple[Node, Node]:
    """x = m 2^e with m in [1/2, 1). Float64 has room for the rounding of exp2 on the way."""
    if x.dtype is f64:
        raise Untranslated("it has no native form in double precision")
    v = ops.cast(x, f64)
    size = ops.abs(v)
    plain = ops.logical_and(ops.isfinite(v), ops.ne(v, double(0)))
    e = ops.add(ops.floor(ops.log2(ops.where(plain, size, double(1)))), double(1))
    m = ops.mul(size, ops.exp2(ops.neg(e)))
    # A logarithm next to a whole number may round to either side.
    low, high = ops.lt(m, double(0.5 - 1e-12)), ops.ge(m, double(1 - 1e-12))
    e = ops.where(low, ops.sub(e, double(1)), ops.where(high, ops.add(e, double(1)), e))
    mantissa = ops.cast(ops.mul(v, ops.exp2(ops.neg(e))), x.dtype)
    exponent = ops.where(plain, e, double(0))
    return ops.where(plain, mantissa, x), ops.cast(exponent, i32)
