"""Vectors that are transposed in registers: all elements land where they should, in few steps."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.llvm.test_statements import Compiled, nest
from tilewright.kernel.legal import legalise
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly
from tilewright.targets import get

TURNED = """
nest k
  in x: f32[{columns},{lanes}]
  out y: f32[{lanes},{columns}]
  local t: f32[{lanes},{columns}]
  alloc t
  lane i in {lanes}:
    unroll k in {columns}:
      s: t[i,k] = x[k,i] + 1.0
  for r in {lanes}:
    lane c in {columns}:
      y: y[r,c] = t[r,c]
"""


@pytest.mark.parametrize("columns", (2, 4, 8, 16, 32))
@pytest.mark.parametrize("lanes", (2, 4, 8, 12, 16))
def test_rows_become_columns(lanes: int, columns: int) -> None:
    k = Compiled(nest(TURNED.format(lanes=lanes, columns=columns)))
    x = np.arange(lanes * columns, dtype=np.float32).reshape(columns, lanes)
    y = np.zeros((lanes, columns), np.float32)
    k({"x": x, "y": y})
    np.testing.assert_array_equal(y, x.T + 1)


@pytest.mark.parametrize(("target", "lanes"), (("x86-64-v3", 8), ("x86-64-v4", 16)))
@pytest.mark.parametrize("squares", (1, 2))
def test_a_square_takes_few_shuffles(target: str, lanes: int, squares: int) -> None:
    """Two of a step for two vectors, in as many steps as halve the lanes to one."""
    n = nest(TURNED.format(lanes=lanes, columns=lanes * squares))
    machine = get(target)
    found = re.findall(
        r"\bv(?:un|perm|shuf|insert|blend|extract)\w+",
        assembly(emit(legalise(n, machine), machine), machine),
    )
    assert 0 < len(found) <= squares * lanes * (lanes.bit_length() - 1)
