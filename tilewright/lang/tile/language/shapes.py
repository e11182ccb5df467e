"""Making tiles and changing their shapes: the functions of the language that move no number."""

from __future__ import annotations

import builtins
from math import prod
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.builder import current
from tilewright.lang.tile.ir import TileType, Value
from tilewright.lang.tile.language import promote, semantic
from tilewright.lang.tile.language.tensor import (
    builtin,
    member,
    operand,
    tensor,
    tuple,
    value,
    wrap,
)
from tilewright.lang.tile.language.types import MAX_NUMEL, check_shape, dtype, int32, unwrap


def sizes(shape: Any) -> list[Any]:
    """A shape given as one sequence or as separate numbers."""
    items = [unwrap(s) for s in shape]
    if len(items) == 1 and isinstance(items[0], (list, builtins.tuple, tuple)):
        items = [unwrap(s) for s in items[0]]
    return items


def axis_of(axis: Any, rank: int, what: str) -> int:
    """An axis counted from the front; negative ones count from the back."""
    axis = unwrap(axis)
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise Invalid(f"{what}: the axis is {axis}", hint="an axis is a constant integer")
    if not -rank <= axis < rank:
        hint = f"the axes are {-rank} to {rank - 1}" if rank else "a scalar has no axes"
        raise Invalid(f"{what}: invalid axis {axis}", hint=hint)
    return axis % rank


@builtin
def arange(start: Any, end: Any) -> tensor:
    """start, start + 1, … up to end, which is not included: a tile of int32."""
    low, high = unwrap(start), unwrap(end)
    for name, x in (("start", low), ("end", high)):
        if isinstance(x, bool) or not isinstance(x, int):
            if x is None or isinstance(x, (bool, float, str, tuple)):
                what = f"arange: the {name} is {x!r}, which is no whole number"
                raise Invalid(what, hint="give integers: a quotient is n // 2, not n / 2")
            shown = promote.described(x.handle) if isinstance(x, tensor) else repr(x)
            what = f"arange: the {name} is {shown}, which is not known while compiling"
            hint = "make it a tl.constexpr parameter; add what varies: start + tl.arange(0, N)"
            raise Invalid(what, hint=hint)
        if not int32.get_int_min_value() <= x <= int32.get_int_max_value() + 1:
            raise Invalid(f"arange({low}, {high}) does not fit int32", hint="add int64 offsets")
    n = high - low
    if n <= 0:
        raise Invalid(f"arange({low}, {high}) is empty", hint="the end lies above the start")
    if n & (n - 1) or n > MAX_NUMEL:
        larger = 1 << (n - 1).bit_length()
        what = f"arange({low}, {high}) has {n} elements, which is no power of two"
        hint = f"arange({low}, {low + larger}) and a mask: x < {high}"
        if n > MAX_NUMEL:
            what = f"arange({low}, {high}) has {n} elements, more than {MAX_NUMEL}"
            hint = "loop over smaller tiles"
        raise Invalid(what, hint=hint)
    return wrap(promote.emit("iota", (), TileType(int32.ir, (n,)), {"start": low}))


@builtin
def full(shape: Any, value: Any, dtype: Any) -> tensor:
    """One number everywhere."""
    kind = _dtype(dtype, "full")
    return wrap(semantic.full(check_shape(_shape(shape)), operand(value), kind))


def _dtype(kind: Any, what: str) -> dtype:
    found = unwrap(kind)
    if not isinstance(found, dtype):
        raise Invalid(f"{what}: {found!r} is no element type", hint="tl.float32, tl.int8, …")
    return found


def _shape(shape: Any) -> list[Any]:
    shape = unwrap(shape)
    if isinstance(shape, int):
        return [shape]
    return [unwrap(s) for s in shape]


@member
@builtin
def cast(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: Any = False) -> tensor:
    """The same numbers (or with `bitcast` the same bits) as another type."""
    return wrap(value(input)).to(dtype, fp_downcast_rounding, bitcast)


@builtin
def broadcast(input: Any, other: Any) -> builtins.tuple[tensor, tensor]:
    """Both tiles with the shape they have together."""
    a, b = promote.broadcast(value(input), value(other))
    return wrap(a, input), wrap(b, other)


@member
@builtin
def broadcast_to(input: Any, *shape: Any) -> tensor:
    """Axes of one stretched to this shape."""
    return wrap(promote.broadcast_to(value(input), check_shape(sizes(shape))), input)


@member
@builtin
def expand_dims(input: Any, axis: Any) -> tensor:
    """New axes of one; `axis` counts in the result and may be several."""
    v = value(input)
    axis = unwrap(axis)
    axes = [axis] if isinstance(axis, int) else [unwrap(a) for a in axis]
    rank = len(v.shape) + len(axes)
    places = sorted(axis_of(a, rank, f"expand_dims of {promote.described(v)}") for a in axes)
    if len(set(places)) != len(places):
        raise Invalid(
            f"expand_dims: duplicate axes, normalized axes = {places}", hint="each new axis once"
        )
    shape = list(v.shape)
    for place in places:
        shape.insert(place, 1)
    return wrap(promote.reshape(v, shape), input)


@member
@builtin
def reshape(input: Any, *shape: Any, can_reorder: Any = False) -> tensor:
    """The same elements, in row-major order, in another shape."""
    v = value(input)
    new = check_shape(sizes(shape))
    if prod(new) != v.type.size:
        what = f"{promote.described(v)} has {v.type.size} elements, {list(new)} has {prod(new)}"
        raise Invalid(f"reshape: {what}", hint="a reshape keeps the number of elements")
    return wrap(promote.reshape(v, new), input)


@member
@builtin
def view(input: Any, *shape: Any) -> tensor:
    """Another name of `reshape`."""
    return reshape(input, *shape)


@member
@builtin
def item(input: Any) -> tensor:
    """The only element of a tile as a scalar."""
    v = value(input)
    if v.type.size != 1:
        raise Invalid(f"item of {promote.described(v)}", hint="reduce it first: tl.sum(x)")
    return wrap(promote.reshape(v, ()), input)


@member
@builtin
def permute(input: Any, *dims: Any) -> tensor:
    """The axes in another order: axis k of the result is axis dims[k] of the input."""
    v = value(input)
    order = builtins.tuple(sizes(dims))
    if sorted(order) != list(builtins.range(len(v.shape))):
        what = f"permute of {promote.described(v)}: {list(order)} is no order of its axes"
        raise Invalid(what, hint=f"each of {list(builtins.range(len(v.shape)))} once")
    if order == builtins.tuple(builtins.range(len(order))):
        return wrap(v, input)
    kind = v.type.with_shape([v.shape[k] for k in order])
    return wrap(promote.emit("permute", (v,), kind, {"order": order}), input)


@member
@builtin
def trans(input: Any, *dims: Any) -> tensor:
    """The last two axes exchanged, or the axes in the order given."""
    if dims:
        return permute(input, *dims)
    v = value(input)
    rank = len(v.shape)
    if rank < 2:
        raise Invalid(f"trans of {promote.described(v)}", hint="it needs two axes: x[:, None]")
    return permute(input, [*builtins.range(rank - 2), rank - 1, rank - 2])


def _same_element(what: str, a: Value, b: Value) -> None:
    if a.element != b.element:
        shown = f"{what} of {promote.described(a)} and {promote.described(b)}"
        raise Invalid(shown, hint="cast one of them first: x.to(y.dtype)")


@builtin
def join(a: Any, b: Any) -> tensor:
    """Two tiles side by side along a new last axis."""
    x, y = promote.broadcast(value(a), value(b))
    _same_element("join", x, y)
    return wrap(promote.emit("join", (x, y), x.type.with_shape((*x.shape, 2))), a)


@member
@builtin
def split(a: Any) -> builtins.tuple[tensor, tensor]:
    """Both halves of a last axis of two."""
    v = value(a)
    if v.shape[-1:] != (2,):
        what = f"split of {promote.described(v)}: the last axis must have two elements"
        raise Invalid(what, hint="reshape it first: x.reshape(…, 2)")
    kind = v.type.with_shape(v.shape[:-1])
    left, right = current().emit("split", (v,), (kind, kind))
    return wrap(left, a), wrap(right, a)


@builtin
def cat(input: Any, other: Any, can_reorder: Any = False, dim: Any = 0) -> tensor:
    """One tile after the other along an axis."""
    a, b = value(input), value(other)
    _same_element("cat", a, b)
    if a.shape != b.shape or not a.shape:
        given = f"{promote.described(a)} and {promote.described(b)}"
        what = f"tl.cat requires tensors of the same shape, not {given}"
        raise Invalid(what, hint="both tiles have one shape, with at least one axis")
    axis = axis_of(dim, len(a.shape), "cat")
    if axis == 0:
        shape = (2 * a.shape[0], *a.shape[1:])
        check_shape(shape)
        return wrap(promote.emit("cat", (a, b), a.type.with_shape(shape)), input)
    order = _to_front(axis, len(a.shape))
    joined = cat(permute(wrap(a), order), permute(wrap(b), order))
    return permute(joined, [order.index(k) for k in builtins.range(len(order))])


def _to_front(axis: int, rank: int) -> list[int]:
    return [axis, *(k for k in builtins.range(rank) if k != axis)]


@member
@builtin
def gather(src: Any, index: Any, axis: Any) -> tensor:
    """Elements picked along an axis: y[…, k, …] = x[…, index[…, k, …], …]."""
    x, i = value(src), value(index)
    rank = len(x.shape)
    shown = f"gather from {promote.described(x)} by {promote.described(i)}"
    axis = axis_of(axis, rank, shown)
    if not dtype_of_value(i).is_int():
        raise Invalid(shown, hint="the index is a tile of integers")
    if len(i.shape) != rank:
        raise Invalid(shown, hint="both have the same number of axes")
    if any(x.shape[k] != i.shape[k] for k in builtins.range(rank) if k != axis):
        raise Invalid(shown, hint=f"only along axis {axis} may the sizes differ")
    return wrap(promote.emit("gather", (x, i), x.type.with_shape(i.shape), {"axis": axis}), src)


def dtype_of_value(v: Value) -> dtype:
    return promote.dtype_of(v.element)
