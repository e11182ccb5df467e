"""Code for GPUs, run thread by thread on this processor (tests/gpu/emulate.py)."""

from __future__ import annotations

import math
from math import prod

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.gpu import emulate, te_kernels
from tests.gpu.assembler import assemble
from tests.gpu.fake import Emulated
from tests.gpu.functions import LEAST, OF_TERMS, PARTS, SHORT, function_nest
from tests.gpu.programs import PROGRAMS, groups, inputs
from tests.kernel.fuzz import Counts, Judge, explore_threads
from tests.seeds import crossed, drawn
from tilewright import targets
from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.interpret import run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.text import parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.grid_math import FUNCTIONS
from tilewright.llvm.launch import blocks_of
from tilewright.llvm.objects import assembly
from tilewright.llvm.vmath import ERROR_BOUNDS

GPU = targets.get("cuda:90")


HOW = [(f32, (2, 256), 16), (bf16, (2, 67), 2), (bf16, (2, 1100), 16), (f32, (2, 67), 4)]


@pytest.mark.parametrize(("name", "how"), crossed(list(PROGRAMS), HOW, 4))
def test_programs(name: str, how: tuple[DType, tuple[int, int], int]) -> None:
    d, size, alignment = how
    if name in ("product", "matmul", "linear"):  # more columns are more work, not other code
        size = size[0], min(size[1], 300)
    for g in groups(PROGRAMS[name](d, *size)):
        nest = default_schedule(g, emulate.PLAIN)[1]
        args = inputs(g, {})
        want = run_group(g, args, {})
        for out, got in emulate.run(nest, args, alignment=alignment).items():
            close = 2e-2 if d is bf16 else 2e-5
            np.testing.assert_allclose(got, want[out], rtol=close, atol=close)


def test_rows_that_share_a_warp() -> None:
    (g,) = groups(PROGRAMS["softmax"](bf16, 16, 96))
    nest = default_schedule(g, GPU)[1]
    assert emit_kernels(legalise(nest, emulate.PLAIN), emulate.PLAIN).launches[0].threads == (
        4,
        16,
        1,
    )
    x = inputs(g, {})
    (got,), (want,) = emulate.run(nest, x).values(), run_group(g, x, {}).values()
    np.testing.assert_allclose(got.astype("f"), want.astype("f"), rtol=2e-2)


def lowered(made: tuple) -> Nest:
    return tw.lower(*made, target="cuda:90").nest


def test_a_length_that_is_not_known() -> None:
    nest = lowered(te_kernels.vector_add())
    x = np.random.default_rng(0).standard_normal(300).astype("f")
    np.testing.assert_array_equal(emulate.run(nest, {"a": x, "b": x}, {"n": 300})["c"], 2 * x)


@pytest.mark.parametrize("threads", [64, 20])
def test_threads_combine_partial_results(threads: int) -> None:
    nest = lowered(te_kernels.row_sums(3, 500, threads))
    x = np.random.default_rng(1).standard_normal((3, 500)).astype("f")
    got = emulate.run(nest, {"a": x})["y"]
    np.testing.assert_allclose(got, 2 * x.sum(1), rtol=1e-5, atol=1e-5)


def test_a_tiled_matmul() -> None:
    nest = lowered(te_kernels.tiled_matmul(24, 24, 10, 8, 4, 2))
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((24, 10)).astype("f"), rng.standard_normal((10, 24)).astype("f")
    got = emulate.run(nest, {"a": a, "b": b})["c"]
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)


def test_a_thread_has_registers_for_its_own_part() -> None:
    code = emit_kernels(legalise(lowered(te_kernels.tiled_matmul(512, 512, 512)), GPU), GPU)
    ptx = assembly(code.text, GPU)
    assert ".local" not in ptx
    assert all(x.spilled == 0 for x in assemble(ptx, GPU.cpu))


def test_shared_memory_that_is_asked_for() -> None:
    nest, target = te_kernels.turned(2), targets.get("cuda:80")
    (launch,) = emit_kernels(legalise(nest, target), target).launches
    assert launch.shared >= 80_000
    x = np.random.default_rng(6).standard_normal((2, 32)).astype("f")
    np.testing.assert_array_equal(emulate.run(nest, {"x": x}, target=target)["y"], x[:, ::-1])


LATE = """
nest k
  in x: f32[32]
  out y: f32[4,32]
  shared t: f32[32]
  alloc t
  thread.x i in 32:
    t: t[i] = x[i]
  for r in 4:
    barrier
    thread.x i in 32:
      y: y[r,i] = t[-i+31]
"""


def test_nothing_is_read_before_the_barrier_that_it_waits_for() -> None:
    """The read does not change in the loop, but the barrier is inside of it."""
    x = np.random.default_rng(7).standard_normal(32).astype("f")
    for _ in range(3):
        got = emulate.run(nest := parse_nest(LATE.lstrip()), {"x": x})["y"]
        np.testing.assert_array_equal(got, np.tile(x[::-1], (4, 1)))
    ptx = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    assert ptx.index("bar.sync") < ptx.index("ld.shared")


def test_atomics() -> None:
    x = np.random.default_rng(3).integers(0, 16, 500).astype("i4")
    nest = te_kernels.histogram(500, 16)
    got = emulate.run(nest, {"x": x, "y": np.zeros(16, "i4")})["y"]
    np.testing.assert_array_equal(got, np.bincount(x, minlength=16))
    assert (
        "red.global.add" in (ptx := assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU))
        or "atom" in ptx
    )


MAXIMA = """
nest k
  in x: i64[2,4,8]
  out y: i64[2]
  block.x b in 2:
    y: y[b] = -100
    barrier
    thread.y i in 4:
      thread.x j in 8:
        y: y[b] max= x[b,i,j]
"""


def test_maxima_of_integers_over_two_axes() -> None:
    x = np.random.default_rng(4).integers(-50, 50, (2, 4, 8))
    got = emulate.run(parse_nest(MAXIMA.lstrip()), {"x": x})["y"]
    np.testing.assert_array_equal(got, x.max((1, 2)))


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    unit = np.spacing(np.abs(want.astype(np.float32))).astype(np.float64)
    return np.abs(got.astype(np.float64) - want) / unit


@pytest.mark.parametrize(("name", "short"), crossed(FUNCTIONS, [False, True], 2))
def test_functions_keep_their_bounds(name: str, short: bool) -> None:
    """As far as the formulas go; how good the instructions are is measured on a GPU."""
    parts = (np.linspace(-110, 95, 380), np.linspace(-1, 1, 380), np.linspace(-9, 9, 256))
    x = np.concatenate(parts).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38], "f")
    given = np.concatenate([x, special])
    code = emit_kernels(
        legalise(nest := function_nest(name, len(given), short, 8), emulate.PLAIN), emulate.PLAIN
    )
    instruction = "nvvm.rsqrt" if name == "rsqrt" else "nvvm.ex2"
    assert (instruction in code.text) == (short or name == "tanh")
    made = {k: v.astype(np.float64) for k, v in emulate.run(nest, {"x": given}).items()}
    exact = {
        "exp": np.exp,
        "exp2": np.exp2,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "tanh": np.tanh,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "erfc": np.vectorize(math.erfc),
    }[name]
    with np.errstate(all="ignore"):
        want = exact(given.astype(np.float64))
        fits = np.isfinite(want.astype(np.float32))
        first = made["h" if short else "y"]
        np.testing.assert_array_equal(first[~fits], want[~fits].astype(np.float32))
        got = sum(made[p] for p in PARTS) if short else made["y"]
        fits &= (np.abs(want) > LEAST[name]) if short else True
        error = ulps(np.asarray(got)[fits], want[fits])
    # Of a short exp the product is rounded, of erfc more is; of others the instructions alone.
    promised = SHORT[name] if short and name in ("exp", "erfc") else ERROR_BOUNDS[name]
    assert error.max() <= promised, f"{error.max()} at {given[fits][error.argmax()]}"
    if name == "erfc":
        large = want[fits] > 0.005
        assert error[large].max() <= (128 if short else promised)


GELU = """nest k
  in x: f32[256]
  out y: bf16[256]
  block.x b in 1:
    thread.x i in 256:
      y: y[i] = cast<bf16>(0.5 * x[i] * (1.0 + erf(x[i] * 0.70710677)))
"""


def test_gelu_is_one_power_of_two() -> None:
    """Also where 1 + erf is small: the sum of two float32 would have lost its digits."""
    code = emit_kernels(legalise(nest := parse_nest(GELU), emulate.PLAIN), emulate.PLAIN)
    assert "erfc" in code.text and "tw.erf" not in code.text
    x = np.linspace(-7, 7, 256).astype(np.float32)
    got = emulate.run(nest, {"x": x})["y"].astype(np.float64)
    wide = x.astype(np.float64)
    want = 0.5 * wide * np.vectorize(math.erfc)(-wide * np.sqrt(0.5))
    np.testing.assert_allclose(got, want, rtol=2.0**-8)


SCALED = """nest k
  in x: f32[256]
  in m: f32[1]
  out h: bf16[256]
  out l: bf16[256]
  block.x b in 1:
    thread.x i in 256:
      h: h[i] = cast<bf16>(exp(x[i] * 0.125 - m[0]))
      l: l[i] = cast<bf16>(exp(x[i] * 0.125 - m[0]) - cast<f32>(h[i]))
"""


def test_exp_of_a_scaled_difference() -> None:
    """One multiply-add and a power of two, off by two more roundings of the difference's operands;
    -inf, and numbers that are none, are as they were."""
    nest = parse_nest(SCALED)
    code = emit_kernels(legalise(nest, emulate.PLAIN), emulate.PLAIN)
    assert "@llvm.fma.f32" in code.text and "nvvm.ex2.approx.ftz" in code.text
    x = np.linspace(-400, 80, 256).astype(np.float32)
    x[:2] = -np.inf, np.nan
    top = np.array([10.0], np.float32)
    made = {k: v.astype(np.float64) for k, v in emulate.run(nest, {"x": x, "m": top}).items()}
    want = np.exp(x.astype(np.float64) * 0.125 - 10.0)
    np.testing.assert_array_equal(made["h"][:2], [0.0, np.nan])
    got = (made["h"] + made["l"])[2:]
    size = np.abs(x[2:]) * 0.125 + 10.0
    # What both results are rounded to has 16 bits together.
    assert np.all(np.abs(got - want[2:]) <= (size * 2.0**-23 + 2.0**-16) * want[2:])


SUMS = """nest k
  in x: f32[512]
  out y: f32[512]
  local s: f32[1]
  block.x b in 64:
    thread.x t in 8:
      alloc s
      s: s[0] = 0.0
      s: s[0] add= {}
      y: y[8*b+t] = s[0]{}
"""


@pytest.mark.parametrize(
    ("term", "more", "instruction"),
    [
        ("exp(x[8*b+t])", "", True),
        ("2.0 * cast<f32>(select(x[8*b+t] < 0.0, exp(x[8*b+t]), 1.0))", "", True),
        ("exp(x[8*b+t]) - 1.0", "", False),  # cancels
        ("exp(exp(x[8*b+t]))", "", False),  # magnifies
        ("exp(x[8*b+t])", " + exp(x[8*b+t])", False),  # is a result, too
    ],
)
def test_terms_of_sums_have_a_formula_of_their_own(term: str, more: str, instruction: bool) -> None:
    """Good to three units, as far as it is the formula; other uses keep the promised bounds."""
    nest = parse_nest(SUMS.format(term, more))
    code = emit_kernels(legalise(nest, emulate.PLAIN), emulate.PLAIN)
    assert ("tw.grid.exp.term" in code.text) == instruction
    if not instruction or term != "exp(x[8*b+t])":
        return
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38], "f")
    x = np.concatenate([np.linspace(-110, 95, 504, dtype=np.float32), special])
    got = emulate.run(nest, {"x": x})["y"]
    with np.errstate(all="ignore"):
        want = np.exp(x.astype(np.float64))
        fits = np.isfinite(want.astype(np.float32))
        np.testing.assert_array_equal(got[~fits], want[~fits].astype(np.float32))
        assert ulps(got[fits], want[fits]).max() <= OF_TERMS


FAULTS = {
    "a block of 2000 x 1 x 1 threads is too large": "  thread.x i in 2000:\n    y: y[i] = x[i]\n",
    "a barrier that not all threads": (
        "  thread.y a in 2:\n    y: y[a] = 1.0\n"
        "  thread.y a in 1:\n    barrier\n    y: y[a] = 2.0\n"
    ),
    "reports and assertions": "  thread.x i in 9:\n    assert 0 on x[i] < 1.0\n",
    "takes 80,000 bytes in every thread": (
        "  block.x b in 2:\n    alloc s\n    for i in 20000:\n      s: s[i] = x[0]\n"
    ),
    "more than the 232,448": (
        "  block.x b in 2:\n    alloc t\n    thread.x i in 32:\n      t: t[i] = x[i]\n"
    ),
}


@pytest.mark.parametrize("message", FAULTS)
def test_refusals(message: str) -> None:
    head = "nest k\n  in x: f32[2000]\n  out y: f32[2000]\n"
    head += "  local s: f32[20000]\n  shared t: f32[90000]\n"
    with pytest.raises(Unsupported, match=message):
        emit_kernels(legalise(parse_nest(head + FAULTS[message]), GPU), GPU)


def test_a_processor_is_refused() -> None:
    nest = te_kernels.histogram(500, 16)
    with pytest.raises(Unsupported, match="has no grid"):
        emit_kernels(legalise(nest, targets.get("x86-64")), targets.get("x86-64"))


def test_sizes_that_are_not_known() -> None:
    for name in ("biased", "rms_norm"):
        (g,) = groups(PROGRAMS[name](f32, D.sym("R", 1), D.sym("C", 1)))
        nest = default_schedule(g, emulate.PLAIN)[1]
        sizes = {"R": 2, "C": 300}
        args = inputs(g, sizes)
        want = run_group(g, args, sizes)
        for out, got in emulate.run(nest, args, sizes).items():
            np.testing.assert_allclose(got, want[out], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "seed",
    drawn(
        (
            54,
            58,
            365,
            526,
            3_062,
            5_036,
            5_112,
            11_012,
            21_033,
            21_070,
            30_035,
            *range(3_000, 3_200),
        ),
        12,
    ),
)
def test_random_nests(seed: int) -> None:
    """Random groups under random steps, with random blocks, threads and shared memory."""
    group, dims, trace, why = explore_threads(seed, Counts())
    assert why is None, why
    if not trace or not isinstance(trace[-1], Synchronise):
        return  # barriers were refused
    nest = apply(start(group), trace)
    judge = Judge(group, dims, seed)
    try:
        made = emit_kernels(legalise(nest, emulate.PLAIN), emulate.PLAIN)
    except Unsupported:
        return
    sizes = dict(dims[0])
    if sum(prod(blocks_of(x, sizes)) * prod(x.threads) for x in made.launches) > 2_000:
        return  # too many threads for a processor
    judge.compare(emulate.run(nest, judge.inputs[0], sizes), 0, "emulated code")


@pytest.mark.parametrize(
    ("what", "fences"),
    [("add relaxed", 0), ("add acq_rel", 2), ("xchg release", 1), ("add acquire", 1)],
)
def test_atomic_operations_have_their_order(what: str, fences: int) -> None:
    """LLVM drops the order of `atomicrmw` for a GPU: fences stand for it."""
    target = targets.get("cuda:90")
    nest = parse_nest(f"""
nest counted
  out y: i32[8]
  block.x i in 8:
    thread.x t in 1:
      a: {what} y[0] with 1:i32
""")
    ptx = assembly(emit_kernels(legalise(nest, target), target).text, target)
    assert ptx.count("fence.acq_rel.gpu") == fences


@pytest.mark.parametrize(
    ("what", "dtype", "instruction"),
    [
        ("add relaxed", "i32", "relaxed.add.u32"),
        ("max acq_rel", "i32", "acq_rel.max.s32"),
        ("xchg release", "i32", "release.exch.b32"),
        ("add release", "f16", "release.add.noftz.f16"),
        ("add acq_rel", "bf16", "acq_rel.add.noftz.bf16"),
    ],
)
def test_atomic_operations_behind_pointers_are_one_instruction(
    what: str, dtype: str, instruction: str
) -> None:
    target = targets.get("cuda:90")
    one = "1:i32" if dtype == "i32" else f"1.0:{dtype}"
    nest = parse_nest(f"""
nest counted
  out y: *{dtype}
  block.x i in 8:
    thread.x t in 1:
      a: {what} y[i] with {one}
""")
    ptx = assembly(emit_kernels(legalise(nest, target), target).text, target)
    assert f"atom.global.gpu.{instruction}" in ptx and "fence" not in ptx
    if dtype == "bf16":  # one that an older GPU lacks
        older = targets.get("cuda:80")
        text = emit_kernels(legalise(nest, older), older).text
        assert "cmpxchg" in text and "noftz.bf16" not in text


@pytest.mark.parametrize(("dtype", "like"), [("f16", "float16"), ("bf16", "bfloat16")])
def test_narrow_floats_are_added_by_all_threads(dtype: str, like: str) -> None:
    nest = parse_nest(f"""
nest summed
  out y: *{dtype}
  block.x i in 2:
    thread.x t in 8:
      a: add relaxed y[t%2] with 0.25:{dtype}
""")
    target, y = targets.get("cuda:90"), torch.ones(2, dtype=getattr(torch, like))
    made = emit_kernels(legalise(nest, target), target)
    Emulated(made.text).run("summed", (2, 1, 1), (8, 1, 1), [y.data_ptr()])
    assert y.tolist() == [3.0, 3.0]
