"""The polynomials of vector math: how they are derived, and that the tables hold what that gives.

`python tests/llvm/test_vmath_coefficients.py > tilewright/llvm/vmath/coefficients.py` writes the
tables (then format them). Each is the minimax polynomial of a smooth function on an interval, by
Remez exchange on a dense Chebyshev grid at 150 digits, weighted so that its error counts relative
to the function it ends up in; the coefficients are then rounded to the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import pytest

from tilewright.llvm.vmath import coefficients

Number = Any  # mpmath's numbers have no static type
Real = Callable[[Number], Number]

mp.mp.dps = 150
_STEP = mp.mpf(10) ** -30  # stands in for a removable singularity at an end point


@dataclass(frozen=True)
class Fit:
    """Approximate `f` on [low, high] by a polynomial in x - center, error weighted by `weight`."""

    name: str
    f: Real
    weight: Real
    low: Number
    high: Number
    f32: int | None  # degree, or None where the float32 function is computed in float64
    f64: int | None
    center: float = 0.0


def minimax(fit: Fit, degree: int) -> tuple[list[Number], Number]:
    """Coefficients, lowest first, and the weighted error they leave."""
    count = 16 * (degree + 2)
    middle, half = (fit.high + fit.low) / 2, (fit.high - fit.low) / 2
    grid = [middle - half * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]
    values = [fit.f(x) for x in grid]
    weights = [abs(fit.weight(x)) for x in grid]
    shifted = [x - fit.center for x in grid]
    points = [round(k * (count - 1) / (degree + 1)) for k in range(degree + 2)]
    coefficients: list[Number] = []
    for _ in range(40):
        matrix = mp.matrix(degree + 2, degree + 2)
        right = mp.matrix(degree + 2, 1)
        for row, k in enumerate(points):
            power = weights[k]
            for column in range(degree + 1):
                matrix[row, column] = power
                power *= shifted[k]
            matrix[row, degree + 1] = (-1) ** row
            right[row] = values[k] * weights[k]
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[k] for k in range(degree + 1)]
        error = [
            (mp.polyval(coefficients[::-1], x) - y) * w
            for x, y, w in zip(shifted, values, weights, strict=True)
        ]
        exchanged = _alternation(error, degree + 2)
        if exchanged is None or exchanged == points:
            break
        points = exchanged
    return coefficients, max(abs(e) for e in error)


def _alternation(error: list[Number], wanted: int) -> list[int] | None:
    """The grid points where the error alternates in sign and is largest."""
    peaks: list[int] = []
    for k, e in enumerate(error):
        if peaks and (error[peaks[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[peaks[-1]]):
                peaks[-1] = k
        else:
            peaks.append(k)
    while len(peaks) > wanted:
        peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
    return peaks if len(peaks) == wanted else None


def _inverse_erf_of_w(w: Number) -> Number:
    """erfinv(x) where w = -log(1 - x*x), by Newton's method on log erfc."""
    if w <= _STEP:
        return mp.sqrt(w * mp.pi) / 2
    tail = mp.exp(-w) / (1 + mp.sqrt(-mp.expm1(-w)))  # 1 - x without cancellation
    target, y = mp.log(tail), mp.sqrt(w) * mp.mpf("0.886")
    for _ in range(60):
        complement = mp.erfc(y)
        step = (mp.log(complement) - target) * complement * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step
        if abs(step) < mp.mpf(10) ** -60:
            break
    return y


def _over_x(w: Number) -> Number:
    """erfinv(x) / x as a function of w."""
    w = max(w, _STEP)
    return _inverse_erf_of_w(w) / mp.sqrt(-mp.expm1(-w))


def _root(f: Real) -> Real:
    """z -> f(sqrt z), kept away from a removable singularity at 0."""
    return lambda z: f(mp.sqrt(max(z, _STEP * _STEP)))


def _away(f: Real) -> Real:
    """f, kept away from a removable singularity at 0."""
    return lambda x: f(x if abs(x) > _STEP else _STEP)


def fits() -> list[Fit]:
    """Every polynomial, in the form in which the functions use it."""
    half_ln2 = mp.log(2) / 2 * mp.mpf("1.003")
    eighth, quarter = mp.tan(mp.pi / 8) * mp.mpf("1.001"), mp.pi / 4 * mp.mpf("1.002")
    log_low, log_high = mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1
    s_high = log_high / (2 + log_high) * mp.mpf("1.001")
    log_2pi = mp.log(2 * mp.pi) / 2
    psi_zero = mp.findroot(mp.digamma, 1.46)

    def odd(name: str, f: Real, high: Number, f32: int | None, f64: int | None) -> Fit:
        """(f(x) - x) / x**3 in z = x*x."""
        rest = _root(lambda x: (f(x) - x) / x**3)
        return Fit(name, rest, _root(lambda x: x**3 / f(x)), mp.mpf(0), high**2, f32, f64)

    def g_erfcx(t: Number) -> Number:
        a = 4 * (1 + t) / (1 - t)
        return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)

    return [
        # exp(r) = 1 + r + r*r*q(r)
        Fit(
            "EXP",
            _away(lambda r: (mp.expm1(r) - r) / r**2),
            lambda r: r**2 / mp.exp(r),
            -half_ln2,
            half_ln2,
            4,
            9,
        ),
        Fit(
            "EXPM1",
            _away(lambda r: (mp.expm1(r) - r) / r**2),
            _away(lambda r: r**2 / mp.expm1(r)),
            -half_ln2,
            half_ln2,
            4,
            10,
        ),
        # 2**r = 1 + r*q(r)
        Fit(
            "EXP2",
            _away(lambda r: mp.expm1(r * mp.log(2)) / r),
            lambda r: r / 2**r,
            mp.mpf("-0.5"),
            mp.mpf("0.5"),
            5,
            10,
        ),
        # The same to about 2**-36, for float32 functions that run in float64.
        Fit(
            "EXP2_SHORT",
            _away(lambda r: mp.expm1(r * mp.log(2)) / r),
            lambda r: r / 2**r,
            mp.mpf("-0.5"),
            mp.mpf("0.5"),
            None,
            6,
        ),
        # log(1+f) = f - f*f/2 + f**3 * p(f)
        Fit(
            "LOG",
            _away(lambda f: (mp.log1p(f) - f + f * f / 2) / f**3),
            _away(lambda f: f**3 / mp.log1p(f)),
            log_low,
            log_high,
            8,
            None,
        ),
        # log((1+s)/(1-s)) = 2*s + s*z*r(z), z = s*s
        Fit(
            "LOG_ATANH",
            _root(lambda s: (2 * mp.atanh(s) - 2 * s) / s**3),
            _root(lambda s: s**3 / (2 * mp.atanh(s))),
            mp.mpf(0),
            s_high**2,
            None,
            6,
        ),
        # The same to about 2**-42, for float32 functions that run in float64.
        Fit(
            "LOG_ATANH_SHORT",
            _root(lambda s: (2 * mp.atanh(s) - 2 * s) / s**3),
            _root(lambda s: s**3 / (2 * mp.atanh(s))),
            mp.mpf(0),
            s_high**2,
            None,
            4,
        ),
        # The next term of the same: 2*s + s*z*(2/3 + z*r(z)), for a double-word logarithm.
        Fit(
            "LOG_ATANH_TAIL",
            _root(lambda s: ((2 * mp.atanh(s) - 2 * s) / s**3 - mp.mpf(2) / 3) / s**2),
            _root(lambda s: s**5 / (2 * mp.atanh(s))),
            mp.mpf(0),
            s_high**2,
            None,
            6,
        ),
        odd("TANH", mp.tanh, mp.mpf("0.5625"), 4, 10),
        odd("SINH", mp.sinh, mp.mpf(1), 3, 6),
        odd("SIN", mp.sin, quarter, 2, 5),
        # cos(x) = 1 - z/2 + z*z*c(z)
        Fit(
            "COS",
            _root(lambda x: (mp.cos(x) - 1 + x * x / 2) / x**4),
            _root(lambda x: x**4 / mp.cos(x)),
            mp.mpf(0),
            quarter**2,
            2,
            5,
        ),
        odd("TAN", mp.tan, quarter, 6, None),
        odd("SINPI", lambda r: mp.sin(mp.pi * r) / mp.pi, mp.mpf("0.5"), None, 7),
        # cos(pi*r) as a polynomial in r*r
        Fit(
            "COSPI",
            _root(lambda r: (mp.cos(mp.pi * r) - 1) / r**2),
            _root(lambda r: r**2),
            mp.mpf(0),
            mp.mpf("0.25"),
            None,
            7,
        ),
        odd("ATAN", mp.atan, eighth, 4, 10),
        odd("ASIN", mp.asin, mp.mpf("0.5"), 4, 12),
        # erf(x) = x + x*p(z) for |x| <= 1
        Fit(
            "ERF",
            _root(lambda x: mp.erf(x) / x - 1),
            _root(lambda x: x / mp.erf(x)),
            mp.mpf(0),
            mp.mpf(1),
            6,
            11,
        ),
        # erf(a) = 1 - exp(-(a + a*p(a))) for a from 0 to where it rounds to 1
        Fit(
            "ERF_FALL",
            _away(lambda a: -mp.log(mp.erfc(a)) / a - 1),
            _away(lambda a: a * mp.erfc(a) / mp.erf(a)),
            mp.mpf(0),
            mp.mpf(4),
            8,
            None,
        ),
        # (1 + 2*a) * exp(a*a) * erfc(a) in t = (a-4)/(a+4), a from 0.45 to where erfc vanishes
        Fit(
            "ERFCX",
            g_erfcx,
            lambda t: 1 / g_erfcx(t),
            mp.mpf("-0.80"),
            mp.mpf("0.436"),
            9,
            None,
        ),
        Fit(
            "ERFCX_WIDE",
            g_erfcx,
            lambda t: 1 / g_erfcx(t),
            mp.mpf("-0.80"),
            mp.mpf("0.75"),
            None,
            21,
        ),
        # lgamma(2+y) / y
        Fit(
            "LGAMMA",
            _away(lambda y: mp.loggamma(2 + y) / y),
            _away(lambda y: y / mp.loggamma(2 + y)),
            mp.mpf("-0.5"),
            mp.mpf("0.5"),
            None,
            17,
        ),
        # (lgamma(x) - (x - 1/2)*(log(x) - 1) + 1/2 - log(2*pi)/2) * x in w = 1/(x*x), x >= 8
        Fit(
            "STIRLING",
            lambda w: _stirling(1 / mp.sqrt(max(w, _STEP)), log_2pi),
            lambda w: mp.mpf(1),
            mp.mpf(0),
            mp.mpf(1) / 64,
            None,
            6,
        ),
        # digamma(x) / (x - zero), in x - 1.5
        Fit(
            "DIGAMMA",
            lambda x: (
                mp.digamma(x) / (x - psi_zero) if abs(x - psi_zero) > _STEP else mp.psi(1, psi_zero)
            ),
            lambda x: mp.mpf(1),
            mp.mpf(1),
            mp.mpf(2),
            None,
            21,
            center=1.5,
        ),
        # (log(x) - 1/(2*x) - digamma(x)) * x*x in w = 1/(x*x), x >= 8
        Fit(
            "DIGAMMA_TAIL",
            lambda w: _digamma_tail(1 / mp.sqrt(max(w, _STEP))),
            lambda w: mp.mpf(1),
            mp.mpf(0),
            mp.mpf(1) / 64,
            None,
            7,
        ),
        # erfinv(x) / x in w = -log(1 - x*x), then in v = sqrt(w)
        Fit("ERFINV_SHORT", _over_x, lambda w: 1 / _over_x(w), mp.mpf(0), mp.mpf(5), 10, None, 1.0),
        Fit(
            "ERFINV_SHORT_TAIL",
            lambda v: _over_x(v * v),
            lambda v: 1 / _over_x(v * v),
            mp.sqrt(5),
            mp.mpf("4.1"),
            10,
            None,
            2.6,
        ),
        Fit(
            "ERFINV",
            _over_x,
            lambda w: 1 / _over_x(w),
            mp.mpf(0),
            mp.mpf("6.25"),
            None,
            24,
            1.0,
        ),
        Fit(
            "ERFINV_TAIL",
            lambda v: _over_x(v * v),
            lambda v: 1 / _over_x(v * v),
            mp.mpf("2.5"),
            mp.mpf(4),
            None,
            20,
            2.75,
        ),
        Fit(
            "ERFINV_FAR",
            lambda v: _over_x(v * v),
            lambda v: 1 / _over_x(v * v),
            mp.mpf(4),
            mp.mpf("6.1"),
            None,
            19,
            4.5,
        ),
    ]


def _stirling(x: Number, log_2pi: Number) -> Number:
    return (mp.loggamma(x) - (x - mp.mpf(1) / 2) * (mp.log(x) - 1) + mp.mpf(1) / 2 - log_2pi) * x


def _digamma_tail(x: Number) -> Number:
    return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) * x * x


def _rounded(value: Number, elem: str) -> float:
    if elem == "f64":
        return float(value)
    return struct.unpack("<f", struct.pack("<f", float(value)))[0]


def main() -> None:
    """Print the module `coefficients.py`."""
    print('"""Minimax polynomials, lowest coefficient first; not to be edited by hand.\n')
    print("Each table maps the format to its coefficients; the comment gives the weighted error of")
    print("the polynomial before its coefficients were rounded to the format. Derivation:")
    print('tests/llvm/test_vmath_coefficients.py.\n"""\n')
    print("Coefficients = dict[str, tuple[float, ...]]")
    for fit in fits():
        print(f"\n{fit.name}: Coefficients = {{")
        for elem, degree in (("f32", fit.f32), ("f64", fit.f64)):
            if degree is None:
                continue
            coefficients, error = minimax(fit, degree)
            print(f'    "{elem}": (  # error 2**{float(mp.log(error, 2)):.1f}')
            for c in coefficients:
                print(f"        {_rounded(c, elem)!r},")
            print("    ),")
        print("}")


@pytest.mark.parametrize("fit", fits(), ids=lambda fit: fit.name)
def test_tables_approximate_their_functions(fit: Fit) -> None:
    """Between the points they were fitted on; rounding the constant may cost half an ulp."""
    short = fit.name.endswith("_SHORT") and fit.f32 is None
    needed = {"f32": -24.0, "f64": -33.5 if short else -53.0}
    for elem, table in getattr(coefficients, fit.name).items():
        worst = mp.mpf(0)
        for k in range(41):
            x = fit.low + (fit.high - fit.low) * (k + mp.mpf("0.37")) / 41
            value = mp.polyval([mp.mpf(c) for c in reversed(table)], x - fit.center)
            worst = max(worst, abs((value - fit.f(x)) * fit.weight(x)))
        assert mp.log(worst, 2) < needed[elem], f"{fit.name} of {elem}: 2**{mp.log(worst, 2)}"


@pytest.mark.slow
@pytest.mark.parametrize("fit", fits(), ids=lambda fit: fit.name)
def test_tables_are_what_the_derivation_gives(fit: Fit) -> None:
    for elem, degree in (("f32", fit.f32), ("f64", fit.f64)):
        if degree is not None:
            derived = tuple(_rounded(c, elem) for c in minimax(fit, degree)[0])
            assert getattr(coefficients, fit.name)[elem] == derived


if __name__ == "__main__":
    main()
