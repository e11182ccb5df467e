"""Atomic maxima and minima of floats compare bits, as Triton's do on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.lang.tile.values import running, tile

VALUES = [-np.inf, -2.5, -0.0, 0.0, 1.5, np.inf, np.nan, -np.nan]


@tw.jit
def extremes(highest, lowest, values, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(values + at)
    tl.atomic_max(highest + at, v)
    tl.atomic_min(lowest + at, v)


def order(x: np.ndarray) -> np.ndarray:
    """Numbers by their bits: a NaN stands outside the infinity of its sign."""
    bits = x.view(np.int32 if x.dtype == np.float32 else np.int64).astype(object)
    least = 1 << (8 * x.dtype.itemsize - 1)
    return np.array([b if b >= 0 else -1 - (b + least) for b in bits], object)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("by", ["native", "step by step"])
def test_extremes_of_every_pair(dtype: type, by: str) -> None:
    pairs = np.array([(a, b) for a in VALUES for b in VALUES], dtype)
    before, values = (np.ascontiguousarray(x) for x in pairs.T)
    highest, lowest = before.copy(), before.copy()
    if by == "native":
        extremes[(1,)](*map(torch.from_numpy, (highest, lowest, values)), BLOCK=64)
    else:
        with running(highest, lowest) as pointers:
            v = tile(values, tl.float32 if dtype == np.float32 else tl.float64)
            for p, f in zip(pointers, (tl.atomic_max, tl.atomic_min), strict=True):
                f(p + tl.arange(0, 64), v)
    larger = order(values) > order(before)
    wanted = np.where(larger, values, before), np.where(larger, before, values)
    for got, right in zip((highest, lowest), wanted, strict=True):
        assert np.array_equal(got.view(np.uint8), right.view(np.uint8)), (got, right)
