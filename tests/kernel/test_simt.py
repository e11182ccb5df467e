"""Blocks, threads, shared memory and barriers: the steps make them, the SIMT executor judges."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import tilewright.kernel.steps  # noqa: F401  (fills STEPS)
from tests.kernel.examples import BOUND_MATMUL, MATMUL, tiled_matmul
from tests.kernel.fuzz import Judge, bind_some, effort
from tests.kernel.random_groups import sample
from tests.kernel.random_steps import random_step
from tilewright.base.errors import Invalid, Refused, TilewrightError, Unsupported
from tilewright.kernel.check import CheckFailed, verify
from tilewright.kernel.interpret import RunError
from tilewright.kernel.interpret import run as run_serial
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Nest, start, transform, walk
from tilewright.kernel.simt import run
from tilewright.kernel.step import Step, Trace, apply, parse_trace, print_trace
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.llvm.emit import emit
from tilewright.targets import default

# Random cases: those that were wrong once, and a few more.
SEEDS = (0, 52, 522, 1405, *range(2_000, 2_008))
MORE = range(2_008, 2_120)

TILED = tiled_matmul(6) + BOUND_MATMUL


def matmul(text: str = TILED) -> Nest:
    return apply(start(parse_group(MATMUL)), parse_trace(text))


def barriers(n: Nest) -> int:
    return sum(isinstance(s, Barrier) for s, _ in walk(n.body))


def without_barrier(n: Nest, which: int) -> Nest:
    at = iter(range(100))
    drop = lambda s: () if isinstance(s, Barrier) and next(at) == which else (s,)  # noqa: E731
    return replace(n, body=transform(n.body, drop))


def operands(m: int, k: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(m * 100 + k * 10 + n)
    return {
        "a": rng.standard_normal((m, k)).astype("f"),
        "b": rng.standard_normal((k, n)).astype("f"),
    }


@pytest.mark.parametrize("sizes", [(16, 12, 8), (13, 11, 9), (1, 1, 1), (7, 20, 5)])
def test_a_tiled_matmul_in_shared_memory(sizes: tuple[int, int, int]) -> None:
    nest = matmul(TILED + "Synchronise()\n")
    verify(nest)
    assert barriers(nest) == 2
    args = operands(*sizes)
    dims: dict[str, int] = dict(zip("MKN", sizes))
    want = np.maximum(args["a"] @ args["b"], 0)
    for seed in range(3):
        np.testing.assert_allclose(run(nest, args, dims, seed)["y"], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run_serial(nest, args, dims)["y"], want, rtol=1e-4, atol=1e-5)


def test_every_barrier_is_needed() -> None:
    nest = matmul(TILED + "Synchronise()\n")
    dims = {"M": 13, "K": 11, "N": 9}
    for k, says in enumerate(["other threads read as", "writes as"]):
        with pytest.raises(RunError, match=says):
            run(without_barrier(nest, k), operands(13, 11, 9), dims)
    # One tile of K: nothing is written again, so the first barrier has nobody to wait for.
    run(without_barrier(nest, 0), operands(13, 5, 9), {"M": 13, "K": 5, "N": 9})


def test_barriers_are_computed_anew() -> None:
    nest = matmul(TILED + "Synchronise()\n")
    assert apply(nest, parse_trace("Synchronise()")) == nest


def test_the_text_round_trips() -> None:
    nest = matmul(TILED + "Synchronise()\n")
    assert parse_nest(nest_text(nest)) == nest
    trace = parse_trace(TILED + "Synchronise()\n")
    assert parse_trace(print_trace(trace)) == trace


SUM = """
group sum where K: 1..
  in x: f32[3,K]
  out y: f32[3]
  local s: f32[3]
  s[s.i0] add= x[s.i0,s.r0] for s.i0 in 3, s.r0 in K from 0.0
  y[y.i0] = s[y.i0] * 2.0 for y.i0 in 3
"""


def tree() -> Trace:
    """Sixteen threads sum up slices, then eight pairs, four pairs and so on."""
    steps = ["ComputeAt('s', 'y.i0')", "Split('s.r0', 16)", "RFactor('s', ('s.r0.1',), 'p16')"]
    kept, binds = "r0.1", [("p16.init.i0", "p16.r0.1")]
    for width in (8, 4, 2):
        p = f"p{width}"
        steps += [f"Split('s.{kept}', {width})", f"RFactor('s', ('s.{kept}.1',), '{p}')"]
        steps += [f"Reorder(('{p}.{kept}.1', '{p}.{kept}.0'))"]
        binds.append((f"{p}.init.i0", f"{p}.{kept}.1"))
        kept += ".1"
    steps += [f"SetScope('p{w}', 'shared')" for w in (16, 8, 4, 2)]
    steps += ["Bind('y.i0', 'block.x')"]
    steps += [f"Bind('{x}', 'thread.x')" for pair in binds for x in pair]
    return parse_trace("\n".join([*steps, "Synchronise()"]))


@pytest.mark.parametrize("k", [1, 16, 37, 100])
def test_a_tree_reduction(k: int) -> None:
    nest = apply(start(parse_group(SUM)), tree())
    verify(nest)
    assert barriers(nest) == 4  # one per level
    x = np.random.default_rng(k).standard_normal((3, k)).astype("f")
    want = x.sum(1, dtype="d") * 2
    for seed in range(3):
        np.testing.assert_allclose(run(nest, {"x": x}, {"K": k}, seed)["y"], want, rtol=1e-4)
    for j in range(4):
        with pytest.raises(RunError, match="no barrier between"):
            run(without_barrier(nest, j), {"x": x}, {"K": k})


def nest(body: str, buffers: str = "in x: f32[6]\n  out y: f32[6]\n  shared s: f32[6]") -> Nest:
    return parse_nest(f"nest k\n  {buffers}\n{body}")


X = np.arange(6, dtype=np.float32)
PASS_ON = "  alloc s\n  thread.x i in 6:\n    s: s[i] = x[i]\n"

# what is planted, and what the executor says of it
FAULTS = {
    "a missing barrier": (
        PASS_ON + "  thread.x j in 6:\n    y: y[j] = s[-j+5]\n",
        r"y: thread \(x=\d\) of block \(\) reads s\[.*writes s\[i\]: .* no barrier",
    ),
    "different values": (
        "  alloc s\n  thread.x i in 6:\n    s: s[0] = x[i]\n",
        "writes s.* and thread .* writes s",
    ),
    "a sum that not all threads reach": (
        "  thread.y a in 3:\n    y: y[a+2] = 0.0\n"
        "  thread.y j in 2:\n    y: y[j] = 1.0\n"
        "    thread.x i in 6:\n      y: y[j] add= x[i]\n",
        r"thread \(.*y=2\).* does not reach i, where the values of threads are combined",
    ),
    "an update in every thread": (
        "  y: y[0] add= x[1]\n  thread.x i in 5:\n    y: y[i+1] = 1.0\n",
        "writes y",
    ),
    "neighbours in global memory": (
        "  thread.x i in 5:\n    y: y[i] = y[i+1]\n",
        "writes y.* and thread .* reads y",
    ),
    "two blocks, one cell": (
        "  block.x i in 6:\n    y: y[i//2] = x[i]\n",
        "block .i=.. writes y.*another block writes",
    ),
    "a block reads another": (
        "  block.x i in 5:\n    thread.x j in 1:\n      y: y[i] = y[i+1]\n",
        "of which another block",
    ),
    "outside when writing": (
        "  block.x b in 2:\n    thread.x i in 4:\n      y: y[4*b+i] = x[0]\n",
        r"y: y\[.*\] writes outside axis 0 of 6: index \d in thread \(x=[23]\) of block \(b=1\)",
    ),
    "outside when reading": (
        "  thread.x i in 6:\n    y: y[i] = x[i+2]\n",
        r"reads outside axis 0 of 6: index \d in thread \(x=[45]\)",
    ),
    "a barrier for some": (
        "  thread.x i in 3:\n    barrier\n  thread.x j in 6:\n    y: y[j] = x[j]\n",
        r"thread \(x=[012]\) .* waits at a barrier that thread \(x=3\)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    body, says = FAULTS[name]
    for seed in range(5):
        with pytest.raises(RunError, match=says):
            run(nest(body), {"x": X, "y": X}, seed=seed)


def test_the_private_memory_of_another_thread() -> None:
    buffers = "in x: f32[6]\n  out y: f32[6]\n  local t: f32[6]"
    own = "  block.x b in 1:\n    alloc t\n    thread.x i in 6:\n      t: t[i] = x[i]\n"
    n = nest(own + "    thread.x j in 6:\n      y: y[j] = t[j]\n", buffers)
    np.testing.assert_array_equal(run(n, {"x": X})["y"], X)
    n = nest(own + "    thread.x j in 6:\n      y: y[j] = t[-j+5]\n", buffers)
    with pytest.raises(RunError, match=r"private t, which thread \(x=\d\) wrote"):
        run(n, {"x": X})
    with pytest.raises(Refused, match="private t, which other threads write"):
        apply(n, parse_trace("Synchronise()"))


def test_a_statement_outside_thread_loops_runs_in_every_thread() -> None:
    n = nest("  alloc s\n  s: s[0] = x[3]\n  barrier\n  thread.x j in 6:\n    y: y[j] = s[0]\n")
    np.testing.assert_array_equal(run(n, {"x": X})["y"], np.full(6, 3))
    with pytest.raises(RunError, match="other threads write s"):
        run(without_barrier(n, 0), {"x": X})


def test_shared_memory_is_fresh_in_every_block() -> None:
    body = "  block.x b in 2:\n    alloc s\n    thread.x i in 3:\n      y: y[3*b+i] = s[i]\n"
    assert np.isnan(run(nest(body), {"x": X})["y"]).all()


def test_lanes_inside_threads() -> None:
    body = "  thread.x i in 3:\n    lane j in min(4,6-4*i):\n      y: y[4*i+j] = x[4*i+j] * 2.0\n"
    body = body.replace("i in 3", "i in 2")
    np.testing.assert_array_equal(run(nest(body), {"x": X})["y"], X * 2)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Invalid, match="reads x, which is not given"):
        run(nest(PASS_ON), {})


# what is unsound, and what the checks say of it
UNSOUND = [
    ("  thread.x i in 6:\n    thread.x j in 6:\n      y: y[i] = x[j]\n", "which is thread.x too"),
    ("  thread.x i in 6:\n    block.x j in 6:\n      y: y[i] = x[j]\n", "is inside thread.x i"),
    ("  for i in 6:\n    block.x j in 6:\n      y: y[i] = x[j]\n", "is inside serial i"),
    (
        "  block.x i in 6:\n    y: y[i] = 0.0\n    block.y j in 6:\n      y: y[i] = x[j]\n",
        "is not alone in block.x i",
    ),
    ("  thread.x i in 6:\n    alloc s\n    s: s[i] = x[i]\n", "allocated inside the threads"),
    ("  alloc s\n  block.x i in 6:\n    s: s[i] = x[i]\n", "allocated outside the blocks"),
    ("  thread.x i in 6:\n    for j in i:\n      barrier\n", "differs between threads"),
    ("  lane i in 6:\n    barrier\n    y: y[i] = x[i]\n", "a barrier inside lane i"),
]


@pytest.mark.parametrize("body, says", UNSOUND)
def test_unsound_nests_are_named(body: str, says: str) -> None:
    buffers = "in x: f32[6]\n  out y: f32[6]" + ("\n  shared s: f32[6]" if "alloc" in body else "")
    with pytest.raises(CheckFailed, match=says):
        verify(nest(body, buffers))


# (steps before, the step, what its refusal says)
REFUSALS = [
    ("", "Bind('s.r0', 'block.x')", "accumulates into s.*\n.*RFactor first"),
    ("", "Bind('y.i0', 'warp.x')", "warp.x is not an axis"),
    ("Bind('y.i0', 'thread.x')", "Bind('y.i0', 'block.x')", "is already thread.x"),
    ("Bind('s.i0', 'block.x')", "Bind('s.init.i0', 'block.x')", None),
    ("Split('y.i0', 2)\nBind('y.i0.0', 'thread.x')", "Bind('y.i0.1', 'thread.x')", "too"),
    ("Split('y.i0', 2)\nBind('y.i0.0', 'thread.x')", "Bind('y.i0.1', 'block.x')", "is inside"),
    ("", "Synchronise()", "no loop is bound to threads"),
    ("Bind('y.i0', 'thread.x')", "Synchronise()", "updates s.* in every thread of thread.x"),
    (
        "ComputeAt('s', 'y.i0')\nBind('y.i0', 'thread.x')",
        "SetScope('s', 'shared')",
        "inside the th",
    ),
    ("Bind('y.i0', 'block.x')", "SetScope('s', 'shared')", "outside the blocks that use it"),
    ("", "SetScope('s', 'texture')", "texture is not a scope"),
]


@pytest.mark.parametrize("before, step, says", REFUSALS)
def test_refusals(before: str, step: str, says: str | None) -> None:
    n = apply(start(parse_group(SUM)), parse_trace(before))
    if says is None:
        verify(apply(n, parse_trace(step)))
        return
    with pytest.raises(Refused, match=says):
        apply(n, parse_trace(step))


def test_threads_need_a_constant_bound() -> None:
    n = start(parse_group(MATMUL))
    with pytest.raises(Refused, match="no constant bound for its threads"):
        apply(n, parse_trace("Bind('y.i0', 'thread.x')"))
    apply(n, parse_trace("Bind('y.i0', 'block.x')"))


@pytest.mark.parametrize(
    "body, says",
    [
        ("  block.x i in 6:\n    y: y[i] = x[i]\n", "i is bound to block.x, which a CPU does not"),
        (
            "  thread.y i in 6:\n    y: y[i] = x[i]\n",
            "i is bound to thread.y, which a CPU does not",
        ),
        ("  barrier\n  y: y[0] = x[0]\n", "a barrier between threads"),
        ("  alloc s\n  s: s[0] = x[0]\n", "s is shared by the threads of a block"),
    ],
)
def test_a_cpu_has_no_blocks(body: str, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        emit(legalise(nest(body), default()), default())


def bound_at_random(seed: int) -> tuple[Judge, Nest] | None:
    """A random group under random steps, then with random blocks, threads and shared buffers."""
    s = sample(seed)
    rng = random.Random(seed)
    n = start(s.group)

    def attempt(step: Step | None) -> None:
        nonlocal n
        try:
            after = step.apply(n) if step is not None else n
        except TilewrightError:
            return
        n = after if effort(after.body) < 200 else n

    for _ in range(rng.randint(0, 8)):
        attempt(random_step(n, rng))
    bind_some(lambda: n, attempt, rng, 0.7)
    try:
        n = Synchronise().apply(n)
    except Refused:
        return None
    return Judge(s.group, list(s.dims), seed), n


@pytest.mark.parametrize(
    "seeds",
    [pytest.param(SEEDS, id="few"), pytest.param(MORE, id="more", marks=pytest.mark.slow)],
)
def test_random_threads_agree_with_the_loops_in_order(seeds: Sequence[int]) -> None:
    ran = talked = 0
    for seed in seeds:
        made = bound_at_random(seed)
        if made is None:
            continue
        judge, n = made
        judge.nest(n)
        for k, (a, d) in enumerate(zip(judge.inputs, judge.dims)):
            try:
                judge.compare(run(n, a, d, seed), k, "the SIMT executor")
            except Exception as e:
                raise AssertionError(f"seed {seed}:\n{nest_text(n)}{e}") from e
        ran += 1
        talked += barriers(n) > 0
    assert ran > len(seeds) // 5 and talked > len(seeds) // 40, (
        f"{ran} ran, {talked} of them with barriers"
    )


def test_what_is_pending_after_a_loop() -> None:
    """The same cell in every iteration, then read by others: a barrier in between."""
    text = """
nest k
  in x: i32[17]
  out y: i32[17]
  local t: i32[1]
  alloc t
  t: t[0] = 9:i32
  for r in 3:
    thread.x i in 17:
      t: t[0] min= x[i]
  thread.x j in 17:
    y: y[j] = t[0]
"""
    n = Synchronise()(parse_nest(text.lstrip()))
    x = np.arange(17, dtype=np.int32)
    np.testing.assert_array_equal(run(n, {"x": x})["y"], np.zeros(17))


@pytest.mark.parametrize(
    ("cell", "needed"),
    [
        ("t[4*r+i//2,i%2]", False),  # the digits of a thread's number tell which it is
        ("t[4*r+i//2,1-i%2]", True),
        ("t[4*r+i%4,i//4]", True),
    ],
)
def test_digits_of_a_thread(cell: str, needed: bool) -> None:
    text = f"""
nest k
  in x: f32[8]
  out y: f32[24]
  shared t: f32[12,2]
  block.x b in 1:
    alloc t
    for r in 3:
      thread.x i in 8:
        t: t[4*r+i//2,i%2] = x[i]
      thread.x i in 8:
        y: y[8*r+i] = {cell}
"""
    n = Synchronise()(parse_nest(text.lstrip()))
    assert any(isinstance(s, Barrier) for s, _ in walk(n.body)) == needed
    run(n, {"x": np.arange(8, dtype="f")})
