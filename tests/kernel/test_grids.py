"""Default schedules of a GPU: they compute what the group says, without races, by the executor of
threads; and their code is what it should be: wide accesses, rows in registers, nothing spilled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu.assembler import assemble
from tests.gpu.programs import PROGRAMS, groups, inputs
from tests.gpu.replays import replays
from tests.seeds import crossed, drawn
from tilewright import targets
from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.defaults import grid_sums
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Alloc, Nest, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.text import nest_text, parse_group
from tilewright.kernel.threads import launches
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly
from tilewright.targets import nvptx

GPU = targets.get("cuda:90")
CAPABILITIES = ["cuda:75", "cuda:80", "cuda:90"]
HOW = [((3, 256), f32), ((2, 67), f32), ((3, 256), bf16), ((2, 67), bf16)]


def scheduled(g: Group) -> Nest:
    trace, nest = default_schedule(g, GPU)
    replays(g, trace, nest)
    verify(nest)
    return nest


def judge(g: Group, nest: Nest, sizes: dict[str, int], d: DType) -> None:
    args = inputs(g, sizes)
    want = run_group(g, args, sizes)
    close = 2e-2 if d is bf16 else 1e-5
    for name, got in simt.run(nest, args, sizes).items():
        x, y = (v.astype(np.float64) for v in (got, want[name]))
        np.testing.assert_allclose(x, y, rtol=close, atol=close)


@pytest.mark.parametrize(("name", "how"), crossed(list(PROGRAMS), HOW, 2))
def test_they_compute_the_group(name: str, how: tuple[tuple[int, int], DType]) -> None:
    size, d = how
    for g in groups(PROGRAMS[name](d, *size)):
        judge(g, scheduled(g), {}, d)


@pytest.mark.parametrize("name", ["add", "biased", "softmax", "rms_norm", "column_sums"])
def test_sizes_that_are_not_known(name: str) -> None:
    rows, columns = D.sym("R", 1), D.sym("C", 1)
    for shape in ((rows, 64), (rows, columns)):
        for g in groups(PROGRAMS[name](f32, *shape)):
            nest = scheduled(g)
            judge(g, nest, {"R": 3, "C": 64}, f32)
            assert assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)


@pytest.mark.parametrize(("name", "target"), crossed(list(PROGRAMS), CAPABILITIES, 3))
def test_the_code_is_assembled(name: str, target: str) -> None:
    gpu = targets.get(target)
    for g in groups(PROGRAMS[name](bf16, 64, 4096)):
        ptx = assembly(emit_kernels(legalise(default_schedule(g, gpu)[1], gpu), gpu).text, gpu)
        assert "ld.local" not in ptx and "st.local" not in ptx
        assert all(x.spilled == 0 for x in assemble(ptx, gpu.cpu))


@pytest.mark.parametrize("d", [f32, bf16], ids=str)
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "cross_entropy"])
def test_a_row_is_read_once_and_as_vectors(name: str, d: DType) -> None:
    (g,) = groups(PROGRAMS[name](d, 64, 4096))
    code = emit_kernels(legalise(default_schedule(g, GPU)[1], GPU), GPU)
    (launch,) = code.launches
    assert launch.blocks[0] == 64
    ptx = assembly(code.text, GPU)
    threads = launch.threads[0]
    vectors = 4096 * d.bytes // 16 // threads
    parameters = {"softmax": 0, "layer_norm": 2, "rms_norm": 1, "cross_entropy": 0}[name]
    # Reads that wait for each other keep their places, so that memory counts as no constant there.
    wide = ptx.count("ld.global.v4" if name == "cross_entropy" else "ld.global.nc.v4")
    assert wide == vectors * (1 + parameters), ptx
    if name != "cross_entropy":
        assert ptx.count("st.global.v4") == vectors
    assert "shfl.sync" in ptx
    # One for each sum; threads store what is their own, so nothing else has to wait.
    sums = {"rms_norm": 1}.get(name, 2)
    assert ptx.count("bar.sync") == sums


@pytest.mark.parametrize("d", [f32, bf16], ids=str)
def test_a_total_is_read_in_vectors_by_all_multiprocessors(d: DType) -> None:
    """Threads have some vectors on their way at a time; memory gets the sum of a piece once."""
    assert GPU.grid is not None
    (g,) = groups(PROGRAMS["total"](d, 2048, 4096))
    code = emit_kernels(legalise(default_schedule(g, GPU)[1], GPU), GPU)
    (launch,) = code.launches
    wanted = range(4 * GPU.grid.multiprocessors, 8 * GPU.grid.multiprocessors + 1)
    assert launch.blocks[0] in wanted
    ptx = assembly(code.text, GPU)
    assert ptx.count("ld.global.nc.v4") >= grid_sums.LOADS and "ld.global.nc.b" not in ptx
    assert ptx.count("st.global") == 3  # a piece, the result, the counter


def test_totals_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of several turns, of which the last ones are short."""
    monkeypatch.setattr(grid_sums, "THREADS", 8)
    monkeypatch.setattr(grid_sums, "TURN", 8 * grid_sums.LOADS)
    monkeypatch.setattr(grid_sums, "BLOCK_WORK", 64)
    few = nvptx.with_numbers(GPU, multiprocessors=2)
    for size in ((64, 256), (13, 67), (5, 1000)):
        for g in groups(PROGRAMS["total"](bf16, *size)):
            nest = default_schedule(g, few)[1]
            verify(nest)
            judge(g, nest, {}, bf16)
            assert nest_text(nest).count("block.x") == 1


@pytest.mark.parametrize(
    ("name", "size", "threads"),
    [
        ("softmax", (64, 128), (8, 16)),  # 16 elements of each thread
        ("layer_norm", (8, 768), (32, 4)),  # 24, so that no thread is without an element
        ("softmax", (63, 128), (32, 1)),  # too few rows for whole warps of parts
    ],
)
def test_short_rows_share_warps(name: str, size: tuple[int, int], threads: tuple[int, int]) -> None:
    (g,) = groups(PROGRAMS[name](bf16, *size))
    nest = scheduled(g)
    (launch,) = emit_kernels(legalise(nest, GPU), GPU).launches
    assert launch.threads == (*threads, 1)
    assert "bar.sync" not in assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    judge(g, nest, {}, bf16)


PADDED = """group kernel
  in a0: f32[1,3,224,224]
  out y0: f32[1,3,230,230]
  y0[y0.i0,y0.i1,y0.i2,y0.i3] = select(#(y0.i2-3) >= 0 & #(y0.i2-3) < 224 & #(y0.i3-3) >= 0 & #(y0.i3-3) < 224, a0[y0.i0,y0.i1,y0.i2-3,y0.i3-3], 0.0:f32) for y0.i0 in 1, y0.i1 in 3, y0.i2 in 230, y0.i3 in 230
"""  # noqa: E501


def test_loops_that_no_block_divides_are_blocks_of_threads() -> None:
    """There are too many to list: that no two threads write one element is proved."""
    trace, _ = default_schedule(parse_group(PADDED), GPU)
    assert {s.axis for s in trace if isinstance(s, Bind)} == {"block.x", "thread.x"}


@pytest.mark.parametrize("seed", drawn(range(100), 8))
def test_maps_of_any_shape_are_blocks_of_threads(seed: int) -> None:
    """The loops of a copy with another order of axes become one, which blocks of threads share."""
    rng = np.random.default_rng(seed)
    a, b, c = (int(x) for x in rng.integers(100, 300, 3))
    few = int(rng.integers(3, 9))
    text = f"""group kernel
  in a0: bf16[{a},{few},{b},{c}]
  out y0: bf16[{a},{b},{c},{few + 1}]
  y0[i,j,k,l] = select(#(l) < {few}, a0[i,l,j,k], 0.0:bf16) for i in {a}, j in {b}, k in {c}, l in {few + 1}
"""  # noqa: E501
    trace, _ = default_schedule(parse_group(text), GPU)
    assert {s.axis for s in trace if isinstance(s, Bind)} == {"block.x", "thread.x"}


TWO_RESULTS = """group kernel
  in a0: f32[3,4,128]
  out y0: bf16[3,4,128]
  out y1: f32[3,4,1]
  local t0: f32[3,4,1]
  local t1: f32[3,4,128]
  local t2: f32[3,4,1]
  t0[t0.b,t0.i,t0.j] max= a0[t0.b,t0.i,t0.r] for t0.b in 3, t0.i in 4, t0.j in 1, t0.r in 128 from -inf
  t1[t1.b,t1.i,t1.j] = exp(a0[t1.b,t1.i,t1.j] - t0[t1.b,t1.i,0]) for t1.b in 3, t1.i in 4, t1.j in 128
  y0[y0.b,y0.i,y0.j] = cast<bf16>(t1[y0.b,y0.i,y0.j]) for y0.b in 3, y0.i in 4, y0.j in 128
  t2[t2.b,t2.i,t2.j] add= t1[t2.b,t2.i,t2.r] for t2.b in 3, t2.i in 4, t2.j in 1, t2.r in 128 from 0.0
  y1[y1.b,y1.i,y1.j] = select(t2[y1.b,y1.i,0] == 0.0, 1.0, t2[y1.b,y1.i,0]) for y1.b in 3, y1.i in 4, y1.j in 1
"""  # noqa: E501


def test_rows_with_two_results_are_one_launch() -> None:
    """The sum that only the second result reads stands between the two."""
    g = parse_group(TWO_RESULTS)
    nest = scheduled(g)
    judge(g, nest, {}, f32)
    found = [x for x in launches(nest.body) if any(not isinstance(s, Alloc) for s in x)]
    assert len(found) == 1


UPDATE = """
group kernel
  in a0: f32[6,300]
  in a1: f32[3,5,300]
  in a2: i64[3,5]
  out y0: f32[6,300]
  y0[${cast<i64>(min(cast<u64>(a2[y0.i0,y0.i1]), 5:u64))},y0.i2] add= a1[y0.i0,y0.i1,y0.i2] for y0.i0 in 3, y0.i1 in 5, y0.i2 in 300 in order
"""  # noqa: E501


def test_columns_of_an_update_in_order_are_shared_by_threads() -> None:
    """Rows may be the same one, so they stay in order where the order of sums may not change."""
    g = replace(parse_group(UPDATE), precision="strict")
    nest = scheduled(g)
    assert "thread.x y0.i2.1 in " in nest_text(nest)
    judge(g, nest, {}, f32)
    with pytest.raises(Refused):
        apply(start(g), (Bind("y0.i0", "block.x"),))
