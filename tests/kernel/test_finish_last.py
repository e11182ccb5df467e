"""What follows the blocks of a grid, done by the last of them: results, faults that the executor
finds, what the step refuses, and its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.programs import arg, build, graph, groups, inputs, wide
from tests.kernel.step_examples import EXAMPLES, MAP, TWO
from tests.kernel.test_grids import GPU, judge, scheduled
from tests.seeds import every_run
from tilewright.base.errors import Refused, Unsupported
from tilewright.ir.node import Graph
from tilewright.ir.types import DType, bf16, f32, i64
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.defaults import grid_totals
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.interpret import RunError, run, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Alloc, Atomic, Barrier, Loop, Nest, Stmt, Store, start, transform
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly
from tilewright.targets import nvptx


def finished(name: str) -> Nest:
    text, before, step = EXAMPLES[name]
    barriers = "Synchronise()" if "thread.x" in before else ""
    return apply(start(parse_group(text)), parse_trace(f"{before}\n{step}\n{barriers}"))


def given() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).integers(-9, 9, (8, 6)).astype(np.float32)}


def edited(n: Nest, f: Callable[[Stmt], tuple[Stmt, ...]]) -> Nest:
    return replace(n, body=transform(n.body, f))


def test_any_block_may_be_the_last() -> None:
    nest = finished("finish-last")
    assert parse_nest(nest_text(nest)) == nest
    verify(nest)
    want = np.exp(given()["x"]) + 1
    np.testing.assert_allclose(run(nest, given())["y"], want, rtol=1e-6)
    for seed in range(5):  # blocks are shuffled
        np.testing.assert_allclose(simt.run(nest, given(), seed=seed)["y"], want, rtol=1e-6)


def test_a_counter_for_each_block_of_what_follows() -> None:
    nest = finished("finish-last-columns")
    assert nest.buffer("c").shape == (8,)
    x = np.arange(72, dtype=np.float32).reshape(9, 8)
    for seed in range(5):
        np.testing.assert_array_equal(simt.run(nest, {"x": x}, seed=seed)["y"], x.sum(0))
    np.testing.assert_array_equal(emulate.run(nest, {"x": x}, target=GPU)["y"], x.sum(0))


def relaxed(s: Stmt) -> tuple[Stmt, ...]:
    return (replace(s, order="relaxed"),) if isinstance(s, Atomic) else (s,)


def only_released(s: Stmt) -> tuple[Stmt, ...]:
    return (replace(s, order="release"),) if isinstance(s, Atomic) else (s,)


def not_reset(s: Stmt) -> tuple[Stmt, ...]:
    return () if isinstance(s, Store) and s.buffer == "c" else (s,)


def without_barriers(s: Stmt) -> tuple[Stmt, ...]:
    return () if isinstance(s, Barrier) else (s,)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (relaxed, "reads t.* of which another block writes t"),
        (only_released, "reads t.* of which another block writes t"),
        (not_reset, "the counter c.* is left at 8, not at 0"),
        (without_barriers, "with no barrier between|of which another block"),
    ],
)
def test_faults_are_found(fault: Callable[[Stmt], tuple[Stmt, ...]], says: str) -> None:
    nest = edited(finished("finish-last"), fault)
    for seed in range(3):
        with pytest.raises(RunError, match=says):
            simt.run(nest, given(), seed=seed)


def test_a_barrier_before_counting_is_needed() -> None:
    """What other threads have written is not handed on by the one that counts."""
    nest = finished("finish-last")
    seen: list[Stmt] = []

    def first(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Barrier) and not seen:
            seen.append(s)
            return ()
        return (s,)

    with pytest.raises(RunError, match="another block writes t"):
        simt.run(edited(nest, first), given())


def test_results_before_the_last_block_ends_are_noticed() -> None:
    text = nest_text(finished("finish-last")).replace("== 7:", "== 6:")
    with pytest.raises(RunError):
        simt.run(parse_nest(text), given())
    with pytest.raises(RunError, match="counter"):
        run(parse_nest(text), given())


GRIDS = "Bind('t.i0', 'block.x')\nBind('y.i0', '{}')"
SHIFTED = TWO.replace("t[y.i0,y.i1]", "t[7-y.i0,y.i1]")
BOTH = "Bind('t.i0', 'block.y')\nBind('t.i1', 'block.x')\nBind('y.i0', 'block.y')"


@pytest.mark.parametrize(
    ("group", "before", "says"),
    [
        (TWO, "", "t.i0 is no outermost loop over blocks"),
        (MAP.replace("y", "t"), "Bind('t.i0', 'block.x')", "nothing follows the blocks"),
        (TWO, "Bind('t.i0', 'block.x')\nBind('y.i1', 'thread.x')", "6 threads along thread.x"),
        (TWO, GRIDS.format("block.x"), "each block of t.i0 would do its own part"),
        (TWO, GRIDS.format("block.y"), "runs over other blocks"),
        (TWO, "Bind('t.i0', 'block.x')\nParallel('y.i0')", "parallel y.i0 would be inside blocks"),
        (SHIFTED, BOTH, "y touches t.*, which blocks of another block.y touch as t"),
    ],
)
def test_what_it_refuses(group: str, before: str, says: str) -> None:
    nest = apply(start(parse_group(group)), parse_trace(before))
    with pytest.raises(Refused, match=says):
        apply(nest, parse_trace("FinishLast('t.i0', 'c')"))


def test_the_code_fences_and_counts() -> None:
    nest = finished("finish-last-columns")
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert [x.blocks for x in made.launches] == [(1, 1, 1), (8, 3, 1)]
    assert [b.name for b in made.scratch if b.scope == "counter"] == ["c"]
    text = assembly(made.text, GPU)
    assert text.count("fence.acq_rel.gpu") == 2 and "atom.global.add.u32" in text
    assert "ld.global.nc.b32" not in text.partition("atom.global")[2]  # what others wrote
    assert all(x.spilled == 0 for x in assemble(text, GPU.cpu))
    with pytest.raises(Unsupported, match="counts its blocks"):
        emit_kernels(legalise(nest, GPU), GPU, tasks=True)


# ---- default schedules


def loss(d: DType, rows: int, columns: int) -> Graph:
    """The mean of rows' losses where labels are not ignored, and the largest label."""
    x, at = arg("x", rows, columns, dtype=d), arg("at", rows, dtype=i64)
    keep = build.ne(at, -1)
    safe = build.where(keep, at, 0)
    logs = build.log_softmax(wide(x), 1)
    found = build.reshape(build.gather(logs, build.reshape(safe, (rows, 1)), 1), (rows,))
    total = build.sum(build.where(keep, build.neg(found), 0.0), (0,), False)
    count = build.cast(build.sum(build.cast(keep, i64), (0,), False), f32)
    return graph(build.div(total, count), build.amax(at, (0,), False))


@every_run(1)
@pytest.mark.parametrize(("rows", "columns"), [(24, 256), (23, 67)])
def test_a_loss_is_one_launch(rows: int, columns: int) -> None:
    (g,) = groups(loss(bf16, rows, columns))
    nest = scheduled(g)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert len(made.launches) == 1
    judge(g, nest, {}, bf16)
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args, target=GPU)
    for name, x in got.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-4)
    text = nest_text(nest)
    assert "_at0: " in text, "the label's element is read before the sums"
    assert text.index("_at0: ") < text.index("max=")


def test_blocks_of_a_loss_walk_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as run at a time; one that has one row takes half as long again to say that it is
    done. What threads exchange for a row is not changed before all have read it."""
    assert GPU.grid is not None
    monkeypatch.setattr(grid_totals, "WALKING", 128)
    one = nvptx.with_numbers(GPU, multiprocessors=1)
    (g,) = groups(loss(bf16, 7, 2048))
    nest = default_schedule(g, one)[1]
    verify(nest)
    judge(g, nest, {}, bf16)
    code = emit_kernels(legalise(nest, one), one)
    assert code.launches[0].blocks[0] == 2
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run_kernels(code, args, {}, 16)
    for name, x in got.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-4)
    with pytest.raises(RunError):
        simt.run(edited(nest, without_barriers), args)


@every_run(0, 3)
@pytest.mark.parametrize("d", [bf16, f32], ids=str)
@pytest.mark.parametrize("size", [(8192, 4096), (8191, 4099)])
def test_rows_that_blocks_walk_over_stay_in_registers(d: DType, size: tuple[int, int]) -> None:
    assert GPU.grid is not None
    (g,) = groups(loss(d, *size))
    code = emit_kernels(legalise(default_schedule(g, GPU)[1], GPU), GPU)
    (launch,) = code.launches
    threads = launch.threads[0] * launch.blocks[0] // GPU.grid.multiprocessors
    assert threads == grid_totals.WALKING
    assert all(x.spilled == 0 for x in assemble(assembly(code.text, GPU), GPU.cpu))


def test_blocks_of_one_warp_walk_over_rows_too() -> None:
    """There is a limit to the blocks of a multiprocessor."""
    (g,) = groups(loss(bf16, 8193, 64))
    nest = default_schedule(g, nvptx.with_numbers(GPU, multiprocessors=2))[1]
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert [x.blocks[0] for x in made.launches] == [2 * 32]


def test_the_terms_of_a_loss_stay_cheap() -> None:
    """A branch at the end of a block is none of the terms of its sums."""
    (g,) = groups(loss(bf16, 256, 1024))
    text = assembly(emit_kernels(legalise(scheduled(g), GPU), GPU).text, GPU)
    rows = text.partition("atom.global")[0]
    assert rows.count("ex2.approx") > 0 and rows.count("min.f32") == 0


def test_many_rows_have_totals_of_their_own() -> None:
    assert len(groups(loss(f32, 1 << 16, 32))) > 1


def test_early_kernels_count_nothing() -> None:
    (g,) = groups(graph(build.sum(arg("x", 1024, 1000), (0, 1), False)))
    assert "counter" in nest_text(default_schedule(g, GPU)[1])
    assert "counter" not in nest_text(default_schedule(g, GPU, Choices(early=True))[1])


def test_the_total_of_a_matrix_is_one_launch() -> None:
    (g,) = groups(graph(build.sum(arg("x", 64, 1000), (0, 1), False)))
    nest = scheduled(g)
    assert len(emit_kernels(legalise(nest, GPU), GPU).launches) == 1
    assert [type(s) for s in nest.body if not isinstance(s, Alloc)] == [Loop]
    judge(g, nest, {}, f32)


def test_a_map_and_its_total_are_one_launch() -> None:
    x = arg("x", 48, 96)
    positive = build.cast(build.gt(x, 0.0), i64)
    (g,) = groups(graph(build.relu(x), build.sum(positive, (0, 1), False)))
    nest = scheduled(g)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert len(made.launches) == 1 and "st.global.v4" in assembly(made.text, GPU)
    judge(g, nest, {}, f32)


def test_one_block_counts_nothing() -> None:
    x = arg("x", 16, 64)
    (g,) = groups(graph(build.relu(x), build.sum(x, (0, 1), False)))
    nest = scheduled(g)
    assert "FinishLast" in str(default_schedule(g, GPU)[0]) and "counter" not in nest_text(nest)
    judge(g, nest, {}, f32)
