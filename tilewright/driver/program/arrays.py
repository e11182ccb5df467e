"""Programs on numpy arrays: random ones, or given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.node import Graph
from tilewright.ir.types import TensorType, as_dtype, from_memory, to_memory
from tilewright.runtime.program import Program


def random_inputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    for n in graph.inputs:
        if not n.ttype.is_static:
            raise Invalid(f"{n.op} has symbolic dims", hint="give the graph static shapes")
    return [random_array(n.ttype, rng) for n in graph.inputs]


def random_array(t: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Normal floats, or integers from 0 to 9: small enough to be indices of most tables."""
    shape = tuple(int(d) for d in t.shape if isinstance(d, int))
    if t.dtype.is_float:
        return as_dtype(rng.standard_normal(shape), t.dtype)
    return as_dtype(rng.integers(0, 2 if t.dtype.is_bool else 10, shape), t.dtype)


def run_arrays(
    program: Program, arrays: Sequence[np.ndarray], sizes: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """A program on numpy arrays (what numpy lacks as rounded float32). `sizes` are those of its
    symbolic dims."""
    call, outputs = prepared_call(program, arrays, sizes)
    call()
    return [from_memory(o, t.dtype) for o, t in zip(outputs, program.outputs, strict=True)]


def prepared_call(
    program: Program, arrays: Sequence[np.ndarray], sizes: Mapping[str, int] | None = None
) -> tuple[Callable[[], None], list[np.ndarray]]:
    """A program on arrays, to be called any number of times, and where its results will be."""
    known = sizes or {}
    inputs = [to_memory(a, t.dtype) for a, t in zip(arrays, program.inputs, strict=True)]
    outputs = []
    for t in program.outputs:
        shape = tuple(int(D.evaluate(d, known)) for d in t.shape)
        outputs.append(np.empty(shape, t.dtype.memory))
    dims = [known[name] for name in program.dims]

    def call() -> None:
        program.run([a.ctypes.data for a in inputs], [o.ctypes.data for o in outputs], dims)

    return call, outputs
