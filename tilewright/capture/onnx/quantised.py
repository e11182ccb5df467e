"""Rounding to quantised integers, which several operators end with."""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.types import f32


def clamped(x: Node, low: float, high: float) -> Node:
    return ops.minimum(ops.maximum(x, ops.number(low, x.dtype)), ops.number(high, x.dtype))


def rounded_to(x: Node, zero: Node) -> Node:
    """Floats in units of the scale, rounded and moved to a zero point, whose dtype they get."""
    point = ops.cast(zero, f32)
    moved = ops.add(
        ops.round(x), ops.reshape(point, ()) if zero.rank == 1 and zero.shape[0] == 1 else point
    )
    return ops.cast(clamped(moved, zero.dtype.lowest, zero.dtype.highest), zero.dtype)
