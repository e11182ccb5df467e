"""The floats of 8 bits by their definition, and floats that are hard to round to them."""

from __future__ import annotations

import numpy as np

_NAN, _INF = float("nan"), float("inf")
# Exponent bits, fraction bits, bias, and the codes that mean something else.
FORMS: dict[str, tuple[int, int, int, dict[int, float]]] = {
    "f8e4m3": (4, 3, 7, {0x7F: _NAN, 0xFF: _NAN}),
    "f8e5m2": (
        5,
        2,
        15,
        {0x7C: _INF, 0xFC: -_INF, **{k: _NAN for c in (0x7D, 0xFD) for k in range(c, c + 3)}},
    ),
    "f8e4b15": (4, 3, 15, {}),
    "f8e4b8": (4, 3, 8, {0x80: _NAN}),
    "f8e5b16": (5, 2, 16, {0x80: _NAN}),
}


def finite(name: str) -> np.ndarray:
    """All finite numbers from 0 up, by code."""
    _, fraction, bias, special = FORMS[name]
    codes = [c for c in range(0x80) if c not in special]
    e, f = np.divmod(np.array(codes), 1 << fraction)
    low, high = f * 2.0 ** (1 - bias), ((1 << fraction) + f) * 2.0 ** (e - bias)
    return np.where(e == 0, low, high) / (1 << fraction)


@np.errstate(invalid="ignore")
def floats_to_round(name: str) -> np.ndarray:
    """Every float of 16 bits of both kinds, halfway cases and their neighbours, random bits."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    halves = codes.view(np.float16).astype(np.float32)
    bfloats = (codes.astype(np.uint32) << 16).view(np.float32)
    numbers = finite(name).astype(np.float32)
    between = (numbers[1:] + numbers[:-1]) / 2
    points = np.concatenate([numbers, between, numbers[-1:] + (numbers[-1:] - numbers[-2:-1]) / 2])
    points = np.concatenate([points, np.nextafter(points, 0), np.nextafter(points, _INF)])
    points = points.astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 50_000, dtype=np.uint32)
    rng = np.random.default_rng(1)
    usual = (rng.standard_normal(50_000) * 10.0 ** rng.uniform(-6, 3, 50_000)).astype(np.float32)
    odd = np.array([0, -0.0, _INF, -_INF, _NAN, 1e-45, -1e-45, 3.4e38], np.float32)
    return np.concatenate([halves, bfloats, points, -points, bits.view(np.float32), usual, odd])


@np.errstate(invalid="ignore")
def nearest(name: str, x: np.ndarray, rounding: str = "rtne") -> np.ndarray:
    """Rounded by looking through all numbers of the format; what is too large is the largest."""
    numbers = finite(name)
    a = np.minimum(np.abs(x.astype(np.float64)), numbers[-1])
    at = np.clip(np.searchsorted(numbers, np.nan_to_num(a), side="right") - 1, 0, len(numbers) - 2)
    low, high = numbers[at], numbers[at + 1]
    if rounding == "rtz":
        r = np.where(a >= high, high, low)
    else:  # of two equally near ones the one with an even code
        up = (a - low > high - a) | ((a - low == high - a) & (at % 2 == 1))
        r = np.where(up, high, low)
    r = np.copysign(r, x)
    if name == "f8e4b15":
        return np.where(np.isnan(x), np.copysign(numbers[-1], x), r).astype(np.float32)
    r = np.where(np.isnan(x), np.nan, r)
    has_infinity = _INF in FORMS[name][3].values()
    return np.where(np.isinf(x) & has_infinity, x, r).astype(np.float32)
