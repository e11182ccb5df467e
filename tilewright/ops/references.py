"""Numpy references that need more than numpy: exact integers, and functions only `math` knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def by_element(f: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of one float on arrays, NaN to NaN."""

    def apply(x: np.ndarray) -> np.ndarray:
        values = [math.nan if math.isnan(v) else f(v) for v in np.ravel(x).tolist()]
        return np.array(values, dtype=np.float64).reshape(np.shape(x))

    return apply


def exact_int(on_float: Any, on_int: Callable[..., int]) -> Callable[..., np.ndarray]:
    """Floats by numpy; integers by Python's, which are exact, wrapped to the dtype afterwards.

    `on_int` takes (a, b), or (a, b, bits, signed) where the width matters.
    """
    wants_width = on_int.__code__.co_argcount == 4

    def apply(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "f":
            return on_float(x, y)
        bits, signed = x.dtype.itemsize * 8, x.dtype.kind == "i"
        a, b = np.broadcast_arrays(x, y)
        width = (bits, signed) if wants_width else ()
        out = [on_int(p, q, *width) for p, q in zip(a.ravel().tolist(), b.ravel().tolist())]
        return np.array([wrap(v, bits, signed) for v in out], dtype=x.dtype).reshape(a.shape)

    return apply


def wrap(v: int, bits: int, signed: bool) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if signed and v >> (bits - 1) else v


class special:
    """Scalar functions on plain Python numbers."""

    @staticmethod
    def quotient(a: int, b: int) -> int:
        return a // b if b else 0

    @staticmethod
    def modulus(a: int, b: int) -> int:
        """Sign of the divisor."""
        return a % b if b else 0

    @staticmethod
    def remainder(a: int, b: int) -> int:
        """Sign of the dividend."""
        if b == 0:
            return 0
        r = (a if a >= 0 else -a) % (b if b >= 0 else -b)
        return r if a >= 0 else -r

    @staticmethod
    def power(a: int, n: int, bits: int, signed: bool) -> int:
        if n >= 0:
            return pow(a, n, 1 << bits)
        return {1: 1, -1: -1 if n % 2 else 1}.get(a, 0)

    @staticmethod
    def shl(a: int, n: int, bits: int, signed: bool) -> int:
        return a << n if 0 <= n < bits else 0

    @staticmethod
    def sar(a: int, n: int, bits: int, signed: bool) -> int:
        return a >> (n if 0 <= n < bits else bits)  # Python's integers have endless sign bits

    @staticmethod
    def shr(a: int, n: int, bits: int, signed: bool) -> int:
        return (a & ((1 << bits) - 1)) >> n if 0 <= n < bits else 0

    @staticmethod
    def lgamma(x: float) -> float:
        if math.isinf(x) or (x <= 0 and x == math.floor(x)):
            return math.inf
        try:
            return math.lgamma(x)
        except OverflowError:
            return math.inf

    @staticmethod
    def digamma(x: float) -> float:
        """By recurrence to large arguments and the asymptotic series; by reflection below zero."""
        if x == 0 or x == math.inf:
            return math.copysign(math.inf, -x if x == 0 else x)
        if x < 0:
            if math.isinf(x) or x == math.floor(x):
                return math.nan
            return special.digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
        whole = max(0, 25 - math.floor(x))
        y = 1 / (x + whole) ** 2 if x < 1e150 else 0.0
        tail = (y / 12, -(y**2) / 120, y**3 / 252, -(y**4) / 240)
        parts = (math.log(x + whole), -0.5 / (x + whole), *(-t for t in tail))
        return math.fsum(parts + tuple(-1 / (x + k) for k in range(whole)))

    @staticmethod
    def erfinv(x: float) -> float:
        """By bisection on erfc, which stays accurate where erf rounds to one."""
        if abs(x) >= 1:
            return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
        if abs(x) < 1e-9:
            return x * math.sqrt(math.pi) / 2
        lo, hi = 0.0, 6.0
        for _ in range(120):
            mid = (lo + hi) / 2
            below = math.erf(mid) < abs(x) if abs(x) < 0.5 else math.erfc(mid) > 1 - abs(x)
            lo, hi = (mid, hi) if below else (lo, mid)
        return math.copysign((lo + hi) / 2, x)


def ordered_bits(x: np.ndarray) -> np.ndarray:
    """Unsigned numbers in the order of the elements (`order_of` in ops/shapes.py)."""
    bits = 8 * x.dtype.itemsize
    plain = x + x.dtype.type(0) if x.dtype.kind == "f" else x
    raw = plain.view(f"u{x.dtype.itemsize}").astype(object)
    top = 1 << (bits - 1)
    if x.dtype.kind == "f":
        raw = np.where(raw & top, raw ^ ((1 << bits) - 1), raw | top)
        raw = np.where(np.isnan(x), (1 << bits) - 1, raw)
    elif x.dtype.kind == "i":
        raw = raw ^ top
    return raw.astype(f"u{x.dtype.itemsize}")
