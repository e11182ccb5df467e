"""Rows that start where they should; results stay what they were."""

import numpy as np
import pytest

from tests.kernel.native import Native
from tilewright.base.errors import Refused
from tilewright.kernel.interpret import run
from tilewright.kernel.nest import start
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.text import parse_group

TRANSPOSED = """
group k
  in a0: f32[6,5,8]
  out y0: f32[8,5,6]
  local t0: f32[6,5,8]
  t0[t0.i0,t0.i1,t0.i2] = a0[t0.i0,t0.i1,t0.i2] * 2.0 for t0.i0 in 6, t0.i1 in 5, t0.i2 in 8
  y0[y0.i0,y0.i1,y0.i2] = t0[y0.i2,y0.i1,y0.i0] for y0.i0 in 8, y0.i1 in 5, y0.i2 in 6
"""


@pytest.mark.parametrize(
    ("axis", "factor", "offset", "shape"),
    [
        (1, 16, 0, (6, 5, 16)),
        (1, 32, 1, (6, 5, 33)),
        (1, 8, 0, (6, 5, 8)),
        (0, 16, 0, (6, 6, 8)),
        (0, 64, 8, (6, 9, 8)),
    ],
)
def test_rows_start_where_declared(axis: int, factor: int, offset: int, shape: tuple) -> None:
    nest = StorageAlign("t0", axis, factor, offset).apply(start(parse_group(TRANSPOSED.strip())))
    b = nest.buffer("t0")
    stride = b.strides()[axis]
    assert b.shape == shape and isinstance(stride, int) and stride % factor == offset
    a = np.random.default_rng(0).standard_normal((6, 5, 8)).astype(np.float32)
    for got in (run(nest, {"a0": a}), Native(nest)({"a0": a})):
        np.testing.assert_array_equal(got["y0"], 2 * a.transpose(2, 1, 0))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (StorageAlign("a0", 0, 8), "is an argument"),
        (StorageAlign("t0", 2, 8), "nothing behind axis 2"),
        (StorageAlign("t0", 0, 0), "not a positive factor"),
        (StorageAlign("t0", 0, 8, 8), "not below 8"),
        (StorageAlign("t0", 0, 16, 1), "never end 1 after 16"),
        (StorageAlign("t9", 0, 16), "no buffer t9"),
    ],
)
def test_refusals(step: StorageAlign, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        step.apply(start(parse_group(TRANSPOSED.strip())))


def test_a_widened_buffer_is_not_placed() -> None:
    """ComputeAt would allocate what is used and lose the alignment."""
    n = StorageAlign("t0", 1, 16).apply(start(parse_group(TRANSPOSED.strip())))
    with pytest.raises(Refused, match="no longer one whole loop per axis") as refusal:
        ComputeAt("t0", "y0.i0").apply(n)
    assert refusal.value.hint is not None and "align" in refusal.value.hint
    placed = ComputeAt("t0", "y0.i0").apply(start(parse_group(TRANSPOSED.strip())))
    assert StorageAlign("t0", 0, 16).apply(placed).buffer("t0").strides()[0] == 16
