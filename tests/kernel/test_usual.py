"""How many iterations are a piece of work, by the sizes of a call."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.kernel.native import Native
from tilewright.ir import dim as D
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Loop
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.kernel.usual import usual_of, work_at, work_inside
from tilewright.llvm.emit import emit
from tilewright.targets import default

BLOCKS = """
nest k where m: 0.., n: 0..
  in x: f32[m,n]
  out y: f32[m,n]
  parallel i in m grain 3 pragma usual 64:
    for j in (n//16):
      lane l in 16:
        y: y[i,16*j+l] = x[i,16*j+l] * 2.0
    lane l in (n%16):
      y: y[i,16*(n//16)+l] = x[i,16*(n//16)+l] * 2.0
"""


def loop_of(text: str) -> Loop:
    (loop,) = parse_nest(text).body
    assert isinstance(loop, Loop)
    return loop


def test_work_grows_with_sizes() -> None:
    work = work_inside(loop_of(BLOCKS))
    found = [D.evaluate(work, {"m": 5, "n": n}) for n in (0, 16, 64, 640)]
    assert found == sorted(found) and found[3] > 5 * found[2] > 0
    assert usual_of(loop_of(BLOCKS)) == 64 and work_at(work, 64) == found[2]


def test_parts_of_a_sum_count_as_they_are() -> None:
    text = """
nest k where n: 0..100000
  in x: f32[8,n]
  out y: f32[8]
  parallel i in 8 grain 3 pragma usual 8:
    for p in ((n+127)//128):
      for q in min(128,n-128*p):
        y: y[i] add= x[i,128*p+q]
"""
    work = work_inside(loop_of(text))
    small, large = (D.evaluate(work, {"n": n}) for n in (8, 1024))
    assert small == 8 and large == 1024


@pytest.mark.parametrize("sizes", [(0, 5), (1, 1), (7, 16), (300, 3), (5, 1000), (1000, 40)])
def test_pieces_of_any_size_are_right(sizes: tuple[int, int]) -> None:
    nest = parse_nest(BLOCKS)
    dims = {"m": sizes[0], "n": sizes[1]}
    arrays = {"x": np.random.default_rng(1).standard_normal(sizes).astype(np.float32)}
    arrays["y"] = np.zeros(sizes, np.float32)
    wanted = run(nest, arrays, dims)["y"]
    np.testing.assert_array_equal(Native(nest)(arrays, dims)["y"], wanted)


def test_code_divides_the_work_of_a_piece() -> None:
    nest = parse_nest(BLOCKS)
    piece = 3 * work_at(work_inside(loop_of(BLOCKS)), 64)
    text = emit(legalise(nest, default()), default())
    assert len(re.findall(rf"udiv i64 {piece}, ", text)) == 2  # in the caller, and in a piece
    plain = parse_nest(BLOCKS.replace(" pragma usual 64", ""))
    assert f"udiv i64 {piece}, " not in emit(legalise(plain, default()), default())


def test_long_rows_are_shared_though_usual_ones_are_not() -> None:
    """Eight products of usual sizes are one piece of work, those of large ones are not."""
    text = """
group k where m: 1.., d: 1..
  in x: f32[8,m,d]
  in w: f32[8,2,d,32] laid out by a0, a1, a2 -> a0, a2//32, a1, a2%32
  out y: f32[8,m,64]
  local t: f32[8,m,64]
  t[t.i0,t.i1,t.i2] add= x[t.i0,t.i1,t.r0] * w[t.i0,(t.i2//32),t.r0,(t.i2%32)] SUMS
  y[y.i0,y.i1,y.i2] = t[y.i0,y.i1,y.i2] for y.i0 in 8, y.i1 in m, y.i2 in 64
"""
    sums = "for t.i0 in 8, t.i1 in m, t.i2 in 64, t.r0 in d from 0.0"
    group = parse_group(text.replace("SUMS", sums))
    _, nest = default_schedule(group, default())
    (loop,) = (s for s in nest.body if isinstance(s, Loop) and s.kind == "parallel")
    usual, work = usual_of(loop), work_inside(loop)
    assert usual and "pragma usual" in nest_text(nest)
    large = D.evaluate(work, {"m": 512, "d": 512})
    assert loop.grain * work_at(work, usual) // large <= 1
