"""Kernels that were once compiled to something else than they say, as small as they go."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as tl


@tw.jit
def wrapped_kernel(x, least, wide, small, B: tl.constexpr):
    i = tl.arange(0, B)
    scaled = tl.load(x) * 3
    tl.store(least, tl.minimum(scaled, 7))
    moved = tl.load(x + i) + i * 65536
    tl.store(wide + i, moved.to(tl.int64))
    tl.store(small + i, moved < 0)


def test_numbers_out_of_memory_wrap_around() -> None:
    x = np.array([2**30, 2**31 - 1, -(2**31), 5], np.int32)
    least, wide, small = np.zeros(1, np.int32), np.zeros(4, np.int64), np.zeros(4, bool)
    wrapped_kernel[(1,)](x, least, wide, small, B=4)
    with np.errstate(over="ignore"):
        assert least[0] == min(x[0] * np.int32(3), 7)
        moved = x + np.arange(4, dtype=np.int32) * np.int32(65536)
    np.testing.assert_array_equal(wide, moved)
    np.testing.assert_array_equal(small, moved < 0)


@tw.jit
def exchanged_kernel(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + (i ^ 5), tl.load(x + i))


def test_places_by_bits_of_the_position() -> None:
    x = np.arange(16, dtype=np.float32)
    out = np.zeros_like(x)
    exchanged_kernel[(1,)](x, out, B=16)
    np.testing.assert_array_equal(out, x[np.arange(16) ^ 5])
