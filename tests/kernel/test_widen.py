"""Groups whose 16-bit floats stay float32 until they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.expr import walk
from tilewright.ir.types import DTYPES, as_dtype, bf16, f16, f32, to_memory
from tilewright.kernel.check import verify
from tilewright.kernel.interpret import run_group
from tilewright.kernel.text import group_text, parse_group
from tilewright.kernel.widen import widened

TEXT = """
group k
  in a: HALF[4,6]
  out y: HALF[4,6]
  out n: i64[4,6]
  local t: HALF[4]
  local u: HALF[4,6]
  t[t.i0] max= a[t.i0,t.r0] * 3.0:HALF for t.i0 in 4, t.r0 in 6 from -inf:HALF
  u[u.i0,u.i1] = cast<HALF>(cast<f32>(a[u.i0,u.i1] + 100.0:HALF) * 1.5) for u.i0 in 4, u.i1 in 6
  y[y.i0,y.i1] = u[y.i0,y.i1] - t[y.i0] for y.i0 in 4, y.i1 in 6
  n[n.i0,n.i1] = cast<i64>(bits_of_HALF(u[n.i0,n.i1])) for n.i0 in 4, n.i1 in 6
"""


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_only_what_is_stored_is_rounded(half: str) -> None:
    group = parse_group(TEXT.replace("HALF", half))
    wide = widened(group)
    assert [b.dtype for b in wide.buffers[-2:]] == [f32, f32]
    assert parse_group(group_text(wide)) == wide
    verify(wide)
    rounding = [x for x in walk(wide.stage("y").value) if x.dtype in (f16, bf16)]
    assert rounding == [wide.stage("y").value]  # the cast that is stored, and nothing else
    d = DTYPES[half]
    a = as_dtype(np.random.default_rng(0).standard_normal((4, 6)), d)
    a32 = np.asarray(a, np.float32)
    u = (a32 + np.float32(100)) * np.float32(1.5)
    got = run_group(wide, {"a": a})
    np.testing.assert_array_equal(got["y"], as_dtype(u - 3 * a32.max(1, keepdims=True), d))
    # The bits of a 16-bit float are those of a rounded one.
    np.testing.assert_array_equal(got["n"], to_memory(u, d).view(np.uint16))


def test_other_groups_stay_as_they_are() -> None:
    group = parse_group(TEXT.replace("HALF", "f32"))
    assert widened(group) is group
