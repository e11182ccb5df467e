"""Weights that several steps of a program share, and what a search costs before it begins."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest

from tilewright import ops, targets
from tilewright.base.events import Log
from tilewright.graph.align import SinkReshapes
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, f32
from tilewright.superopt.classes import Classes
from tilewright.superopt.saturate import Budget
from tilewright.superopt.search import search, search_pieces
from tilewright.superopt.seconds import Seconds, constant_classes

TARGET = targets.default()
BUDGET = Budget(seconds=30.0, members=2_000)


def tensor(name: str, *shape: int) -> Node:
    return input(name, TensorType(f32, shape))


def weight(name: str, *shape: int) -> Node:
    return input(name, TensorType(f32, shape), "weight")


def recurrent(steps: int, width: int = 64) -> Graph:
    """Two gates of an input and of the state, the weights the same in each step."""
    xs = [tensor(f"x{k}", 1, width) for k in range(steps)]
    of_input, of_state = ([weight(f"{n}{k}", width, width) for k in range(2)] for n in "uv")
    first = state = tensor("h", 1, width)
    for x in xs:
        a, b = (
            ops.add(ops.matmul(x, u), ops.matmul(state, v))
            for u, v in zip(of_input, of_state, strict=True)
        )
        state = ops.mul(ops.tanh(a), ops.sigmoid(b))
    return Graph("recurrent", (*xs, first, *of_input, *of_state), (state,))


def products(g: Graph) -> list[tuple[int, ...]]:
    """The shapes of products that run at each call."""
    constant = constant_classes(Classes(g.outputs))
    return [static(n.shape) for n in g.nodes() if n.op.name == "matmul" and n not in constant]


@pytest.mark.parametrize("most", [8, 100])
def test_weights_are_read_once_for_all_steps(most: int) -> None:
    """What the steps multiply by the same weights is multiplied at once, in however many pieces the
    graph is searched; what needs the step before is not, but all its gates are one product."""
    g = recurrent(4)
    assert Counter(products(g)) == {(1, 64): 16}
    whole = search_pieces(g, TARGET, BUDGET, most)
    found = Counter(products(whole.graph))
    assert found[(1, 128)] == 4 and found[(4, 64)] + 2 * found[(4, 128)] == 2
    assert whole.after < whole.before
    weights = {
        n.inputs[1] for n in whole.graph.nodes() if n.op.name == "matmul" and n.shape[0] == 1
    }
    assert len(weights) == 1, "put together in one way"
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(static(n.shape)) / 8 for n in g.inputs]
    for a, b in zip(evaluate(g, args), evaluate(whole.graph, args), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()


def test_an_operator_that_is_written_in_others_costs_what_these_do() -> None:
    """Not what its operands cost as well: attention looks at what its keys are made of."""
    costs: list[float] = []
    q = tensor("q", 1, 2, 16, 8)
    for _ in range(3):
        q = ops.attention(q, ops.permute(ops.permute(q, (0, 1, 3, 2)), (0, 1, 3, 2)), q)
        costs.append(Seconds(TARGET)(q))
    assert costs[0] == pytest.approx(costs[1]) == pytest.approx(costs[2])


def test_sums_with_nothing_do_not_grow() -> None:
    """Zero and zero is zero: otherwise there would be no end of sums."""
    zero = ops.full((1, 8), 0.0, f32)
    x = ops.add(ops.add(tensor("x", 1, 8), zero), ops.matmul(zero, weight("w", 8, 8)))
    g = Graph("g", (), (ops.add(ops.tanh(x), zero),))
    found = search(g, TARGET, BUDGET)
    assert found.ended == "saturated" and found.members < 100


def test_reshapes_between_products_and_their_sum() -> None:
    """An adapter as a frontend leaves it: products of rows, sums of a batch of them."""
    x = tensor("x", 32, 64)
    wide = ops.matmul(x, weight("w", 64, 64))
    low = ops.matmul(ops.matmul(x, weight("a", 64, 4)), weight("b", 4, 64))
    two = ops.full((), 2.0, f32)
    shape = (1, 32, 64)
    y = ops.add(ops.reshape(wide, shape), ops.mul(ops.reshape(low, shape), two))
    g = SinkReshapes().apply(Graph("g", (), (ops.softmax(y, 2),)), Log())
    (made,) = products(search(g, TARGET, BUDGET).graph)
    assert prod(made) == 32 * 64
