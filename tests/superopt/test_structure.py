"""Operators on many tensors at once, and the forms in which they are linear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Op, input, node
from tilewright.ir.operator import OPERATORS
from tilewright.ir.types import TensorType, f64
from tilewright.superopt.structure import Structure

O: dict[str, Any] = dict(OPERATORS)
CASES: dict[str, tuple[Op, tuple[tuple[int, ...], ...], str]] = {
    "matmul": (O["matmul"](), ((2, 3), (3, 4)), "bilinear"),
    "product with a scalar": (O["mul"](), ((2, 3), ()), "bilinear"),
    "sum": (O["add"](), ((2, 3), (3,)), "linear"),
    "concat": (O["concat"](axis=1), ((2, 3), (2, 1)), "linear"),
    "slice": (O["slice"](1, 1, 3), ((2, 3),), "linear"),
    "positive part": (O["relu"](), ((2, 3),), "other"),
    "maximum": (O["maximum"](), ((2, 3), (2, 3)), "other"),
    "row sums": (O["sum"]((1,), True), ((2, 3),), "linear"),
    "convolution": (O["conv"]((1, 2), (1, 0), (1, 1)), ((1, 2, 4, 5), (3, 2, 3, 1)), "bilinear"),
    "pool": (O["avg_pool"]((3, 3), (1, 1), (1, 1), divisor=1), ((1, 2, 4, 4),), "linear"),
    "softmax": (O["softmax"](axis=1), ((2, 3),), "other"),
}


@pytest.mark.parametrize("name", CASES)
def test_many_at_once(name: str) -> None:
    op, shapes, form = CASES[name]
    s = Structure(op, shapes)
    rng = np.random.default_rng(3)
    rows = [rng.integers(-9, 10, (5, int(np.prod(x)))).astype(float) for x in shapes]
    ins = [input(f"x{k}", TensorType(f64, x)) for k, x in enumerate(shapes)]
    one = Graph("one", tuple(ins), (node(op, *ins),))
    want = [
        evaluate(one, [r[k].reshape(x) for r, x in zip(rows, shapes, strict=True)])[0].reshape(-1)
        for k in range(5)
    ]
    np.testing.assert_array_equal(s(*rows), want)
    assert s.form == form
    if form == "linear":
        np.testing.assert_array_equal(
            sum(r @ m for r, m in zip(rows, s.matrices, strict=True)), want
        )
    if form == "bilinear":
        weights = rng.integers(1, 99, s.size).astype(float)
        found = np.einsum("ni,nj,ij->n", *rows, s.forms(weights, 101))
        np.testing.assert_array_equal(found % 101, np.asarray(want) @ weights % 101)


def test_the_first_of_several_results() -> None:
    s = Structure(O["max_pool"]((3, 3), (1, 1), (1, 1), (1, 1)), ((1, 1, 4, 4),))
    x = np.arange(16.0).reshape(1, 16)
    assert s.shape == (1, 1, 4, 4) and s(x)[0, -1] == 15 and s.form == "other"
