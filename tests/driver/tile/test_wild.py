"""What kernels of public libraries do that was once refused or slow, in kernels of our own."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as tl


@tw.jit
def rounded_kernel(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    value = tl.load(x + i)
    tl.store(out + i, value.to(out.dtype.element_ty, fp_downcast_rounding="rtne"))


def test_a_rounding_is_given_whatever_the_pointer_points_to() -> None:
    x = np.linspace(-3, 3, 16, dtype=np.float32)
    for kind in (np.float32, np.float16):
        out = np.zeros(16, kind)
        rounded_kernel[(1,)](x, out, B=16)
        np.testing.assert_array_equal(out, x.astype(kind))


@tw.jit
def stages_kernel(x, out, B: tl.constexpr):
    stages: tl.constexpr = tl.standard._log2(tl.load(x + tl.arange(0, B)).shape[0])
    tl.store(out, stages)


def test_kernels_that_sort_count_their_stages() -> None:
    out = np.zeros(1, np.int32)
    stages_kernel[(1,)](np.zeros(32, np.float32), out, B=32)
    assert out[0] == 5
