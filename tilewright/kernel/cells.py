"""Where many points touch memory: what both interpreters of nests ask of arrays of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MANY = 1 << 9  # places for which passes over memory take longer than calls of numpy


def outside(x: np.ndarray, size: int) -> np.ndarray:
    """Which places are not in an axis: below zero is far above without a sign."""
    return x.view(np.uint64) >= size


def beyond(x: np.ndarray, size: int) -> bool:
    """Is any of some places not in an axis? Of many their maximum tells, and makes no array."""
    if x.size < MANY:
        return bool(np.count_nonzero(outside(x, size)))  # `any` goes through Python once more
    return bool(np.maximum.reduce(x.view(np.uint64), axis=None) >= size)


def flat_cells(index: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """The places of points in flat memory. Numpy takes elements of one axis in half the time that
    those of several take it."""
    cells: Any = 0
    step = 1
    for x, size in zip(reversed(index), reversed(shape), strict=True):
        if type(x) is not int or x:  # a sum of arrays is one more array
            part = x if step == 1 else x * step
            cells = part if type(cells) is int and not cells else cells + part
        step *= size
    return np.asarray(cells)


def repeated(cells: np.ndarray, size: int) -> np.ndarray:
    """The points, in order, that touch a cell of `size` which one before them touches."""
    order = np.arange(len(cells))
    first = np.empty(size, np.int64)
    first[cells[::-1]] = order[::-1]  # the last one that is written stays
    return np.flatnonzero(first[cells] != order)
