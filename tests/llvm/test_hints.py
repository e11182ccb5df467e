"""Hints in the code: prefetches, loops that LLVM unrolls, results that go past the caches."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright.kernel.steps  # noqa: F401  (fills STEPS)
from tests.kernel.native import Native
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly
from tilewright.targets import default, get

MAP = """
group map where n: 1..
  in x: f32[n]
  out y: f32[n]
  y[y.i0] = x[y.i0] + 1.0 for y.i0 in n
"""
SUM = """
group sum
  in x: f32[5,64]
  out y: f32[5]
  local s: f32[5]
  s[s.i0] add= x[s.i0,s.r0] for s.i0 in 5, s.r0 in 64 from 0.0
  y[y.i0] = s[y.i0] for y.i0 in 5
"""
X86, ARM = "x86-64-v3", "arm64"
VECTORS = "Split('y.i0', 8)\nPeel('y.i0.0')\nVectorize('y.i0.1')\n"


def scheduled(group: str, steps: str) -> Nest:
    n = apply(start(parse_group(group)), parse_trace(steps))
    assert parse_nest(nest_text(n)) == n
    return n


def code(n: Nest, target: str) -> str:
    return assembly(emit(legalise(n, get(target)), get(target)), get(target))


@pytest.mark.parametrize(("target", "word"), [(X86, "prefetcht0"), (ARM, "prfm\tpldl1keep")])
def test_a_prefetch_is_an_instruction_and_no_load(target: str, word: str) -> None:
    steps = "Prefetch('x', 'y.i0.0', 4)\n"
    plain, asked = (code(scheduled(MAP, VECTORS + s), target) for s in ("", steps))
    assert word in asked and word not in plain
    n = scheduled(MAP, VECTORS + steps)
    text = emit(legalise(n, get(target)), get(target))
    assert text.count("load <8 x float>") == 1  # the prefetched address is not read


def test_a_prefetch_past_the_end_touches_nothing() -> None:
    compiled = Native(scheduled(MAP, "Prefetch('x', 'y.i0', 100000)"))
    x = np.arange(7, dtype="f")
    assert compiled.strays({"x": x}, {"n": 7}) is None
    np.testing.assert_array_equal(compiled({"x": x}, {"n": 7})["y"], x + 1)


def test_a_prefetch_among_lanes_asks_once() -> None:
    n = scheduled(MAP, "Prefetch('x', 'y.i0')\nSplit('y.i0', 4)\nPeel('y.i0.0')\n")
    n = apply(n, parse_trace("Vectorize('y.i0.1')"))
    text = emit(legalise(n, default()), default())
    assert text.count("call void @llvm.prefetch") == 2  # for the vectors and for the rest
    x = np.arange(11, dtype="f")
    np.testing.assert_array_equal(Native(n)({"x": x}, {"n": 11})["y"], x + 1)


@pytest.mark.parametrize("target", [X86, ARM])
def test_llvm_unrolls_what_asks_for_it_and_nothing_else(target: str) -> None:
    adds = re.compile(r"^\s+v?f?adds?s?\s.*(xmm|\bs\d)", re.M)
    plain = len(adds.findall(code(scheduled(SUM, ""), target)))
    inner = len(adds.findall(code(scheduled(SUM, "Pragma('s.r0', 'unroll', 8)"), target)))
    outer = len(adds.findall(code(scheduled(SUM, "Pragma('s.i0', 'unroll', 5)"), target)))
    assert plain == 1
    assert inner == 8
    assert outer == 5


@pytest.mark.parametrize("n", [1, 3, 4, 11])
def test_an_unrolled_loop_computes_the_same(n: int) -> None:
    x = np.arange(n, dtype="f")
    compiled = Native(scheduled(MAP, "Pragma('y.i0', 'unroll', 4)"))
    np.testing.assert_array_equal(compiled({"x": x}, {"n": n})["y"], x + 1)


def test_no_pass_for_modules_that_do_not_ask() -> None:
    assert "llvm.loop" not in emit(legalise(scheduled(SUM, ""), default()), default())
    text = emit(legalise(scheduled(SUM, "Pragma('s.r0', 'unroll', 8)"), default()), default())
    assert text.count("!llvm.loop !") == text.count("distinct !{")
    assert text.count('!"llvm.loop.unroll.count", i32 8') == 1
    assert text.count('!"llvm.loop.unroll.disable"') == 1


def test_results_go_past_the_caches_and_others_do_not() -> None:
    stream = "Pragma('y.i0.0', 'nontemporal')\n"
    n = scheduled(MAP, VECTORS + stream)
    text = emit(legalise(n, get(X86)), get(X86))
    assert text.count("!nontemporal !0") == 1  # the peeled rest is outside
    assert text.count("fence seq_cst") == 1
    off = emit(
        legalise(scheduled(MAP, VECTORS + stream + stream.replace("')", "', 0)")), get(X86)),
        get(X86),
    )
    assert "nontemporal" not in off and "fence" not in off
    kept = scheduled(SUM, "ComputeAt('s', 'y.i0')\nPragma('y.i0', 'nontemporal')")
    assert emit(legalise(kept, get(X86)), get(X86)).count("!nontemporal") == 1  # y, not s
    x = np.arange(19, dtype="f")
    np.testing.assert_array_equal(Native(n)({"x": x}, {"n": 19})["y"], x + 1)


@pytest.mark.parametrize("target", ["x86-64", X86, "x86-64-v4", ARM])
def test_every_target_takes_every_hint(target: str) -> None:
    hints = "Prefetch('x', 'y.i0.0')\nPragma('y.i0.0', 'nontemporal')\n"
    assert code(scheduled(MAP, VECTORS + hints + "Pragma('y.i0.0', 'unroll', 2)"), target)


def test_hints_stay_on_loops_that_are_split_and_fused() -> None:
    n = scheduled(SUM, "Pragma('s.r0', 'unroll', 4)\nSplit('s.r0', 16)\n")
    assert "for s.r0.1 in 16 pragma unroll 4:" in nest_text(n)
    n = scheduled(SUM, "Pragma('s.i0', 'nontemporal')\nFuse('s.i0', 's.r0', 'f')\n")
    assert "for f in 320 of s.f pragma nontemporal 1:" in nest_text(n)


CHOICES = """
nest k where m: 0..
  in p: *f32
  in t: i32[8]
  in c: bool[8]
  in x: f32[6]
  in z: f32[5,8]
  out y: f32[4,8]
  lane j in 8:
    y: y[0,j] = select(#(j) < 6, x[j], 1.0)
  for i in 6:
    lane j in 8:
      y: y[1,j] add= select(#(i) < 5, z[i,j], 0.0)
  lane j in 8:
    y: y[2,j] = p[${t[j]}]
  lane j in 8:
    y: y[3,j] = select(c[j], p[j], 0.0)
"""
SIGNS = {  # what the text has for a pragma
    "edges": r"phi <8 x float>",
    "zeros": r"= alloca <8 x float>",
    "adjacent": r"call i1 @llvm.vector.reduce.and.v8i1",
    "cold": r"define internal .*@tw.masked.load",
}


@pytest.mark.parametrize("hint", SIGNS)
def test_how_lanes_touch_memory_is_said_in_the_nest(hint: str) -> None:
    """The emitter takes it from there: what is edited out is not done."""
    target = replace(default(), has_masks=False)
    legal = nest_text(legalise(parse_nest(CHOICES), target))
    assert f" {hint} 1" in legal
    without = legal.replace(f" {hint} 1", f" {hint} 0")
    found, left = (
        len(re.findall(SIGNS[hint], emit(parse_nest(x), target))) for x in (legal, without)
    )
    assert found > left


ROWS = """
group rows
  in x: f32[3,70]
  in at: i32[40]
  out y: f32[3,40]
  y[y.i0,y.i1] = x[y.i0,${cast<i64>(at[y.i1])}] for y.i0 in 3, y.i1 in 40
"""


@pytest.mark.parametrize("gathers", [True, False])
def test_data_as_indices_are_gathered_by_an_instruction(gathers: bool) -> None:
    target = replace(default(), gathers=gathers)
    n = scheduled(ROWS, "Split('y.i1', 8)\nVectorize('y.i1.1')")
    legal = legalise(n, target)
    assert ("pragma gather" in nest_text(legal)) is gathers
    assert ("@llvm.masked.gather.v8f32" in emit(legal, target)) is gathers
    draw = np.random.default_rng(3)
    x, at = draw.random((3, 70), np.float32), draw.integers(0, 70, 40, np.int32)
    np.testing.assert_array_equal(Native(n, target)({"x": x, "at": at})["y"], x[:, at])


PIECES = """
group pieces
  in x: f32[3,20]
  out y: f32[3,24]
  y[y.i0,y.i1] = select(#(y.i1) < 2, x[y.i0,y.i1+18], select(#(y.i1) < 22, x[y.i0,y.i1-2], x[y.i0,41-y.i1])) for y.i0 in 3, y.i1 in 24
"""  # noqa: E501


@pytest.mark.parametrize("masks", [True, False])
def test_lanes_at_the_ends_of_pieces_are_one_vector_under_a_mask(masks: bool) -> None:
    """Forward and backward; without such loads they are read one by one."""
    target = replace(default(), has_masks=masks)
    n = legalise(scheduled(PIECES, "Split('y.i1', 8)\nVectorize('y.i1.1')"), target)
    assert ("@llvm.masked.load.v8f32" in emit(n, target)) is masks
    x = np.random.default_rng(4).random((3, 20), np.float32)
    right = np.concatenate([x[:, 18:], x, x[:, :17:-1]], 1)
    np.testing.assert_array_equal(Native(n, target)({"x": x})["y"], right)
