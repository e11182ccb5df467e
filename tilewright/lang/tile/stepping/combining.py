"""Reductions and scans with a function of the user's, on numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.lang.tile.builder import Combine
from tilewright.lang.tile.ir import TileType, Value
from tilewright.lang.tile.stepping.known import EagerValue, known


class Part:
    """Elements of one component, the axis that is reduced first."""

    def __init__(self, array: np.ndarray, undefined: np.ndarray | None):
        self.array, self.undefined = array, undefined

    def map(self, move: Callable[[np.ndarray], np.ndarray]) -> Part:
        return Part(move(self.array), None if self.undefined is None else move(self.undefined))

    def __getitem__(self, key: Any) -> Part:
        return self.map(lambda x: x[key])


# Combines two partial results of these types, component by component.
Join = Callable[[Sequence[Part], Sequence[Part], Sequence[TileType]], list[Part]]


def combined(
    name: str,
    args: Sequence[EagerValue],
    types: Sequence[TileType],
    attrs: Mapping[str, Any],
    join: Join,
) -> tuple[Value, ...]:
    """A reduce by a balanced tree that keeps the order of elements, or a scan in order."""
    axis, given = attrs["axis"], [a.type for a in args]
    parts = [Part(a.array, a.undefined).map(lambda x: np.moveaxis(x, axis, 0)) for a in args]
    if attrs.get("reverse"):
        parts = [p[::-1] for p in parts]
    if name == "reduce":
        parts = [p[0] for p in _tree(parts, given, join)]
    else:
        parts = _in_order(parts, given, join)
        if attrs.get("reverse"):
            parts = [p[::-1] for p in parts]
        parts = [p.map(lambda x: np.moveaxis(x, 0, axis)) for p in parts]
    return tuple(
        EagerValue(t, np.array(p.array), None, p.undefined)
        for t, p in zip(types, parts, strict=True)
    )


def _tree(parts: list[Part], types: Sequence[TileType], join: Join) -> list[Part]:
    while len(parts[0].array) > 1:
        n = len(parts[0].array) // 2 * 2
        joined = join([p[0:n:2] for p in parts], [p[1:n:2] for p in parts], types)
        # An odd one out goes to the next round, after the others as before.
        if n < len(parts[0].array):
            joined = [_together([j, p[n:]]) for j, p in zip(joined, parts, strict=True)]
        parts = joined
    return parts


def _in_order(parts: list[Part], types: Sequence[TileType], join: Join) -> list[Part]:
    steps = [[p[k : k + 1] for p in parts] for k in range(len(parts[0].array))]
    for k in range(1, len(steps)):
        steps[k] = join(steps[k - 1], steps[k], types)
    return [_together([step[c] for step in steps]) for c in range(len(parts))]


def _together(pieces: Sequence[Part]) -> Part:
    arrays = [p.array for p in pieces]
    if all(p.undefined is None for p in pieces):
        return Part(np.concatenate(arrays), None)
    masks = [np.zeros(p.array.shape, bool) if p.undefined is None else p.undefined for p in pieces]
    return Part(np.concatenate(arrays), np.concatenate(masks))


def on_tiles(function: Combine) -> Join:
    """The function sees tiles of lanes that are combined alike."""

    def join(left: Sequence[Part], right: Sequence[Part], types: Sequence[TileType]) -> list[Part]:
        shape = left[0].array.shape
        values = [
            EagerValue(t.with_shape(shape), p.array, None, p.undefined)
            for p, t in zip((*left, *right), (*types, *types), strict=True)
        ]
        results = [known(v) for v in function(values)]
        return [
            Part(v.array, v.undefined).map(
                lambda x: x if x.shape == shape else np.broadcast_to(x, shape)
            )
            for v in results
        ]

    return join


def one_by_one(function: Combine) -> Join:
    """The function sees scalars, as it is written."""

    def join(left: Sequence[Part], right: Sequence[Part], types: Sequence[TileType]) -> list[Part]:
        outs = [np.empty_like(p.array) for p in left]
        unsure = [np.zeros(p.array.shape, np.int32) for p in left]
        for index in np.ndindex(*left[0].array.shape):
            values: list[Value] = []
            for p, t in zip((*left, *right), (*types, *types), strict=True):
                one = p[index].map(np.asarray)
                values.append(EagerValue(TileType(t.element), one.array, None, one.undefined))
            for k, v in enumerate(map(known, function(values))):
                outs[k][index] = v.array
                unsure[k][index] = 0 if v.undefined is None else v.undefined.max()
        return [Part(o, u if u.any() else None) for o, u in zip(outs, unsure, strict=True)]

    return join
