"""Functions of the language that combine elements with a function of the user's."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.builder import IRBuilder, current
from tilewright.lang.tile.ir import TileType, Value
from tilewright.lang.tile.language import promote
from tilewright.lang.tile.language.shapes import (
    arange,
    axis_of,
    broadcast_to,
    expand_dims,
    gather,
    reshape,
)
from tilewright.lang.tile.language.tensor import builtin, member, tensor, tuple, value, wrap
from tilewright.lang.tile.language.types import bfloat16, dtype_of, float32, int32, unwrap


def _several(x: Any) -> list[tensor]:
    """The tensors of a tuple; all of one shape."""
    tensors = [wrap(value(v)) for v in x]
    shapes = {v.handle.shape for v in tensors}
    if len(shapes) != 1:
        shown = " and ".join(map(str, tensors)) or "nothing"
        raise Invalid(f"a reduction of {shown}", hint="all inputs have one shape: tl.broadcast")
    return tensors


def _combine(what: str, function: Callable[..., Any]) -> Callable[[Sequence[Value]], list[Value]]:
    """The user's function as one of values, with its results checked."""

    def combine(values: Sequence[Value]) -> list[Value]:
        wanted = [v.element for v in values[: len(values) // 2]]
        made = _results(function(*map(wrap, values)))
        elements = [v.element for v in made]
        if elements != wanted:
            a = ", ".join(str(dtype_of(e)) for e in elements)
            b = ", ".join(str(dtype_of(e)) for e in wanted)
            hint = "cast the result to what the function was given: .to(a.dtype)"
            raise Invalid(
                f"{what}: the combining function gives {a} where {b} is needed", hint=hint
            )
        return made

    return combine


def _results(made: Any) -> list[Value]:
    several = isinstance(made, (tuple, builtins.tuple, list))
    return [value(v) for v in made] if several else [value(made)]


@member
@builtin
def reduce(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """All elements along an axis (or all of them) combined into one by a function that is
    associative and commutative."""
    axis, keep, combine_fn = unwrap(axis), unwrap(keep_dims), unwrap(combine_fn)
    single = isinstance(input, tensor)
    tensors = _several([input] if single else input)
    rank = len(tensors[0].handle.shape)
    place = axis
    if axis is None:
        flat = [tensors[0].handle.type.size]
        tensors, place = [reshape(v, flat) for v in tensors], 0
    place = axis_of(place, len(tensors[0].handle.shape), f"reduce of {tensors[0]}")
    shape = tensors[0].handle.shape
    rest = shape[:place] + shape[place + 1 :]
    made = current().combine(
        "reduce",
        [v.handle for v in tensors],
        [v.handle.type.with_shape(rest) for v in tensors],
        {"axis": place},
        _combine("reduce", combine_fn),
    )
    results = [wrap(v) for v in made]
    if keep:
        axes = list(builtins.range(rank)) if axis is None else [place]
        results = [expand_dims(v, axes) if axes else v for v in results]
    return results[0] if single else tuple(results)


@member
@builtin
def associative_scan(input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    """Each element combined with all before it along an axis (or after it, in reverse)."""
    single = isinstance(input, tensor)
    tensors = _several([input] if single else input)
    place = axis_of(axis, len(tensors[0].handle.shape), f"associative_scan of {tensors[0]}")
    made = current().combine(
        "scan",
        [v.handle for v in tensors],
        [v.handle.type for v in tensors],
        {"axis": place, "reverse": bool(unwrap(reverse))},
        _combine("associative_scan", unwrap(combine_fn)),
    )
    results = [wrap(v) for v in made]
    return results[0] if single else tuple(results)


@builtin
def _promote_bfloat16_to_float32(x: tensor) -> tensor:
    return x.to(float32) if x.dtype == bfloat16 else x


@builtin
def _reduce_with_indices(input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    """A reduction of elements together with their positions along the axis."""
    shape, shown = input.handle.shape, promote.described(input.handle)
    if unwrap(axis) is None:
        index = reshape(arange(0, input.handle.type.size), list(shape)) if shape else None
    else:
        place = axis_of(axis, len(shape), f"reduce of {shown}")
        others = [k for k in builtins.range(len(shape)) if k != place]
        index = broadcast_to(expand_dims(arange(0, shape[place]), others), list(shape))
    if index is None:
        raise Invalid(f"the place of an element of {shown}", hint="a scalar has one element")
    found = reduce((input, index), axis, combine_fn, keep_dims=keep_dims)
    return found[0], found[1]


@member
@builtin
def histogram(input: Any, num_bins: Any, mask: Any = None) -> tensor:
    """How often each of 0 … num_bins-1 occurs in a row of integers."""
    x = value(input)
    bins = unwrap(num_bins)
    shown = f"histogram of {promote.described(x)}"
    if len(x.shape) != 1:
        raise Invalid(shown, hint="it is for one axis: tl.ravel(x)")
    kind = dtype_of(x.element)
    if not (kind.is_int() and kind.int_bitwidth == 32):
        said = f"{shown}: histogram only supports 32-bit integer input"
        raise Invalid(said, hint="cast it first: x.to(tl.int32)")
    if not isinstance(bins, int) or bins <= 0 or bins & (bins - 1):
        raise Invalid(f"{shown} with {bins} bins", hint="a constant power of two")
    args = [x]
    if unwrap(mask) is not None:
        m = promote.broadcast_to(value(mask), x.shape)
        if not dtype_of(m.element).is_bool():
            raise Invalid(f"{shown}: the mask is {promote.described(m)}", hint="a bool: x != 0")
        args.append(m)
    return wrap(promote.emit("histogram", args, TileType(int32.ir, (bins,))))


# ---- a function of single elements


@builtin
def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    """A function of scalars applied to every element; it may branch. With `pack` it takes that
    many neighbours of every tile at once."""
    scalar_fn, pack = unwrap(scalar_fn), unwrap(pack)
    if not args:
        raise Invalid("map_elementwise of nothing", hint="give at least one tile")
    if not isinstance(pack, int) or pack < 1 or pack & (pack - 1):
        raise Invalid(f"map_elementwise with pack={pack}", hint="a power of two")
    tiles = promote.broadcast(*(value(a) for a in args))
    shape = tiles[0].shape
    lanes = [lane for tile in tiles for lane in _lanes(tile, pack)]
    made = _eager(scalar_fn, lanes) if current().eager else _written(scalar_fn, lanes)
    single = not isinstance(made, list)
    values = [made] if single else made
    if len(values) % pack:
        what = f"map_elementwise: {len(values)} results with pack={pack}"
        raise Invalid(what, hint="the function gives as many of each result as it takes")
    groups = [values[k : k + pack] for k in builtins.range(0, len(values), pack)]
    tensors = [wrap(promote.reshape(_joined(g), shape)) for g in groups]
    return tensors[0] if single else tuple(tensors)


def _lanes(v: Value, pack: int) -> list[Value]:
    """Every pack-th element, beginning with each of the first ones."""
    if pack == 1:
        return [v]
    if v.type.size % pack:
        what = f"map_elementwise of {promote.described(v)} with pack={pack}"
        raise Invalid(what, hint="the number of elements is a multiple of it")
    pairs = promote.reshape(v, (v.type.size // 2, 2))
    kind = pairs.type.with_shape(pairs.shape[:1])
    even, odd = current().emit("split", (pairs,), (kind, kind))
    # The halves interleave: lane k of the even ones is element 2k.
    left, right = _lanes(even, pack // 2), _lanes(odd, pack // 2)
    return [x for both in zip(left, right, strict=True) for x in both]


def _joined(lanes: Sequence[Value]) -> Value:
    if len(lanes) == 1:
        return lanes[0]
    even, odd = _joined(lanes[0::2]), _joined(lanes[1::2])
    pairs = promote.emit("join", (even, odd), even.type.with_shape((*even.shape, 2)))
    return promote.reshape(pairs, (pairs.type.size,))


def _written(function: Callable[..., Any], lanes: list[Value]) -> Any:
    """Only blocks of reductions have scalars for parameters, so this is one: each element is
    combined with itself, once, and the results are further components."""
    builder = current()
    if not isinstance(builder, IRBuilder):
        raise Invalid("map_elementwise with this builder", hint="compile the kernel")
    probe = builder.opened()
    scalars = [wrap(probe.parameter(TileType(v.element))) for v in lanes]
    with builder.inside(probe):
        made = function(*scalars)
    single = not isinstance(made, (tuple, builtins.tuple, list))
    kinds = [v.element for v in _results(made)]
    shape = lanes[0].shape
    filled = [promote.constant(0, dtype_of(e), shape) for e in kinds]

    def combine(values: Sequence[Value]) -> list[Value]:
        first = list(values[: len(lanes)])
        return [*first, *_results(function(*map(wrap, first)))]

    parts = [
        promote.emit("join", (v, v), v.type.with_shape((*shape, 2))) for v in (*lanes, *filled)
    ]
    types = [p.type.with_shape(shape) for p in parts]
    out = builder.combine("reduce", parts, types, {"axis": len(shape)}, combine)[len(lanes) :]
    return out[0] if single else list(out)


def _eager(function: Callable[..., Any], lanes: list[Value]) -> Any:
    """Element after element, so that Python can branch on each."""
    shape, size = lanes[0].shape, lanes[0].type.size
    rows = [promote.reshape(v, (size,)) for v in lanes]
    single = False
    columns: list[list[Value]] = []
    for k in builtins.range(size):
        index = broadcast_to(wrap(promote.constant(k, int32)), 1)
        made = function(*(reshape(gather(wrap(r), index, 0), []) for r in rows))
        single = not isinstance(made, (tuple, builtins.tuple, list))
        columns.append(_results(made))
    results = [_row([c[n] for c in columns], shape) for n in builtins.range(len(columns[0]))]
    return results[0] if single else results


def _row(scalars: list[Value], shape: builtins.tuple[int, ...]) -> Value:
    parts = [promote.reshape(v, (1,)) for v in scalars]
    while len(parts) > 1:
        pairs = builtins.range(0, len(parts), 2)
        parts = [
            promote.emit(
                "cat", parts[k : k + 2], parts[k].type.with_shape((2 * parts[k].shape[0],))
            )
            for k in pairs
        ]
    return promote.reshape(parts[0], shape)
