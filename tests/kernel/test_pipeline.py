"""Software pipelining: versions of a buffer, copies on their way, and barriers that suffice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilewright.kernel.steps  # noqa: F401  (fills STEPS)
from tests.kernel.examples import BOUND_MATMUL, MATMUL, tiled_matmul
from tests.kernel.native import Native
from tests.seeds import diagonals, every_run
from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.check import CheckFailed, verify
from tilewright.kernel.interpret import RunError
from tilewright.kernel.interpret import run as run_serial
from tilewright.kernel.nest import (
    Barrier,
    Commit,
    Loop,
    Nest,
    Stmt,
    Store,
    Wait,
    start,
    transform,
    walk,
)
from tilewright.kernel.simt import run
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest

TILED, BOUND = tiled_matmul(4), BOUND_MATMUL
SIZES = [(16, 12, 8), (13, 11, 9), (1, 1, 1), (7, 20, 5)]


def pipelined(ahead: int, asynchronous: bool, more: str = "") -> str:
    how = f"{ahead}, asynchronous={asynchronous}{more}"
    return f"Pipeline('t.r0.0', 'as', {how})\nPipeline('t.r0.0', 'bs', {how})\n"


def matmul(*steps: str) -> Nest:
    return apply(start(parse_group(MATMUL)), parse_trace("".join(steps)))


def count(n: Nest, kind: type) -> int:
    return sum(isinstance(s, kind) for s, _ in walk(n.body))


def changed(n: Nest, change: Callable[[Stmt], tuple[Stmt, ...]]) -> Nest:
    return replace(n, body=transform(n.body, change))


def operands(sizes: tuple[int, int, int]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    m, k, n = sizes
    rng = np.random.default_rng(m * 100 + k * 10 + n)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return {"a": a.astype("f"), "b": b.astype("f")}, dict(zip("MKN", sizes))


def agrees(got: dict[str, np.ndarray], args: dict[str, np.ndarray]) -> None:
    want = np.maximum(args["a"] @ args["b"], 0)
    np.testing.assert_allclose(got["y"], want, rtol=1e-4, atol=1e-5)


@every_run(0, 3, 4, 6, 9, 10)
@pytest.mark.parametrize(
    ("ahead", "asynchronous", "sizes"), diagonals([1, 2, 3], [False, True], SIZES, step=2)
)
def test_a_pipelined_matmul_in_shared_memory(
    ahead: int, asynchronous: bool, sizes: tuple[int, int, int]
) -> None:
    n = matmul(TILED, BOUND, pipelined(ahead, asynchronous), "Synchronise()")
    verify(n)
    assert parse_nest(nest_text(n)) == n
    assert count(n, Barrier) == 1, nest_text(n)
    args, dims = operands(sizes)
    for seed in range(2):
        agrees(run(n, args, dims, seed), args)
    agrees(run_serial(n, args, dims), args)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ahead", [1, 2])
def test_copies_for_nobody_have_no_branch(ahead: int, late: bool) -> None:
    """The last iterations copy what the last one has once more."""
    n = matmul(TILED, BOUND, pipelined(ahead, True, f", late={late}, always=True"), "Synchronise()")
    verify(n)
    assert parse_nest(nest_text(n)) == n and ".some" not in nest_text(n)
    for sizes in SIZES:
        args, dims = operands(sizes)
        agrees(run(n, args, dims), args)
    loose = changed(n, lambda s: () if s == Wait(ahead - 1) else (s,))
    with pytest.raises(RunError, match="is in flight"):
        run(loose, *operands((13, 11, 9)))


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_both_copies_are_one_group(ahead: int) -> None:
    n = matmul(TILED, BOUND, pipelined(ahead, True))
    assert [s.pending for s, _ in walk(n.body) if isinstance(s, Wait)] == [ahead - 1]
    assert count(n, Commit) == 2  # in the loop and before it
    assert sum(isinstance(s, Store) and s.asynchronous for s, _ in walk(n.body)) == 4


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_missing_wait_is_found(ahead: int) -> None:
    n = matmul(TILED, BOUND, pipelined(ahead, True), "Synchronise()")
    args, dims = operands((13, 11, 9))
    without = changed(n, lambda s: () if isinstance(s, Wait) else (s,))
    flight = (
        r"t: thread \(x=\d, y=\d\) of block .* reads [ab]s\[.*\], but [ab]s\[0,\d,\d\] is in flight"
    )
    with pytest.raises(RunError, match=flight):
        run(without, args, dims)
    late = changed(n, lambda s: (Wait(s.pending + 1),) if isinstance(s, Wait) else (s,))
    with pytest.raises(
        RunError, match=r"is in flight: thread .* issued the copy and has not waited"
    ):
        run(late, args, dims)


def test_a_missing_commit_is_found() -> None:
    n = matmul(TILED, BOUND, pipelined(1, True), "Synchronise()")
    args, dims = operands((13, 11, 9))
    with pytest.raises(RunError, match="is in flight"):
        run(changed(n, lambda s: () if isinstance(s, Commit) else (s,)), args, dims)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_barrier_is_needed(asynchronous: bool) -> None:
    n = matmul(TILED, BOUND, pipelined(1, asynchronous), "Synchronise()")
    args, dims = operands((13, 11, 9))
    with pytest.raises(RunError, match=r"no barrier between|in flight"):
        run(changed(n, lambda s: () if isinstance(s, Barrier) else (s,)), args, dims)


def test_a_barrier_before_the_wait_is_not_enough() -> None:
    """What arrives is known to its own thread; the others need a barrier afterwards."""
    n = matmul(TILED, BOUND, pipelined(1, True), "Synchronise()")

    def early(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Barrier):
            return ()
        return (Barrier(), s) if isinstance(s, Wait) else (s,)

    args, dims = operands((13, 11, 9))
    with pytest.raises(RunError, match="no barrier between"):
        run(changed(n, early), args, dims)


def test_two_buffers_save_a_barrier() -> None:
    assert count(matmul(TILED, BOUND, "Synchronise()"), Barrier) == 2
    n = matmul(TILED, BOUND, "DoubleBuffer('as')\nDoubleBuffer('bs')\nSynchronise()")
    assert count(n, Barrier) == 1, nest_text(n)
    for sizes in SIZES:
        args, dims = operands(sizes)
        agrees(run(n, args, dims), args)
        agrees(run_serial(n, args, dims), args)


def test_one_of_two_buffers_saves_none() -> None:
    n = matmul(TILED, BOUND, "DoubleBuffer('as')\nSynchronise()")
    assert count(n, Barrier) == 2
    args, dims = operands((13, 11, 9))
    agrees(run(n, args, dims), args)


@every_run(0, 3, 5, 10)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_cpu_runs_them_too(ahead: int, sizes: tuple[int, int, int]) -> None:
    args, dims = operands(sizes)
    agrees(Native(matmul(TILED, pipelined(ahead, False)))(args, dims), args)
    local = "SetScope('as', 'local')\nSetScope('bs', 'local')\n"
    shared = local.replace("local", "shared")
    copies = matmul(TILED, shared, pipelined(ahead, True), local)
    assert count(copies, Wait) == 1
    agrees(Native(copies)(args, dims), args)


def test_a_copy_that_two_threads_ask_for() -> None:
    n = parse_nest(
        "nest k\n  in x: f32[6]\n  out y: f32[6]\n  shared s: f32[6]\n"
        "  alloc s\n  thread.x i in 6:\n    s: async s[i//2] = x[i]\n  commit\n  wait 0\n"
    )
    with pytest.raises(RunError, match=r"writes s\[.*\], but s\[\d\] is in flight: thread"):
        run(n, {"x": np.arange(6, dtype="f")})


def test_a_copy_to_private_memory_is_none() -> None:
    n = parse_nest(
        "nest k\n  in x: f32[6]\n  out y: f32[6]\n  local s: f32[6]\n"
        "  block.x b in 1:\n    alloc s\n    thread.x i in 6:\n      s: async s[i] = x[i]\n"
    )
    with pytest.raises(RunError, match="copied to asynchronously and is not shared"):
        run(n, {"x": np.arange(6, dtype="f")})


LOOP = TILED + "SetScope('bs', 'shared')\n"
# (steps before, the step, what its refusal says)
REFUSALS = [
    (TILED, "Pipeline('t.r0.0', 'as', 0)", "0 iterations ahead"),
    (TILED, "Pipeline('t.r0.0', 'as', 100)", "100 iterations ahead"),
    (TILED, "Pipeline('t.r1', 'as')", "there is no loop t.r1"),
    (TILED, "Pipeline('t.i0', 'as')", "as is allocated in t.r0.0, not in t.i0"),
    (TILED, "Pipeline('t.r0.0', 'a')", "a is an argument"),
    (TILED, "Pipeline('y.i1.0', 't')", "t is not computed by statements of its own in y.i1.0"),
    ("", "Pipeline('t.r0', 't')", "t is not allocated inside a loop"),
    (TILED, "Pipeline('t.r0.0', 'as', asynchronous=True)", "as is not shared memory"),
    (TILED, "Pipeline('t.r0.0', 'as', always=True)", "only copies may be made for nobody"),
    (TILED + "SetScope('as', 'register')\n", "Pipeline('t.r0.0', 'as')", "as is in registers"),
    (TILED + "Parallel('y.i0.0')\n", "DoubleBuffer('t')", None),
    (TILED + "DoubleBuffer('as')\n", "Pipeline('t.r0.0', 'as')", "as is allocated in y.i1.0, not"),
    ("ComputeAt('t', 'y.i0')\nParallel('y.i0')\n", "DoubleBuffer('t')", "y.i0, around t, is paral"),
    (
        LOOP + "Pipeline('t.r0.0', 'bs', 2, asynchronous=True)\nSetScope('as', 'shared')\n",
        "Pipeline('t.r0.0', 'as', asynchronous=True)",
        "copies another stage 2 iterations ahead",
    ),
]


@pytest.mark.parametrize("before, step, says", REFUSALS)
def test_refusals(before: str, step: str, says: str | None) -> None:
    n = matmul(before)
    if says is None:
        verify(apply(n, parse_trace(step)))
        return
    with pytest.raises(Refused, match=says):
        apply(n, parse_trace(step))


CHAIN = """
group chain
  in x: f32[4,6]
  out y: f32[4,6]
  local t: f32[4,6]
  local u: f32[4,6]
  t[t.i0,t.i1] = exp(x[t.i0,t.i1]) for t.i0 in 4, t.i1 in 6
  u[u.i0,u.i1] = t[u.i0,u.i1] * 2.0 for u.i0 in 4, u.i1 in 6
  y[y.i0,y.i1] = u[y.i0,y.i1] + 1.0 for y.i0 in 4, y.i1 in 6
"""


def test_what_needs_its_iteration_stays_there() -> None:
    placed = "ComputeAt('u', 'y.i0')\nComputeAt('t', 'y.i0')\n"
    n = apply(start(parse_group(CHAIN)), parse_trace(placed))
    with pytest.raises(Refused, match=r"u reads t.*, which y.i0 writes on its way"):
        apply(n, parse_trace("Pipeline('y.i0', 'u')"))
    with pytest.raises(Refused, match="t is not a plain copy"):
        apply(n, parse_trace("SetScope('t', 'shared')\nPipeline('y.i0', 't', 1, True)"))
    ahead = apply(n, parse_trace("Pipeline('y.i0', 't', 2)"))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("f")
    np.testing.assert_allclose(run_serial(ahead, {"x": x})["y"], np.exp(x) * 2 + 1, rtol=1e-6)


def test_copies_in_every_thread_are_refused() -> None:
    unbound = "".join(x for x in BOUND.splitlines(True) if "'as.i1'" not in x)
    with pytest.raises(Refused, match=r"as copies to as.* in every thread of thread.x"):
        matmul(TILED, unbound, pipelined(1, True), "Synchronise()")


HEAD = "nest k\n  in x: f32[6]\n  out y: f32[6]\n  local s: f32[6]\n"
# what is unsound, and what the checks say of it
UNSOUND = [
    ("  alloc s\n  s: async s[0] = x[0] + 1.0\n", "the asynchronous s is not a copy"),
    ("  alloc s\n  y: async y[0] add= x[0]\n", "the asynchronous y is not a copy"),
    ("  prefetch s[0]\n  alloc s\n", r"s\[0\] is prefetched where it is not allocated"),
    ("  alloc s\n  prefetch x[0,0]\n", "has 2 indices, x has 1 axes"),
]


@pytest.mark.parametrize("body, says", UNSOUND)
def test_unsound_nests_are_named(body: str, says: str) -> None:
    with pytest.raises(CheckFailed, match=says):
        verify(parse_nest(HEAD + body))


def test_a_symbol_of_a_prefetch_needs_its_loop() -> None:
    n = parse_nest(HEAD + "  alloc s\n  for i in 6:\n    prefetch x[i]\n    y: y[i] = x[i]\n")
    verify(n)
    (loop,) = [s for s in n.body if isinstance(s, Loop)]
    with pytest.raises(CheckFailed, match="i is bound by no loop around"):
        verify(replace(n, body=(*n.body, loop.body[0])))


@pytest.mark.parametrize(
    "line, says",
    [
        ("prefetch 1.0", "expected BUFFER"),
        ("for i in 6 pragma unroll: ", "expected KEY NUMBER"),
        ("for i in 6 pragma unroll four:", "expected KEY NUMBER"),
        ("wait long", "expected a loop, an alloc, a barrier or a store"),
    ],
)
def test_text_that_is_wrong_is_named(line: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_nest(f"{HEAD}  {line}\n    y: y[0] = x[0]\n")
