"""Casts between ONNX's element types, with what they say of numbers out of range."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.context import Context
from tilewright.capture.onnx.elements import WHOLE, Narrow, dtype_for
from tilewright.ir.node import Node
from tilewright.ir.types import FLOATS_OF_8_BITS, DType, f32, i64

# Formats of 8 bits that have infinities; the others have a NaN in their place.
_INFINITE = (TensorProto.FLOAT8E5M2,)


def cast_to(
    c: Context, x: Node | Narrow, element: int, saturate: bool = True, rounding: str = "up"
) -> Node | Narrow:
    """`x` as another element type. Where it does not `saturate`, numbers that an 8-bit float
    cannot hold become infinities or NaN."""
    if isinstance(x, Narrow) and x.element == element:
        return x
    n = x.node if isinstance(x, Narrow) else x
    if element in WHOLE:
        return Narrow(_to_whole(n, element), element)
    if element == TensorProto.FLOAT4E2M1:
        return Narrow(_to_float4(ops.cast(n, f32)), element)
    if element == TensorProto.FLOAT8E8M0:
        return Narrow(_to_exponent(ops.cast(n, f32), saturate, rounding), element)
    dtype = dtype_for(element)
    if dtype in FLOATS_OF_8_BITS and n.dtype is not dtype:
        return _to_float8(n, dtype, element, saturate)
    if dtype.is_int and n.dtype.is_float and n.dtype is not dtype:
        return _to_int(n, dtype)
    return ops.cast(n, dtype)


def _to_int(x: Node, dtype: DType) -> Node:
    """Toward zero. Through 64 bits: an integer of few bits then keeps the low ones."""
    return ops.cast(ops.cast(x, i64), dtype) if dtype.bits < 32 else ops.cast(x, dtype)


def _to_float8(x: Node, dtype: DType, element: int, saturate: bool) -> Node:
    wide = x if x.dtype.is_float and x.dtype.bits >= 32 else ops.cast(x, f32)
    made = ops.cast(wide, dtype)
    assert dtype.format is not None
    if saturate:
        return made
    # What rounds to more than the largest number: beyond half of its last step.
    largest = dtype.format.maximum
    before = np.array([dtype.format.largest - 1], dtype.format.code)
    step = largest - float(dtype.format.decode(before)[0])
    beyond = ops.gt(ops.abs(wide), ops.number(largest + step / 2, wide.dtype))
    at_half = ops.eq(ops.abs(wide), ops.number(largest + step / 2, wide.dtype))
    if dtype.format.largest % 2:  # a tie goes to the even neighbour, which is not a number
        beyond = ops.logical_or(beyond, at_half)
    if element in _INFINITE:
        return _infinite(beyond, wide, made, dtype)
    return ops.where(beyond, ops.full((), float("nan"), dtype), made)


def _infinite(beyond: Node, x: Node, made: Node, dtype: DType) -> Node:
    up, down = (ops.full((), float(s + "inf"), dtype) for s in ("", "-"))
    return ops.where(beyond, ops.where(ops.gt(x, ops.number(0, x.dtype)), up, down), made)


def _to_whole(x: Node, element: int) -> Node:
    """Few bits: the low ones of an integer; of a float, toward zero and then the low ones."""
    kind = WHOLE[element]
    wide = ops.cast(x, i64)
    span = kind.highest - kind.lowest + 1
    up = ops.sub(wide, ops.number(kind.lowest, i64))
    return ops.cast(
        ops.add(ops.mod(up, ops.number(span, i64)), ops.number(kind.lowest, i64)), kind.dtype
    )


def _to_float4(x: Node) -> Node:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign; ties go to the even code, and what is
    larger is 6."""
    size = ops.minimum(ops.abs(x), ops.number(6, f32))

    def grid(step: float) -> Node:
        return ops.mul(ops.round(ops.div(size, ops.number(step, f32))), ops.number(step, f32))

    upper = ops.where(ops.lt(size, ops.number(4, f32)), grid(1), grid(2))
    near = ops.where(ops.lt(size, ops.number(2, f32)), grid(0.5), upper)
    # The type has no NaN: one becomes 0.
    return ops.copysign(ops.where(ops.isnan(x), ops.number(0, f32), near), x)


def _to_exponent(x: Node, saturate: bool, rounding: str) -> Node:
    """A power of two: exponents from -127 to 127, or NaN. There is neither a sign nor a zero."""
    size = ops.abs(x)
    low, high = 2.0**-127, 2.0**127
    power = ops.exp2(ops.floor(ops.log2(size)))
    # log2 is rounded: what it gives beside a power of two is set right.
    power = ops.where(ops.gt(power, size), ops.mul(power, ops.number(0.5, f32)), power)
    twice = ops.mul(power, ops.number(2, f32))
    power = ops.where(ops.le(twice, size), twice, power)
    twice = ops.mul(power, ops.number(2, f32))
    if rounding == "up":
        power = ops.where(ops.gt(size, power), twice, power)
    elif rounding == "nearest":
        half = ops.mul(power, ops.number(1.5, f32))
        power = ops.where(ops.ge(size, half), twice, power)
    over = ops.gt(power, ops.number(high, f32))
    edge = high if saturate else float("nan")
    power = ops.where(over, ops.number(edge, f32), power)
    under = ops.lt(size, ops.number(low, f32))
    power = ops.where(under, ops.number(low, f32), power)
    missing = ops.isnan(x) if saturate else ops.logical_not(ops.isfinite(x))
    return ops.where(missing, ops.number(float("nan"), f32), power)
