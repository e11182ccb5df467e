"""Whole programs over dtypes that no torch program is captured with."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, input
from tilewright.ir.types import FLOATS_OF_8_BITS, DType, TensorType, u16, u32, u64


def graph_of(d: DType) -> Graph:
    x, y = input("x", TensorType(d, (33, 40))), input("y", TensorType(d, (40, 24)))
    return Graph("g", (x, y), (ops.matmul(x, y), ops.maximum(ops.add(x, x), x)))


@pytest.mark.parametrize("d", FLOATS_OF_8_BITS[:2], ids=str)
def test_floats_of_8_bits(d: DType) -> None:
    graph = graph_of(d)
    arrays = random_inputs(graph)
    got = run_arrays(compile_graph(graph), arrays)
    assert all(j.right for j in judge(graph, arrays, got))
    np.testing.assert_array_equal(got[1], np.maximum(arrays[0] * 2, arrays[0]))


@pytest.mark.parametrize("d", (u16, u32, u64), ids=str)
def test_unsigned(d: DType) -> None:
    graph = graph_of(d)
    shift = d.numpy.type(d.bits - 4)
    arrays = [a << shift if k == 0 else a for k, a in enumerate(random_inputs(graph))]
    product, larger = run_arrays(compile_graph(graph), arrays)
    np.testing.assert_array_equal(product, arrays[0] @ arrays[1])  # both wrap
    np.testing.assert_array_equal(larger, np.maximum(arrays[0] * d.numpy.type(2), arrays[0]))
