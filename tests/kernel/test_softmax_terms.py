"""Which terms of sums are those of a softmax."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.programs import PROGRAMS, groups
from tests.gpu.tile_kernels import load
from tests.lang.tile.threads_running import run_emulated, scheduled
from tilewright import targets
from tilewright.ir.types import DType, as_dtype, bf16, f32, i32
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.softmax_terms import softmax_terms
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.ir import Kernel

GPU = targets.get("cuda:90")
FOUND = """
nest k
  in x: f32[4,64]
  out y: f32[4]
  local top: f32[1]
  local tops: f32[8]
  local sum: f32[1]
  block.x b in 4:
    alloc sum
    sum: sum[0] = 0.0
    alloc top
    top: top[0] = -inf
    alloc tops
    thread.x t0 in 8:
      tops: tops[t0] = -inf
    unroll u in 8:
      thread.x t in 8:
        tops: tops[t] max= x[b,8*u+t]
    thread.x w in 8:
      top: top[0] max= tops[w]
    unroll v in 8:
      thread.x s in 8:
        sum: sum[0] add= exp(x[b,8*v+s] - top[0])
    y: y[b] = log(sum[0]) + top[0]
"""


def terms(text: str) -> set[str]:
    n = parse_nest(text)
    return {str(v) for v in softmax_terms(n, n.body)}


def test_of_a_softmax() -> None:
    assert len(terms(FOUND)) == 1


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("unroll u in 8", "unroll u in 7"),  # not the largest of all
        ("thread.x w in 8", "thread.x w in 7"),
        ("max= x[b,8*u+t]", "max= x[b,8*u]"),
        ("tops[t] max=", "tops[t] add="),
        ("tops[t0] = -inf", "tops[t0] = 0.0"),  # at least 0, whatever the elements
        ("exp(x[b,8*v+s] - top[0])", "exp(x[b,8*v+s] - top[0]) * 2.0"),
        ("exp(x[b,8*v+s] - top[0])", "exp(x[b,8*v+s] + top[0])"),
        ("unroll v in 8", "unroll v in 4"),  # the largest may be among those left out
        ("sum: sum[0] add=", "if x[b,0] > 0.0:\n          sum: sum[0] add="),
    ],
)
def test_of_another_sum(was: str, now: str) -> None:
    assert was in FOUND
    assert terms(FOUND.replace(was, now)) == set()


@pytest.mark.parametrize(("d", "columns"), [(f32, 300), (bf16, 1024), (bf16, 1031)])
def test_rows_of_far_apart_numbers(d: DType, columns: int) -> None:
    """A cross entropy is as good as in float32, whatever the smallest of its terms."""
    (g,) = groups(PROGRAMS["cross_entropy"](d, 3, columns))
    nest: Nest = default_schedule(g, GPU)[1]
    assert softmax_terms(nest, nest.body), nest_text(nest)
    rng = np.random.default_rng(columns)
    x = as_dtype(rng.standard_normal((3, columns)) * [[1.0], [30.0], [90.0]], d)
    at = rng.integers(0, columns, (3, 1))
    names = [b.name for b in g.inputs]
    out = emulate.run(nest, dict(zip(names, (x, at), strict=True)))
    wide = x.astype(np.float64)
    top = wide.max(1, keepdims=True)
    want = np.log(np.exp(wide - top).sum(1)) + top[:, 0] - np.take_along_axis(wide, at, 1)[:, 0]
    np.testing.assert_allclose(out["y0"], want, rtol=3e-7, atol=1e-6)


# ---- tile kernels


def tile_kernel(block: int) -> Kernel:
    given = {"x": Argument.pointer(f32, 16), "out": Argument.pointer(f32, 16)}
    given |= {n: Argument.scalar(i32, 1, True) for n in ("x_stride", "out_stride", "columns")}
    return translate(load(False).softmax_kernel, {**given, "BLOCK": Argument.constant(block)})


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("t0[t2.r0.0,", "t0[0,"),  # not the largest of all
        ("t2: t2[] = nan", "t2: t2[] = 0.0"),
        ("t2[] maxnum=", "t2[] add="),
        ("- t2[]", "- t2[] * 2.0"),
        ("/ t5[]", "/ t0[s6.i0.0,s6.i0.1,s6.i0.2]"),  # not all by one number
        ("/ t5[]", "+ t5[]"),
        ("t5: t5_own[t5.r0.1,t5.r0.2] add=", "t5: t5_own[t5.r0.1,t5.r0.2] max="),
        ("if #(32*s6.i0.0", "if #(16*s6.i0.0"),  # the largest may be no result
        ("-inf)", "-1.0)"),
    ],
)
def test_tiles(was: str, now: str) -> None:
    """Terms that are results too, and their quotients; none where something is different."""
    text = nest_text(scheduled(tile_kernel(64), 1)[1])
    assert sorted(x.partition("(")[0] for x in terms(text)) == ["div", "exp"]
    assert was in text, text
    assert terms(text.replace(was, now)) == set()


def test_tiles_of_far_apart_numbers() -> None:
    """Results are off by no more than two units of the largest, and NaN where eager's are."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((5, 37)) * [[1.0], [30.0], [90.0], [1.0], [1.0]]).astype(np.float32)
    x[3, 5], x[4, 7] = np.inf, -np.inf
    out = np.zeros_like(x)
    run_emulated(tile_kernel(64), (5,), [x.reshape(-1), out.reshape(-1), 37, 37, 37], 1)
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    assert np.isnan(want[3]).all() and np.isnan(out[3]).all()
    off = np.abs(out - want).max(1) / np.spacing(want.max(1).astype(np.float32))
    assert off[[0, 1, 2, 4]].max() <= 2.0, off
