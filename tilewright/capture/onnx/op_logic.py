"""Comparisons and logic."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.capture.onnx.context import Context, translation
from tilewright.ir.node import Node

_TWO = {
    "And": ops.logical_and,
    "Or": ops.logical_or,
    "Xor": ops.logical_xor,
    "Equal": ops.eq,
    "Less": ops.lt,
    "Greater": ops.gt,
    "LessOrEqual": ops.le,
    "GreaterOrEqual": ops.ge,
}


def _two(build: Callable[[Node, Node], Node]) -> Callable[[Context, Node, Node], Node]:
    return lambda c, x, y: build(x, y)


for _name, _build in _TWO.items():
    translation(_name)(_two(_build))


@translation("Not")
def logical_not(c: Context, x: Node) -> Node:
    return ops.logical_not(x)


@translation("IsNaN")
def is_nan(c: Context, x: Node) -> Node:
    return ops.isnan(x)


@translation("IsInf")
def is_inf(c: Context, x: Node) -> Node:
    found, zero = ops.isinf(x), ops.number(0, x.dtype)
    if not c.get("detect_negative", 1):
        found = ops.logical_and(found, ops.gt(x, zero))
    if not c.get("detect_positive", 1):
        found = ops.logical_and(found, ops.lt(x, zero))
    return found


@translation("Where")
def where(c: Context, condition: Node, x: Node, y: Node) -> Node:
    return ops.where(condition, x, y)
