"""Batches as native code: pieces of every length, calls as a whole, kernels that take sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.graph.build import arg
from tilewright import ops
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.types import TensorType, f32, i64
from tilewright.llvm.batch import PIECE
from tilewright.runtime import pool

# One element, less than a vector, a piece, one more and one less, and several pieces.
SHAPES: list[tuple[int, ...]] = [
    (1,),
    (5,),
    (3, 7),
    (PIECE,),
    (PIECE + 1,),
    (2, PIECE - 1),
    (3 * PIECE + 17,),
]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = pool.get_threads()
    pool.set_threads(request.param)
    yield
    pool.set_threads(before)


def step(shapes: list[tuple[int, ...]]) -> Graph:
    """Parameters and averages of them, and what they become."""
    lr = arg("lr")
    olds: list[Node] = []
    news: list[Node] = []
    gradients: list[Node] = []
    for k, shape in enumerate(shapes):
        p, m, g = (arg(f"{name}{k}", *shape) for name in "pmg")
        new = ops.add(ops.mul(m, ops.full((), 0.9, f32)), g)
        olds += [p, m]
        gradients.append(g)
        news += [ops.sub(p, ops.mul(new, lr)), new]
    return Graph("step", (*olds, *gradients, lr), tuple(news))


@pytest.mark.usefixtures("threads")
def test_tensors_of_all_lengths_share_a_kernel_and_are_updated_in_place() -> None:
    g = step(SHAPES)
    count = len(g.outputs)
    program = compile_graph(g, Options(updates=tuple((k, k) for k in range(count))))
    # Of one element there is no axis: it has a kernel of its own.
    assert len(program.kernels) == 2 and sum(k.calls for k in program.kernels) == len(SHAPES)
    assert sorted(program.updated) == [(k, k) for k in range(count)]
    args = random_inputs(g)
    want = evaluate(g, args)
    for found, right in zip(run_arrays(program, args), want, strict=True):
        np.testing.assert_allclose(found, right, 1e-6, 1e-6)
    places = [a.ctypes.data for a in args]
    program.run(places, places[:count])
    for found, right in zip(args, want):
        np.testing.assert_allclose(found, right, 1e-6, 1e-6)


def test_kernels_that_take_sizes() -> None:
    """A number of the call, by which all are divided: their own sizes are known."""
    n = D.sym("n", 1)
    given = input("x", TensorType(f32, (n,)))
    number = ops.cast(ops.reshape(ops.iota(1, n, 1, i64), ()), f32)
    xs = [arg(f"x{k}", 3 + k) for k in range(5)]
    g = Graph("g", (given, *xs), tuple(ops.div(x, number) for x in xs))
    args = [np.ones(4, np.float32), *(np.ones(3 + k, np.float32) for k in range(5))]
    for found in run_arrays(compile_graph(g), args, {"n": 4}):
        np.testing.assert_array_equal(found, np.full_like(found, 0.25))
