"""Shapes and moving data: nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, static, translation
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Node, constant
from tilewright.ir.types import i64
from tilewright.ops.shapes import broadcast_shapes


def _product(dims: Sequence[Dim]) -> Dim:
    return reduce(lambda a, b: a * b, dims, 1)


def sizes_node(dims: Sequence[Dim]) -> Node:
    """Sizes as a tensor of the graph."""
    if not any(isinstance(d, Int) for d in dims):
        return constant(np.array(dims, np.int64), i64)
    return ops.concat([ops.reshape(ops.number(d, i64), (1,)) for d in dims], 0)


@translation("Shape")
def shape(c: Context, x: Node) -> Node:
    end = c.attributes.get("end")
    return sizes_node(x.shape[c.get("start", 0) : end])


@translation("Size")
def size(c: Context, x: Node) -> Node:
    return ops.number(_product(x.shape), i64)


@translation("Reshape")
def reshape(c: Context, x: Node, shape: Node | None = None) -> Node:
    dims: list[Dim] = list(c.get("shape", [])) if shape is None else c.dims(shape)
    if not c.get("allowzero", 0):
        dims = [x.shape[k] if isinstance(d, int) and d == 0 else d for k, d in enumerate(dims)]
    open_axes = [k for k, d in enumerate(dims) if isinstance(d, int) and d == -1]
    if len(open_axes) == 1:
        rest = _product([d for k, d in enumerate(dims) if k != open_axes[0]])
        empty = isinstance(rest, int) and rest == 0
        dims[open_axes[0]] = 0 if empty else D.floordiv(x.ttype.size, rest)
    return ops.reshape(x, dims)


@translation("Flatten")
def flatten(c: Context, x: Node) -> Node:
    axis = c.get("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return ops.reshape(x, (_product(x.shape[:axis]), _product(x.shape[axis:])))


@translation("Transpose")
def transpose(c: Context, x: Node) -> Node:
    return ops.permute(x, c.get("perm", list(reversed(range(x.rank)))))


@translation("Unsqueeze")
def unsqueeze(c: Context, x: Node, axes: Node | None = None) -> Node:
    given = c.setting("axes", axes) or []
    rank = x.rank + len(given)
    for axis in sorted(axis_in(c, a, rank) for a in given):
        x = ops.unsqueeze(x, axis)
    return x


@translation("Squeeze")
def squeeze(c: Context, x: Node, axes: Node | None = None) -> Node:
    given = c.setting("axes", axes)
    if given is None:
        given = [k for k, d in enumerate(static(x.shape, "Squeeze without axes")) if d == 1]
    gone = {axis_in(c, a, x.rank) for a in given}
    for a in gone:
        if D.known_ne(x.shape[a], 1):
            c.refuse(f"axis {a} of {x.ttype!r} is not of size 1")
    return ops.reshape(x, [d for k, d in enumerate(x.shape) if k not in gone])


@translation("Concat")
def concat(c: Context, *xs: Node) -> Node:
    return ops.concat(xs, axis_in(c, c.get("axis", 1), xs[0].rank))


@translation("Expand")
def expand(c: Context, x: Node, shape: Node) -> Node:
    return ops.expand(x, broadcast_shapes(x.shape, tuple(c.dims(shape)), what="Expand"))


@translation("Tile")
def tile(c: Context, x: Node, repeats: Node) -> Node:
    counts = c.dims(repeats)
    apart: list[Dim] = []
    for d, n in zip(x.shape, counts):
        apart += [n, d]
    ones: list[Dim] = []
    for d in x.shape:
        ones += [1, d]
    many = ops.expand(ops.reshape(x, ones), apart)
    return ops.reshape(many, [d * n for d, n in zip(x.shape, counts)])


@translation("Slice")
def slice_of(
    c: Context,
    x: Node,
    starts: Node | None = None,
    ends: Node | None = None,
    axes: Node | None = None,
    steps: Node | None = None,
) -> Node:
    if starts is None or ends is None:
        low: list[Dim] = list(c.get("starts", []))
        high: list[Dim] = list(c.get("ends", []))
    else:
        low, high = c.dims(starts), c.dims(ends)
    along = c.setting("axes", axes)
    along = list(range(len(low))) if along is None else along
    step = [1] * len(low) if steps is None else c.ints(steps)
    for a, b, axis, s in zip(low, high, along, step):
        x = _slice(c, x, axis_in(c, axis, x.rank), a, b, s)
    return x


def _slice(c: Context, x: Node, axis: int, low: Dim, high: Dim, step: int) -> Node:
    if step == 0:
        c.refuse("a step of 0")
    n = x.shape[axis]
    if step > 0:
        return ops.slice(x, axis, _bound(low, n), D.maximum(_bound(low, n), _bound(high, n)), step)
    size, a, b = static((n, low, high), "Slice with a negative step")
    taken = range(size)[slice(a, None if b < -size else b, step)]
    if not taken:
        return ops.slice(x, axis, 0, 0)
    return ops.flip(ops.slice(x, axis, taken[-1], taken[0] + 1, -step), [axis])


def _bound(b: Dim, n: Dim) -> Dim:
    """A bound of a slice: counted from the end where negative, within the axis."""
    if isinstance(b, int):
        b = b + n if b < 0 else b
        if isinstance(b, int) and b >= 2**31:  # models write the largest integer for "the end"
            return n
    elif isinstance(n, int) and D.known_le(0, b):
        # A symbolic bound is taken to be inside, as tables of positions are read: sizes for which
        # it is not are refused by the type of the slice, and get a graph of their own.
        return b
    return D.maximum(0, D.minimum(b, n))


@translation("Split")
def split(c: Context, x: Node, sizes: Node | None = None) -> tuple[Node, ...]:
    axis = axis_in(c, c.get("axis", 0), x.rank)
    given = list(c.get("split", [])) if sizes is None else c.dims(sizes)
    if not given:
        given = even_parts(x.shape[axis], c.get("num_outputs", c.outputs))
    return tuple(ops.split(x, given, axis))


def even_parts(n: Dim, count: int) -> list[Dim]:
    """Equal sizes, the last smaller where they do not divide."""
    size = D.ceildiv(n, count)
    return [size] * (count - 1) + [n - size * (count - 1)]


@translation("Pad")
def pad(
    c: Context,
    x: Node,
    pads: Node | None = None,
    value: Node | None = None,
    axes: Node | None = None,
) -> Node:
    given = c.setting("pads", pads) or c.get("paddings", [])
    along = list(range(x.rank)) if axes is None else [axis_in(c, a, x.rank) for a in c.ints(axes)]
    lo, hi = [0] * x.rank, [0] * x.rank
    for k, axis in enumerate(along):
        lo[axis], hi[axis] = given[k], given[k + len(along)]
    for axis in range(x.rank):  # negative pads cut off
        if lo[axis] < 0 or hi[axis] < 0:
            x = ops.slice(x, axis, max(0, -lo[axis]), x.shape[axis] + min(0, hi[axis]))
    lo, hi = [max(0, v) for v in lo], [max(0, v) for v in hi]
    mode = c.get("mode", "constant")
    if mode != "constant":
        return _mirrored(c, x, lo, hi, mode)
    if value is None:
        return ops.pad(x, lo, hi, c.get("value", 0.0) if x.dtype.is_float else 0)
    if c.is_constant(value):
        return ops.pad(x, lo, hi, c.numbers(value).reshape(-1)[0].item())
    inside = ops.pad(ops.full(x.shape, True, ops.eq(x, x).dtype), lo, hi)
    return ops.where(inside, ops.pad(x, lo, hi), ops.reshape(value, ()))


def _mirrored(c: Context, x: Node, lo: list[int], hi: list[int], mode: str) -> Node:
    for axis in range(x.rank):
        if not lo[axis] and not hi[axis]:
            continue
        (n,) = static((x.shape[axis],), f"Pad with mode={mode!r}")
        at = np.arange(-lo[axis], n + hi[axis])
        if mode == "edge":
            at = np.clip(at, 0, n - 1)
        elif mode == "wrap":
            at = at % n
        elif mode == "reflect":
            at = at % max(1, 2 * (n - 1))
            at = np.where(at < n, at, 2 * (n - 1) - at)
        else:
            c.refuse(f"mode={mode!r} is not known")
        x = ops.take(x, c.weight(at.astype(np.int64), TensorProto.INT64), axis, "within")
    return x


@translation("DepthToSpace")
def depth_to_space(c: Context, x: Node) -> Node:
    b = c.get("blocksize", 1)
    n, depth, h, w = x.shape
    rest = D.floordiv(depth, b * b)
    if c.get("mode", "DCR") == "DCR":
        apart = ops.permute(ops.reshape(x, (n, b, b, rest, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        apart = ops.permute(ops.reshape(x, (n, rest, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return ops.reshape(apart, (n, rest, h * b, w * b))


@translation("SpaceToDepth")
def space_to_depth(c: Context, x: Node) -> Node:
    b = c.get("blocksize", 1)
    n, depth, h, w = x.shape
    h, w = D.floordiv(h, b), D.floordiv(w, b)
    apart = ops.reshape(x, (n, depth, h, b, w, b))
    order = (0, 3, 5, 1, 2, 4) if c.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return ops.reshape(ops.permute(apart, order), (n, depth * b * b, h, w))


@translation("Trilu")
def trilu(c: Context, x: Node, k: Node | None = None) -> Node:
    shift, upper = (0 if k is None else c.one(k)), bool(c.get("upper", 1))
    rows = ops.reshape(ops.iota(x.shape[-2]), (x.shape[-2], 1))
    columns = ops.iota(x.shape[-1])
    gap = ops.sub(columns, rows)
    edge = ops.number(shift, i64)
    keep = ops.ge(gap, edge) if upper else ops.le(gap, edge)
    return ops.where(keep, x, ops.number(0, x.dtype))


@translation("ReverseSequence")
def reverse_sequence(c: Context, x: Node, lengths: Node) -> Node:
    batch, time = c.get("batch_axis", 1), c.get("time_axis", 0)
    lead = ops.permute(x, (batch, time, *range(2, x.rank)))
    at = ops.iota(lead.shape[1])
    ends = ops.reshape(lengths, (lead.shape[0], 1))
    back = ops.sub(ops.sub(ends, ops.number(1, i64)), at)
    places = ops.where(ops.lt(at, ends), back, at)
    places = ops.reshape(places, (*lead.shape[:2], *[1] * (x.rank - 2)))
    moved = ops.gather(lead, ops.expand(places, lead.shape), 1, "within")
    return ops.permute(moved, (batch, time, *range(2, x.rank)))
