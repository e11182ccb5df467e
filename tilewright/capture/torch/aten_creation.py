"""Tensors from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import ops
from tilewright.capture.torch.context import Context, single
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Int
from tilewright.ir.node import Node
from tilewright.ir.types import i64


def _filled(c: Context, value: Any) -> Node:
    out = c.out()
    if isinstance(value, (Node, Int)):
        one = c.node(value, out.dtype)
        return ops.expand(ops.reshape(one, ()), out.shape) if out.shape else ops.reshape(one, ())
    if isinstance(value, complex):
        raise Untranslated("complex numbers have no native form")
    return ops.full(out.shape, single(value, out.dtype), out.dtype)


@aten("full.default", "new_full.default", "full_like.default")
def full(c: Context, _like: Any, *rest: Any, **options: Any) -> Node:
    value = options["fill_value"] if "fill_value" in options else rest[-1]
    return _filled(c, value)


@aten("scalar_tensor.default")
def scalar_tensor(c: Context, value: Any, **_: Any) -> Node:
    return _filled(c, value)


@aten("fill.Scalar", "fill.Tensor")
def fill(c: Context, x: Node, value: Any) -> Node:
    return _filled(c, value)


# The second is what forward derivatives begin with, which in eager has no memory of its own.
@aten("zeros", "_efficientzerotensor", "zeros_like", "new_zeros", "zero")
def zeros(c: Context, *_: Any, **__: Any) -> Node:
    return _filled(c, 0)


@aten("ones", "ones_like", "new_ones")
def ones(c: Context, *_: Any, **__: Any) -> Node:
    return _filled(c, 1)


# Eager leaves memory as it was; zeros are one of the values it may hold.
@aten(
    "empty.memory_format",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)
def empty(c: Context, *_: Any, **__: Any) -> Node:
    return _filled(c, 0)


@aten("arange.start_step", "arange.start", "arange.default")
def arange(c: Context, *bounds: Any, **_: Any) -> Node:
    out = c.out()
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    if isinstance(start, Node) or isinstance(step, Node):
        raise Untranslated("its bounds are known at the call only")
    return ops.iota(out.shape[0], start, step, out.dtype)


@aten("eye")
def eye(c: Context, *_: Any, **__: Any) -> Node:
    out = c.out()
    rows = ops.reshape(ops.iota(out.shape[0], 0, 1, i64), (out.shape[0], 1))
    cols = ops.reshape(ops.iota(out.shape[1], 0, 1, i64), (1, out.shape[1]))
    return ops.cast(ops.eq(rows, cols), out.dtype)


@aten("tril_indices.default", "triu_indices.default")
def triangle_indices(c: Context, row: int, col: int, offset: int = 0, **_: Any) -> Node:
    lower = "tril" in str(c.fx.target)
    pick = np.tril_indices(row, offset, col) if lower else np.triu_indices(row, offset, col)
    return c.literal(np.stack(pick), c.out().dtype)
