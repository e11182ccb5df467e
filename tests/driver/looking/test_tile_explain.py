"""What became of a tile kernel, in tables."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.driver.looking.tile_explain import TileExplanation, TileReport
from tilewright.driver.tile.launch import CompiledKernel


@tw.jit
def product(a, b, out, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    sums = tl.zeros((M, N), out.dtype.element_ty)
    for _ in range(n):
        x = tl.load(a + i * K + k[None, :])
        sums = tl.dot(x, tl.load(b + k[:, None] * N + j), sums, out_dtype=out.dtype.element_ty)
    tl.store(out + i * N + j, sums)


@tw.jit
def sums_of_rows(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * n + at, at < n, other=0.0), 0))


@tw.jit
def counted(x, bins, BLOCK: tl.constexpr):
    tl.atomic_add(bins + tl.load(x + tl.arange(0, BLOCK)), 1)


@tw.jit
def running(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


def multiplied(dtype: type, m: int, n: int, k: int) -> CompiledKernel:
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    out = np.zeros((m, n), dtype)
    kernel = product[(1,)](a, b, out, 2, M=m, N=n, K=k)
    np.testing.assert_array_equal(out, 2 * k)
    return kernel


def reports(x: object) -> list[TileReport]:
    """What was compiled for processors."""
    found = tw.explain(x) if not isinstance(x, TileExplanation) else x
    assert isinstance(found, TileExplanation)
    assert all(isinstance(k, TileReport) for k in found.kernels)
    return [k for k in found.kernels if isinstance(k, TileReport)]


def line_of(f: tw.JITFunction, text: str) -> str:
    rows = f.source.splitlines()
    return f"{f.file}:{f.line + next(k for k, row in enumerate(rows) if text in row)}"


def test_a_product_by_an_instruction():
    explanation = tw.explain(multiplied(np.float32, 32, 32, 32))
    assert isinstance(explanation, TileExplanation)
    (report,) = reports(explanation)
    (d,) = report.products
    assert ".fma, " in d.by and not d.why and d.sizes == ("32", "32", "32")
    assert d.where == line_of(product, "tl.dot") and d.inside[0].startswith("for")
    assert report.operations["dot"] == 1 and report.operations["load"] == 2
    assert report.tiles >= 3 * 32 * 32 * 4 and report.code > 0
    assert report.instructions > 30 and report.seconds > 0
    names = ["tile IR", "lowering", "schedule", "LLVM text", "machine code"]
    assert list(report.phases) == names
    text = str(explanation)
    assert text.startswith("product(a: *fp32, b: *fp32, out: *fp32, n: i32, M=32, N=32, K=32)")
    by = d.by.split(",")[0]  # a cell of the table may be broken after it
    assert "stage" in text and by in text and "not faster because" not in text
    assert report.grain == 1 and "\n  Parallel(loop='program')\n" in text


@pytest.mark.parametrize(
    ("dtype", "sizes", "why"),
    [
        (np.float64, (16, 16, 16), "no instruction that multiplies f64 by f64 into f64"),
        (np.float32, (2, 2, 16), "2 columns are fewer than the "),
    ],
)
def test_a_product_by_none_says_why(dtype, sizes, why):
    explanation = tw.explain(multiplied(dtype, *sizes))
    (d,) = reports(explanation)[0].products
    assert "plain loops" in d.by and why in d.why
    assert "1 product by plain loops" in str(explanation) and why in str(explanation)


def test_every_specialisation_has_a_page():
    f = tw.jit(sums_of_rows.fn)
    with pytest.raises(Invalid, match="was not launched yet") as found:
        tw.explain(f)
    assert "sums_of_rows.warmup(" in str(found.value)
    x, out = np.ones((3, 100), np.float32), np.zeros(3, np.float32)
    f[(3,)](x, out, 100, BLOCK=128)
    f[(3,)](x, out, 100, BLOCK=256)
    first, second = reports(f)
    assert first.kernel.constants["BLOCK"] == 128 and second.kernel.constants["BLOCK"] == 256
    for report in (first, second):
        assert any("not known to be multiples of 16" in r and "n" in r for r in report.remarks())
        lines = {s.where for s in report.stages}
        assert lines == {line_of(f, "tl.sum")}, "the library's lines are not the author's"
        (summed, *_) = [s for s in report.stages if s.what.startswith("add into")]
        assert re.fullmatch(r"\d+ lanes", summed.by)


def test_what_goes_one_after_the_other():
    x, bins = np.zeros(64, np.int32), np.zeros(1, np.int32)
    (report,) = tw.explain(counted[(1,)](x, bins, BLOCK=64)).kernels
    assert bins[0] == 64
    (atomic,) = [s for s in report.stages if s.what.startswith("atomic add into bins")]
    assert "one element at a time" in atomic.by and "atomics" in atomic.why
    (report,) = tw.explain(running[(1,)](x, x.copy(), BLOCK=64)).kernels
    assert any("a scan takes one element" in s.why for s in report.stages)


def test_where_code_is_cached(tmp_path):
    x, out = np.ones((3, 64), np.float32), np.zeros(3, np.float32)
    with knobs.cache_dir.override(tmp_path), knobs.cache.override(True):
        kernel = tw.jit(sums_of_rows.fn)[(3,)](x, out, 64, BLOCK=64)
        (report,) = tw.explain(kernel).kernels
        assert report.cached.startswith(f"cached in {tmp_path}") and report.cached in str(
            tw.explain(kernel)
        )
    with knobs.cache.override(False):
        assert tw.explain(kernel).kernels[0].cached == "not cached on disk"


def test_kernels_behind_autotune_and_those_that_are_stepped():
    tuned = tw.autotune([tw.Config({"BLOCK": 64})], key=["n"])(tw.jit(sums_of_rows.fn))
    x, out = np.ones((3, 64), np.float32), np.zeros(3, np.float32)
    with knobs.interpret.override(True):
        tuned[(3,)](x, out, 64)
        with pytest.raises(Invalid, match="runs step by step"):
            tw.explain(tuned)
    tuned[(3,)](x, out, 64)
    assert tw.explain(tuned).kernels[0].kernel.constants["BLOCK"] == 64


def test_large_tiles_are_remarked():
    out = np.zeros((1024, 1024), np.float32)

    @tw.jit
    def outer(x, out, B: tl.constexpr):
        i = tl.arange(0, B)
        v = tl.load(x + i)
        t = tl.exp(v[:, None] * v[None, :])
        tl.store(out + i[:, None] * B + i[None, :], t / tl.sum(t, 1)[:, None])

    (report,) = tw.explain(outer[(1,)](np.zeros(1024, np.float32), out, B=1024)).kernels
    assert report.tiles >= 1024 * 1024 * 4
    for l2, fits in ((report.tiles - 1, False), (report.tiles, True)):
        remarks = list(replace(report, target=replace(report.target, l2=l2)).remarks())
        assert any("do not fit the second cache" in r for r in remarks) != fits
