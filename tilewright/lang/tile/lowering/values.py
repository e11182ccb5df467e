"""Lowering of operations without effects: index functions of index functions."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Value, fn, index, select
from tilewright.ir.types import i32
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.state import GRID, Lowering
from tilewright.lang.tile.lowering.tiles import (
    AnyTile,
    At,
    Pointers,
    Tile,
    converted,
    mapped,
    number,
    recast,
    viewed,
    whole,
)


def lower_const(low: Lowering, o: ir.Operation) -> None:
    e = o.result.element
    if isinstance(e, ir.Pointer):
        low.tiles[o.result] = Pointers(o.result.shape, e.to, None, lambda i: 0)
    else:
        low.tiles[o.result] = number(o.attrs["value"], e, o.result.shape)


def lower_program_id(low: Lowering, o: ir.Operation) -> None:
    at = low.pids[o.attrs["axis"]]
    low.tiles[o.result] = whole((), i32, lambda i: at)


def lower_num_programs(low: Lowering, o: ir.Operation) -> None:
    n = D.as_int(low.dims[GRID[o.attrs["axis"]]])
    low.tiles[o.result] = whole((), i32, lambda i: n)


def lower_iota(low: Lowering, o: ir.Operation) -> None:
    start = o.attrs["start"]
    low.tiles[o.result] = whole(o.result.shape, i32, lambda i: i[0] + start)


def lower_map(low: Lowering, o: ir.Operation) -> None:
    r = o.result
    args = tuple(low.tile(a) for a in o.args)
    low.define(r, mapped(o.attrs["fn"], args, r.type.dtype, r.shape, low.positions))


def lower_cast(low: Lowering, o: ir.Operation) -> None:
    rounding = o.attrs.get("rounding") or ""
    t = converted(low.tile(o.args[0]), o.result.type.dtype, low.positions, rounding)
    low.define(o.result, t)


def lower_bitcast(low: Lowering, o: ir.Operation) -> None:
    source, e = low.tiles[o.args[0]], o.result.element
    if isinstance(e, ir.Pointer):
        if isinstance(source, Pointers):
            source = low.addresses_of(source)
        low.define(o.result, Pointers(o.result.shape, e.to, None, source.index, source.reads))
        return
    if isinstance(source, Pointers):
        source = low.addresses_of(source)
    low.define(o.result, recast(source, e))


def lower_offset(low: Lowering, o: ir.Operation) -> None:
    by = low.tile(o.args[1])
    low.define(o.result, low.pointers(o.args[0]).moved(by.index, by.reads))


def reusable(low: Lowering, v: ir.Value) -> AnyTile:
    """A tile that will be read several times at each index: stored unless it is cheap."""
    t = low.tiles[v]
    several = v.type.size > 1  # one number is computed once anyway
    if isinstance(t, Tile) and not t.buffer and ((t.expensive and several) or t.reads):
        t = low.tiles[v] = low.stored(t)
    return t


def lower_broadcast(low: Lowering, o: ir.Operation) -> None:
    a, r = o.args[0], o.result
    t = reusable(low, a) if r.type.size > a.type.size else low.tiles[a]
    ones = [n == 1 for n in a.shape]
    where: Callable[[At], At] = lambda i: tuple(  # noqa: E731
        0 if one else k for k, one in zip(i, ones, strict=True)
    )
    low.define(r, viewed(t, r.shape, where))


def lower_reshape(low: Lowering, o: ir.Operation) -> None:
    old, new = o.args[0].shape, o.result.shape
    low.define(o.result, viewed(low.tiles[o.args[0]], new, lambda i: _reshaped(i, new, old)))


def lower_permute(low: Lowering, o: ir.Operation) -> None:
    order = o.attrs["order"]
    back = [order.index(k) for k in range(len(order))]
    t = low.tiles[o.args[0]]
    if isinstance(t, Tile) and t.dim is None and low.uses.count(o.args[0]) > 1:
        # Read in two orders: computed once, in the order in which what it is made of lies.
        t = low.tiles[o.args[0]] = low.stored(t)
    low.define(o.result, viewed(t, o.result.shape, lambda i: tuple(i[k] for k in back)))


def lower_join(low: Lowering, o: ir.Operation) -> None:
    shape = o.result.shape
    low.define(o.result, either(low, o, shape, lambda i: (i[-1], 1, i[:-1], i[:-1])))


def lower_cat(low: Lowering, o: ir.Operation) -> None:
    n = o.args[0].shape[0]
    shape = o.result.shape
    low.define(o.result, either(low, o, shape, lambda i: (i[0], n, i, (i[0] - n, *i[1:]))))


def either(
    low: Lowering,
    o: ir.Operation,
    shape: tuple[int, ...],
    pick: Callable[[At], tuple[Dim, int, At, At]],
) -> AnyTile:
    """The first tile where a position is less than a number, else the second."""
    a, b = (reusable(low, v) for v in o.args)
    if isinstance(a, Pointers) or isinstance(b, Pointers):
        a, b = (
            low.addresses_of(low.pointers(o.args[0])),
            low.addresses_of(low.pointers(o.args[1])),
        )

    def at(i: At) -> Value:
        where, n, first, second = pick(i)
        inside = fn("lt", index(where), n)
        return select(inside, a.at(first), b.at(second))

    t = Tile(shape, a.dtype, at, reads=a.reads | b.reads)
    e = o.result.element
    return Pointers(shape, e.to, None, t.index, t.reads) if isinstance(e, ir.Pointer) else t


def lower_split(low: Lowering, o: ir.Operation) -> None:
    t = low.tiles[o.args[0]]
    for k, r in enumerate(o.results):
        low.define(r, viewed(t, r.shape, lambda i, k=k: (*i, k)))


def lower_gather(low: Lowering, o: ir.Operation) -> None:
    t = low.tiles[o.args[0]] = low.stored(low.tile(o.args[0]))
    where, axis = low.tile(o.args[1]), o.attrs["axis"]
    at = lambda i: t.at((*i[:axis], where.index(i), *i[axis + 1 :]))  # noqa: E731
    low.define(o.result, Tile(o.result.shape, t.dtype, at, reads=where.reads))


def _reshaped(i: At, new: tuple[int, ...], old: tuple[int, ...]) -> At:
    """Where an element of a reshaped tile was."""
    if old == tuple(n for n in new if n != 1):
        return tuple(k for k, n in zip(i, new, strict=True) if n != 1)
    if new == tuple(n for n in old if n != 1):
        left = iter(i)
        return tuple(0 if n == 1 else next(left) for n in old)
    flat: Dim = 0
    for k, n in zip(i, new, strict=True):
        flat = flat * n + k
    out: list[Dim] = []
    for n in reversed(old):
        out.append(D.mod(flat, n))
        flat = D.floordiv(flat, n)
    return tuple(reversed(out))
