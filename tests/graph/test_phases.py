"""Transposed convolutions with strides, one plain convolution for each phase of results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import arg, graph
from tilewright.base.events import Log
from tilewright.graph.phases import Phases
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Node, topological
from tilewright.ir.positions import static
from tilewright.ir.types import f64
from tilewright.ops.conv_gradients import conv_backward_input
from tilewright.ops.convolution import conv


def given(label: str, *shape: int) -> Node:
    return arg(label, *shape, dtype=f64)


def transposed(kernel: int, stride: int, padding: int, extra: int) -> Node:
    x, w = given("x", 1, 4, 4, 5), given("w", 4, 3, kernel, kernel)
    return conv(x, w, stride, padding, 1, 1, True, extra)


CASES = {
    "a gradient": lambda: conv_backward_input(
        given("g", 1, 4, 4, 3), given("w", 4, 3, 3, 3), (1, 3, 8, 6), 2, 1
    ),
    "windows apart": lambda: transposed(2, 2, 0, 0),
    "pixels without a tap": lambda: transposed(2, 3, 0, 1),
    "a wide edge": lambda: transposed(3, 2, 3, 1),
    "several taps": lambda: transposed(5, 3, 2, 0),
}


@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(name: str, least: int) -> None:
    y = CASES[name]()
    before = graph(y)
    w = before.inputs[1]
    few = static(w.shape)[1] < least <= static(w.shape)[0]
    after = Phases(least=least).apply(before, Log())
    assert ("zero_insert" in {n.op.name for n in topological(after.outputs)}) != few
    assert y not in topological(after.outputs)
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=static(n.shape)) for n in before.inputs}
    (want,), (got,) = (evaluate(g, [values[n] for n in g.inputs]) for g in (before, after))
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def test_others_stay_as_they_are() -> None:
    for y in (transposed(3, 1, 1, 0), transposed(1, 2, 0, 0)):
        assert Phases(least=1).apply(graph(y), Log()).outputs == (y,)
    few = CASES["a gradient"]()  # of few channels
    assert Phases().apply(graph(few), Log()).outputs == (few,)
