"""The library of the tile language that is written in the language: reductions, scans, sorting and
what else needs no operation of its own.

Functions of constants alone (shapes, axes) are `constexpr_function`s; everything else is inlined
into the kernel that calls it. Conditions on tiles are joined with & and |, never with `and`: run
step by step, `and` would need one truth value of a whole tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.front.functions import constexpr_function, function
from tilewright.lang.tile.language import core

if TYPE_CHECKING:
    from typing import Any as constexpr  # a constant may be any value of Python's
else:
    from tilewright.lang.tile.language.types import constexpr

__all__ = [
    "argmax",
    "argmin",
    "bitonic_merge",
    "cdiv",
    "cumprod",
    "cumsum",
    "flip",
    "interleave",
    "max",
    "min",
    "ravel",
    "reduce_or",
    "sigmoid",
    "softmax",
    "sort",
    "squeeze",
    "sum",
    "swizzle2d",
    "topk",
    "unsqueeze",
    "xor_sum",
    "zeros",
    "zeros_like",
]

# ---- constants


def _ints(shape: Sequence[Any]) -> list[int]:
    return [int(n) for n in shape]


@constexpr_function
def _axis(what, dim, shape):
    """An axis that may count from the end, or be left out for the last one."""
    rank = len(shape)
    if dim is None:
        dim = rank - 1
    if not -rank <= dim < rank:
        raise Invalid(
            f"{what}: a tile of {rank} axes has no axis {dim}",
            hint=f"axes count from 0 to {rank - 1}, or from the end as -1 to {-rank}",
        )
    return dim % rank


@constexpr_function
def _size(shape, axis):
    return _ints(shape)[axis]


@constexpr_function
def _span(shape, axis):
    """How far neighbours along an axis lie apart in row-major order."""
    return prod(_ints(shape)[axis + 1 :])


@constexpr_function
def _log2(n):
    return int(n).bit_length() - 1


@constexpr_function
def _resized(shape, axis, size):
    """A shape with another size of one axis."""
    shape = _ints(shape)
    return (*shape[:axis], size, *shape[axis + 1 :])


@constexpr_function
def _squeezed(shape, dim):
    shape = _ints(shape)
    rank = len(shape)
    if not -rank <= dim < rank or shape[dim] != 1:
        raise Invalid(
            f"squeeze: axis {dim} of {tuple(shape)} is not there with size 1",
            hint="only an axis of size 1 can be left out; reshape does the rest",
        )
    return (*shape[: dim % rank], *shape[dim % rank + 1 :])


@constexpr_function
def _unsqueezed(shape, dim):
    shape = _ints(shape)
    rank = len(shape) + 1
    if not -rank <= dim < rank:
        raise Invalid(
            f"unsqueeze: a tile of {rank} axes has no axis {dim}",
            hint=f"the new axis goes between {-rank} and {rank - 1}",
        )
    return (*shape[: dim % rank], 1, *shape[dim % rank :])


@constexpr_function
def _only(shape, axis):
    """The shape of a row that lies along one axis."""
    return tuple(n if k == axis else 1 for k, n in enumerate(_ints(shape)))


@constexpr_function
def _interleaved(shape):
    *rest, n, two = _ints(shape)
    return (*rest, n * two)


@constexpr_function
def _pairs(size, run):
    """Neighbouring runs side by side: (how many pairs, 2, elements of a run)."""
    return (size // (2 * run), 2, run)


@constexpr_function
def _chosen(what, k, size):
    """How many elements of a sorted axis are returned."""
    if k is None:
        return size
    if k < 1 or k & (k - 1) or k > size:
        raise Invalid(
            f"{what}: k = {k} of {size} elements",
            hint=f"k has to be a power of two between 1 and {size}",
        )
    return k


@constexpr_function
def _signed(bits):
    return core.get_int_dtype(bits, True)


@constexpr_function
def _sum_dtype(given, wanted):
    """What elements are summed as: integers of fewer than 32 bits would overflow."""
    if wanted is not None:
        return wanted
    if given.is_int() and given.primitive_bitwidth < 32:
        return core.int32 if given.is_int_signed() else core.uint32
    return given


@constexpr_function
def _compute_dtype(dtype):
    """What a long sum is computed as: rounding each partial sum to 16 bits loses the small ones."""
    narrow = dtype.is_floating() and dtype.primitive_bitwidth < 32
    return core.float32 if narrow else dtype


@constexpr_function
def _compared_dtype(dtype):
    """What elements are reduced as by max and min, which is also the element of the result."""
    if dtype.primitive_bitwidth >= 32:
        return dtype
    return core.float32 if dtype.is_floating() else core.int32


@constexpr_function
def _scanned_dtype(dtype):
    return core.float32 if dtype.is_bf16() else dtype


# ---- shapes and numbers


@function
def cdiv(x, div):
    """x / div, rounded up (of numbers that are not negative)."""
    return (x + (div - 1)) // div


@function
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1 / (1 + core.exp(-x))


@function
def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):
    """exp(x) over its sum along an axis (by default the first), safe for large x."""
    axis: constexpr = 0 if dim is None else dim
    e = core.exp(x - max(x, axis, keep_dims=True))
    return core.fdiv(e, sum(e, axis, keep_dims=True), ieee_rounding)


@function
def ravel(x, can_reorder=False):
    """All elements in one row."""
    return core.reshape(x, (x.numel,), can_reorder=can_reorder)


@function
def swizzle2d(i, j, size_i, size_j, size_g):
    """Where element (i, j) of size_i × size_j goes when groups of size_g rows are walked column by
    column: programs that run at the same time then share rows and columns."""
    position = i * size_j + j
    in_group = size_g * size_j
    first_row = position // in_group * size_g
    rows = core.minimum(size_i - first_row, size_g)  # the last group may have fewer
    position = position % in_group
    return first_row + position % rows, position // rows


@function
def zeros(shape, dtype):
    """A tile of zeros."""
    return core.full(shape, 0, dtype)


@function
def zeros_like(input):
    """A tile of zeros of the same shape and element."""
    return core.full(input.shape, 0, input.dtype)


@function
def squeeze(x, dim: constexpr):
    """Without the axis `dim`, which has size 1."""
    return core.reshape(x, _squeezed(x.shape, dim))


@function
def unsqueeze(x, dim: constexpr):
    """With a new axis of size 1 at `dim`."""
    return core.reshape(x, _unsqueezed(x.shape, dim))


@function
def interleave(a, b):
    """a0, b0, a1, b1, … along the last axis. Two numbers become a row of two."""
    both = core.join(a, b)
    if len(both.shape) > 1:
        both = core.reshape(both, _interleaved(both.shape))
    return both


@function
def flip(x, dim=None):
    """Reversed along an axis (by default the last)."""
    axis: constexpr = _axis("flip", dim, x.shape)
    n: constexpr = _size(x.shape, axis)
    back = core.reshape(n - 1 - core.arange(0, n), _only(x.shape, axis))
    return core.gather(x, core.broadcast_to(back, x.shape), axis)


# ---- max and min


@function
def _greatest(a, b):
    return core.maximum(a, b)


@function
def _least(a, b):
    return core.minimum(a, b)


# Where a position is wanted too, a number wins over NaN as it does without one.


@function
def _greatest_leftmost(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    if a.dtype.is_floating():
        first = first | (b != b)
    return core.where(first, a, b), core.where(first, i, j)


@function
def _greatest_any(a, i, b, j):
    first = a > b
    if a.dtype.is_floating():
        first = first | (b != b)
    return core.where(first, a, b), core.where(first, i, j)


@function
def _least_leftmost(a, i, b, j):
    first = (a < b) | ((a == b) & (i < j))
    if a.dtype.is_floating():
        first = first | (b != b)
    return core.where(first, a, b), core.where(first, i, j)


@function
def _least_any(a, i, b, j):
    first = a < b
    if a.dtype.is_floating():
        first = first | (b != b)
    return core.where(first, a, b), core.where(first, i, j)


@function
def _positions(x, axis: constexpr):
    """Where every element is along an axis; without one, in row-major order."""
    if axis is None:
        return core.reshape(core.arange(0, x.numel), x.shape)
    else:
        along: constexpr = _axis("a reduction", axis, x.shape)
        row = core.arange(0, _size(x.shape, along))
        return core.broadcast_to(core.reshape(row, _only(x.shape, along)), x.shape)


@function
def max(
    input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False
):
    """The greatest along an axis (of all elements without one), numbers before NaN; with
    return_indices also where it is, of equal ones the first (or any)."""
    if return_indices:
        x = input.to(_scanned_dtype(input.dtype))
        if return_indices_tie_break_left:
            return core.reduce((x, _positions(x, axis)), axis, _greatest_leftmost, keep_dims)
        else:
            return core.reduce((x, _positions(x, axis)), axis, _greatest_any, keep_dims)
    else:
        return core.reduce(input.to(_compared_dtype(input.dtype)), axis, _greatest, keep_dims)


@function
def argmax(input, axis, tie_break_left=True, keep_dims=False):
    """Where the greatest along an axis is."""
    _, where = max(input, axis, True, tie_break_left, keep_dims)
    return where


@function
def min(
    input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False
):
    """The least along an axis (of all elements without one), numbers before NaN; with
    return_indices also where it is, of equal ones the first (or any)."""
    if return_indices:
        x = input.to(_scanned_dtype(input.dtype))
        if return_indices_tie_break_left:
            return core.reduce((x, _positions(x, axis)), axis, _least_leftmost, keep_dims)
        else:
            return core.reduce((x, _positions(x, axis)), axis, _least_any, keep_dims)
    else:
        return core.reduce(input.to(_compared_dtype(input.dtype)), axis, _least, keep_dims)


@function
def argmin(input, axis, tie_break_left=True, keep_dims=False):
    """Where the least along an axis is."""
    _, where = min(input, axis, True, tie_break_left, keep_dims)
    return where


# ---- sums, products, bits


@function
def _add(a, b):
    return a + b


@function
def _multiply(a, b):
    return a * b


@function
def _xor(a, b):
    return a ^ b


@function
def _or(a, b):
    return a | b


@function
def sum(input, axis=None, keep_dims=False, dtype: constexpr = None):
    """The sum along an axis (of all elements without one). Integers of fewer than 32 bits are
    summed as 32; floats of fewer are summed as float32 and rounded once."""
    result: constexpr = _sum_dtype(input.dtype, dtype)
    x = input.to(result).to(_compute_dtype(result))
    return core.reduce(x, axis, _add, keep_dims).to(result)


@function
def xor_sum(input, axis=None, keep_dims=False):
    """All integers along an axis xored."""
    core.static_assert(input.dtype.is_int(), "xor_sum is defined on integers only")
    return core.reduce(input, axis, _xor, keep_dims)


@function
def reduce_or(input, axis=None, keep_dims=False):
    """All integers along an axis ored."""
    core.static_assert(input.dtype.is_int(), "reduce_or is defined on integers only")
    return core.reduce(input, axis, _or, keep_dims)


@function
def cumsum(input, axis=0, reverse=False, dtype: constexpr = None):
    """Sums up to each element along an axis; bfloat16 gives float32."""
    result: constexpr = _sum_dtype(_scanned_dtype(input.dtype), dtype)
    x = input.to(result).to(_compute_dtype(result))
    return core.associative_scan(x, axis, _add, reverse).to(result)


@function
def cumprod(input, axis=0, reverse=False):
    """Products up to each element along an axis; bfloat16 gives float32."""
    result: constexpr = _scanned_dtype(input.dtype)
    x = input.to(_compute_dtype(result))
    return core.associative_scan(x, axis, _multiply, reverse).to(result)


# ---- sorting: a bitonic network over integers
#
# Floats become integers of the same order, a descending order the complement of an ascending one.
# What is left is the least and the greatest of two integers, which is one instruction each. Keys
# are a flat row: an axis with `span` elements between neighbours only makes all distances longer.


@function
def _keys(x):
    """Integers in the order of the elements; NaN is the greatest."""
    if x.dtype.is_fp8():
        # All 256 patterns may be numbers, so that NaN needs a wider integer.
        bits = x.to(core.int8, bitcast=True).to(core.int16)
        return core.where(x != x, 256 + (bits & 255), _turned(bits, 127))
    elif x.dtype.is_floating():
        width: constexpr = x.dtype.primitive_bitwidth
        top: constexpr = 2 ** (width - 1) - 1
        bits = x.to(_signed(width), bitcast=True)
        return core.where(x != x, core.full(x.shape, top, bits.dtype), _turned(bits, top))
    elif x.dtype == core.int1:
        return x.to(core.int8)
    else:
        return x


@function
def _elements(keys, dtype: constexpr):
    """The inverse of `_keys`."""
    if dtype.is_fp8():
        bits = core.where(keys >= 256, keys - 256, _turned(keys, 127))
        return bits.to(core.int8).to(dtype, bitcast=True)
    elif dtype.is_floating():
        top: constexpr = 2 ** (dtype.primitive_bitwidth - 1) - 1
        return _turned(keys, top).to(dtype, bitcast=True)
    else:
        return keys.to(dtype)


@function
def _turned(bits, magnitude: constexpr):
    """Of negative floats the longer is the less: their magnitude is complemented, or is again."""
    return bits ^ ((bits >> (bits.dtype.primitive_bitwidth - 1)) & magnitude)


@function
def _exchange(keys, distance: constexpr):
    """Of every two elements that far apart the lesser comes first."""
    pairs = core.reshape(keys, _pairs(keys.numel, distance))
    side = core.reshape(core.arange(0, 2), (1, 2, 1))
    others = core.gather(pairs, core.broadcast_to(1 - side, pairs.shape), 1)
    ordered = core.where(side == 0, core.minimum(pairs, others), core.maximum(pairs, others))
    return core.reshape(ordered, keys.shape)


@function
def _turn(keys, run: constexpr):
    """Every second run complemented, so that what is ascending in it is descending outside."""
    pairs = core.reshape(keys, _pairs(keys.numel, run))
    odd = core.reshape((0 - core.arange(0, 2)).to(keys.dtype), (1, 2, 1))
    return core.reshape(pairs ^ odd, keys.shape)


@function
def _merge(keys, stages: constexpr, span: constexpr, alternating: constexpr):
    """Runs that rise and then fall become sorted ones; alternating: every second one descends."""
    if alternating:
        keys = _turn(keys, span << stages)
    for k in core.static_range(stages):
        keys = _exchange(keys, span << (stages - 1 - k))
    if alternating:
        keys = _turn(keys, span << stages)
    return keys


@function
def sort_impl(
    x,
    k: constexpr = None,
    dim: constexpr = None,
    descending: constexpr = False,
):
    """The first k (all, without one) of an axis when it is sorted. NaN counts as the greatest."""
    axis: constexpr = _axis("sort", dim, x.shape)
    size: constexpr = _size(x.shape, axis)
    count: constexpr = _chosen("topk", k, size)
    span: constexpr = _span(x.shape, axis)
    stages: constexpr = _log2(size)
    kept: constexpr = _log2(count)
    keys = _keys(core.reshape(x, (x.numel,)))
    if descending:
        keys = ~keys
    for s in core.static_range(1, kept + 1):
        keys = _merge(keys, s, span, s < stages)
    # Of two runs of k, one rising and one falling, the lesser of each pair are the k least of both,
    # and again rise and fall.
    for s in core.static_range(kept + 1, stages + 1):
        pairs = core.reshape(keys, _pairs(keys.numel, span << kept))
        keys = core.reshape(core.reduce(pairs, 1, _least), (keys.numel // 2,))
        keys = _merge(keys, kept, span, s < stages)
    if descending:
        keys = ~keys
    return core.reshape(_elements(keys, x.dtype), _resized(x.shape, axis, count))


@function
def sort(x, dim: constexpr = None, descending: constexpr = False):
    """Sorted along an axis (by default the last)."""
    return sort_impl(x, None, dim, descending)


@function
def topk(x, k: constexpr, dim: constexpr = None, descending: constexpr = True):
    """The k greatest (descending) or least along an axis, in order; k is a power of two."""
    return sort_impl(x, k, dim, descending)


@function
def bitonic_merge(x, dim: constexpr = None, descending: constexpr = False):
    """Sorted along an axis in which elements first rise and then fall."""
    axis: constexpr = _axis("bitonic_merge", dim, x.shape)
    stages: constexpr = _log2(_size(x.shape, axis))
    keys = _keys(core.reshape(x, (x.numel,)))
    if descending:
        keys = ~keys
    keys = _merge(keys, stages, _span(x.shape, axis), False)
    if descending:
        keys = ~keys
    return core.reshape(_elements(keys, x.dtype), x.shape)


METHODS = (
    cdiv,
    sigmoid,
    softmax,
    ravel,
    max,
    argmax,
    min,
    argmin,
    sum,
    xor_sum,
    reduce_or,
    cumsum,
    cumprod,
    sort,
    flip,
)
for _method in METHODS:
    core.member(_method)
