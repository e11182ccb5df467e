"""libdevice's functions of bits: counting and reversing them, averages without overflow, numbers
read as other types of the same width. Integers of 32 and 64 bits; counts are int32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.base.errors import Invalid
from tilewright.lang.tile.front.functions import constexpr_function, function
from tilewright.lang.tile.language import core

if TYPE_CHECKING:
    from typing import Any as constexpr  # a constant may be any value of Python's
else:
    from tilewright.lang.tile.language.types import constexpr


@constexpr_function
def _unsigned(what, dtype):
    """The unsigned type of integers of 32 or 64 bits."""
    if not dtype.is_int() or dtype.primitive_bitwidth not in (32, 64):
        raise Invalid(
            f"libdevice.{what} of {dtype}",
            hint="it takes integers of 32 or 64 bits: x.to(tl.int32)",
        )
    return core.get_int_dtype(dtype.primitive_bitwidth, False)


@constexpr_function
def _repeated(byte, bits):
    """A pattern of 8 bits all over a word."""
    return int.from_bytes(bytes([byte]) * (bits // 8), "little")


@constexpr_function
def _alternating(run, bits):
    """`run` ones, `run` zeros, … from the lowest bit up."""
    one = (1 << run) - 1
    return int("".join(f"{one:0{2 * run}b}" for _ in range(bits // (2 * run))), 2)


@function
def popc(x):
    """How many bits are 1."""
    word: constexpr = _unsigned("popc", x.dtype)
    bits: constexpr = word.primitive_bitwidth
    n = x.to(word, bitcast=True)
    n = n - ((n >> 1) & _repeated(0x55, bits))
    n = (n & _repeated(0x33, bits)) + ((n >> 2) & _repeated(0x33, bits))
    n = (n + (n >> 4)) & _repeated(0x0F, bits)
    return ((n * _repeated(0x01, bits)) >> (bits - 8)).to(core.int32)


@function
def clz(x):
    """How many bits are 0 above the highest 1."""
    word: constexpr = _unsigned("clz", x.dtype)
    bits: constexpr = word.primitive_bitwidth
    n = x.to(word, bitcast=True)
    n = n | (n >> 1)
    n = n | (n >> 2)
    n = n | (n >> 4)
    n = n | (n >> 8)
    n = n | (n >> 16)
    if bits == 64:
        n = n | (n >> 32)
    return bits - popc(n)


@function
def ffs(x):
    """The number of the lowest 1, from 1; 0 where there is none."""
    word: constexpr = _unsigned("ffs", x.dtype)
    bits: constexpr = word.primitive_bitwidth
    n = x.to(word, bitcast=True)
    below = popc(~n & (n - 1))
    return core.where(below == bits, 0, below + 1)


@function
def brev(x):
    """The bits in reverse order."""
    word: constexpr = _unsigned("brev", x.dtype)
    bits: constexpr = word.primitive_bitwidth
    n = x.to(word, bitcast=True)
    for k in core.static_range(5 if bits == 32 else 6):
        run: constexpr = 1 << k
        low: constexpr = _alternating(run, bits)
        n = ((n & low) << run) | ((n >> run) & low)
    return n.to(x.dtype, bitcast=True)


@function
def byte_perm(x, y, s):
    """Four bytes chosen from the eight of x and y by the lower four hexadecimal digits of s; a
    digit of 8 or more spreads the sign of byte digit - 8."""
    both = x.to(core.uint32, bitcast=True).to(core.uint64)
    both = both | (y.to(core.uint32, bitcast=True).to(core.uint64) << 32)
    choice = s.to(core.uint32, bitcast=True).to(core.uint64)
    result = both ^ both
    for k in core.static_range(4):
        digit = (choice >> (4 * k)) & 0xF
        byte = (both >> ((digit & 7) * 8)) & 0xFF
        sign = (byte >> 7) * 0xFF
        result = result | (core.where(digit >= 8, sign, byte) << (8 * k))
    return result.to(core.uint32).to(x.dtype, bitcast=True)


@function
def mulhi(x, y):
    """The upper half of the product of two integers, by their sign."""
    high = core.umulhi(x, y)
    if high.dtype.is_int_signed():
        # As signed numbers, x is less by 2**bits where it is negative.
        high = high - core.where(x < 0, y, 0) - core.where(y < 0, x, 0)
    return high


@function
def mul24(x, y):
    """The lower 32 bits of the product of two integers of 24 bits."""
    return ((x << 8) >> 8) * ((y << 8) >> 8)


@function
def sad(x, y, z):
    """|x - y| + z."""
    return core.where(x > y, x - y, y - x).to(z.dtype, bitcast=True) + z


@function
def hadd(x, y):
    """(x + y) // 2 without overflow."""
    return (x & y) + ((x ^ y) >> 1)


@function
def rhadd(x, y):
    """(x + y + 1) // 2 without overflow."""
    return (x | y) - ((x ^ y) >> 1)


@function
def int_as_float(x):
    return x.to(core.float32, bitcast=True)


@function
def uint_as_float(x):
    return x.to(core.float32, bitcast=True)


@function
def float_as_int(x):
    return x.to(core.int32, bitcast=True)


@function
def float_as_uint(x):
    return x.to(core.uint32, bitcast=True)


@function
def longlong_as_double(x):
    return x.to(core.float64, bitcast=True)


@function
def double_as_longlong(x):
    return x.to(core.int64, bitcast=True)


@function
def double2loint(x):
    """The lower half of a float64's bits."""
    return x.to(core.int64, bitcast=True).to(core.int32)


@function
def double2hiint(x):
    """The upper half of a float64's bits."""
    return (x.to(core.int64, bitcast=True) >> 32).to(core.int32)


@function
def hiloint2double(high, low):
    """A float64 of its two halves."""
    bits = (high.to(core.int64) << 32) | low.to(core.uint32, bitcast=True).to(core.int64)
    return bits.to(core.float64, bitcast=True)


@function
def rcp64h(x):
    """1 / x, only the upper half of whose bits counts."""
    bits = (1.0 / x).to(core.int64, bitcast=True)
    return ((bits >> 32) << 32).to(core.float64, bitcast=True)
