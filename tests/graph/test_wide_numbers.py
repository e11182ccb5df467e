"""Numbers that are made of a power are computed in float64, tensors as before."""

import numpy as np

from tests.graph.build import arg
from tilewright import ops
from tilewright.base.events import Log
from tilewright.graph.wide_numbers import WideNumbers
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph
from tilewright.ir.types import f32, f64


def test_a_difference_keeps_its_digits() -> None:
    step, x = arg("step"), arg("x", 3)
    one, base = ops.full((), 1.0, f32), ops.full((), 0.999, f32)
    left = ops.sub(one, ops.pow(base, step))
    g = Graph("g", (step, x), (left, ops.div(x, left)))
    wide = WideNumbers().apply(g, Log())
    args = [np.array(1.0, np.float32), np.array([1.0, 2.0, 3.0], np.float32)]
    exact = 1 - 0.999
    narrow, found = (float(evaluate(y, args)[0]) for y in (g, wide))
    assert abs(found / exact - 1) < 1e-7 < abs(narrow / exact - 1)
    assert [o.type for o in wide.outputs] == [o.type for o in g.outputs]
    assert not any(n.dtype is f64 for n in wide.nodes() if n.rank)
    np.testing.assert_allclose(evaluate(wide, args)[1], args[1] / exact, 1e-6)


def test_other_graphs_stay_as_they_are() -> None:
    x = arg("x", 3)
    g = Graph("g", (x,), (ops.pow(x, x),))
    assert WideNumbers().apply(g, Log()) is g
