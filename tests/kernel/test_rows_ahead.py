"""Rows that are only read: the next one is on its way while a block works on one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.programs import PROGRAMS, groups, inputs
from tests.kernel.test_grids import judge
from tests.seeds import every_run
from tilewright import targets
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.defaults import grid_rows_ahead
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import RunError, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest, Wait, start, transform
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.llvm.grid import emit_kernels
from tilewright.targets import nvptx

GPU = nvptx.with_numbers(targets.get("cuda:90"), multiprocessors=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_rows_ahead, "RESIDENT", 2)


def made(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, d: DType, ahead: int) -> Group:
    monkeypatch.setattr(grid_rows_ahead, "AHEAD", ahead)
    (g,) = groups(PROGRAMS["cross_entropy"](d, rows, columns))
    return g


def scheduled(g: Group) -> Nest:
    trace, nest = default_schedule(g, GPU)
    assert apply(start(g), parse_trace(print_trace(trace))) == nest
    verify(nest)
    return nest


@every_run(0)
@pytest.mark.parametrize(("d", "ahead"), [(bf16, 1), (f32, 2)])
def test_rows_are_on_their_way(monkeypatch: pytest.MonkeyPatch, d: DType, ahead: int) -> None:
    """Seven rows for two blocks; only sums over threads need barriers."""
    g = made(monkeypatch, 7, 3072, d, ahead)
    nest = scheduled(g)
    judge(g, nest, {}, d)
    assert nest.buffer("a0_row_s").shape[0] == ahead + 1
    code = emit_kernels(legalise(nest, GPU), GPU)
    assert code.launches[0].blocks[0] == 2 and "cp.async.cg.shared.global.16" in code.text
    assert code.text.count("call void @llvm.nvvm.barrier.cta.sync") == 4
    given = inputs(g, {})
    (want,) = run_group(g, given, {}).values()
    (got,) = emulate.run_kernels(code, given, {}, 16).values()
    np.testing.assert_allclose(got, want, rtol=2e-5)
    loose = transform(nest.body, lambda s: () if isinstance(s, Wait) else (s,))
    with pytest.raises(RunError, match="in flight"):
        simt.run(replace(nest, body=loose), given)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3072), (7, 3000), (7, 3077), (7, 256)], ids=str)
def test_other_rows_have_a_block_each(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int
) -> None:
    """Few rows, rows that are no whole vectors of all threads, short ones."""
    g = made(monkeypatch, rows, columns, bf16, 1)
    assert "Walk" not in print_trace(default_schedule(g, GPU)[0])
