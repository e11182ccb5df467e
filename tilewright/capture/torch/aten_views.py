"""Views and movement: reshape, permute, slices, concatenation, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright import ops
from tilewright.capture.torch.checks import Demand
from tilewright.capture.torch.context import Context, axes_of, axis_of, cast
from tilewright.capture.torch.layout import contiguous
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.capture.torch.shapes import hint
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import i64


@aten(
    "view.default",
    "_unsafe_view.default",
    "reshape.default",
    "view_copy.default",
    "flatten",
    "_reshape_alias",
)
def view(c: Context, x: Node, *_: Any) -> Node:
    return ops.reshape(x, c.out().shape)


@aten("unsqueeze.default", "unsqueeze_copy.default", "squeeze", "squeeze_copy")
def same_elements(c: Context, x: Node, *_: Any) -> Node:
    return ops.reshape(x, c.out().shape)


@aten("permute.default", "permute_copy.default")
def permute(c: Context, x: Node, dims: Sequence[int]) -> Node:
    return ops.permute(x, [axis_of(d, x.rank) for d in dims]) if x.rank else x


@aten("transpose.int", "transpose_copy.int", "swapaxes")
def transpose(c: Context, x: Node, a: int, b: int) -> Node:
    return ops.transpose(x, a, b) if x.rank else x


@aten("t.default", "t_copy.default", "numpy_T", "mT", "adjoint")
def t(c: Context, x: Node) -> Node:
    return x if x.rank < 2 else ops.transpose(x, -2, -1)


@aten("expand.default", "expand_copy.default", "broadcast_to")
def expand(c: Context, x: Node, *_: Any, **__: Any) -> Node:
    return ops.expand(x, c.out().shape)


def _bound(b: Dim | None, n: Dim, default: Dim) -> Dim:
    """A slice bound within [0, n]."""
    if b is None:
        return default
    if isinstance(b, int) and b >= torch.iinfo(torch.int64).max:
        return n
    return D.maximum(0, D.minimum(_from_start(b, n), n))


def _from_start(b: Dim, n: Dim) -> Dim:
    """A position that counts from the end of `n` where it is negative."""
    lowest, highest = D.bounds(b)
    if lowest >= 0:
        return b
    if highest < 0:
        return b + n
    negative = D.minimum(D.maximum(-b, 0), 1)
    return b + n * negative


def _range(x: Node, axis: int, start: Dim | None, end: Dim | None) -> tuple[Dim, Dim]:
    n = x.shape[axis]
    lo = _bound(start, n, 0)
    return lo, D.maximum(lo, _bound(end, n, n))


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(
    c: Context,
    x: Node,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Node:
    axis = axis_of(dim, x.rank)
    lo, hi = _range(x, axis, start, end)
    return ops.slice(x, axis, lo, hi, step)


@aten("narrow.default", "narrow_copy.default")
def narrow(c: Context, x: Node, dim: int, start: Dim, length: Dim) -> Node:
    axis = axis_of(dim, x.rank)
    start = _from_start(start, x.shape[axis])
    return ops.slice(x, axis, start, start + length, 1)


@aten("select.int", "select_copy.int")
def select(c: Context, x: Node, dim: int, index: Dim) -> Node:
    axis = axis_of(dim, x.rank)
    index = _from_start(index, x.shape[axis])
    if D.known_lt(index, 0) or D.known_le(x.shape[axis], index):
        raise Untranslated("eager refuses the index")
    one = ops.slice(x, axis, index, index + 1, 1)
    return ops.reshape(one, (*x.shape[:axis], *x.shape[axis + 1 :]))


@aten(
    "split.Tensor",
    "split_with_sizes.default",
    "split_with_sizes_copy.default",
    "split_copy.Tensor",
    "unsafe_split",
    "chunk",
    "tensor_split",
)
def split(c: Context, x: Node, _sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    axis = axis_of(dim, x.rank)
    sizes = [c.shapes.dim(v.shape[axis]) for v in c.val]
    return ops.split(x, sizes, axis)


@aten("unbind.int", "unbind_copy.int")
def unbind(c: Context, x: Node, dim: int = 0) -> tuple[Node, ...]:
    return tuple(select(c, x, dim, k) for k in range(len(c.val)))


@aten("cat.default", "concat.default")
def cat(c: Context, xs: Sequence[Node], dim: int = 0) -> Node:
    out = c.out()
    # A 1-d tensor of no elements fits anywhere: torch still allows it for compatibility.
    real = [x for x in xs if not (x.rank == 1 and x.shape[0] == 0 and len(out.shape) != 1)]
    if not real:
        return cast(xs[0], out.dtype)
    return ops.concat([cast(x, out.dtype) for x in real], axis_of(dim, len(out.shape)))


@aten("stack.default")
def stack(c: Context, xs: Sequence[Node], dim: int = 0) -> Node:
    out = c.out()
    return ops.stack([cast(x, out.dtype) for x in xs], axis_of(dim, len(out.shape)))


@aten("flip.default")
def flip(c: Context, x: Node, dims: Sequence[int]) -> Node:
    return ops.flip(x, axes_of(dims, x.rank)) if x.rank and dims else x


@aten("roll.default")
def roll(c: Context, x: Node, shifts: Any, dims: Any = ()) -> Node:
    moves = shifts if isinstance(shifts, (list, tuple)) else (shifts,)
    axes = dims if isinstance(dims, (list, tuple)) else (dims,)
    if x.rank == 0 or any(isinstance(d, int) and d == 0 for d in x.shape):
        return x
    return ops.roll(x, tuple(moves), tuple(axis_of(a, x.rank) for a in axes))


@aten("repeat.default", "tile.default")
def repeat(c: Context, x: Node, repeats: Sequence[Dim]) -> Node:
    out = c.out().shape
    lead = len(out) - x.rank
    x = ops.reshape(x, (*(1,) * lead, *x.shape))
    split_shape: list[Dim] = []
    open_shape: list[Dim] = []
    for r, d in zip(repeats, x.shape, strict=True):
        open_shape += [1, d]
        split_shape += [r, d]
    return ops.reshape(ops.expand(ops.reshape(x, open_shape), split_shape), out)


@aten("constant_pad_nd.default")
def constant_pad(c: Context, x: Node, pad: Sequence[Dim], value: Any = 0) -> Node:
    lo, hi = [0] * x.rank, [0] * x.rank
    for k in range(len(pad) // 2):
        lo[x.rank - 1 - k], hi[x.rank - 1 - k] = pad[2 * k], pad[2 * k + 1]  # type: ignore[call-overload]
    if isinstance(value, Node):
        raise Untranslated("the padding value is not a constant")
    fill = float(value) if x.dtype.is_float else bool(value) if x.dtype.is_bool else int(value)
    return ops.pad(x, lo, hi, fill)


@aten("as_strided.default", "as_strided_copy.default")
def as_strided(
    c: Context,
    x: Node,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Node:
    """Strides refer to memory: they are right where the operand is laid out as torch announced."""
    v = c.fx.args[0].meta["val"]  # type: ignore[union-attr]
    base = v.storage_offset()
    flat = _memory_of(c, x, v)
    offset = (0 if storage_offset is None else storage_offset) - c.shapes.dim(base)
    if storage_offset is None:
        offset = 0
    return ops.as_strided(flat, tuple(size), tuple(stride), offset)


def _memory_of(c: Context, x: Node, v: Any) -> Node:
    """The operand's elements in the order in which torch stores them in memory."""
    shape, stride = x.shape, c.shapes.dims(v.stride())
    if stride == contiguous(shape) or any(isinstance(d, int) and d == 0 for d in shape):
        return x
    order = sorted(range(x.rank), key=lambda k: -hint(v.stride()[k]))
    moved = [shape[k] for k in order]
    if tuple(stride[k] for k in order) != contiguous(moved):
        raise Untranslated("the memory under it has gaps or overlaps")
    return ops.permute(x, order)


@aten("as_strided_scatter.default")
def as_strided_scatter(
    c: Context,
    x: Node,
    src: Node,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Node:
    v = c.fx.args[0].meta["val"]  # type: ignore[union-attr]
    if c.shapes.dims(v.stride()) != contiguous(x.shape):
        raise Untranslated("the memory under it is not contiguous")
    offset = 0 if storage_offset is None else storage_offset - c.shapes.dim(v.storage_offset())
    return ops.as_strided_scatter(x, src, tuple(stride), offset)


@aten("slice_scatter.default")
def slice_scatter(
    c: Context,
    x: Node,
    src: Node,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Node:
    axis = axis_of(dim, x.rank)
    lo, hi = _range(x, axis, start, end)
    if step == 1 and D.known_eq(lo, 0) and D.known_eq(hi, x.shape[axis]):
        return cast(src, x.dtype)
    return ops.slice_scatter(x, cast(src, x.dtype), axis, lo, hi, step)


@aten("select_scatter.default")
def select_scatter(c: Context, x: Node, src: Node, dim: int, index: Dim) -> Node:
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    # The fake tensor that torch traces with does not check the index.
    if D.known_lt(index, -1 * size) or D.known_le(size, index):
        raise Untranslated("eager refuses the index")
    words = f"out of range for tensor of size {list(x.shape)} at dimension {axis}"
    demand = Demand(IndexError, f"select(): index {{index}} {words}", wrap=True)
    c.checks.indices(ops.number(index, i64), x, axis, demand)
    index = _from_start(index, size)
    one = ops.reshape(cast(src, x.dtype), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return ops.slice_scatter(x, one, axis, index, index + 1, 1)


@aten("diagonal.default", "diagonal_copy.default")
def diagonal(c: Context, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    return ops.diagonal(x, offset, dim1, dim2)


@aten("diagonal_scatter.default")
def diagonal_scatter(
    c: Context, x: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Node:
    a, b = axis_of(dim1, x.rank), axis_of(dim2, x.rank)
    strides = contiguous(x.shape)
    rest = [k for k in range(x.rank) if k not in (a, b)]
    start = strides[b] * max(offset, 0) + strides[a] * max(-offset, 0)
    along = (*(strides[k] for k in rest), strides[a] + strides[b])
    return ops.as_strided_scatter(x, cast(src, x.dtype), along, start)


@aten("unfold.default", "unfold_copy.default")
def unfold(c: Context, x: Node, dimension: int, size: int, step: int) -> Node:
    if x.rank == 0:
        return ops.reshape(x, c.out().shape)
    axis, strides = axis_of(dimension, x.rank), contiguous(x.shape)
    along = (*strides[:axis], strides[axis] * step, *strides[axis + 1 :], strides[axis])
    return ops.as_strided(x, c.out().shape, along, 0)


@aten("view.dtype")
def view_dtype(c: Context, x: Node, dtype: torch.dtype) -> Node:
    if c.out().dtype is x.dtype:
        return x
    raise Untranslated("it reads memory as another dtype")


@aten("unfold_backward.default")
def unfold_backward(
    c: Context, grad: Node, input_sizes: Any, dim: int, size: int, step: int
) -> Node:
    shape = c.out().shape
    if not shape or step > size:
        raise Untranslated("frames that do not touch, or of a number, have no native form")
    axis = axis_of(dim, len(shape))
    frames = (*shape[:axis], grad.shape[axis], *shape[axis + 1 :], size)
    return ops.overlap_add(ops.expand(grad, frames), axis, shape[axis], step)


@aten("col2im.default")
def col2im(
    c: Context, x: Node, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> Node:
    *lead, height, width = c.out().shape
    space = height, width
    windows = [
        D.floordiv(n + 2 * p - d * (k - 1) - 1, s) + 1
        for n, k, d, p, s in zip(space, kernel, dilation, padding, stride)
    ]
    parts = ops.reshape(x, (*lead, *kernel, *windows))
    return ops.fold(parts, stride, dilation, padding, space)
