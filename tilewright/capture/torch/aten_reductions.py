"""Reductions, arg-reductions, cumulative operators, sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.capture.torch.context import Context, axes_of, axis_of, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import b1, i16, i32, i64, u8


def _size(x: Node, axes: Sequence[int]) -> Dim:
    n: Dim = 1
    for a in axes:
        n = n * x.shape[a]
    return n


def _in(c: Context, x: Node) -> Node:
    """The operand in the dtype of the result, which is what sums and products are taken in."""
    return cast(x, c.out().dtype)


@aten("sum.default", "sum.dim_IntList")
def sum_(c: Context, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return ops.sum(_in(c, x), axes_of(dim, x.rank), keepdim)


@aten("nansum.default")
def nansum(
    c: Context, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    if x.dtype.is_float:
        x = ops.where(ops.isnan(x), c.number(0, x.dtype), x)
    return ops.sum(_in(c, x), axes_of(dim, x.rank), keepdim)


@aten("prod.default", "prod.dim_int")
def prod(
    c: Context, x: Node, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    return ops.prod(_in(c, x), axes_of(dim, x.rank), keepdim)


@aten("mean.default", "mean.dim")
def mean(c: Context, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return ops.mean(_in(c, x), axes_of(dim, x.rank), keepdim)


_NO_EXTREME = "{name}(): Expected reduction dim to be specified for input.numel() == 0."
_SPECIFY = " Specify the reduction dim with the 'dim' argument."


def _some(c: Context, x: Node, axes: Sequence[int] | None, error: type[Exception]) -> None:
    """Nothing has no extreme. `axes` None: of the whole tensor, for which eager raises `error`."""
    name = str(c.fx.target).split(".")[1]
    if axes is None:
        words = _NO_EXTREME.replace("{name}", name)
        c.checks.nonempty(x.ttype.size, words + _SPECIFY * (error is RuntimeError), error)
        return
    for a in axes if x.rank else ():
        words = f"{name}(): Expected reduction dim {a} to have non-zero size."
        c.checks.nonempty(x.shape[a], words, IndexError)


@aten("amax.default", "amin.default")
def amax(c: Context, x: Node, dim: Any = (), keepdim: bool = False) -> Node:
    fn = ops.amax if "amax" in str(c.fx.target) else ops.amin
    _some(c, x, axes_of(dim, x.rank) if dim else None, RuntimeError)
    return fn(x, axes_of(dim, x.rank), keepdim)


@aten("max.default", "min.default")
def max_all(c: Context, x: Node) -> Node:
    fn = ops.amax if ".max." in str(c.fx.target) else ops.amin
    _some(c, x, None, RuntimeError)
    return fn(x, axes_of(None, x.rank), False)


@aten("max.dim", "min.dim")
def max_dim(c: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    largest = ".max." in str(c.fx.target)
    if x.rank == 0:
        return x, c.number(0, i64)
    axis = axis_of(dim, x.rank)
    _some(c, x, (axis,), IndexError)
    value = (ops.amax if largest else ops.amin)(x, (axis,), keepdim)
    return value, (ops.argmax if largest else ops.argmin)(_ordered(x), axis, keepdim)


def _ordered(x: Node) -> Node:
    """Booleans have no order in some operators; bytes have."""
    return ops.cast(x, i64) if x.dtype is b1 else x


@aten("argmax.default", "argmin.default")
def argmax(c: Context, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    fn = ops.argmax if "argmax" in str(c.fx.target) else ops.argmin
    if x.rank == 0:
        return c.number(0, i64)
    x = _ordered(x)
    _some(c, x, None if dim is None else (axis_of(dim, x.rank),), IndexError)
    if dim is None:
        flat = fn(ops.reshape(x, (x.ttype.size,)), 0, False)
        return ops.reshape(flat, c.out().shape)
    return fn(x, axis_of(dim, x.rank), keepdim)


@aten("any", "all")
def any_(c: Context, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    fn = ops.any if ".any." in str(c.fx.target) else ops.all
    truth = x if x.dtype is b1 else ops.ne(x, c.number(0, x.dtype))
    empty = isinstance(dim, (list, tuple)) and not dim
    out = truth if empty and c.out().shape == x.shape else fn(truth, axes_of(dim, x.rank), keepdim)
    return cast(out, c.out().dtype)


def _correction(value: Any) -> float:
    return 1.0 if value is None else float(value)


@aten("var.correction", "std.correction")
def var(
    c: Context, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Node:
    out = ops.var(x, axes_of(dim, x.rank), _correction(correction), keepdim)
    return ops.sqrt(out) if ".std." in str(c.fx.target) else out


@aten("var_mean.correction", "std_mean.correction")
def var_mean(
    c: Context, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Node, Node]:
    axes = axes_of(dim, x.rank)
    out = ops.var(x, axes, _correction(correction), keepdim)
    out = ops.sqrt(out) if "std" in str(c.fx.target) else out
    return out, ops.mean(x, axes, keepdim)


@aten("linalg_vector_norm.default")
def vector_norm(
    c: Context, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    axes = axes_of(dim, x.rank)
    if float(ord) < 0 or math.isinf(float(ord)):
        words = f"linalg.vector_norm cannot compute the {_number_text(ord)} norm on"
        if not dim:
            words += " an empty tensor because the operation does not have an identity"
            c.checks.nonempty(x.ttype.size, words)
        for a in axes if dim else ():
            why = "because this dimension is empty and the operation does not have an identity"
            c.checks.nonempty(x.shape[a], f"{words} the dimension {a} {why}")
    return ops.norm(_in(c, x), float(ord), axes, keepdim)


def _number_text(x: Any) -> str:
    """As C++ prints it."""
    return f"{float(x):g}"


@aten("norm.Scalar", "norm.ScalarOpt_dim")
def norm(c: Context, x: Node, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Node:
    return ops.norm(x, 2.0 if p is None else float(p), axes_of(dim, x.rank), keepdim)


@aten("dist.default")
def dist(c: Context, x: Node, y: Node, p: Any = 2) -> Node:
    d = ops.sub(*c.promote(x, y)[0])
    return ops.norm(d, float(p), axes_of(None, d.rank), False)


@aten("_cdist_forward.default")
def cdist(c: Context, x: Node, y: Node, p: float, compute_mode: Any = None) -> Node:
    a = ops.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    b = ops.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    d = ops.sub(a, b)
    return ops.norm(d, float(p), (d.rank - 1,), False)


# ---- cumulative


@aten("cumsum.default", "cumprod.default")
def cumsum(c: Context, x: Node, dim: int, *, dtype: Any = None) -> Node:
    x = _in(c, x)
    if x.rank == 0:
        return x
    fn = ops.cumsum if "cumsum" in str(c.fx.target) else ops.cumprod
    return fn(x, axis_of(dim, x.rank))


@aten("logcumsumexp.default")
def logcumsumexp(c: Context, x: Node, dim: int) -> Node:
    return ops.logcumsumexp(x, axis_of(dim, x.rank)) if x.rank else x


@aten("cummax.default", "cummin.default")
def cummax(c: Context, x: Node, dim: int) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, c.number(0, i64)
    fn = ops.cummax if "cummax" in str(c.fx.target) else ops.cummin
    values, indices = parts(fn(x, axis_of(dim, x.rank)))
    return values, indices


# ---- order


def _narrow(c: Context, x: Node) -> Node:
    """Whole numbers in the narrowest dtype that holds all they can be: what sorting does depends on
    its bits, and positions or kinds of which there are few have few."""
    ends = c.checks.ranges.of(x).numbers if x.dtype.is_int else None
    if ends is None:
        return x
    fits = (d for d in (u8, i16, i32) if d.lowest <= ends[0] and ends[1] <= d.highest)
    found = next(fits, x.dtype)
    return cast(x, found) if found.bits < x.dtype.bits else x


@aten("sort.default")
def sort(c: Context, x: Node, dim: int = -1, descending: bool = False) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, c.number(0, i64)
    values, indices = parts(ops.sort(_narrow(c, x), axis_of(dim, x.rank), descending))
    return cast(values, x.dtype), indices


@aten("sort.stable")
def sort_stable(
    c: Context, x: Node, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Node, Node]:
    return sort(c, x, dim, descending)


@aten("topk.default")
def topk(
    c: Context, x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, c.number(0, i64)
    values, indices = parts(ops.topk(_narrow(c, x), k, axis_of(dim, x.rank), largest))
    return cast(values, x.dtype), indices


@aten("kthvalue.default")
def kthvalue(
    c: Context, x: Node, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, c.number(0, i64)
    axis = axis_of(dim, x.rank)
    _some(c, x, (axis,), IndexError)
    values, indices = parts(ops.kth(x, k - 1, axis, keepdim))
    return values, indices


@aten("median.dim")
def median_dim(c: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, c.number(0, i64)
    _some(c, x, (axis_of(dim, x.rank),), IndexError)
    values, indices = parts(ops.median(x, axis_of(dim, x.rank), keepdim))
    return values, indices


@aten("median.default")
def median_all(c: Context, x: Node) -> Node:
    if x.rank == 0:
        return x
    return parts(ops.median(ops.reshape(x, (x.ttype.size,)), 0, False))[0]


@aten("nanmedian.dim")
def nanmedian_dim(c: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, c.number(0, i64)
    if not x.dtype.is_float:
        return median_dim(c, x, dim, keepdim)
    _some(c, x, (axis_of(dim, x.rank),), IndexError)
    values, indices = parts(ops.nanmedian(x, axis_of(dim, x.rank), keepdim))
    return values, indices


@aten("nanmedian.default")
def nanmedian_all(c: Context, x: Node) -> Node:
    return x if x.rank == 0 else nanmedian_dim(c, ops.reshape(x, (x.ttype.size,)), 0)[0]


@aten("mode.default")
def mode(c: Context, x: Node, dim: int = -1, keepdim: bool = False) -> tuple[Node, Node]:
    """The smallest of the most frequent values, and the last place it stands at: counted pair by
    pair.
    """
    if x.rank == 0:
        return x, c.number(0, i64)
    axis = axis_of(dim, x.rank)
    _some(c, x, (axis,), IndexError)
    n = x.shape[axis]
    order = (*(k for k in range(x.rank) if k != axis), axis)
    rows = ops.permute(x, order)
    a = ops.reshape(rows, (*rows.shape, 1))
    b = ops.reshape(rows, (*rows.shape[:-1], 1, n))
    count = ops.sum(ops.cast(ops.eq(a, b), i64), (rows.rank,), False)
    most = ops.amax(count, (rows.rank - 1,), True)
    best = ops.eq(count, most)
    high = ops.full((), rows.dtype.highest, rows.dtype)
    value = ops.amin(ops.where(best, rows, high), (rows.rank - 1,), True)
    at = ops.where(ops.eq(rows, value), ops.iota(n, 0, 1, i64), c.number(-1, i64))
    index = ops.amax(at, (rows.rank - 1,), True)
    shape = c.out(0).shape
    return ops.reshape(value, shape), ops.reshape(index, shape)


# ---- counting


@aten("histc.default")
def histc(c: Context, x: Node, bins: int = 100, min: Any = 0, max: Any = 0) -> Node:
    flat = ops.reshape(x, (x.ttype.size,))
    d = x.dtype
    if not d.is_float:
        raise Untranslated("integer histograms have no native form")
    if min == max:
        low, high = ops.amin(flat, (0,), False), ops.amax(flat, (0,), False)
        flatline = ops.eq(low, high)
        one = c.number(1, d)
        low = ops.where(flatline, ops.sub(low, one), low)
        high = ops.where(flatline, ops.add(high, one), high)
    else:
        low, high = c.number(min, d), c.number(max, d)
    width = ops.sub(high, low)
    at = ops.div(ops.mul(ops.sub(flat, low), c.number(bins, d)), width)
    inside = ops.logical_and(ops.ge(flat, low), ops.le(flat, high))
    at = ops.where(inside, at, c.number(0, d))
    place = ops.minimum(ops.cast(at, i64), c.number(bins - 1, i64))
    return ops.scatter(ops.full((bins,), 0, d), place, ops.cast(inside, d), 0, "add")


@aten("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(c: Context, x: Node, dim: Any = None) -> Node:
    truth = ops.cast(ops.ne(x, c.number(0, x.dtype)), i64)
    return ops.sum(truth, axes_of(dim, x.rank), False)


@aten("_pdist_forward.default")
def pdist(c: Context, x: Node, p: float = 2) -> Node:
    """Distances between the rows above the diagonal, row by row."""
    rows = x.shape[0]
    if not isinstance(rows, int):
        raise Untranslated("the number of rows is not known")
    first, second = np.triu_indices(rows, 1)
    a, b = (ops.take(x, c.literal(i, i64), 0) for i in (first, second))
    return ops.norm(ops.sub(a, b), float(p), (1,), False)
