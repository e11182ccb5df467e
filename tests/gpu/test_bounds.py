"""Emulated code that reads or writes where it may not, or at addresses that are less aligned than
it says, is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tilewright import targets
from tilewright.kernel.legal import legalise
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.llvm.grid import emit_kernels

GPU = targets.get("cuda:90")
TWICE = """
group twice
  in x: f32[1000]
  out y: f32[1000]
  y[y.i] = x[y.i] * 2.0 for y.i in 1000
"""
PLACE = "getelementptr float, ptr %base{}, i64 %v1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", ""),
        ("mul i64 %thread.x, 4", "mul i64 %thread.x, 3", "no multiple of 16"),
        ("mul i64 %thread.x, 4", "mul i64 %thread.x, 8", "outside x, which has 4000"),
        (PLACE.format(1), PLACE.format(1).replace("%v1", "-4"), "16 bytes at -16 are outside y"),
    ],
    ids=["right", "less aligned", "behind the end", "before the beginning"],
)
def test_what_code_touches(old: str, new: str, says: str) -> None:
    _, nest = default_schedule(parse_group(TWICE), GPU)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert old in made.text
    given = {"x": np.arange(1000, dtype=np.float32)}
    changed = replace(made, text=made.text.replace(old, new)) if old else made
    if not says:
        np.testing.assert_array_equal(
            emulate.run_kernels(changed, given, {}, 16)["y"], 2 * given["x"]
        )
        return
    with pytest.raises(AssertionError, match=says):
        emulate.run_kernels(changed, given, {}, 16)
