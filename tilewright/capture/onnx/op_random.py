"""Random numbers by a node's attributes. ONNX does not say which generator: numbers of one seed are
the same here in every call and on every machine, and others than elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.capture.onnx.casts import cast_to
from tilewright.capture.onnx.context import Context, Value, translation
from tilewright.capture.onnx.elements import ELEMENT_OF
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, constant
from tilewright.ir.types import f32, i64


def _seed(c: Context) -> Node:
    """Of the attribute's bits. A node without a seed may draw any number: it draws those of 0."""
    bits = np.float32(c.get("seed", 0.0)).view(np.int32)
    return constant(np.int64(bits), i64)


def _uniform(c: Context, shape: Sequence[Dim]) -> Node:
    drawn = ops.rand(_seed(c), ops.number(0, i64), shape, f32)
    low, high = c.get("low", 0.0), c.get("high", 1.0)
    return ops.add(ops.mul(drawn, ops.number(high - low, f32)), ops.number(low, f32))


def _normal(c: Context, shape: Sequence[Dim]) -> Node:
    drawn = ops.randn(_seed(c), ops.number(0, i64), shape, f32)
    scaled = ops.mul(drawn, ops.number(c.get("scale", 1.0), f32))
    return ops.add(scaled, ops.number(c.get("mean", 0.0), f32))


@translation("RandomUniform")
def random_uniform(c: Context) -> Value:
    return cast_to(c, _uniform(c, c.get("shape", [])), c.get("dtype", 1))


@translation("RandomNormal")
def random_normal(c: Context) -> Value:
    return cast_to(c, _normal(c, c.get("shape", [])), c.get("dtype", 1))


@translation("RandomUniformLike")
def random_uniform_like(c: Context, x: Node) -> Value:
    return cast_to(c, _uniform(c, x.shape), c.get("dtype", ELEMENT_OF[x.dtype]))


@translation("RandomNormalLike")
def random_normal_like(c: Context, x: Node) -> Value:
    return cast_to(c, _normal(c, x.shape), c.get("dtype", ELEMENT_OF[x.dtype]))


@translation("Bernoulli")
def bernoulli(c: Context, x: Node) -> Value:
    drawn = ops.rand(_seed(c), ops.number(0, i64), x.shape, f32)
    return cast_to(c, ops.lt(drawn, ops.cast(x, f32)), c.get("dtype", ELEMENT_OF[x.dtype]))
