"""Normalisation and dropout."""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, translation
from tilewright.ir.node import Node, item
from tilewright.ir.types import TupleType, b1, f32


def _first(x: Node) -> Node:
    return item(x, 0) if isinstance(x.type, TupleType) else x


@translation("BatchNormalization")
def batch_norm(
    c: Context, x: Node, w: Node, b: Node, mean: Node, var: Node
) -> Node | tuple[Node, ...]:
    eps = c.get("epsilon", 1e-5)
    # Before opset 14 a node with more outputs trains.
    if not (c.get("training_mode", 0) or (c.opset < 14 and c.outputs > 1)):
        same = x.dtype is w.dtype is mean.dtype
        if same:
            return _first(ops.batch_norm(x, w, b, mean, var, eps))
        place = (1, w.shape[0], *[1] * (x.rank - 2))
        w, b, mean, var = (ops.reshape(ops.cast(v, f32), place) for v in (w, b, mean, var))
        root = ops.rsqrt(ops.add(var, ops.number(eps, f32)))
        centred = ops.sub(ops.cast(x, f32), mean)
        return ops.cast(ops.add(ops.mul(ops.mul(centred, root), w), b), x.dtype)
    axes = (0, *range(2, x.rank))
    momentum = c.get("momentum", 0.9)
    now_mean, now_var = ops.mean(x, axes), ops.var(x, axes, 0)
    y = _first(ops.batch_norm(x, w, b, now_mean, now_var, eps))

    def blended(old: Node, new: Node) -> Node:
        part = ops.number(momentum, old.dtype), ops.number(1 - momentum, old.dtype)
        return ops.add(ops.mul(old, part[0]), ops.mul(ops.cast(new, old.dtype), part[1]))

    found = (y, blended(mean, now_mean), blended(var, now_var), now_mean, now_var)
    return found[: c.outputs]


@translation("InstanceNormalization")
def instance_norm(c: Context, x: Node, w: Node, b: Node) -> Node:
    groups = x.shape[1]
    if not isinstance(groups, int):
        c.refuse("the number of channels is symbolic")
    return _first(ops.group_norm(x, w, b, groups, c.get("epsilon", 1e-5)))


@translation("LRN")
def lrn(c: Context, x: Node) -> Node:
    size = c.get("size", 1)
    before = (size - 1) // 2
    squares = ops.square(x)
    lo, hi = [0] * x.rank, [0] * x.rank
    lo[1], hi[1] = before, size - 1 - before
    padded = ops.pad(squares, lo, hi)
    total = ops.slice(padded, 1, 0, x.shape[1])
    for k in range(1, size):
        total = ops.add(total, ops.slice(padded, 1, k, k + x.shape[1]))
    scaled = ops.mul(total, ops.number(c.get("alpha", 1e-4) / size, x.dtype))
    base = ops.add(scaled, ops.number(c.get("bias", 1.0), x.dtype))
    return ops.div(x, ops.pow(base, ops.number(c.get("beta", 0.75), x.dtype)))


@translation("LpNormalization")
def lp_normalization(c: Context, x: Node) -> Node:
    axis = axis_in(c, c.get("axis", -1), x.rank)
    size = ops.norm(x, c.get("p", 2), [axis], True)
    zero = ops.number(0, x.dtype)
    return ops.where(ops.eq(size, zero), zero, ops.div(x, size))


@translation("Dropout")
def dropout(
    c: Context, x: Node, ratio: Node | None = None, training: Node | None = None
) -> Node | tuple[Node, ...]:
    trains = training is not None and bool(np.all(c.numbers(training)))
    share = c.get("ratio", 0.5) if ratio is None else float(c.numbers(ratio).reshape(-1)[0])
    if trains and share:
        c.refuse("dropout while training draws numbers of a generator that ONNX does not define")
    return (x, ops.full(x.shape, True, b1))[: c.outputs] if c.outputs > 1 else x
