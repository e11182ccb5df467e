"""Definitions evaluated in float64: no float is rounded to its own dtype, and that is all."""

from __future__ import annotations

import numpy as np

from tests.graph.build import arg, build, graph
from tilewright.ir.agreement import disagreement, small_sizes
from tilewright.ir.dim import sym, the_sym
from tilewright.ir.in_double import in_double
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input, item, node
from tilewright.ir.types import TensorType, as_dtype, bf16, f32, i32
from tilewright.ops.control import Cond


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_products_of_halves_are_not_rounded() -> None:
    a, b = arg("a", 3, 9, dtype=bf16), arg("b", 9, 4, dtype=bf16)
    x, y = as_dtype(normal(3, 9), bf16), as_dtype(normal(9, 4), bf16)
    program = graph(build.cast(build.exp(build.matmul(a, b)), f32))
    (found,) = in_double(program, [x, y])
    exact = np.exp(x.astype(np.float64) @ y.astype(np.float64))
    assert found.dtype == np.float64 and np.allclose(found, exact, 1e-12)
    (own,) = evaluate(program, [x, y])
    assert not np.allclose(own, exact, 1e-6)


def test_scans_and_branches() -> None:
    x = normal(5)
    (sums,) = in_double(graph(build.cumsum(arg("x", 5), 0)), [x])
    assert np.array_equal(sums, np.cumsum(x.astype(np.float64)))
    a = input("a", TensorType(f32, (5,)))
    then, other = Graph("t", (a,), (build.exp(a),)), Graph("o", (a,), (build.neg(a),))
    made = node(
        Cond(then, other), build.gt(build.sum(arg("x", 5), (0,), False), 100.0), arg("x", 5)
    )
    (found,) = in_double(graph(item(made, 0)), [x])
    assert found.dtype == np.float64 and np.array_equal(found, -x)


def test_integers_wrap() -> None:
    x = np.array([2**31 - 1, 5], np.int32)
    (found,) = in_double(graph(build.add(arg("x", 2, dtype=i32), arg("x", 2, dtype=i32))), [x])
    assert found.dtype == np.int32 and list(found) == [-2, 10]


def test_when_results_agree() -> None:
    x = np.array([1.0, 2.0, np.inf, np.nan], np.float32)
    assert disagreement(x, x.copy(), f32) is None
    assert disagreement(x * np.float32(1 + 1e-6), x, f32) is None
    assert "same bits" in str(disagreement(x * np.float32(1 + 1e-6), x, f32, exact=True))
    assert "error is" in str(disagreement(x + 1, x, f32))
    assert "NaN" in str(disagreement(np.abs(np.nan_to_num(x)), x, f32))
    assert "shape" in str(disagreement(x[:2], x, f32))
    assert "1 of 2" in str(disagreement(np.array([1, 2]), np.array([1, 3]), i32))


def test_sizes_are_small_and_fit_their_bounds() -> None:
    n, m = sym("N", 3), sym("M", 1, 2)
    found = small_sizes([the_sym(n), the_sym(m)])
    assert found["N"] >= 3 and found["M"] in (1, 2)
