"""Attention of few rows: two products and the rows between them, a block for each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.gpu import emulate
from tests.gpu.programs import groups, inputs
from tests.graph.build import graph
from tests.graph.test_row_blocks import attention
from tests.kernel.test_grids import GPU, judge, scheduled
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel import simt
from tilewright.kernel.interpret import RunError, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Stmt, transform, walk
from tilewright.llvm.grid import emit_kernels


def check(d: DType, heads: int, rows: int, keys: int, width: int) -> None:
    """The executor, which reports races, and emitted code agree with the definition."""
    (g,) = groups(graph(attention(d, heads, rows, keys, width)))
    nest = scheduled(g)
    judge(g, nest, {}, d)
    (launch,) = emit_kernels(legalise(nest, GPU), GPU).launches
    assert launch.blocks == (heads * rows, 1, 1)
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args)
    close = 2e-2 if d is bf16 else 1e-5
    for name, x in got.items():
        assert abs(x.astype("f8") - want[name].astype("f8")).max() <= close * abs(x).max()


def test_a_step_of_attention_is_one_launch() -> None:
    check(f32, 1, 1, 64, 16)


def test_a_barrier_that_is_missing_is_found() -> None:
    """But for the one after which weights have the memory of scores: the executor has both."""
    (g,) = groups(graph(attention(f32, 1, 1, 64, 16)))
    nest = scheduled(g)
    count = sum(isinstance(x, Barrier) for x, _ in walk(nest.body))
    found = 0
    for k in range(count):
        left = iter(range(count))

        def without(s: Stmt, k: int = k, left: Iterator[int] = left) -> tuple[Stmt, ...]:
            return () if isinstance(s, Barrier) and next(left) == k else (s,)

        try:
            simt.run(replace(nest, body=transform(nest.body, without)), inputs(g, {}), {})
        except RunError:
            found += 1
    assert (found, count) == (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("d", [f32, bf16], ids=str)
@pytest.mark.parametrize("size", [(2, 2, 128, 16), (1, 3, 512, 32), (1, 1, 256, 128)], ids=str)
def test_rows_that_share_keys(d: DType, size: tuple[int, int, int, int]) -> None:
    check(d, *size)
