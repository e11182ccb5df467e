"""Running compiled programs on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.kernel.native import from_memory, to_memory
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.node import Graph
from tilewright.ir.types import TensorType, bf16
from tilewright.runtime.program import Program


def empty(t: TensorType, dims: Mapping[str, int]) -> np.ndarray:
    shape = tuple(int(D.evaluate(d, dims)) for d in t.shape)
    return np.zeros(shape, np.dtype(np.uint16) if t.dtype is bf16 else t.dtype.numpy)


def call(
    program: Program, args: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    sizes = dict(dims or {})
    given = [to_memory(a, t.dtype) for a, t in zip(args, program.inputs, strict=True)]
    results = [empty(t, sizes) for t in program.outputs]
    program.run(
        [a.ctypes.data for a in given],
        [a.ctypes.data for a in results],
        [sizes[d] for d in program.dims],
    )
    return [from_memory(a, t.dtype) for a, t in zip(results, program.outputs, strict=True)]


def run_graph(
    graph: Graph, args: Sequence[np.ndarray], options: Options | None = None
) -> list[np.ndarray]:
    return call(compile_graph(graph, options), args)
