"""Constants, shapes and moving data."""

from __future__ import annotations

import math

import numpy as np

from tilewright.capture.to_onnx.writer import Out, Writer, writes
from tilewright.ir import dim as D
from tilewright.ir.dim import Int
from tilewright.ir.node import Constant, Node
from tilewright.ir.types import f32, i64
from tilewright.ops.creation import Full, Iota
from tilewright.ops.upsample import UpsampleNearest
from tilewright.ops.views import (
    Concat,
    Expand,
    Flip,
    Pad,
    Permute,
    Reshape,
    Roll,
    Slice,
    SliceScatter,
)

LOWEST = -(1 << 63)


@writes("constant")
def constant(w: Writer, n: Node) -> Out:
    assert isinstance(n.op, Constant)
    return w.constant(n.op.literal.array, n.dtype)


@writes("full")
def full(w: Writer, n: Node) -> Out:
    assert isinstance(n.op, Full)
    one = w.number(n.op.value, n.dtype)
    return one if not n.shape else w.op("Expand", one, w.dims(n.shape))


@writes("iota")
def iota(w: Writer, n: Node) -> Out:
    op = n.op
    assert isinstance(op, Iota)
    if not any(isinstance(d, Int) for d in (op.size, op.start, op.step)):
        return w.constant(op.reference(), n.dtype)
    if isinstance(op.start, float) or isinstance(op.step, float):
        w.refuse("a range of fractions whose length is symbolic")
    places = w.op("Range", w.number(0, i64), w.scalar(op.size), w.number(1, i64))
    moved = w.op("Mul", places, w.scalar(op.step)) if op.step != 1 else places
    moved = w.op("Add", moved, w.scalar(op.start)) if op.start != 0 else moved
    return w.cast(moved, n.dtype)


@writes("reshape")
def reshape(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Reshape)
    return w.reshape(x, n.shape)


@writes("permute")
def permute(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Permute)
    return w.op("Transpose", x, perm=list(n.op.perm)) if n.rank else w.op("Identity", x)


@writes("expand")
def expand(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Expand)
    return w.op("Expand", x, w.dims(n.shape))


@writes("concat")
def concat(w: Writer, n: Node, *xs: Out) -> Out:
    assert isinstance(n.op, Concat)
    return w.op("Concat", *xs, axis=n.op.axis)


@writes("slice")
def slice_of(w: Writer, n: Node, x: Out) -> Out:
    op = n.op
    assert isinstance(op, Slice)
    return w.sliced(x, op.axis, op.start, op.stop, op.step)


@writes("flip")
def flip(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Flip)
    axes = list(n.op.axes)
    if not axes:
        return w.op("Identity", x)
    ends = [w.ints([v] * len(axes)) for v in (-1, LOWEST)]
    return w.op("Slice", x, *ends, w.ints(axes), w.ints([-1] * len(axes)))


@writes("roll")
def roll(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Roll)
    out = w.op("Identity", x)
    for shift, axis in zip(n.op.shifts, n.op.axes):
        size = n.shape[axis]
        if D.known_eq(size, 0):
            continue
        first = size - D.mod(shift, size)
        out = w.op(
            "Concat",
            w.sliced(out, axis, first, size),
            w.sliced(out, axis, 0, first),
            axis=axis,
        )
    return out


@writes("pad")
def pad(w: Writer, n: Node, x: Out) -> Out:
    """What is cut off is cut off first: not every implementation takes negative numbers."""
    op, own = n.op, n.inputs[0]
    assert isinstance(op, Pad)
    low, high = list(op.lo), list(op.hi)
    for axis, (a, b) in enumerate(zip(op.lo, op.hi)):
        if D.known_le(0, a) and D.known_le(0, b):
            continue
        first, last = D.maximum(-1 * a, 0), own.shape[axis] + D.minimum(b, 0)
        if not D.known_le(first, last):
            w.refuse("more is cut off than there is, or an unknown part")
        x = w.sliced(x, axis, first, last)
        low[axis], high[axis] = D.maximum(a, 0), D.maximum(b, 0)
    if all(D.known_eq(p, 0) for p in (*low, *high)):
        return w.op("Identity", x)
    return w.op("Pad", x, w.dims([*low, *high]), w.number(op.value, x.dtype))


@writes("slice_scatter")
def slice_scatter(w: Writer, n: Node, x: Out, source: Out) -> Out:
    op = n.op
    assert isinstance(op, SliceScatter)
    if op.step != 1:
        w.refuse("steps of more than one")
    size = n.shape[op.axis]
    before, after = w.sliced(x, op.axis, 0, op.start), w.sliced(x, op.axis, op.stop, size)
    return w.op("Concat", before, source, after, axis=op.axis)


@writes("upsample_nearest")
def upsample_nearest(w: Writer, n: Node, x: Out) -> Out:
    """By whole factors as a Resize, otherwise by the places that each axis takes."""
    op = n.op
    assert isinstance(op, UpsampleNearest)
    first = n.rank - len(op.size)
    spatial = n.inputs[0].shape[first:]
    factors = []
    for d, size, scale in zip(spatial, op.size, op.scales):
        factor = scale if isinstance(d, Int) or isinstance(size, Int) else size / max(d, 1)
        whole = factor is not None and float(factor).is_integer() and not op.exact
        if whole and not isinstance(d, Int) and scale is not None and scale != factor:
            whole = False
        factors.append(int(factor) if whole and factor is not None else 0)
    if all(factors) and n.rank >= 3 and math.prod(factors) > 0:
        scales = w.constant(np.array([1] * first + factors), f32)
        settings = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        return w.op("Resize", x, None, scales, **settings)
    for k, (d, size, scale) in enumerate(zip(spatial, op.size, op.scales)):
        if isinstance(d, Int) or isinstance(size, Int):
            w.refuse("symbolic sizes that do not grow by whole factors")
        one = UpsampleNearest((size,), (scale,), op.exact)
        x = w.op("Gather", x, w.ints(one.reference(np.arange(d)).tolist()), axis=first + k)
    return x
