"""Operators of the domain ai.onnx.ml that compute on numbers."""

from __future__ import annotations

from functools import partial

from tilewright import ops
from tilewright.capture.onnx.context import Context, translation
from tilewright.ir.node import Node
from tilewright.ir.types import f32

step = partial(translation, domain="ai.onnx.ml")


@step("ArrayFeatureExtractor")
def array_feature_extractor(c: Context, x: Node, places: Node) -> Node:
    count = places.ttype.size
    taken = ops.take(x, ops.reshape(places, (count,)), x.rank - 1)
    return ops.unsqueeze(taken, 0) if x.rank == 1 else taken


@step("Binarizer")
def binarizer(c: Context, x: Node) -> Node:
    above = ops.gt(x, ops.number(c.get("threshold", 0.0), x.dtype))
    return ops.cast(above, x.dtype)


@step("Scaler")
def scaler(c: Context, x: Node) -> Node:
    def line(name: str, default: float) -> Node:
        values = c.get(name, [default])
        parts = [ops.full((1,), v, f32) for v in values]
        return ops.concat(parts, 0) if len(parts) > 1 else parts[0]

    return ops.mul(ops.sub(ops.cast(x, f32), line("offset", 0.0)), line("scale", 1.0))
