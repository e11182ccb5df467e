"""Sums and the like over parts of an axis: bags of an embedding, segments of a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch

from tilewright import ops
from tilewright.capture.torch.checks import Demand
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import bf16, f16, f32, f64, i64

_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}


# Eager's words for an index out of range in a bag.
_BAG = Demand(RuntimeError, "Expected i < index_size to be true, but got false.")
_FIRST = (
    "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position"
    " 0."
)
_LONG = "offsets[-1] can not be greater than input's length"
_SUM = (
    "segment_reduce(): Expected all rows of lengths along axis to sum to"
    " data.size(lengths.dim()-1) when !unsafe."
)


def _part_of(starts: Node, n: Dim) -> Node:
    """For each of n elements: which part it is of, by where each part starts; -1 before the first.
    Starts are marked, those behind the last element by nothing, and marks up to an element counted.
    """
    if D.known_eq(n, 0):
        return ops.full((0,), 0, i64)
    last, none = ops.full((), n - 1, i64), ops.full((), 0, i64)
    at = ops.minimum(ops.maximum(starts, none), last)
    inside = cast(ops.le(starts, last), i64)
    before = ops.concat([ops.full((1,), -1, i64), ops.full((n - 1,), 0, i64)], 0)
    return ops.cumsum(ops.scatter(before, at, inside, 0, "add", "within"), 0)


def _reduced(x: Node, part: Node, parts: Dim, how: str, first: Any) -> Node:
    """Rows of x combined by the part that they are of, from a first value on."""
    start = ops.full((parts, *x.shape[1:]), first, x.dtype)
    index = ops.expand(ops.reshape(part, (x.shape[0], *[1] * (x.rank - 1))), x.shape)
    return ops.scatter(start, index, x, 0, how, "sorted")


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    c: Context,
    weight: Node,
    indices: Node,
    offsets: Node,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Node | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Node | None, ...]:
    parts = c.out(0).shape[0]
    if indices.rank != 1 or not isinstance(indices.shape[0], int) or D.known_eq(parts, 0):
        raise Untranslated("bags whose number only data says have no native form")
    starts = ops.slice(offsets, 0, 0, parts) if include_last_offset else offsets
    starts, none = cast(starts, i64), ops.full((), 0, i64)
    c.checks.never(ops.ne(ops.slice(starts, 0, 0, 1), none), _FIRST)
    n = ops.full((), indices.shape[0], i64)
    last = ops.slice(cast(offsets, i64), 0, offsets.shape[0] - 1)
    c.checks.never(ops.gt(last, n), _LONG)
    # The first bag starts with the first index, which is checked above: no index is before it.
    part = _part_of(starts, indices.shape[0])
    known = c.checks.indices(indices, weight, 0, _BAG)
    # As eager does, sums of narrow numbers are those of wider ones: a long sum stops growing.
    wide = f32 if mode != 2 and weight.dtype in (f16, bf16) else weight.dtype
    rows = cast(ops.take(weight, indices, 0, known), wide)
    if per_sample_weights is not None:
        scales = ops.reshape(per_sample_weights, (*per_sample_weights.shape, 1))
        rows = ops.mul(rows, cast(scales, wide))
    how = "max" if mode == 2 else "add"
    if padding_idx >= 0:
        real = ops.ne(indices, ops.full((), padding_idx, indices.dtype))
        sizes = _reduced(cast(real, i64), part, parts, "add", 0)
        shown = ops.reshape(real, (*real.shape, 1))
        rows = ops.where(shown, rows, ops.full((), _NEUTRAL[how], rows.dtype))
    else:
        ends = ops.concat([ops.slice(starts, 0, 1), ops.reshape(n, (1,))], 0)
        sizes = ops.sub(ends, starts)
        if include_last_offset and mode != 2 and weight.dtype is not f64:
            # Here, and nowhere else, eager lets the last bag end before the indices do.
            within = ops.lt(ops.iota(indices.shape[0]), last)
            shown = ops.reshape(within, (indices.shape[0], 1))
            rows = ops.where(shown, rows, ops.full((), 0.0, rows.dtype))
    out = _reduced(rows, part, parts, how, _NEUTRAL[how])
    taken = _taken(indices, rows, out, part, parts) if mode == 2 else None
    if mode != 0:
        count = cast(ops.reshape(sizes, (parts, 1)), wide)
        one, zero = (ops.full((), k, wide) for k in (1, 0))
        some = ops.gt(count, zero)
        out = ops.div(out, ops.maximum(count, one)) if mode == 1 else ops.where(some, out, zero)
    out = cast(out, weight.dtype)
    # What gradients read: the bag of each index, how many each has, and which were the largest.
    # Of some kinds of bags torch announces nothing, or a part that nobody reads.
    kept: list[Node | None] = [None]
    for k, found in enumerate((part, sizes, taken), start=1):
        if not isinstance(c.val[k], torch.Tensor):
            kept.append(None)
            continue
        want = c.out(k)
        if found is not None and found.shape == want.shape:
            kept.append(cast(found, want.dtype))
        else:
            kept.append(ops.full(want.shape, 0, want.dtype))
    return (out, *kept[1:])


def _taken(indices: Node, rows: Node, out: Node, part: Node, parts: Dim) -> Node:
    """For each bag and column: the index of the first row that has the largest value; 0 where the
    bag is empty."""
    n = indices.shape[0]
    best = ops.eq(rows, ops.take(out, part, 0, "within"))
    place = ops.expand(ops.reshape(ops.iota(n), (n, 1)), rows.shape)
    none = ops.full((), n, i64)
    first = _reduced(ops.where(best, place, none), part, parts, "min", n)
    some = ops.lt(first, none)
    flat = ops.reshape(ops.where(some, first, ops.full((), 0, i64)), (-1,))
    found = ops.reshape(ops.take(cast(indices, i64), flat, 0, "within"), first.shape)
    return ops.where(some, found, ops.full((), 0, i64))


@aten("segment_reduce.default")
def segment_reduce(
    c: Context,
    data: Node,
    reduce: str,
    *,
    lengths: Node | None = None,
    indices: Any = None,
    offsets: Node | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Node:
    given = offsets if offsets is not None else lengths
    sizes = [k for k in data.shape[: axis + 1] if isinstance(k, int) and k > 0]
    if given is None or given.rank != axis + 1 or len(sizes) != axis + 1:
        raise Untranslated("segments of nothing, or of unknown size, have no native form")
    n, batch = sizes[-1], math.prod(sizes[:-1])
    how = {"sum": "add", "mean": "add", "max": "max", "min": "min", "prod": "mul"}.get(reduce)
    if how is None:
        raise Untranslated(f"segments are not reduced by {reduce!r}")
    parts = given.shape[-1] if offsets is None else given.shape[-1] - 1
    if D.known_eq(parts, 0):
        return ops.full(c.out().shape, 0, data.dtype)
    given = ops.reshape(cast(given, i64), (batch, given.shape[-1]))
    if offsets is None:
        starts, count = ops.sub(ops.cumsum(given, 1), given), given
        if not unsafe:
            c.checks.never(ops.lt(given, ops.full((), 0, i64)), "lengths contains negative value!")
            whole = ops.sum(given, (1,))
            c.checks.never(ops.ne(whole, ops.full((), n, i64)), _SUM)
    else:
        starts = ops.slice(given, 1, 0, parts)
        count = ops.sub(ops.slice(given, 1, 1), starts)
    # Rows of segments one after the other are one row of them.
    first_of_row = ops.reshape(ops.mul(ops.iota(batch), ops.full((), n, i64)), (batch, 1))
    flat = (batch * parts,)
    starts = ops.reshape(ops.add(starts, first_of_row), flat)
    count = ops.reshape(count, flat)
    tail = data.shape[axis + 1 :]
    rows = ops.reshape(data, (batch * n, *tail))
    out = _reduced_segments(rows, starts, count, reduce, how, initial)
    return ops.reshape(out, (*data.shape[:axis], parts, *tail))


def _reduced_segments(
    data: Node, starts: Node, count: Node, reduce: str, how: str, initial: float | None
) -> Node:
    n, parts = data.shape[0], starts.shape[0]
    first = _NEUTRAL[how] if initial is None else float(initial)
    part = ops.maximum(_part_of(starts, n), ops.full((), 0, i64))
    begin, size = (ops.take(x, part, 0, "within") for x in (starts, count))
    at = ops.iota(n)
    inside = ops.logical_and(ops.ge(at, begin), ops.lt(at, ops.add(begin, size)))
    shown = ops.reshape(inside, (n, *[1] * (data.rank - 1)))
    rows = ops.where(shown, data, ops.full((), _NEUTRAL[how], data.dtype))
    out = _reduced(rows, part, parts, how, first)
    if reduce != "mean":
        return out
    size = ops.reshape(cast(count, data.dtype), (parts, *[1] * (data.rank - 1)))
    zero, one = (ops.full((), k, data.dtype) for k in (0, 1))
    # Of an empty segment the mean is what it starts with, or none.
    empty = math.nan if initial is None else float(initial)
    mean = ops.div(out, ops.maximum(size, one))
    return ops.where(ops.gt(size, zero), mean, ops.full((), empty, data.dtype))
