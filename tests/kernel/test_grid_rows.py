"""Products of one row on a GPU and sums of several axes in pieces."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.programs import PROGRAMS, groups, inputs
from tests.kernel.test_grids import GPU, judge, scheduled
from tests.seeds import every_run
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.interpret import run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly


def product(columns: int, depth: int, more: str = "") -> str:
    return f"""
group product
  in w: bf16[{columns},{depth}]
  in x: bf16[1,{depth}]
  out y: bf16[1,{columns}]
  {"out z: f32[1," + str(columns) + "]" if more else ""}
  local c: f32[1,{columns}]
  c[c.i,c.j] add= cast<f32>(x[c.i,c.k]) * cast<f32>(w[c.j,c.k]) \
for c.i in 1, c.j in {columns}, c.k in {depth} from 0.0
  y[y.i,y.j] = cast<bf16>(c[y.i,y.j]) for y.i in 1, y.j in {columns}
  {more}
"""


def launch_of(nest: Nest) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    (found,) = emit_kernels(legalise(nest, GPU), GPU).launches
    return tuple(int(str(d)) for d in found.blocks), found.threads


@pytest.mark.parametrize(("columns", "depth", "rows"), [(16, 512, 4), (12, 256, 4), (16, 4096, 4)])
def test_a_product_of_one_row_has_a_warp_for_each_result(
    columns: int, depth: int, rows: int
) -> None:
    g = parse_group(product(columns, depth))
    nest = scheduled(g)
    judge(g, nest, {}, bf16)
    assert launch_of(nest) == ((columns // rows, 1, 1), (32, rows, 1))
    ptx = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    assert ptx.count("v4.b32") == 2 * min(16, depth // 256), "sixteen vectors at a time, of both"
    for x in assemble(ptx, "sm_90a"):
        assert x.spilled == 0 and x.registers <= 128


def test_results_that_others_read_are_stored_by_one_thread() -> None:
    more = "z[z.i,z.j] = cast<f32>(y[z.i,z.j]) * cast<f32>(y[z.i,z.j]) for z.i in 1, z.j in 16"
    g = parse_group(product(16, 256, more))
    nest = scheduled(g)
    judge(g, nest, {}, bf16)
    assert launch_of(nest) == ((4, 1, 1), (32, 4, 1))
    assert "barrier" not in str(nest.body)


@every_run(0, 3, 4)
@pytest.mark.parametrize("d", [bf16, f32])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "cross_entropy"])
def test_rows_that_begin_anywhere_are_vectors(name: str, d: DType) -> None:
    """By the executor of threads, and by the code: wide accesses, but for the ends of a row."""
    (g,) = groups(PROGRAMS[name](d, 3, 307))
    nest = scheduled(g)
    judge(g, nest, {}, d)
    ptx = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    size = {bf16: "b16", f32: "b32"}[d]
    inputs_along = len([b for b in g.inputs if b.shape[-1:] == (307,)])
    ends = 2 * inputs_along + (name == "cross_entropy")
    load = "ld.global" if name == "cross_entropy" else "ld.global.nc"
    assert ptx.count(f"{load}.v4.b32") >= 1
    assert ptx.count(f"{load}.{size}") == ends
    if name != "cross_entropy":
        assert ptx.count("st.global.v4.b32") >= 1
        assert ptx.count(f"st.global.{size}") == 2
    # The code itself, among it vectors of what begins elsewhere than the row.
    plain = default_schedule(g, emulate.PLAIN)[1]
    given = inputs(g, {})
    want = run_group(g, given, {})
    for out, got in emulate.run(plain, given).items():
        close = 2e-2 if d is bf16 else 1e-5
        x, y = (v.astype(np.float64) for v in (got, want[out]))
        np.testing.assert_allclose(x, y, rtol=close, atol=close)


def test_where_weights_begin_is_computed_once() -> None:
    """All vectors of a row begin as far past a multiple of 8 bytes: each is three halves of
    vectors. There are registers for nine blocks of a multiprocessor."""
    (g,) = groups(PROGRAMS["layer_norm"](bf16, 9, 4099))
    ptx = assembly(emit_kernels(legalise(scheduled(g), GPU), GPU).text, GPU)
    assert ptx.count("ld.global.nc.v4.b32") == 4 and ptx.count("ld.global.nc.v2.b32") == 3 * 8
    assert ptx.count("and.b64") <= 3
    (made,) = assemble(ptx, GPU.cpu)
    assert made.registers <= 56 and made.spilled == 0


def test_rows_that_begin_anywhere_share_a_block() -> None:
    """Threads of one row touch what no other row has: no barrier between the parts of a row."""
    (g,) = groups(PROGRAMS["softmax"](bf16, 8, 781))
    nest = scheduled(g)
    judge(g, nest, {}, bf16)
    assert launch_of(nest) == ((2, 1, 1), (32, 4, 1))
    (g,) = groups(PROGRAMS["softmax"](bf16, 8191, 4099))
    assert "Barrier" not in str(scheduled(g).body)


def test_short_rows_share_a_block_where_each_has_one_result() -> None:
    g = parse_group("""
group scores
  in k: bf16[2,32,64]
  in q: bf16[2,4,64]
  out y: bf16[2,4,32]
  local c: f32[2,4,32]
  c[c.h,c.i,c.j] add= cast<f32>(q[c.h,c.i,c.d]) * cast<f32>(k[c.h,c.j,c.d]) \
for c.h in 2, c.i in 4, c.j in 32, c.d in 64 from 0.0
  y[y.h,y.i,y.j] = cast<bf16>(c[y.h,y.i,y.j]) for y.h in 2, y.i in 4, y.j in 32
""")
    nest = scheduled(g)
    judge(g, nest, {}, bf16)
    assert launch_of(nest) == ((8, 1, 1), (4, 32, 1))


def test_sums_over_several_axes_of_results_are_taken_in_pieces() -> None:
    g = parse_group("""
group values
  in p: bf16[2,1,4096]
  in v: bf16[2,4096,16]
  out y: bf16[2,1,16]
  local c: f32[2,1,16]
  c[c.h,c.i,c.j] add= cast<f32>(p[c.h,c.i,c.k]) * cast<f32>(v[c.h,c.k,c.j]) \
for c.h in 2, c.i in 1, c.j in 16, c.k in 4096 from 0.0
  y[y.h,y.i,y.j] = cast<bf16>(c[y.h,y.i,y.j]) for y.h in 2, y.i in 1, y.j in 16
""")
    nest = scheduled(g)
    judge(g, nest, {}, bf16)
    first = emit_kernels(legalise(nest, GPU), GPU).launches[0]
    assert first.blocks == (1, 64, 1), "as many pieces as a piece has products"


def test_reads_that_wait_for_each_other_begin_with_the_row() -> None:
    """Also in the code: reads of constant memory are moved behind barriers by the assembler."""
    (g,) = groups(PROGRAMS["cross_entropy"](bf16, 64, 4096))
    ptx = assembly(emit_kernels(legalise(scheduled(g), GPU), GPU).text, GPU)
    reads = [x.split()[0] for x in ptx.splitlines() if "ld.global" in x or "bar.sync" in x]
    assert "ld.global.b16" in reads[: reads.index("bar.sync")]
    assert not any(".nc" in x for x in reads)
