"""Results whose size only data decides: native code computes as many elements as there may be and
their number (ops/bounded.py), and what follows reads the beginning of them (`Context.bounded`).
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright import ops
from tilewright.capture.torch.context import Context, Operand, axis_of, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, item
from tilewright.ir.types import b1, f32, f64, i64
from tilewright.ops.shapes import broadcast_shapes


def _flat(x: Node) -> Node:
    return ops.reshape(x, (x.ttype.size,))


def mask_places(c: Context, mask: Node, size: Any) -> list[Node]:
    """Where a mask is true: one index along each of its axes. Torch calls their number `size`."""
    found = ops.nonzero(mask)
    (places,) = c.bounded(item(found, 1), [item(found, 0)], 1, size)
    return [ops.reshape(p, p.shape[1:]) for p in ops.split(places, [1] * mask.rank, 0)]


@aten("nonzero.default")
def nonzero(c: Context, x: Node) -> Node:
    found = ops.nonzero(x)
    (places,) = c.bounded(item(found, 1), [item(found, 0)], 1, c.val.shape[0])
    return ops.permute(places, (1, 0))


@aten("masked_select.default")
def masked_select(c: Context, x: Node, mask: Node) -> Node:
    shape = broadcast_shapes(x.shape, mask.shape, what="masked_select")
    x, mask = _flat(ops.expand(x, shape)), _flat(ops.expand(mask, shape))
    (places,) = mask_places(c, mask, c.val.shape[0])
    return ops.take(x, places, 0, "within")


@aten("_local_scalar_dense.default")
def local_scalar_dense(c: Context, x: Node) -> Dim:
    if not isinstance(c.val, torch.SymInt) or not x.dtype.is_int:
        raise Untranslated("a number that it reads from data has no native form")
    c.bounded(_flat(x), (), 0, c.val)
    return c.shapes.dim(c.val)


def _unique(
    c: Context, x: Node, inverse: tuple[Dim, ...] | None, counts: bool
) -> tuple[Node, Node, Node]:
    """Of the rows of a matrix: the places of different ones, which of them each row is in this
    shape, and how many there are of each; what is not wanted is empty, as in eager."""
    first, many, which, count = (item(ops.unique(x, True, False), k) for k in range(4))
    return _as_wanted(c, first, many, which, count, inverse, counts)


def _as_wanted(
    c: Context,
    first: Node,
    many: Node,
    which: Node,
    count: Node,
    inverse: tuple[Dim, ...] | None,
    counts: bool,
) -> tuple[Node, Node, Node]:
    none = ops.full((0,), 0, i64)
    wanted = [first, many] if counts else [first]
    found = c.bounded(count, wanted, 0, _size(c))
    which = none if inverse is None else ops.reshape(which, inverse)
    return found[0], which, found[1] if counts else none


def _size(c: Context) -> Any:
    """What torch calls the number of different rows: the one size of the result that data
    decides."""
    values = c.val[0]
    free = [s for s in values.shape if isinstance(s, torch.SymInt)]
    named = [s for s in free if any(str(x).startswith("u") for x in s.node.expr.free_symbols)]
    return (named or list(values.shape))[-1]


@aten("_unique2.default")
def unique(
    c: Context,
    x: Node,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Node, Node, Node]:
    n, own = x.ttype.size, x.shape
    x = ops.reshape(x, (n,))
    # Some versions of torch give it with the counts too.
    inverse = own if return_inverse or c.val[1].ndim != 1 or c.val[1].shape[0] != 0 else None
    first, which, many = _unique(c, ops.reshape(x, (n, 1)), inverse, return_counts)
    return ops.take(x, first, 0, "within"), which, many


@aten("unique_dim.default")
def unique_dim(
    c: Context,
    x: Node,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Node, Node, Node]:
    axis = axis_of(dim, x.rank)
    rows = _rows(x, axis)
    first, which, many = _unique(c, rows, (x.shape[axis],), True)
    return ops.take(x, first, axis, "within"), which, many


def _rows(x: Node, axis: int) -> Node:
    lead = ops.permute(x, (axis, *(k for k in range(x.rank) if k != axis)))
    width: Dim = 1
    for d in lead.shape[1:]:
        width = width * d
    return ops.reshape(lead, (x.shape[axis], width))


@aten("unique_consecutive.default")
def unique_consecutive(
    c: Context,
    x: Node,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Node, Node, Node]:
    own = x.shape
    if dim is None:
        x, axis = _flat(x), 0
        rows, inverse = ops.reshape(x, (x.shape[0], 1)), own if return_inverse else None
    else:
        axis = axis_of(dim, x.rank)
        rows, inverse = _rows(x, axis), (x.shape[axis],)
        return_counts = True
    n = rows.shape[0]
    if D.known_eq(n, 0) or D.known_eq(rows.shape[1], 0):
        raise Untranslated("there are no elements")
    other = ops.any(ops.ne(rows, ops.roll(rows, [1], [0])), (1,), False)
    fresh = ops.logical_or(ops.eq(ops.iota(n), ops.number(0, i64)), other)
    which = ops.sub(ops.cumsum(ops.cast(fresh, i64), 0), ops.number(1, i64))
    found = ops.nonzero(fresh)
    first, count = ops.reshape(item(found, 0), (n,)), item(found, 1)
    after = ops.add(ops.iota(n), ops.number(1, i64))
    later = ops.where(ops.lt(after, count), ops.roll(first, [-1], [0]), ops.number(n, i64))
    many = ops.sub(later, first)
    first, which, many = _as_wanted(c, first, many, which, count, inverse, return_counts)
    return ops.take(x, first, axis, "within"), which, many


@aten("repeat_interleave.Tensor")
def repeat_interleave(c: Context, repeats: Node, *, output_size: Any = None) -> Node:
    times = cast(repeats, i64)
    zero, one = ops.number(0, i64), ops.number(1, i64)
    if D.known_eq(times.shape[0], 0):
        return ops.full((0,), 0, repeats.dtype)
    c.checks.never(ops.lt(times, zero), "repeats can not be negative")
    ends = ops.cumsum(times, 0)
    total = ops.sum(times, (0,), False)
    size = c.val.shape[0]
    if output_size is not None:
        other = ops.ne(total, ops.number(c.shapes.dim(size), i64))
        c.checks.never(other, "allocated size does not match required size")
    else:
        c.bounded(ops.maximum(total, zero), (), 0, size)
    n = c.shapes.dim(size)
    # A row begins where those before it end; several begin where some are repeated 0 times.
    begins = ops.minimum(ops.maximum(ops.sub(ends, times), zero), ops.number(n, i64))
    marks = ops.full((n + 1,), 0, i64)
    ones = ops.full(times.shape, 1, i64)
    marks = ops.scatter(marks, begins, ones, 0, "add", "within")
    places = ops.sub(ops.cumsum(ops.slice(marks, 0, 0, n), 0), one)
    return cast(places, repeats.dtype)


@aten("bincount.default")
def bincount(c: Context, x: Node, weights: Node | None = None, minlength: Any = 0) -> Node:
    """How often each number occurs; as many as there are up to the largest."""
    if not D.known_le(1, x.shape[0]):
        raise Untranslated("there may be no elements")
    x, one = cast(x, i64), ops.number(1, i64)
    c.checks.never(
        ops.lt(x, ops.number(0, i64)),
        "bincount only supports 1-d non-negative integral inputs.",
    )
    least = ops.number(c.shapes.dim(minlength), i64)
    size = c.val.shape[0]
    c.bounded(ops.maximum(ops.add(ops.amax(x, (0,), False), one), least), (), 0, size)
    dtype = i64 if weights is None else f32 if weights.dtype == f32 else f64
    times = ops.full(x.shape, 1, i64) if weights is None else cast(weights, dtype)
    return ops.scatter(ops.full((c.shapes.dim(size),), 0, dtype), x, times, 0, "add", "within")


@aten("torchvision.nms")
def nms(c: Context, boxes: Node, scores: Node, iou_threshold: Operand) -> Node:
    """Which boxes (x, y, x, y) are kept, the best first."""
    if boxes.dtype not in (f32, f64):
        raise Untranslated(f"boxes of {boxes.dtype} have no native form")
    n = boxes.shape[0]
    order = item(ops.sort(scores, 0, True), 1)
    rows = ops.take(boxes, order, 0, "within")
    edges = [ops.reshape(p, (n,)) for p in ops.split(rows, [1] * 4, 1)]
    limit = cast(c.node(iou_threshold, f64), boxes.dtype)
    valid = ops.full((n,), True, b1)
    kept = ops.suppress([edges[k] for k in (1, 0, 3, 2)], valid, limit, ops.number(n, i64))
    (places,) = mask_places(c, kept, c.val.shape[0])
    return ops.take(order, places, 0, "within")
