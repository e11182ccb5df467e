"""Floats of 8 and 16 bits as numpy codes: what each format can hold, and rounding to it.

numpy has only float16 of them, so values are represented as float32 and memory as integer codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

ROUNDINGS = ("rtne", "rtz")


@dataclass(frozen=True)
class Format:
    """A sign, `exponent` bits with a bias, `fraction` bits. Exponent 0 has the subnormals."""

    exponent: int
    fraction: int
    bias: int
    largest: int  # code of the largest finite number
    infinity: int | None  # code, where the format has one
    nan: int | None  # code (with either sign, but see below), where the format has one
    # Formats without a negative zero have their only NaN in its place.
    negative_zero: bool = True
    # A number beyond the largest is the largest, not infinity; and a cast makes nothing above
    # this one, infinities included, though memory may hold it.
    saturates: bool = True
    cast_largest: int | None = None

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.fraction

    @property
    def code(self) -> np.dtype:
        return np.dtype(np.uint8 if self.bits == 8 else np.uint16)

    @property
    def least_exponent(self) -> int:
        """Of the numbers that are not subnormal."""
        return 1 - self.bias

    @property
    def spacing(self) -> float:
        """The least positive number, which is the distance of the subnormals."""
        return 2.0 ** (self.least_exponent - self.fraction)

    @property
    def maximum(self) -> float:
        """The largest finite number."""
        return self._number(self.largest)

    @property
    def limit(self) -> float:
        """The largest finite number that a cast makes."""
        return self._number(self.largest if self.cast_largest is None else self.cast_largest)

    def _number(self, code: int) -> float:
        e, f = divmod(code, 1 << self.fraction)
        return (1 + f / (1 << self.fraction)) * 2.0 ** (e - self.bias)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """The values of codes, as float32."""
        if self is BFLOAT:
            return (np.asarray(codes).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return _numbers(self)[codes] if self.bits == 8 else self._decode(codes)

    def _decode(self, codes: np.ndarray) -> np.ndarray:
        c = np.asarray(codes).astype(np.int64)
        sign = np.where(c >> (self.bits - 1), -1.0, 1.0)
        c &= (1 << (self.bits - 1)) - 1
        e, f = c >> self.fraction, c & ((1 << self.fraction) - 1)
        normal = np.ldexp((1 << self.fraction) + f, e - self.bias - self.fraction)
        x = sign * np.where(e == 0, f * self.spacing, normal)
        if self.infinity is not None:
            x = np.where(c == self.infinity, sign * np.inf, x)
            x = np.where(c > self.infinity, np.nan, x)
        elif not self.negative_zero:
            x = np.where((c == 0) & (sign < 0), np.nan, x)
        elif self.nan is not None:
            x = np.where(c == self.nan, np.nan, x)
        return x.astype(np.float32)

    def encode(self, x: np.ndarray, rounding: str = "rtne") -> np.ndarray:
        """Codes of the nearest numbers, ties to even (or of the nearest toward zero)."""
        x = to_single(x)
        if self is BFLOAT and rounding == "rtne":
            return _upper_halves(x)
        with np.errstate(invalid="ignore", over="ignore"):
            a = np.abs(x.astype(np.float64))
            _, e = np.frexp(np.where(np.isfinite(a), a, 0.0))
            e = np.where(a > 0, np.maximum(e - 1, self.least_exponent), self.least_exponent)
            steps = np.ldexp(a, self.fraction - e)  # exact: in units of the last place
            whole = np.trunc(steps) if rounding == "rtz" else np.rint(steps)
            # A whole that reaches the next power of two carries into the exponent by itself.
            known = np.where(np.isfinite(a), whole, 0.0).astype(np.int64)
        code = known + ((e - self.least_exponent).astype(np.int64) << self.fraction)
        beyond = np.isfinite(a) & (code > self.largest)
        infinity = self.largest if self.infinity is None else self.infinity
        stays = self.saturates or rounding == "rtz"
        code = np.where(beyond, self.largest if stays else infinity, code)
        code = np.where(np.isinf(a), infinity, code)
        code = np.where(np.isnan(a), self.largest if self.nan is None else self.nan, code)
        sign = np.signbit(x).astype(np.int64) << (self.bits - 1)
        if not self.negative_zero:
            sign = np.where((code == 0) | np.isnan(a), 0, sign)
        return (code | sign).astype(self.code)

    def round(self, x: np.ndarray, rounding: str = "rtne") -> np.ndarray:
        """Each number rounded to the format."""
        return self.decode(self.encode(x, rounding))

    def clamp(self, x: np.ndarray) -> np.ndarray:
        """Within what a cast makes; NaN stays where there is one."""
        x = np.asarray(x)
        r = np.clip(x, -self.limit, self.limit)
        return r if self.nan is not None else np.where(np.isnan(x), np.copysign(self.limit, x), r)


def to_single(x: np.ndarray) -> np.ndarray:
    """Numbers about to be rounded to a narrow float, as float32. Of doubles these are the ones
    toward zero, with the last bit set where anything was lost ("rounding to odd"): rounding twice
    then gives what rounding once does."""
    x = np.asarray(x)
    if x.dtype != np.float64:
        return x.astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.asarray(x.astype(np.float32), order="C")
        over, lost = np.abs(near) > np.abs(x), (near != x) & ~np.isnan(x)
    bits = (near.view(np.uint32) - over) | lost
    return bits.astype(np.uint32).view(np.float32)


@cache
def _numbers(format: Format) -> np.ndarray:
    return format._decode(np.arange(1 << format.bits))


def _upper_halves(x: np.ndarray) -> np.ndarray:
    """Codes of bfloat16, which are the upper halves of floats, quickly: weights are many."""
    u = np.asarray(x, order="C").view(np.uint32)
    up = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (u >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, up).astype(np.uint16)


HALF = Format(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00, saturates=False)
BFLOAT = Format(8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, saturates=False)
# The 8-bit formats go by what they are called in C: OCP's two, the same two with another bias and
# without infinities and negative zero, and one of numbers below two that has nothing else (the
# largest of which casts do not use).
E4M3 = Format(4, 3, 7, 0x7E, None, 0x7F)
E5M2 = Format(5, 2, 15, 0x7B, 0x7C, 0x7F)
E4B8 = Format(4, 3, 8, 0x7F, None, 0x80, negative_zero=False)
E5B16 = Format(5, 2, 16, 0x7F, None, 0x80, negative_zero=False)
E4B15 = Format(4, 3, 15, 0x7F, None, None, cast_largest=0x7E)

FORMATS = {
    "f16": HALF,
    "bf16": BFLOAT,
    "f8e4m3": E4M3,
    "f8e5m2": E5M2,
    "f8e4b8": E4B8,
    "f8e5b16": E5B16,
    "f8e4b15": E4B15,
}
