"""Products of tile kernels by groups of four warps: as nests on the SIMT executor, as code emulated
and assembled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.gpu.assembler import assemble, needs_ptxas
from tests.gpu.tile_kernels import load
from tests.kernel.test_distribute import described, numbers
from tests.lang.tile.threads_running import run_emulated, run_threads, scheduled
from tests.seeds import every_run
from tilewright.base.errors import Refused
from tilewright.driver.tile.compile import binding_of
from tilewright.ir.types import bf16, f32, from_memory, i8, i32
from tilewright.kernel import simt
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Nest, Stmt, Wait, transform
from tilewright.kernel.step import Trace, apply, print_trace
from tilewright.kernel.steps.distribute import Distribute
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.text import nest_text
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import cached_ptx
from tilewright.targets.nvptx import for_capability


def product(
    sizes: tuple[int, int, int], block: tuple[int, int, int], turned: bool = False
) -> tuple[Kernel, list[Any], np.ndarray]:
    """Tutorial 3's kernel, its arguments, and what it has to compute."""
    m, n, k = sizes
    a, b, c = numbers(m, k), numbers(k, n), numbers(m, n)
    other = np.ascontiguousarray(b.T) if turned else b
    bk, bn = (1, k) if turned else (n, 1)
    steps = {"am": k, "ak": 1, "bk": bk, "bn": bn, "cm": n, "cn": 1}
    given = {"a": a, "b": other, "c": c, "M": m, "N": n, "K": k, **steps}
    blocks = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    kernel = translate(load(False).matmul_kernel, described(**given, **blocks, GROUP=8))
    values = [x.reshape(-1) if isinstance(x, np.ndarray) else x for x in given.values()]
    want = from_memory(a, bf16).astype(np.float64) @ from_memory(b, bf16).astype(np.float64)
    return kernel, [x for x in values if isinstance(x, np.ndarray) or x != 1], want


def attention(n: int, dim: int, block: tuple[int, int]) -> tuple[Kernel, list[Any], np.ndarray]:
    q, k, v, out = (numbers(1, n, dim) for _ in range(4))
    given = {"q": q, "k": k, "v": v, "out": out, "n": n, "scale": 0.25}
    blocks = {"BLOCK_M": block[0], "BLOCK_N": block[1], "DIM": dim, "CAUSAL": False}
    kernel = translate(load(False).attention_kernel, described(**given, **blocks))
    a, b, z = (from_memory(x, bf16)[0].astype(np.float64) for x in (q, k, v))
    e = np.exp((s := a @ b.T * 0.25) - s.max(1, keepdims=True))
    return kernel, [*(x.reshape(-1) for x in (q, k, v, out)), n, 0.25], e / e.sum(1)[:, None] @ z


def near(found: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(from_memory(found, bf16).reshape(want.shape), want, 2e-2, 5e-2)


SHAPES = [
    ((72, 64, 80), (64, 64, 64), False, 4, 2),  # ends inside a tile: copies bring zeros
    ((64, 64, 128), (64, 64, 64), True, 4, 1),  # both along the sum
    # Two tiles of 64 steps, two groups of warps.
    pytest.param((128, 128, 128), (128, 128, 128), False, 8, 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("sizes", "block", "turned", "warps", "programs"), SHAPES)
def test_products_are_right(
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    turned: bool,
    warps: int,
    programs: int,
) -> None:
    kernel, values, want = product(sizes, block, turned)
    _, nest = scheduled(kernel, warps)
    text = nest_text(nest)
    assert f"by nvptx.wgmma.{warps // 4}.n{'n' if turned else 't'}" in text
    assert "async" in text and "wait products 1" in text
    run_threads(kernel, (programs,), values, warps)
    near(values[2], want)


@every_run(0, 2)
@pytest.mark.parametrize(("steps", "turned"), [(64, False), (32, False), (32, True), (16, False)])
def test_code_of_a_product_is_right(steps: int, turned: bool) -> None:
    """Also of tiles whose rows are shorter than 128 bytes."""
    kernel, values, want = product((72, 64, 80), (64, 64, steps), turned)
    assert "by nvptx.wgmma.1.n" in nest_text(scheduled(kernel)[1])
    run_emulated(kernel, (2,), values)
    near(values[2], want)


@pytest.mark.parametrize(
    ("dim", "keys"), [(64, 64), pytest.param(128, 128, marks=pytest.mark.slow)]
)
def test_what_a_softmax_leaves_stays_in_registers(dim: int, keys: int) -> None:
    """Also where it is two operands of 64 steps of the sum, and queries are two of them."""
    kernel, values, want = attention(128, dim, (64, keys))
    _, nest = scheduled(kernel)
    text = nest_text(nest)
    assert "by nvptx.wgmma.1.nn" in text and "by nvptx.wgmma.1.rt" in text
    assert text.count("shared ") == 4  # queries, keys, values, and results on their way to memory
    run_threads(kernel, (1, 1), values)  # the first of two programs
    near(values[3][: 64 * dim], want[:64])


def test_code_of_attention_is_right() -> None:
    kernel, values, want = attention(64, 64, (64, 64))
    run_emulated(kernel, (1, 1), values)
    near(values[3], want)


def test_others_are_products_of_single_warps() -> None:
    """Where groups of warps have no instruction: older GPUs, few rows, warps that are no group."""
    kernel, _, _ = product((64, 64, 64), (64, 64, 64))
    assert "by nvptx.mma.bf16" in nest_text(scheduled(kernel, 4, 80)[1])
    assert "by nvptx.mma.bf16" in nest_text(scheduled(kernel, 2)[1])
    few, _, _ = product((64, 64, 64), (32, 64, 64))
    assert "by nvptx.mma.bf16" in nest_text(scheduled(few)[1])


# ---- what is planted is found


def without(n: Nest, kind: type[Stmt], which: int) -> Nest:
    seen = iter(range(10**6))

    def gone(s: Stmt) -> tuple[Stmt, ...]:
        products = isinstance(s, kind) and getattr(s, "products", True)
        return () if products and next(seen) == which else (s,)

    return replace(n, body=transform(n.body, gone))


def run_broken(broken: Nest, kernel: Kernel, values: list[Any]) -> None:
    low = lower(kernel, threads=True)
    arrays = {g.name: x for g, x in zip(low.given, values, strict=True) if g.kind == "pointer"}
    dims = {g.name: x // g.unit for g, x in zip(low.given, values, strict=True) if g.kind == "dim"}
    simt.run(broken, arrays, {"grid0": 1, "grid1": 1, "grid2": 1, **dims})


@pytest.mark.parametrize(
    ("kind", "which", "says"),
    [(Wait, 0, "still read"), (Wait, 1, "still computes"), (Barrier, 0, "no barrier between")],
)
def test_a_missing_wait_or_barrier_is_found(kind: type[Stmt], which: int, says: str) -> None:
    kernel, values, _ = product((64, 64, 256), (64, 64, 64))
    nest = scheduled(kernel)[1]
    with pytest.raises(RunError, match=says):
        run_broken(without(nest, kind, which), kernel, values)


def test_a_wrong_digit_is_refused() -> None:
    kernel, _, _ = product((64, 64, 64), (64, 64, 64))
    n = lower(kernel, threads=True).nest
    trace, _ = schedule_tile_grid(n, for_capability(90), 4)

    def changed(by: Trace) -> Trace:
        wrong = lambda x: x.replace("z4 f2 y8", "z4 y8 f2")  # noqa: E731
        return tuple(
            replace(x, layouts=tuple(map(wrong, x.layouts))) if isinstance(x, Distribute) else x
            for x in by
        )

    assert "z4 f2 y8" in print_trace(trace)
    with pytest.raises(Refused, match="lies as"):
        apply(n, changed(trace))


# ---- code


@needs_ptxas
def test_two_blocks_of_a_large_product_fit() -> None:
    """128 registers a thread, and half of a multiprocessor's shared memory."""
    target = for_capability(90)
    kernel, _, _ = product((128, 128, 128), (128, 128, 64))
    made = emit_kernels(legalise(scheduled(kernel, 8)[1], target), target)
    (found,) = assemble(cached_ptx(made.text, target), target.cpu)
    assert found.spilled == 0 and found.registers <= 128
    assert made.launches[0].shared <= 113 * 1024


def test_copies_are_behind_products_where_versions_do_not_fit() -> None:
    """Of five versions that a launch asks for four fit: all are used, three of them ahead."""
    kernel, _, _ = product((128, 256, 256), (128, 256, 64))
    trace, nest = schedule_tile_grid(lower(kernel, threads=True).nest, for_capability(90), 8, 5)
    steps = [x for x in trace if isinstance(x, Pipeline)]
    assert {(x.ahead, x.slack, x.late) for x in steps} == {(3, 1, True)}
    assert {b.shape[0] for b in nest.buffers if b.name in [x.stage for x in steps]} == {4}


# ---- grouped orders of programs


def test_a_grouped_order_is_an_index_function() -> None:
    """`pid % width % height`: the launch knows whether every height is positive."""
    kernel, _, _ = product((256, 256, 64), (64, 64, 64))
    low = lower(kernel, threads=True)
    assert "rem(" not in nest_text(low.nest) and "quo(" not in nest_text(low.nest)
    overflows = binding_of(low, low.nest, []).overflows
    values = [0, 0, 0, 256, 256, 64, 64, 256, 256]
    assert not eval(overflows, {"values": values, "grid": (16, 1, 1)})
    assert eval(overflows, {"values": values, "grid": (1 << 20, 1, 1)})
    # 16384 rows of 16384: no number is large, though a bound without quotients would be.
    large = [0, 0, 0, 16384, 16384, 64, 64, 16384, 16384]
    assert not eval(overflows, {"values": large, "grid": (1 << 16, 1, 1)})


@tw.jit
def remainders_kernel(x, out, start, n, BLOCK: tl.constexpr):
    at = (start + tl.arange(0, BLOCK)) % n
    tl.store(out + tl.arange(0, BLOCK), tl.load(x + n + at))


def test_remainders_of_negative_places_are_no_neighbours() -> None:
    """Of -512 to -1 by 512 they are 0, -511, …, -1."""
    start, n = -512, 512
    x, out = np.arange(2 * n, dtype=np.float32), np.zeros(n, np.float32)
    given = {
        "x": Argument.pointer(f32, 16),
        "out": Argument.pointer(f32, 16),
        "start": Argument.scalar(i32, 16),
        "n": Argument.scalar(i32, 16, True),
        "BLOCK": Argument.constant(n),
    }
    run_threads(translate(remainders_kernel, given), (1,), [x, out, start, n])
    np.testing.assert_array_equal(out, x[n + np.fmod(start + np.arange(n), n)])


@tw.jit
def heights_kernel(out, n):
    pid = tl.program_id(0)
    height = min(n - 2 * pid, 2)
    tl.store(out + pid, pid // height * 10 + pid % height)


@pytest.mark.parametrize("programs", [2, 3])
def test_divisors_of_some_programs_may_be_negative(programs: int) -> None:
    """Of three programs the last one divides 2 by -1."""
    out = torch.zeros(3, dtype=torch.int32)
    heights_kernel[(programs,)](out, 3)
    assert out.tolist() == [0, 10, -20][:programs] + [0] * (3 - programs)


# ---- bytes


@tw.jit
def bytes_kernel(a, b, c, K, SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    i, k = tl.arange(0, SIZE), tl.arange(0, BLOCK_K)
    sums = tl.zeros((SIZE, SIZE), dtype=tl.int32)
    for at in range(0, K, BLOCK_K):
        x = tl.load(a + i[:, None] * K + at + k[None, :])
        y = tl.load(b + i[None, :] * K + at + k[:, None])
        sums = tl.dot(x, y, sums)
    tl.store(c + i[:, None] * SIZE + i[None, :], sums)


def test_products_of_bytes() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-128, 128, (64, 256)).astype(np.int8) for _ in range(2))
    c = np.zeros((64, 64), np.int32)
    given = {
        **{x: Argument.pointer(i8, 16) for x in "ab"},
        "c": Argument.pointer(i32, 16),
        "K": Argument.scalar(i32, 16, True),
        "SIZE": Argument.constant(64),
        "BLOCK_K": Argument.constant(128),
    }
    kernel = translate(bytes_kernel, given)
    assert "by nvptx.wgmma.1.nn.i8" in nest_text(scheduled(kernel)[1])
    run_emulated(kernel, (1,), [a.reshape(-1), b.reshape(-1), c.reshape(-1), 256])
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32).T)
