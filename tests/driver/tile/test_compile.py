"""Tile kernels as native code, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tests.lang.tile.kernels import CASES, launched
from tilewright.base.events import Log
from tilewright.driver.tile.compile import compile_tile
from tilewright.lang.tile.front.frontend import translate
from tilewright.targets import default


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    case = CASES[name]
    values = case.values(np.random.default_rng(3))
    before = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in values.items()}
    arguments = case.arguments(values)
    kernel = translate(case.function, arguments)
    given = launched(case.function, values, arguments)
    flat = [x.ctypes.data if isinstance(x, np.ndarray) else x for x in given]
    compile_tile(kernel, default(), Log()).launch(flat, None, (*case.grid, 1, 1)[:3])
    for k, want in case.expected(before).items():
        np.testing.assert_allclose(values[k], want, rtol=case.rtol, atol=case.atol, err_msg=k)


@tw.jit
def twice_or_rest(a, b):
    if a > b:
        r = a * 2
    else:
        r = b - a
    return r


@tw.jit
def each_kernel(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.map_elementwise(twice_or_rest, tl.load(x + i), tl.load(y + i)))


@tw.jit
def greater(a, b):
    if a > b:
        r = a
    else:
        r = b
    return r


@tw.jit
def greatest_kernel(x, out, B: tl.constexpr):
    tl.store(out, tl.reduce(tl.load(x + tl.arange(0, B)), 0, greater))


def test_branches_of_single_elements() -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.integers(0, 100, 128, dtype=np.int32) for _ in range(2))
    out, most = np.empty_like(x), np.zeros(1, np.int32)
    each_kernel[(1,)](x, y, out, B=128)
    np.testing.assert_array_equal(out, np.where(x > y, x * 2, y - x))
    greatest_kernel[(1,)](x, most, B=128)
    assert most[0] == x.max()
