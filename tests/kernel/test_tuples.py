"""Reductions over tuples with a combiner of their own: steps, text, numpy and native code."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.kernel.steps  # noqa: F401  (a trace names its steps)
from tests.kernel.native import Native
from tilewright.base.errors import Invalid
from tilewright.ir import expr as E
from tilewright.ir.combine import combiner
from tilewright.ir.interpret import tensor
from tilewright.ir.types import f32, i64
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import run
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import group_text, nest_text, parse_group, parse_nest

ARGMAX = """\
group k
  in a0: f32[7,37]
  out y0: i64[7]
  out y1: f32[7]
  local t0: (i64,f32)[7]
  combine argmax: select(l1[] > r1[] | l1[] == r1[] & l0[] < r0[], l0[], r0[]); max(l1[], r1[]) \
from -1; -inf
  t0[t0.i0] argmax= tuple(#(t0.r0), a0[t0.i0,t0.r0]) for t0.i0 in 7, t0.r0 in 37 \
from tuple(-1, -inf)
  y0[y0.i0] = item(t0[y0.i0], 0) for y0.i0 in 7
  y1[y1.i0] = item(t0[y1.i0], 1) for y1.i0 in 7
"""
# Softmax's denominator and maximum in one pass: both sides are rescaled to the larger maximum.
ONLINE = """\
group k where N: 1..
  in a0: f32[N,37]
  out y0: f32[N,37]
  local t0: (f32,f32)[N]
  combine rescaled: max(l0[], r0[]); \
l1[] * exp(l0[] - max(l0[], r0[])) + r1[] * exp(r0[] - max(l0[], r0[])) from -1e+30; 0.0
  t0[t0.i0] rescaled= tuple(a0[t0.i0,t0.r0], 1.0) for t0.i0 in N, t0.r0 in 37 \
from tuple(-1e+30, 0.0)
  y0[y0.i0,y0.i1] = exp(a0[y0.i0,y0.i1] - item(t0[y0.i0], 0)) / item(t0[y0.i0], 1) \
for y0.i0 in N, y0.i1 in 37
"""
TRACES = {
    "naive": "",
    "lanes over results": """
        Split('t0.i0', 4)
        Reorder(('t0.i0.0', 't0.r0', 't0.i0.1'))
        Peel('t0.i0.0')
        Vectorize('t0.i0.1', masked=True)
    """,
    "partial results": """
        Split('t0.r0', 8)
        RFactor('t0', ('t0.r0.1',), 'p')
        Peel('p.r0.0')
        Vectorize('p.init.i1')
        Vectorize('p.r0.1')
    """,
    "lanes over partial results": """
        Split('t0.r0', 8)
        RFactor('t0', ('t0.r0.1',), 'p')
        Vectorize('t0.r0.1')
    """,
    "threads": "Parallel('t0.i0')",
}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


PLACED = {"placed": "ComputeWith('y1', 'y0.i0')\nComputeAt('t0', 'y0.i0')"} | TRACES


@pytest.mark.parametrize("trace", PLACED.values(), ids=PLACED)
def test_argmax(trace: str) -> None:
    nest = apply(start(parse_group(ARGMAX)), parse_trace(trace))
    assert parse_nest(nest_text(nest)) == nest
    a = numbers(7, 37)
    a[3, 5] = a[3, 30] = a[3].max() + 1  # the first of equal ones
    for got in (run(nest, {"a0": a}), Native(nest)({"a0": a})):
        np.testing.assert_array_equal(got["y0"], a.argmax(1))
        np.testing.assert_array_equal(got["y1"], a.max(1))


ONE = {"placed": "ComputeAt('t0', 'y0.i0')"} | TRACES


@pytest.mark.parametrize("trace", ONE.values(), ids=ONE)
def test_softmax_in_one_pass(trace: str) -> None:
    nest = apply(start(parse_group(ONLINE)), parse_trace(trace))
    a = 10 * numbers(6, 37)
    wide = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    expected = wide / wide.sum(1, keepdims=True)
    for got in (run(nest, {"a0": a}, {"N": 6}), Native(nest)({"a0": a}, {"N": 6})):
        np.testing.assert_allclose(got["y0"], expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("text", [ARGMAX, ONLINE])
def test_text(text: str) -> None:
    group = parse_group(text)
    assert isinstance(group, Group)
    assert group_text(group) == text
    assert parse_group(group_text(group)) == group


def test_a_combiner_that_is_no_combiner() -> None:
    with pytest.raises(Invalid, match="one constant per component"):
        parse_group(ARGMAX.replace("; max(l1[], r1[])", ""))


def test_definitions_reduce_tuples_too() -> None:
    first = combiner(
        "first_largest",
        lambda l, r: (
            E.select((l[1] > r[1]) | (l[1].eq(r[1]) & (l[0] < r[0])), l[0], r[0]),
            E.fn("max", l[1], r[1]),
        ),
        (E.const(-1, i64), E.const(float("-inf"), f32)),
    )
    x = E.placeholder((3, 5))
    pair = E.compute(
        (3,), lambda i: E.reduce(first, (5,), lambda r: E.tuple_of(E.index(r), x[i, r]))
    )
    a = numbers(3, 5)
    index, largest = tensor(pair, {x: a}, {})
    np.testing.assert_array_equal(index, a.argmax(1))
    np.testing.assert_array_equal(largest, a.max(1))


def test_components_that_are_not_there() -> None:
    with pytest.raises(TypeError, match="no component 2"):
        E.item(E.tuple_of(E.const(1, i64), E.const(2.0, f32)), 2)
