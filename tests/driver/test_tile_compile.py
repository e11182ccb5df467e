"""Tile kernels as native code, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.tile.kernels import CASES, launched
from tilewright.base.events import Log
from tilewright.driver.tile_compile import compile_tile
from tilewright.lang.tile.frontend import translate
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
    compile_tile(kernel, default(), Log()).launch(flat, (*case.grid, 1, 1)[:3])
    for k, want in case.expected(before).items():
        np.testing.assert_allclose(values[k], want, rtol=case.rtol, atol=case.atol, err_msg=k)
