"""Values without elements: whatever they are made of, what is around them is right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.running import run_graph
from tests.graph.build import arg, build
from tilewright.base.events import Log
from tilewright.graph.empty import EmptyValues
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node

x = arg("x", 4, 1)


@pytest.mark.parametrize(
    "inner",
    [build.tanh(x), build.cumsum(x, 0), build.amax(x, (1,), True), build.matmul(x, arg("w", 1, 3))],
    ids=["map", "scan", "reduction", "product"],
)
def test_an_empty_part_of_a_computed_value(inner: Node) -> None:
    """Cut to nothing and padded again: nobody reads what the part is of."""
    nothing = build.slice(inner, 1, 1, 1, 1)
    both = build.concat([build.pad(nothing, (0, 1), (0, 0), 0.5), nothing], 1)
    inputs = tuple(n for n in Graph("g", (), (both,)).nodes() if n.op.name == "input")
    graph = Graph("g", inputs, (both, nothing))
    args = [np.ones([int(d) for d in n.shape], np.float32) for n in inputs]  # type: ignore[arg-type]
    for got, want in zip(run_graph(graph, args), evaluate(graph, args), strict=True):
        np.testing.assert_array_equal(got, want)


def test_nothing_is_left_under_an_empty_value() -> None:
    graph = Graph("g", (x,), (build.sum(build.slice(build.tanh(x), 1, 1, 1, 1), (1,), False),))
    after = EmptyValues().apply(graph, Log())
    assert [n.op.name for n in after.nodes() if n.op.name != "input"] == ["full", "sum"]


@pytest.mark.parametrize("values", [build.relu(x), build.cumsum(x, 0)], ids=["map", "scan"])
def test_an_operand_that_is_read_nowhere(values: Node) -> None:
    """A pad that cuts off all there is and adds as much."""
    cut = build.pad(values, (0, -1), (0, 1), 0.25)
    wide = build.sigmoid(build.concat([cut, cut], 1))
    graph = Graph("g", (x,), (wide, build.cumprod(wide, 0)))
    after = [n.op.name for n in EmptyValues().apply(graph, Log()).nodes()]
    assert values.op.name not in after
    args = [np.ones((4, 1), np.float32)]
    for got, want in zip(run_graph(graph, args), evaluate(graph, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
