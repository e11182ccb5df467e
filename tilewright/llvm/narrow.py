"""Narrow floats as LLVM instructions on wider lanes, without tables and branches.

A register holds them as float. Here are floats of 8 bits, of 16 on machines without instructions
for them, and doubles on their way to any narrow float, which have to be rounded once and not
twice. Nothing here depends on how the machine treats subnormal floats: subnormal codes are made and
read by sums of normal ones.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from tilewright.ir.narrow import BFLOAT, Format

_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


def _float_bits(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


class Lanes:
    """Writes instructions on lanes that are i32 or float; numbers among operands are splatted."""

    def __init__(self, put: Callable[[str], str], lanes: int) -> None:
        self.put, self.lanes = put, lanes

    def type(self, scalar: str) -> str:
        return scalar if self.lanes == 1 else f"<{self.lanes} x {scalar}>"

    def _number(self, x: str | int | float, t: str) -> str:
        if isinstance(x, str):
            return x
        if isinstance(x, float):
            text = f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
        else:
            text = str(x - (1 << 32) if t == "i32" and x >> 31 == 1 else x)
        return text if self.lanes == 1 else "<" + ", ".join([f"{t} {text}"] * self.lanes) + ">"

    def op(self, code: str, x: str, y: str | int | float, t: str = "i32") -> str:
        return self.put(f"{code} {self.type(t)} {x}, {self._number(y, t)}")

    def choose(self, c: str, x: str | int, y: str | int, t: str = "i32") -> str:
        v = self.type(t)
        return self.put(
            f"select {self.type('i1')} {c}, {v} {self._number(x, t)}, {v} {self._number(y, t)}"
        )

    def convert(self, code: str, x: str, src: str, dst: str) -> str:
        return self.put(f"{code} {self.type(src)} {x} to {self.type(dst)}")

    def as_bits(self, x: str) -> str:
        return self.convert("bitcast", x, "float", "i32")

    def as_float(self, x: str) -> str:
        return self.convert("bitcast", x, "i32", "float")

    def least(self, x: str, y: int) -> str:
        """The smaller one of unsigned words."""
        return self.choose(self.op("icmp ult", x, y), x, y)


def narrowed(f: Format, x: str, n: Lanes) -> str:
    """Codes (i8 or i16) of floats: to nearest, ties to even."""
    u = n.as_bits(x)
    full = n.op("and", u, _MAGNITUDE)
    # The code after the largest number's is that of infinity, if numbers beyond it become that.
    largest = f.maximum if f.saturates else 2.0 ** (math.frexp(f.maximum)[1])
    a = n.least(full, _float_bits(largest))
    shift = 23 - f.fraction
    odd = n.op("and", n.op("lshr", a, shift), 1)
    up = n.op("add", n.op("add", a, odd), (1 << (shift - 1)) - 1)
    normal = n.op("sub", n.op("lshr", up, shift), (127 - f.bias) << f.fraction)
    # Added to a number whose last place is the spacing of the subnormals, the sum rounds to them.
    anchor = 2.0 ** (f.least_exponent - f.fraction + 23)
    low = n.op("sub", n.as_bits(n.op("fadd", n.as_float(a), anchor, "float")), _float_bits(anchor))
    small = n.op("icmp ult", a, (127 + f.least_exponent) << 23)
    code = n.choose(small, low, normal)
    if f.infinity is not None:
        code = n.choose(n.op("icmp eq", full, _INFINITY), f.infinity, code)
    sign = n.op("and", n.op("lshr", u, 32 - f.bits), 1 << (f.bits - 1))
    if not f.negative_zero:
        sign = n.choose(n.op("icmp eq", code, 0), 0, sign)
    if f.nan is not None:
        code = n.choose(n.op("icmp ugt", full, _INFINITY), f.nan, code)
    return n.convert("trunc", n.op("or", code, sign), "i32", f"i{f.bits}")


def widened(f: Format, x: str, n: Lanes) -> str:
    """Floats of codes (i8 or i16)."""
    c = n.convert("zext", x, f"i{f.bits}", "i32")
    a = n.op("and", c, (1 << (f.bits - 1)) - 1)
    at = n.op("shl", a, 23 - f.fraction)
    normal = n.op("add", at, (127 - f.bias) << 23)
    # A subnormal is the distance from the least normal number of one that has the same fraction.
    least = 2.0**f.least_exponent
    anchor = n.as_float(n.op("or", at, _float_bits(least)))
    low = n.as_bits(n.op("fsub", anchor, least, "float"))
    small = n.op("icmp ult", a, 1 << f.fraction)
    r = n.choose(small, low, normal)
    quiet = 0x7FC00000
    if f.infinity is not None:
        special = n.choose(n.op("icmp eq", a, f.infinity), _INFINITY, quiet)
        r = n.choose(n.op("icmp uge", a, f.infinity), special, r)
    elif f.nan is not None:
        found = (a, f.nan) if f.negative_zero else (c, f.nan)
        r = n.choose(n.op("icmp eq", *found), quiet, r)
    sign = n.op("shl", n.op("and", c, 1 << (f.bits - 1)), 32 - f.bits)
    return n.as_float(n.op("or", r, sign))


def clamped(f: Format, x: str, n: Lanes) -> str:
    """Floats within what a cast to a format makes; NaN stays where there is one."""
    u = n.as_bits(x)
    a = n.op("and", u, _MAGNITUDE)
    r = n.least(a, _float_bits(f.limit))
    if f.nan is not None:
        r = n.choose(n.op("icmp ugt", a, _INFINITY), a, r)
    return n.as_float(n.op("or", r, n.op("and", u, 0x80000000)))


def cut(f: Format, x: str, n: Lanes) -> str:
    """Floats toward zero to what a format can hold, as floats; infinities and NaN stay."""
    u = n.as_bits(x)
    full = n.op("and", u, _MAGNITUDE)
    a = n.least(full, _float_bits(f.maximum))
    r = n.op("and", a, ~((1 << (23 - f.fraction)) - 1) & 0xFFFFFFFF)
    if f is not BFLOAT:  # which has float's subnormals
        anchor = 2.0 ** (f.least_exponent - f.fraction + 23)
        near = n.op("fsub", n.op("fadd", n.as_float(a), anchor, "float"), anchor, "float")
        over = n.op("fcmp ogt", near, n.as_float(a), "float")
        less = n.op("fsub", near, f.spacing, "float")
        low = n.as_bits(n.choose(over, less, near, "float"))
        small = n.op("icmp ult", a, (127 + f.least_exponent) << 23)
        r = n.choose(small, low, r)
    r = n.choose(n.op("icmp uge", full, _INFINITY), full, r)
    return n.as_float(n.op("or", r, n.op("and", u, 0x80000000)))


def to_single(x: str, n: Lanes) -> str:
    """Doubles as the nearest floats."""
    return n.convert("fptrunc", x, "double", "float")


def to_odd(x: str, n: Lanes) -> str:
    """Doubles as floats toward zero, with the last bit set where anything was lost: rounding these
    to a narrower float gives what rounding the doubles would."""
    near = to_single(x, n)
    back = n.convert("fpext", near, "float", "double")
    lost = n.op("fcmp one", back, x, "double")
    first, second = (
        n.op("and", n.convert("bitcast", e, "double", "i64"), (1 << 63) - 1, "i64")
        for e in (back, x)
    )
    over = n.convert("zext", n.op("icmp ugt", first, second, "i64"), "i1", "i32")
    cut = n.op("sub", n.as_bits(near), over)
    return n.as_float(n.op("or", cut, n.convert("zext", lost, "i1", "i32")))


def made_odd(x: str, error: str, n: Lanes) -> str:
    """Doubles that are off by less than their last place: where they are, and the last bit is not
    set, the neighbour on the side of the exact number, whose last bit is."""
    bits, sign = (n.convert("bitcast", e, "double", "i64") for e in (x, error))
    other = n.op("icmp slt", n.op("xor", bits, sign, "i64"), 0, "i64")
    moved = n.op("add", bits, n.choose(other, -1, 1, "i64"), "i64")
    even = n.op("icmp eq", n.op("and", bits, 1, "i64"), 0, "i64")
    lost = n.op("fcmp one", error, 0.0, "double")
    chosen = n.choose(n.op("and", even, lost, "i1"), moved, bits, "i64")
    return n.convert("bitcast", chosen, "i64", "double")


def odd_fma(a: Sequence[str], n: Lanes) -> str:
    """a * b + c of floats as doubles that rounding to floats, or to narrower ones, leaves right."""
    x, y, z = (n.convert("fpext", e, "float", "double") for e in a)
    x = n.op("fmul", x, y, "double")  # exact
    s = n.op("fadd", x, z, "double")
    back = n.op("fsub", s, x, "double")
    rest = n.op("fsub", x, n.op("fsub", s, back, "double"), "double")
    error = n.op("fadd", rest, n.op("fsub", z, back, "double"), "double")
    return made_odd(s, error, n)
