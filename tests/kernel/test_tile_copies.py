"""How tiles get to shared memory and results out of it: whole rows, barriers, fences, branches."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tests.gpu.tile_kernels import load
from tests.kernel.test_distribute import described, numbers
from tests.kernel.test_group_tiles import attention, near, product, run_broken, without
from tests.lang.tile.threads_running import run_emulated, run_threads, scheduled
from tilewright.base.errors import Refused
from tilewright.ir.types import bf16, f16, f32, from_memory
from tilewright.kernel import simt
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Nest
from tilewright.kernel.step import parse_trace
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.ir import Kernel
from tilewright.llvm.grid import emit_kernels
from tilewright.targets.nvptx import for_capability

TARGET = for_capability(90)


def code(nest: Nest) -> str:
    return emit_kernels(legalise(nest, TARGET), TARGET).text


def causal(n: int = 128, dim: int = 64) -> Kernel:
    q, k, v, out = (numbers(1, n, dim) for _ in range(4))
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "DIM": dim, "CAUSAL": True}
    given = {"q": q, "k": k, "v": v, "out": out, "n": n, "scale": 0.25}
    return translate(load(False).attention_kernel, described(**given, **blocks))


def test_neighbouring_threads_copy_a_whole_row() -> None:
    """Eight threads, which memory serves together, have 128 bytes of one row."""
    _, nest = scheduled(product((64, 64, 128), (64, 64, 64))[0])
    for copy in re.findall(r"async t\d\[(.*)\] =", nest_text(nest)):
        assert re.search(r"32\*\(?\S+\.y%2\)?\+8\*\S+\+\S+$", copy), copy


PARTS = """
nest parts
  in x: i32[3,8,16]
  out y: i32[3,8,16]
  local t: i32[8,16]
  independent program in 3:
    alloc t
    for s.i0 in 8:
      for s.i1 in 16:
        s: t[s.i0,s.i1] = x[program,s.i0,s.i1] + 1:i32
    for z.i0 in 8:
      for z.i1 in 16:
        z: y[program,z.i0,z.i1] = t[z.i0,z.i1] * 2:i32
"""


@pytest.mark.parametrize(
    ("layouts", "says"),
    [
        ("'s.i0 = 2 y4', 's.i1 = 2 y2 x4', 'z.i0 = y8', 'z.i1 = 4 x4'", None),
        ("'s.i0 = 2 y4', 's.i1 = 2 y2 x4', 'z.i0 = 2 y4', 'z.i1 = 2 y2 x4'", None),
        (
            "'s.i0 = y4 v2', 's.i1 = 2 y2 x4', 'z.i0 = y4 v2', 'z.i1 = 2 y2 x4'",
            "of which t in registers has other parts",
        ),
        ("'s.i0 = 2 y4', 's.i1 = 4 x4'", r"s has \[4\] threads along y"),
    ],
)
def test_loops_have_parts_of_an_axis(layouts: str, says: str | None) -> None:
    n = parse_nest(PARTS.strip("\n"))
    step, last = parse_trace(f"Distribute((4, 8, 1), ({layouts}))\nSynchronise(tiles=True)")
    if says is not None:
        with pytest.raises(Refused, match=says):
            step.apply(n)
        return
    x = np.arange(384, dtype=np.int32).reshape(3, 8, 16)
    found = simt.run(last.apply(step.apply(n)), {"x": x}, {})
    np.testing.assert_array_equal(found["y"], 2 * x + 2)


def test_copies_are_issued_behind_the_product() -> None:
    """Three versions of operands are enough for two iterations ahead and a product that goes on."""
    nest = scheduled(product((64, 128, 512), (64, 128, 64))[0])[1]
    text = nest_text(nest)
    assert "shared t3: bf16[3,64,64]" in text and "wait 1" in text
    loop = text[text.index("for for0 in") :]
    assert loop.index("wgmma") < loop.index("wait products 1") < loop.index("async t3")


@pytest.mark.parametrize(("which", "says"), [(1, "reads t3"), (3, "no barrier between")])
def test_a_missing_barrier_is_found(which: int, says: str) -> None:
    """Before what is copied behind a product, and between results and those who store them."""
    kernel, values, _ = product((64, 128, 256), (64, 128, 64))
    nest = scheduled(kernel)[1]
    with pytest.raises(RunError, match=says):
        run_broken(without(nest, Barrier, which), kernel, values)


def test_fences_stand_behind_stores_only() -> None:
    """In a loop a fence would wait for the copies that are ahead."""
    assert "fence.proxy" not in code(scheduled(product((64, 64, 128), (64, 64, 64))[0])[1])
    text = code(scheduled(attention(128, 64, (64, 64))[0])[1])  # queries are stored
    assert text.count("fence.proxy") == 1
    assert text.index("fence.proxy") < text.index("call void @llvm.nvvm.barrier")


@tw.jit
def found_kernel(x, y, out):
    at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    one = tl.full((64, 64), 1.0, x.dtype.element_ty)
    tl.store(out + at, tl.dot(tl.atomic_add(x + at, one), tl.atomic_add(y + at, one)))


def test_what_atomics_find_is_fenced_as_stores_are() -> None:
    """Instructions read the tile that results of atomics are written to."""
    about = {x: Argument.pointer(f32 if x == "out" else f16, 16) for x in ("x", "y", "out")}
    nest = scheduled(translate(found_kernel, about))[1]
    assert "wgmma" in nest_text(nest)
    text = code(nest)
    assert text.count("fence.proxy") == 1
    assert (
        text.index(".add.noftz")
        < text.index("fence.proxy")
        < text.index("call void @llvm.nvvm.bar")
    )


def test_results_are_stored_in_whole_vectors() -> None:
    nest = scheduled(product((64, 64, 64), (64, 64, 64))[0])[1]
    text = code(nest)
    assert "store <8 x i16>" in text or "store <4 x i32>" in text or "<8 x bfloat>" in text
    own = [line for line in nest_text(nest).splitlines() if "s8: c_2[" in line]
    assert own and "s8_out[" in own[0].partition(" = ")[2]


@tw.jit
def persistent_kernel(a, b, c, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    for tile in range(tl.program_id(0), n // BM, 2):
        at_m, at_n, at_k = tile * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
        sums = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, n, BK):
            x = tl.load(a + at_m[:, None] * n + (k + at_k)[None, :])
            y = tl.load(b + (k + at_k)[:, None] * n + at_n[None, :])
            sums = tl.dot(x, y, sums)
        tl.store(c + at_m[:, None] * n + at_n[None, :], sums.to(tl.bfloat16))


@pytest.mark.parametrize(("columns", "versions"), [(128, 4), (256, 3)])
def test_results_are_gathered_beside_operands(columns: int, versions: int) -> None:
    """In a loop over tiles operands of the next one are brought meanwhile: where results leave them
    less room, there are fewer versions of these."""
    a = numbers(16)
    blocks = {"BM": 128, "BN": columns, "BK": 64}
    kernel = translate(persistent_kernel, described(a=a, b=a, c=a, n=256, **blocks))
    nest = scheduled(kernel, 8)[1]
    kept = {b.name: b.shape for b in nest.buffers if b.scope == "shared"}
    assert kept["s9_out"] == (128, columns) and kept["t4"] == (versions, 128, 64)
    shared = emit_kernels(legalise(nest, TARGET), TARGET).launches[0].shared
    assert TARGET.grid is not None and shared <= TARGET.grid.block_shared


def test_masks_of_registers_are_no_branches() -> None:
    """Nor numbers of 64 bits for each element."""
    full, masked = (code(scheduled(x)[1]) for x in (attention(128, 64, (64, 64))[0], causal()))
    assert masked.count("br i1") == full.count("br i1")
    assert masked.count("smax.i64") <= full.count("smax.i64") + 4


@tw.jit
def halves_kernel(a, b, c, n, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """The columns of a product are stored in two parts."""
    i, j, k = tl.arange(0, SIZE), tl.arange(0, COLUMNS), tl.arange(0, SIZE)
    sums = tl.zeros((SIZE, COLUMNS), dtype=tl.float32)
    for at in range(0, n, SIZE):
        x = tl.load(a + i[:, None] * n + (at + k)[None, :])
        y = tl.load(b + (at + k)[:, None] * COLUMNS + j[None, :])
        sums = tl.dot(x, y, sums)
    parts = tl.permute(tl.reshape(sums, (SIZE, 2, COLUMNS // 2)), (0, 2, 1))
    left, right = tl.split(parts)
    half = tl.arange(0, COLUMNS // 2)
    to = c + i[:, None] * COLUMNS + half[None, :]
    tl.store(to, left.to(tl.bfloat16))
    tl.store(to + COLUMNS // 2, right.to(tl.bfloat16))


def test_parts_of_sums_stay_in_registers() -> None:
    a, b, c = numbers(64, 128), numbers(128, 128), numbers(64, 128)
    about = described(a=a, b=b, c=c, n=128, SIZE=64, COLUMNS=128)
    kernel = translate(halves_kernel, about)
    assert "by nvptx.wgmma" in nest_text(scheduled(kernel)[1])
    want = from_memory(a, bf16).astype(np.float64) @ from_memory(b, bf16).astype(np.float64)
    values = [a.reshape(-1), b.reshape(-1), c.reshape(-1), 128]
    run_emulated(kernel, (1,), values)
    near(c, want)
    c[:] = 0
    run_threads(kernel, (1,), values)
    near(c, want)
