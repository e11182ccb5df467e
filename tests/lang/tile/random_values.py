"""What random kernels know of their values: bounds, and how far results may be apart.

Integers have a range. Floats have a bound of their magnitude, a grain (all are multiples of it, as
far as known) and a bound of the error by which two right implementations may differ. As long as
magnitude / grain fits the mantissa, sums and products are exact in any order, and results have to
agree bit for bit; after that every rounding adds to the error, and a sum of n as many as n.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import tilewright.language as tl
from tilewright.lang.tile.language.promote import common_type

Shape = tuple[int, ...]

# Bits of the mantissa, the largest number that is used, and the least step between numbers.
FLOATS: dict[str, tuple[int, float, float]] = {
    "float64": (53, 1e200, 2.0**-900),
    "float32": (24, 1e30, 2.0**-120),
    "float16": (11, 60000.0, 2.0**-24),
    "bfloat16": (8, 1e30, 2.0**-120),
    "float8e4nv": (4, 448.0, 2.0**-9),
    "float8e5": (3, 57344.0, 2.0**-16),
}
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FP8 = ("float8e4nv", "float8e5")
BOOL = "int1"


@cache
def dtype_of(name: str) -> tl.dtype:
    return getattr(tl, name)


@cache
def limits(name: str) -> tuple[int, int]:
    if name == BOOL:
        return 0, 1
    d = dtype_of(name)
    return d.get_int_min_value(), d.get_int_max_value()


@cache
def common(a: str, b: str, dividing: bool = False) -> str:
    found = common_type(dtype_of(a), dtype_of(b), dividing=dividing)
    return next(n for n in (*FLOATS, *INTS, BOOL) if dtype_of(n) == found)


@dataclass(frozen=True)
class Value:
    """A variable of a kernel."""

    name: str
    dtype: str
    shape: Shape
    low: int = 0
    high: int = 0
    mag: float = 0.0
    grain: float | None = None
    err: float = 0.0
    index: bool = False  # computed of positions and sizes
    special: bool = False  # with infinities and NaNs among them

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_int(self) -> bool:
        return self.dtype in INTS

    @property
    def is_bool(self) -> bool:
        return self.dtype == BOOL

    @property
    def size(self) -> int:
        n = 1
        for k in self.shape:
            n *= k
        return n

    @property
    def exact(self) -> bool:
        return self.err == 0.0

    @property
    def bits(self) -> int:
        return dtype_of(self.dtype).primitive_bitwidth

    def named(self, name: str) -> Value:
        return replace(self, name=name)

    def shaped(self, shape: Shape) -> Value:
        return replace(self, shape=tuple(shape))


def whole(dtype: str, shape: Shape, low: int, high: int, index: bool = False) -> Value | None:
    """Integers; what does not fit wraps around and may be anything."""
    least, most = limits(dtype)
    if low < least or high > most:
        low, high, index = least, most, False
    return Value("", dtype, shape, low, high, index=index)


def real(
    dtype: str, shape: Shape, mag: float, grain: float | None, err: float, roundings: float = 1.0
) -> Value | None:
    """Floats after so many roundings, none if all numbers fit the mantissa. None: too large."""
    bits, largest, least = FLOATS[dtype]
    if mag + err > largest:
        return None
    if err == 0.0 and grain is not None and grain >= least and mag <= grain * 2.0**bits:
        return Value("", dtype, shape, mag=mag, grain=grain)
    unit = 2.0**-bits
    # Each implementation rounds on its own, so that twice the unit is between two of them.
    err = err + 2 * roundings * (unit * (mag + err) + least)
    if err > max(mag, 1e-6) / 8:
        return None  # such a result tells nothing
    return Value("", dtype, shape, mag=mag + err, grain=None, err=err)


def bound(v: Value) -> tuple[float, float | None, float]:
    """Any number as a float: magnitude, grain, error."""
    if v.is_float:
        return v.mag, v.grain, v.err
    return float(max(abs(v.low), abs(v.high))), 1.0, 0.0


def union(a: Value, b: Value) -> Value:
    """Either of two values of one type."""
    grain = None if a.grain is None or b.grain is None else min(a.grain, b.grain)
    return replace(
        a,
        low=min(a.low, b.low),
        high=max(a.high, b.high),
        mag=max(a.mag, b.mag),
        grain=grain,
        err=max(a.err, b.err),
        index=a.index or b.index,
        special=a.special or b.special,
    )


def finer(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else min(a, b)


def total(v: Value, dtype: str, n: int) -> Value | None:
    """A sum of n elements, in any order."""
    if not v.is_float:
        return whole(dtype, v.shape, n * min(v.low, 0), n * max(v.high, 0), v.index)
    return real(dtype, v.shape, n * v.mag, v.grain, n * v.err, n + 1)


def converted(v: Value, dtype: str) -> Value | None:
    if v.special:
        made = _converted(v, dtype) if dtype in FLOATS and dtype not in FP8 else None
        return made and replace(made, special=True)
    return _converted(v, dtype)


def _converted(v: Value, dtype: str) -> Value | None:
    """A cast. Floats become integers only where they are surely the same number everywhere and
    fit; a number that is rounded is rounded alike everywhere, but has no grain any more."""
    if dtype == v.dtype:
        return v
    if dtype == BOOL:
        return Value("", BOOL, v.shape, 0, 1) if v.exact else None
    if dtype in FLOATS:
        mag, grain, err = bound(v)
        bits, largest, least = FLOATS[dtype]
        if mag + err > largest:
            return None
        if err:
            return real(dtype, v.shape, mag, None, err)
        fits = grain is not None and grain >= least and mag <= grain * 2.0**bits
        return Value(
            "",
            dtype,
            v.shape,
            mag=mag * (1 if fits else 1 + 2.0**-bits),
            grain=grain if fits else None,
        )
    least, most = limits(dtype)
    if v.is_float:
        if not v.exact or v.mag > most or -v.mag < least:
            return None
        cut = int(v.mag)
        return Value("", dtype, v.shape, -cut, cut)
    return whole(dtype, v.shape, v.low, v.high, v.index)
