"""Results whose size only data decides."""

from __future__ import annotations

from functools import reduce

import numpy as np
from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, static, translation
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, item
from tilewright.ir.types import f32, i64


def _count(dims: tuple[Dim, ...]) -> Dim:
    return reduce(lambda a, b: a * b, dims, 1)


@translation("NonZero")
def non_zero(c: Context, x: Node) -> Node:
    if c.is_constant(x):
        return c.weight(np.array(np.nonzero(c.numbers(x)), np.int64), TensorProto.INT64)
    x = x if x.rank else ops.reshape(x, (1,))
    found = ops.nonzero(x)
    (places,) = c.bounded(item(found, 1), [item(found, 0)], 1)
    return places


@translation("Compress")
def compress(c: Context, x: Node, condition: Node) -> Node:
    axis = c.attributes.get("axis")
    if axis is None:
        x, k = ops.reshape(x, (_count(x.shape),)), 0
    else:
        k = axis_in(c, axis, x.rank)
    if c.is_constant(condition):
        taken = np.flatnonzero(c.numbers(condition)).astype(np.int64)
        return ops.take(x, c.weight(taken, TensorProto.INT64), k)
    found = ops.nonzero(condition)
    rows = ops.reshape(item(found, 0), condition.shape)
    fits = D.known_le(condition.shape[0], x.shape[k])
    known = "within" if fits else c.within(rows, x.shape[k])
    (taken,) = c.bounded(item(found, 1), [ops.take(x, rows, k, known)], k)
    return taken


@translation("Unique")
def unique(c: Context, x: Node) -> tuple[Node, ...]:
    axis = c.attributes.get("axis")
    if axis is None:
        x, k = ops.reshape(x, (_count(x.shape), 1)), 0
        static(x.shape, "Unique without an axis")
    else:
        k = axis_in(c, axis, x.rank)
    lead = ops.permute(x, (k, *(a for a in range(x.rank) if a != k)))
    n = lead.shape[0]
    found = ops.unique(ops.reshape(lead, (n, _count(lead.shape[1:]))), bool(c.get("sorted", 1)))
    first, counts, which, count = (item(found, m) for m in range(4))
    rows = ops.take(lead, first, 0, "within") if not D.known_eq(n, 0) else lead
    rows, first, counts = c.bounded(count, [rows, first, counts], 0)
    if axis is None:
        values = ops.reshape(rows, rows.shape[:1])
    else:
        back = (*range(1, k + 1), 0, *range(k + 1, x.rank))
        values = ops.permute(rows, back)
    return values, first, which, counts


@translation("NonMaxSuppression")
def non_max_suppression(
    c: Context,
    boxes: Node,
    scores: Node,
    most: Node | None = None,
    limit: Node | None = None,
    least: Node | None = None,
) -> Node:
    """Boxes of each batch and class in the order of their scores; of equal ones the first."""
    batches, classes, n = scores.shape
    static((n,), "NonMaxSuppression")
    if most is None or any(D.known_eq(d, 0) for d in scores.shape):
        return ops.full((0, 3), 0, i64)
    ordered = ops.sort(scores, 2, True)
    best, order = item(ordered, 0), item(ordered, 1)
    valid = ops.eq(best, best)
    if least is not None:
        # Boxes of too low a score stand last: they are cut off before boxes are compared.
        valid = ops.gt(best, _one(least, best))
        longest = ops.amax(ops.sum(ops.cast(valid, i64), (2,), False), (0, 1), False)
        order, valid = c.bounded(longest, [order, valid], 2)
    edges = [ops.gather(_lines(e, classes), order, 2, "within") for e in _edges(c, boxes)]
    overlap = ops.number(0, f32) if limit is None else _one(limit, boxes)
    kept = ops.suppress(edges, valid, overlap, ops.reshape(ops.cast(most, i64), ()))
    bound = kept.ttype.size
    if c.is_constant(most):
        bound = batches * classes * D.minimum(kept.shape[2], max(c.one(most), 0))
    found = ops.nonzero(kept, bound)
    batch, which, place = ops.split(item(found, 0), [1, 1, 1], 0)
    box = ops.index(order, [batch, which, place], [0, 1, 2], "within")
    rows = ops.permute(ops.concat([batch, which, box], 0), (1, 0))
    (taken,) = c.bounded(item(found, 1), [rows], 0)
    return taken


def _one(x: Node, like: Node) -> Node:
    return ops.cast(ops.reshape(x, ()), like.dtype)


def _lines(edge: Node, classes: Dim) -> Node:
    """An edge of every box, for every class: [batch, classes, boxes]."""
    batch, n = edge.shape
    return ops.expand(ops.reshape(edge, (batch, 1, n)), (batch, classes, n))


def _edges(c: Context, boxes: Node) -> list[Node]:
    """(low y, low x, high y, high x) of every box."""
    parts = [ops.reshape(p, boxes.shape[:2]) for p in ops.split(boxes, [1] * 4, 2)]
    if not c.get("center_point_box", 0):
        y0, x0, y1, x1 = parts
        low = [ops.minimum(y0, y1), ops.minimum(x0, x1)]
        return [*low, ops.maximum(y0, y1), ops.maximum(x0, x1)]
    x, y, wide, high = parts
    half = ops.number(0.5, boxes.dtype)
    wide, high = ops.mul(wide, half), ops.mul(high, half)
    return [ops.sub(y, high), ops.sub(x, wide), ops.add(y, high), ops.add(x, wide)]
