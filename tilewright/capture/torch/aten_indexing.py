"""Indexing: gather, scatter, advanced indexing, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.capture.torch.aten_bounded import mask_places
from tilewright.capture.torch.aten_elementwise import count_below
from tilewright.capture.torch.checks import (
    ADVANCED,
    ALONG,
    COPIED,
    FLAT,
    OF_SELF,
    ROWS,
    SELECTED,
    SORTER,
    added,
)
from tilewright.capture.torch.context import Context, Operand, axis_of, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir import dim as D
from tilewright.ir.node import Node, item
from tilewright.ir.types import bf16, f16, f32, i64
from tilewright.ops.indexing import KNOWN


@aten("gather.default")
def gather(c: Context, x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    known = c.checks.indices(index, x, axis_of(dim, x.rank), ALONG)
    if x.rank == 0:
        return ops.reshape(ops.expand(x, index.shape), c.out().shape)
    if index.rank == 0:
        index = ops.reshape(index, (1,))
    return ops.reshape(ops.gather(x, index, axis_of(dim, x.rank), known), c.out().shape)


@aten("take_along_dim.default")
def take_along_dim(c: Context, x: Node, index: Node, dim: int | None = None) -> Node:
    if dim is None:
        flat = ops.reshape(x, (x.ttype.size,))
        known = c.checks.indices(index, flat, 0, ALONG)
        return ops.take(flat, index, 0, known)
    known = c.checks.indices(index, x, axis_of(dim, x.rank), ALONG)
    return ops.gather(x, index, axis_of(dim, x.rank), known)


@aten("index_select.default")
def index_select(c: Context, x: Node, dim: int, index: Node) -> Node:
    axis = axis_of(dim, x.rank)
    known = c.checks.indices(index, x, axis, ROWS if axis == 0 else SELECTED)
    if x.rank == 0:
        return x
    flat = ops.reshape(index, (1,)) if index.rank == 0 else index
    return ops.take(x, flat, axis_of(dim, x.rank), known)


@aten("take.default")
def take(c: Context, x: Node, index: Node) -> Node:
    flat = ops.reshape(x, (x.ttype.size,))
    known = c.checks.indices(index, flat, 0, FLAT)
    return ops.take(flat, index, 0, known)


@aten("embedding.default")
def embedding(c: Context, weight: Node, indices: Node, *_: Any, **__: Any) -> Node:
    known = c.checks.indices(indices, weight, 0, ROWS)
    return ops.take(weight, indices, 0, known)


def _advanced(
    c: Context, x: Node, indices: Sequence[Node | None]
) -> tuple[list[Node], list[int], str]:
    """The given index tensors, the axes they index and what is known of all of them."""
    used = [(i, k) for k, i in enumerate(indices) if i is not None]
    if any(_is_mask(i) for i, _ in used):
        raise Untranslated("a mask selects a number of elements that depends on the data")
    # Eager counts the axes that are indexed, not those of the tensor.
    known = {c.checks.indices(i, x, k, ADVANCED, position) for position, (i, k) in enumerate(used)}
    least = next((level for level in KNOWN if level in known), "any")
    return [i for i, _ in used], [k for _, k in used], least


def _is_mask(i: Node) -> bool:
    return i.dtype.is_bool or i.dtype.name == "u8"


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(c: Context, x: Node, indices: Sequence[Node | None]) -> Node:
    masks = [(i, k) for k, i in enumerate(indices) if i is not None and _is_mask(i)]
    if len(masks) == 1 and all(i is None or _is_mask(i) for i in indices):
        ((mask, k),) = masks
        axes = range(k, k + mask.rank)
        return ops.index(x, mask_places(c, mask, c.val.shape[k]), axes, "within")
    nodes, axes, known = _advanced(c, x, indices)
    return ops.index(x, nodes, axes, known) if nodes else x


@aten("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(
    c: Context,
    x: Node,
    indices: Sequence[Node | None],
    values: Node,
    accumulate: bool = False,
    *_: Any,
) -> Node:
    used = [(i, k) for k, i in enumerate(indices) if i is not None]
    values = cast(values, x.dtype)
    if len(used) == 1 and used[0][0].dtype.is_bool:
        return _masked_put(c, x, *used[0], values, accumulate)
    nodes, axes, known = _advanced(c, x, indices)
    if not nodes:
        out = ops.expand(values, x.shape)
        return ops.add(x, out) if accumulate else out
    return ops.index_put(x, values, nodes, axes, accumulate, known)


def _masked_put(c: Context, x: Node, mask: Node, axis: int, values: Node, accumulate: bool) -> Node:
    """Where the mask is true, a value that is the same for all, or the next one of them."""
    after = x.shape[axis + mask.rank :]
    lead = values.rank - len(after)
    if lead > 0 and not all(isinstance(d, int) and d == 1 for d in values.shape[:lead]):
        return _next_values(x, mask, axis, values, accumulate)
    if lead > 0:
        values = ops.reshape(values, values.shape[lead:])
    m = ops.reshape(mask, (*mask.shape, *(1,) * len(after)))
    return ops.where(m, ops.add(x, values) if accumulate else values, x)


def _next_values(x: Node, mask: Node, axis: int, values: Node, accumulate: bool) -> Node:
    before, after = x.shape[:axis], x.shape[axis + mask.rank :]
    count = values.shape[values.rank - len(after) - 1]
    values = ops.expand(values, (*before, count, *after))
    there = ops.cast(ops.reshape(mask, (mask.ttype.size,)), i64)
    rank = ops.sub(ops.cumsum(there, 0), ops.number(1, i64))
    picked = ops.take(values, ops.reshape(rank, mask.shape), axis)
    m = ops.reshape(mask, (*mask.shape, *(1,) * len(after)))
    return ops.where(m, ops.add(x, picked) if accumulate else picked, x)


def _scatter(
    c: Context, x: Node, dim: int, index: Node, source: Operand, reduce: str | None
) -> Node:
    known = c.checks.indices(index, x, axis_of(dim, x.rank), ALONG)
    src = c.node(source, x.dtype)
    if x.rank == 0:
        x1, i1, s1 = (ops.reshape(n, (1,)) for n in (x, index, src))
        return ops.reshape(_scattered(x1, i1, s1, 0, reduce, known), ())
    if index.rank == 0:
        index = ops.reshape(index, (1,))
    if src.rank == 0:
        src = ops.expand(src, index.shape)
    for k, (a, b) in enumerate(zip(src.shape, index.shape, strict=True)):
        if not D.known_eq(a, b):
            src = ops.slice(src, k, 0, b, 1)
    return _scattered(x, index, src, axis_of(dim, x.rank), reduce, known)


def _scattered(x: Node, index: Node, src: Node, axis: int, reduce: str | None, known: str) -> Node:
    """16-bit floats are added and multiplied in float32 and rounded once, as eager does."""
    if x.dtype not in (f16, bf16) or reduce not in ("add", "mul"):
        return ops.scatter(x, index, src, axis, reduce, known)
    wide = ops.scatter(cast(x, f32), index, cast(src, f32), axis, reduce, known)
    return cast(wide, x.dtype)


@aten("scatter.src", "scatter.value")
def scatter(c: Context, x: Node, dim: int, index: Node, src: Operand) -> Node:
    return _scatter(c, x, dim, index, src, None)


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_named(c: Context, x: Node, dim: int, index: Node, src: Operand, *, reduce: str) -> Node:
    return _scatter(c, x, dim, index, src, {"add": "add", "multiply": "mul"}[reduce])


@aten("scatter_add.default")
def scatter_add(c: Context, x: Node, dim: int, index: Node, src: Node) -> Node:
    return _scatter(c, x, dim, index, src, "add")


_REDUCE = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}


@aten("scatter_reduce.two")
def scatter_reduce(
    c: Context, x: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Node:
    how = _REDUCE[reduce]
    start = x
    if not include_self:
        # Only the elements that are written lose their old value.
        neutral = {"add": 0, "mul": 1, "max": x.dtype.lowest, "min": x.dtype.highest}[how]
        start = _scatter(c, x, dim, index, c.number(neutral, x.dtype), None)
    out = _scatter(c, start, dim, index, src, how)
    if reduce != "mean":
        return out
    ones = ops.expand(c.number(1, x.dtype), x.shape) if x.rank else c.number(1, x.dtype)
    if not include_self:
        ones = _scatter(c, ones, dim, index, c.number(0, x.dtype), None)
    count = _scatter(c, ones, dim, index, c.number(1, x.dtype), "add")
    return ops.div(out, count) if x.dtype.is_float else ops.floordiv(out, count)


@aten("index_add.default")
def index_add(c: Context, x: Node, dim: int, index: Node, source: Node, alpha: Any = 1) -> Node:
    if alpha != 1:
        source = ops.mul(cast(source, x.dtype), c.node(alpha, x.dtype))
    known = c.checks.indices(index, x, axis_of(dim, x.rank), added(x.rank))
    return _along(x, dim, index, source, "add", known)


@aten("index_copy.default")
def index_copy(c: Context, x: Node, dim: int, index: Node, source: Node) -> Node:
    known = c.checks.indices(index, x, axis_of(dim, x.rank), COPIED)
    return _along(x, dim, index, source, None, known)


@aten("index_fill")
def index_fill(c: Context, x: Node, dim: int, index: Node, value: Operand) -> Node:
    flat = x if x.rank else ops.reshape(x, (1,))
    axis = axis_of(dim, flat.rank)
    c.checks.indices(index, flat, axis, ADVANCED)
    idx = ops.reshape(index, (index.ttype.size,))
    return ops.reshape(ops.index_put(flat, c.node(value, x.dtype), [idx], [axis]), x.shape)


@aten("index_reduce.default")
def index_reduce(
    c: Context,
    x: Node,
    dim: int,
    index: Node,
    source: Node,
    reduce: str,
    *,
    include_self: bool = True,
) -> Node:
    flat = x if x.rank else ops.reshape(x, (1,))
    src = ops.reshape(source, (1,)) if source.rank == 0 else source
    axis = axis_of(dim, flat.rank)
    c.checks.indices(index, flat, axis, OF_SELF)
    wide = _broadcast_index(flat, axis, index, src)
    name = {"mean": "mean", "prod": "prod", "amax": "amax", "amin": "amin"}[reduce]
    out = scatter_reduce(c, flat, axis, wide, src, name, include_self=include_self)
    return ops.reshape(out, x.shape)


def _broadcast_index(x: Node, axis: int, index: Node, source: Node) -> Node:
    shape = [1] * x.rank
    shape[axis] = -1
    return ops.expand(ops.reshape(index, shape), source.shape)


def _along(x: Node, dim: int, index: Node, source: Node, reduce: str | None, known: str) -> Node:
    flat = x if x.rank else ops.reshape(x, (1,))
    src = ops.reshape(source, (1,)) if source.rank == 0 else source
    axis = axis_of(dim, flat.rank)
    wide = _broadcast_index(flat, axis, index, src)
    out = _scattered(flat, wide, cast(src, x.dtype), axis, reduce, known)
    return ops.reshape(out, x.shape)


@aten("put.default")
def put(c: Context, x: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    n = x.ttype.size
    flat = ops.reshape(x, (n,))
    known = c.checks.indices(index, flat, 0, FLAT)
    idx, src = ops.reshape(index, (index.ttype.size,)), ops.reshape(source, (source.ttype.size,))
    out = ops.index_put(flat, cast(src, x.dtype), [idx], [0], accumulate, known)
    return ops.reshape(out, x.shape)


@aten("masked_fill")
def masked_fill(c: Context, x: Node, mask: Node, value: Operand) -> Node:
    return ops.where(mask, c.node(value, x.dtype), x)


@aten("masked_scatter.default")
def masked_scatter(c: Context, x: Node, mask: Node, source: Node) -> Node:
    """The k-th selected place takes the k-th element of the source."""
    m = mask if mask.shape == x.shape else ops.expand(mask, x.shape)
    flat = ops.reshape(m, (x.ttype.size,))
    if not D.known_le(x.ttype.size, source.ttype.size):
        count = ops.sum(ops.cast(flat, i64), (0,), False)
        few = ops.lt(ops.number(source.ttype.size, i64), count)
        c.checks.never(few, "Number of elements of source < number of ones in mask")
    rank = ops.sub(ops.cumsum(ops.cast(flat, i64), 0), c.number(1, i64))
    picked = ops.take(ops.reshape(cast(source, x.dtype), (source.ttype.size,)), rank, 0)
    return ops.where(m, ops.reshape(picked, x.shape), x)


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    c: Context,
    sorted_: Node,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    right = side == "right" if side is not None else right
    if sorter is not None:
        known = c.checks.indices(sorter, sorted_, sorted_.rank - 1, SORTER)
        sorted_ = ops.gather(sorted_, sorter, sorted_.rank - 1, known)
    return count_below(c, sorted_, c.node(x), right, out_int32)


@aten("nonzero_static.default")
def nonzero_static(c: Context, x: Node, *, size: int, fill_value: int = -1) -> Node:
    """The first `size` places that are not zero, row by row; `fill_value` after the last."""
    found = ops.nonzero(x, size)
    places = ops.permute(item(found, 0), (1, 0))
    inside = ops.lt(ops.reshape(ops.iota(size), (size, 1)), item(found, 1))
    return ops.where(inside, places, c.number(fill_value, i64))
