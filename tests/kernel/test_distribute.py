"""Tile kernels as blocks of threads: layouts, what is in registers, barriers, products of warps.

The SIMT executor runs the nests and finds every race.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tests.gpu.assembler import assemble, needs_ptxas
from tests.gpu.tile_kernels import load
from tests.lang.tile.kernels import CASES, Case
from tests.lang.tile.random_kernels import kernel as kernel_of
from tests.lang.tile.random_running import failure
from tests.lang.tile.random_running import translated as translated_kernel
from tests.lang.tile.threads_running import run_emulated, run_threads, scheduled
from tests.seeds import every_run
from tilewright.base.errors import Invalid, Refused
from tilewright.ir import dim as D
from tilewright.ir.types import bf16, f32, from_memory, i32, to_memory
from tilewright.kernel.banks import conflicts
from tilewright.kernel.check import verify
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.interpret import RunError
from tilewright.kernel.layouts import layout_text, parse_layout, size
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Nest, Store, transform, walk
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.steps.distribute import Distribute
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import cached_ptx
from tilewright.targets.nvptx import for_capability

LONG = {"matmul", "matmul_relu", "attention", "causal_attention"}  # take seconds


def translated(c: Case) -> tuple[Kernel, dict[str, Any]]:
    values = c.values(np.random.default_rng(0))
    return translate(c.function, c.arguments(values)), values


def flat(c: Case, values: dict[str, Any]) -> list[Any]:
    out: list[Any] = []
    for p in c.function.parameters:
        x = values[p.name]
        if not p.is_constexpr:
            out += list(x) if isinstance(x, tuple) else [x]
    return out


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in CASES]
)
def test_kernels_run_on_threads(name: str) -> None:
    c = CASES[name]
    kernel, values = translated(c)
    want = c.expected({n: x.copy() if isinstance(x, np.ndarray) else x for n, x in values.items()})
    run_threads(kernel, c.grid, flat(c, values), warps=2 if len(name) % 2 else 4)
    for n, w in want.items():
        np.testing.assert_allclose(values[n], w, rtol=c.rtol, atol=c.atol)


# ---- layouts


def test_layouts_are_text() -> None:
    x = parse_layout("2 z4 f2 y8 x4 v4")
    assert size(x) == 2048 and layout_text(x) == "2 z4 f2 y8 x4 v4"
    for wrong in ("q4", "x", "x1", "4x"):
        with pytest.raises(Invalid, match="no digit of a layout"):
            parse_layout(wrong)


def test_the_trace_says_it_all() -> None:
    kernel, _ = translated(CASES["softmax"])
    low = lower(kernel, threads=True)
    trace, nest = schedule_tile_grid(low.nest, for_capability(90), 4)
    assert nest_text(apply(low.nest, parse_trace(print_trace(trace)))) == nest_text(nest)
    assert parse_nest(nest_text(nest)) == nest
    verify(nest)


def test_rows_are_in_registers() -> None:
    kernel, _ = translated(CASES["softmax"])
    _, nest = scheduled(kernel)
    assert {b.scope for b in nest.buffers} == {"out", "local"}


def test_pointers_say_what_they_are_multiples_of() -> None:
    kernel, _ = translated(CASES["add"])
    text = nest_text(lower(kernel, threads=True).nest)
    assert "out x_0: *f32 aligned 16" in text
    with pytest.raises(Invalid, match="a number of bytes after aligned"):
        parse_nest(text.replace("aligned 16", "aligned much", 1))


@pytest.mark.parametrize(
    ("layouts", "says"),
    [
        (("s0.i0 = 2 y8 x4 v2",), "64 iterations"),
        (("s0.i0 = 2 y8 y4",), "an axis of threads twice"),
        (("s0.i0 = 4 y4 x4",), "of a block of"),
        (("s9.i0 = y8 x4",), "there is no loop s9.i0"),
        (("s0.i0 = 64 q2",), "no digit"),
    ],
)
def test_wrong_layouts_are_refused(layouts: tuple[str, ...], says: str) -> None:
    kernel, _ = translated(CASES["add"])
    n = lower(kernel, threads=True).nest
    with pytest.raises(Refused, match=says):
        Distribute((4, 8, 4), layouts).apply(n)


# ---- products


def numbers(*shape: int) -> np.ndarray:
    return to_memory(np.random.default_rng(1).standard_normal(shape).astype(np.float32), bf16)


def described(**values: Any) -> dict[str, Argument]:
    out: dict[str, Argument] = {}
    for name, x in values.items():
        if isinstance(x, np.ndarray):
            out[name] = Argument.pointer(bf16, 16)
        elif (name.isupper() and len(name) > 1) or x == 1:
            out[name] = Argument.constant(x)
        elif isinstance(x, float):
            out[name] = Argument.scalar(f32)
        else:
            out[name] = Argument.scalar(i32, 16 if x % 16 == 0 else 1, True)
    return out


def product(m: int, n: int, k: int, turned: bool) -> tuple[Kernel, list[Any], np.ndarray]:
    """Of a with b, whose columns or rows are neighbours in memory."""
    a, b, c = numbers(m, k), numbers(k, n), numbers(m, n)
    other = np.ascontiguousarray(b.T) if turned else b
    bk, bn = (1, k) if turned else (n, 1)
    sizes = {"M": m, "N": n, "K": k, "am": k, "ak": 1, "bk": bk, "bn": bn, "cm": n, "cn": 1}
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP": 8}
    given = {"a": a, "b": other, "c": c, **sizes}
    kernel = translate(load(False).matmul_kernel, described(**given, **blocks))
    values = [x.reshape(-1) if isinstance(x, np.ndarray) else x for x in given.values()]
    return kernel, [x for x in values if isinstance(x, np.ndarray) or x != 1], c


@pytest.mark.parametrize("turned", [False, True])
def test_products_by_instructions_of_warps(turned: bool) -> None:
    """Also of sizes that no tile divides: copies in the background bring zeros there."""
    kernel, values, c = product(48, 32, 48, turned)
    _, nest = scheduled(kernel, 2)
    text = nest_text(nest)
    assert "by nvptx.mma.bf16" in text and "async" in text and "swizzled" in text
    a, b = from_memory(values[0], bf16).reshape(48, 48), from_memory(values[1], bf16)
    b = b.reshape(32, 48).T if turned else b.reshape(48, 32)
    run_threads(kernel, (2,), values, 2)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(from_memory(c, bf16), want, rtol=1e-2, atol=5e-2)


@every_run(1)
@pytest.mark.parametrize(
    ("rows", "columns", "warps", "each"),
    [
        (64, 64, 4, [32, 4, 2, 4]),
        (16, 16, 1, [32, 2, 4]),
        pytest.param(32, 128, 2, [16, 8, 2, 4], marks=pytest.mark.slow),
    ],
)
def test_products_that_threads_add_up(rows: int, columns: int, warps: int, each: list[int]) -> None:
    """Threads have about as many rows as columns, and do not wait for each other at the banks.
    Steps are written out, so that all that threads read of operands are vectors."""
    k = 24
    a, b, c = (
        np.random.default_rng(n).standard_normal(n).astype(np.float32)
        for n in (rows * k, k * columns, rows * columns)
    )
    sizes = {"M": rows, "N": columns, "K": k, "am": k, "ak": 1, "bk": columns, "bn": 1}
    sizes |= {"cm": columns, "cn": 1}
    blocks = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": 32, "GROUP": 1, "PRECISION": "ieee"}
    given = {x: Argument.pointer(f32, 16) for x in "abc"} | described(**sizes)
    constants = {x: Argument.constant(v) for x, v in blocks.items()}
    kernel = translate(load(False).matmul_kernel, {**given, **constants})
    nest = scheduled(kernel, warps)[1]
    turns = [
        q for x, q in walk(nest.body) if isinstance(x, Store) and x.stage in nest.are("product")
    ]
    own = [D.bounds(q.extent)[1] for q in turns[0] if q.kind in ("unroll", "lane")]
    assert own == each
    assert not [x for x in conflicts(nest) if not x.writes]
    want = a.astype(np.float64).reshape(rows, k) @ b.reshape(k, columns)
    for run in (run_threads, run_emulated):
        c[:] = np.nan
        run(kernel, (1,), [a, b, c, *(x for x in sizes.values() if x != 1)], warps)
        np.testing.assert_allclose(c.reshape(rows, columns), want, rtol=1e-5, atol=1e-5)
    target = for_capability(90)
    ptx = cached_ptx(emit_kernels(legalise(nest, target), target).text, target)
    assert set(re.findall(r"ld\.shared[.\w]*", ptx)) == {"ld.shared.v4.b32"}


@tw.jit
def least_kernel(x, y, out):
    i, j, k = tl.arange(0, 32), tl.arange(0, 16), tl.arange(0, 32)
    a, b = tl.load(x + i[:, None] * 32 + k[None, :]), tl.load(y + k[:, None] * 16 + j[None, :])
    tl.store(out, tl.min(tl.dot(a, b, input_precision="ieee")))


def test_sums_in_shared_memory_that_some_threads_add_up() -> None:
    """Threads along one axis would do the same: one of them does, with all its lanes."""
    about = {x: Argument.pointer(f32, 16) for x in ("x", "y", "out")}
    x, y = (np.random.default_rng(n).integers(-7, 8, n).astype(np.float32) for n in (1024, 512))
    out = np.zeros(1, np.float32)
    kernel = translate(least_kernel, about)
    assert "one" in nest_text(scheduled(kernel, 8)[1])
    run_threads(kernel, (1,), [x, y, out], 8)
    assert out[0] == (x.reshape(32, 32) @ y.reshape(32, 16)).min()


def test_warps_share_rows_and_columns() -> None:
    """Each reads fewer rows and columns than if all shared the rows; the sums stay in registers,
    which have one axis of warps."""
    kernel, values, c = product(48, 64, 48, False)
    low = lower(kernel, threads=True).nest
    trace, nest = schedule_tile_grid(low, for_capability(80), 4)
    assert apply(low, parse_trace(print_trace(trace))) == nest
    text = nest_text(nest)
    assert re.search(r"thread\.z \w+\.w in 4:", text), text
    a, b = (from_memory(x, bf16).astype(np.float64) for x in values[:2])
    want = a.reshape(48, 48) @ b.reshape(48, 64)
    for run in (run_threads, run_emulated):
        c[:] = to_memory(np.full(c.shape, np.nan, np.float32), bf16)
        run(kernel, (4,), values, 4, 80)
        np.testing.assert_allclose(from_memory(c, bf16), want, rtol=1e-2, atol=5e-2)


def test_a_product_of_a_product_stays_in_registers() -> None:
    """Attention: what the softmax leaves is the second product's first operand as it is."""
    n, dim = 32, 16
    q, k, v, out = (numbers(1, n, dim) for _ in range(4))
    blocks = {"BLOCK_M": 32, "BLOCK_N": 16, "DIM": dim, "CAUSAL": True}
    given = {"q": q, "k": k, "v": v, "out": out, "n": n, "scale": 0.25}
    kernel = translate(load(False).attention_kernel, described(**given, **blocks))
    _, nest = scheduled(kernel, 2)
    text = nest_text(nest)
    assert text.count("by nvptx.mma.bf16") == 2 and text.count("by nvptx.ldmatrix.a") == 1
    run_threads(kernel, (1, 1), [x.reshape(-1) for x in (q, k, v, out)] + [n, 0.25], 2)
    a, b, z = (from_memory(x, bf16)[0].astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tril(np.ones((n, n))) > 0, a @ b.T * 0.25, -np.inf)
    e = np.exp(scores - scores.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True) @ z
    np.testing.assert_allclose(from_memory(out, bf16)[0], want, rtol=2e-2, atol=2e-2)


def test_sums_that_are_reshaped_are_no_fragments() -> None:
    """Others use them with another layout: the product is then one of each thread's own."""
    _, nest = scheduled(translated_kernel(kernel_of(150)), 2)
    assert "add= cast<f32>(t32" in nest_text(nest)


# ---- what is planted is found


@pytest.mark.parametrize("name", ["scan", "argmax", "lock"])
def test_a_missing_barrier_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that threads race without, or one that the result is right without."""
    c = CASES[name]
    kernel, values = translated(c)
    _, nest = scheduled(kernel)
    count = nest_text(nest).count("barrier\n")
    want = c.expected({n: x.copy() if isinstance(x, np.ndarray) else x for n, x in values.items()})
    found = 0
    for k in range(count):
        broken = without_barrier(nest, k)
        monkeypatch.setattr(
            "tests.lang.tile.threads_running.scheduled",
            lambda *a, broken=broken, **b: (lower(kernel, threads=True), broken),
        )
        again = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in values.items()}
        try:
            run_threads(kernel, c.grid, flat(c, again))
        except RunError as race:
            found += "with no barrier between" in str(race)
        else:
            for n, w in want.items():
                np.testing.assert_allclose(again[n], w, rtol=c.rtol, atol=c.atol)
    assert found > 0


def without_barrier(n: Nest, which: int) -> Nest:
    seen = iter(range(10**6))
    gone = lambda s: () if isinstance(s, Barrier) and next(seen) == which else (s,)  # noqa: E731
    return replace(n, body=transform(n.body, gone))


def test_cells_that_memory_tells_are_kept_apart() -> None:
    """A loop stores a tile at a place that it moves: the next iteration writes cells of other
    threads."""
    assert failure(kernel_of(11), ("threads",)) is None


@tw.jit
def chosen_kernel(x, count, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    chosen = tl.load(x + i, mask=i < n, other=0) > 0
    place = tl.atomic_add(count + tl.zeros_like(i), 1, mask=chosen)
    tl.store(out + place * 4 + 1, i, mask=chosen)


@tw.jit
def asked_kernel(x, count, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(x + i, mask=i < n, other=0, volatile=True)
    tl.store(out + place * 4 + 1, i, mask=i < n)
    tl.atomic_add(count, 1)


@pytest.mark.parametrize("run", [run_threads, run_emulated])
@pytest.mark.parametrize("asks", [False, True])
def test_what_memory_gives_an_atomic_operation_is_any_number(run: Any, asks: bool) -> None:
    """Elements without one are 0, which says nothing of the others: they are places here."""
    n, rng = 100, np.random.default_rng(0)
    x = rng.permutation(n).astype(np.int32) if asks else rng.integers(-1, 2, n, np.int32)
    count, out = np.zeros(1, np.int32), np.full(4 * n, -1, np.int32)
    about = {a: Argument.pointer(i32, 16) for a in ("x", "count", "out")}
    about |= {"n": Argument.scalar(i32, 1, True), "BLOCK": Argument.constant(64)}
    kernel = translate(asked_kernel if asks else chosen_kernel, about)
    run(kernel, (2,), [x, count, out, n], 2)
    want = np.argsort(x) if asks else np.flatnonzero(x > 0)
    found = out.reshape(n, 4)[: len(want), 1]
    assert np.array_equal(found if asks else np.sort(found), want)
    assert np.all(np.delete(out.reshape(n, 4), 1, 1) == -1)


# ---- code


@needs_ptxas
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", ["softmax", "scan", "count", "lock"])
def test_code_is_assembled(name: str, capability: int) -> None:
    kernel, _ = translated(CASES[name])
    _, nest = scheduled(kernel, 4, capability)
    target = for_capability(capability)
    text = emit_kernels(legalise(nest, target), target).text
    (found,) = assemble(cached_ptx(text, target), target.cpu)
    assert found.spilled == 0


def test_code_reads_vectors_and_keeps_rows_in_registers() -> None:
    rows = {"x": numbers(4), "out": numbers(4), "x_stride": 64, "out_stride": 64, "columns": 64}
    kernel = translate(load(False).softmax_kernel, described(**rows, BLOCK=1024))
    target = for_capability(90)
    nest = legalise(scheduled(kernel)[1], target)
    ptx = cached_ptx(emit_kernels(nest, target).text, target)
    assert "ld.global.v4" in ptx and "st.global.v4" in ptx and "local" not in ptx


def test_masked_elements_share_their_address() -> None:
    """Rows of any length: each element has a condition of its own, of 32 bits."""
    rows = {"x": numbers(4), "out": numbers(4), "x_stride": 37, "out_stride": 37, "columns": 37}
    kernel = translate(load(False).softmax_kernel, described(**rows, BLOCK=1024))
    target = for_capability(90)
    text = emit_kernels(legalise(scheduled(kernel)[1], target), target).text
    rows_at = re.findall(r"mul i64 %(?:block.x, %dim\d+|dim\d+, %block.x)", text)
    assert len(rows_at) == 2  # once for what is read, and written
    assert "icmp slt i32" in text and "icmp slt i64" not in text
