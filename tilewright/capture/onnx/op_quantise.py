"""Quantisation: per tensor, per axis, per block; integers and floats of few bits."""

from __future__ import annotations

from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.casts import cast_to
from tilewright.capture.onnx.context import Context, axis_in, translation
from tilewright.capture.onnx.elements import WHOLE, Narrow, dtype_for
from tilewright.capture.onnx.quantised import clamped
from tilewright.ir.node import Node
from tilewright.ir.types import DType, f32, i32, u8


def _plain(x: Node | Narrow) -> Node:
    return x.node if isinstance(x, Narrow) else x


def _spread(c: Context, s: Node, x: Node) -> Node:
    """Scales or zero points as they meet the tensor: one, one per index of an axis, or blocks."""
    if s.rank == 0 or (s.rank == 1 and s.shape[0] == 1):
        return ops.reshape(s, ())
    axis = axis_in(c, c.get("axis", 1), x.rank)
    block = c.get("block_size", 0)
    if (s.rank == 1 and x.rank != 1) or not block:
        return ops.reshape(s, [s.shape[0] if k == axis else 1 for k in range(x.rank)])
    apart = ops.unsqueeze(s, axis + 1)
    many = [*apart.shape]
    many[axis + 1] = block
    joined = [*s.shape]
    joined[axis] = s.shape[axis] * block
    whole = ops.reshape(ops.expand(apart, many), joined)
    return ops.slice(whole, axis, 0, x.shape[axis])


@translation("QuantizeLinear", narrow=True)
def quantize_linear(
    c: Context, x: Node, scale: Node | Narrow, zero: Node | Narrow | None = None
) -> Node | Narrow:
    element = c.get("output_dtype", 0) or (TensorProto.UINT8 if zero is None else c.element(2))
    precision = c.get("precision", 0)
    work: DType = dtype_for(precision) if precision else f32
    steps = _spread(c, ops.cast(_plain(scale), work), x)
    y = ops.div(ops.cast(x, work), steps)
    if (element not in WHOLE and dtype_for(element).is_float) or element == TensorProto.FLOAT4E2M1:
        return cast_to(c, y, element, bool(c.get("saturate", 1)))
    y = ops.cast(ops.round(y), f32)
    if zero is not None:
        y = ops.add(y, _spread(c, ops.cast(_plain(zero), f32), x))
    dtype = dtype_for(element)
    low, high = dtype.lowest, dtype.highest
    if element in WHOLE:
        low, high = WHOLE[element].lowest, WHOLE[element].highest
    made = ops.cast(ops.cast(clamped(y, low, high), i32), dtype)
    return Narrow(made, element) if element in WHOLE else made


@translation("DequantizeLinear", narrow=True)
def dequantize_linear(
    c: Context, x: Node | Narrow, scale: Node | Narrow, zero: Node | Narrow | None = None
) -> Node:
    source, steps = _plain(x), _plain(scale)
    wanted = c.get("output_dtype", 0)
    out = dtype_for(wanted) if wanted else steps.dtype
    if source.dtype.is_int:
        y = ops.cast(source, i32)
        if zero is not None:
            y = ops.sub(y, _spread(c, ops.cast(_plain(zero), i32), source))
    else:
        y = ops.cast(source, f32)
        if zero is not None:
            y = ops.sub(y, _spread(c, ops.cast(_plain(zero), f32), source))
    found = ops.mul(ops.cast(y, f32), _spread(c, ops.cast(steps, f32), source))
    return ops.cast(found, out)


@translation("DynamicQuantizeLinear")
def dynamic_quantize_linear(c: Context, x: Node) -> tuple[Node, Node, Node]:
    zero = ops.number(0, f32)
    axes = tuple(range(x.rank))
    low = ops.minimum(ops.amin(x, axes), zero)
    high = ops.maximum(ops.amax(x, axes), zero)
    scale = ops.div(ops.sub(high, low), ops.number(255, f32))
    scale = ops.where(ops.eq(scale, zero), ops.number(1, f32), scale)
    point = ops.round(clamped(ops.neg(ops.div(low, scale)), 0, 255))
    y = clamped(ops.add(ops.round(ops.div(x, scale)), point), 0, 255)
    return ops.cast(y, u8), scale, ops.cast(point, u8)
