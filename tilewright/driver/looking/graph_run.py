"""A graph on random inputs: native code and the interpreter, both compared with float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.interpret import evaluate
from tilewright.ir.narrow import FORMATS
from tilewright.ir.node import Graph, Literal, Node, node
from tilewright.ir.types import DType, TensorType, as_dtype, f64, from_memory, to_memory
from tilewright.runtime.program import Program

DIGITS = {"f64": 52, "f32": 23, **{name: f.fraction for name, f in FORMATS.items()}}


@dataclass(frozen=True)
class Judged:
    """One result: its largest error against float64, and what is allowed."""

    type: TensorType
    error: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed


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


def run_arrays(program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A program of static shapes on numpy arrays (what numpy lacks as rounded float32)."""
    inputs = [to_memory(a, t.dtype) for a, t in zip(arrays, program.inputs, strict=True)]
    outputs = []
    for t in program.outputs:
        shape = tuple(int(d) for d in t.shape if isinstance(d, int))
        outputs.append(np.empty(shape, t.dtype.memory))
    program.run([a.ctypes.data for a in inputs], [o.ctypes.data for o in outputs])
    return [from_memory(o, t.dtype) for o, t in zip(outputs, program.outputs, strict=True)]


def judge(graph: Graph, arrays: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> list[Judged]:
    """Is what native code gave right?"""
    own, exact = evaluate(graph, arrays), evaluate(in_double(graph), arrays)
    out = []
    for o, x, y, z in zip(graph.outputs, got, own, exact, strict=True):
        t = o.ttype
        if not t.dtype.is_float:
            out.append(Judged(t, float(np.count_nonzero(x != y)), 0.0))
            continue
        finite = np.isfinite(y) & np.isfinite(z)
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            out.append(Judged(t, math.inf, 0.0))
            continue
        x, y, z = (np.where(finite, v, 0).astype(np.float64) for v in (x, y, z))
        largest = float(np.abs(z).max(initial=0.0))
        ulp = 2.0 ** (math.floor(math.log2(max(largest, 1e-30))) - DIGITS[t.dtype.name])
        error, theirs = (float(np.abs(v - z).max(initial=0.0)) for v in (x, y))
        # A larger error than eager may have: numpy sums pairwise, native code need not.
        out.append(Judged(t, error, 4 * theirs + 16 * ulp))
    return out


def in_double(graph: Graph) -> Graph:
    """The same program with float64 in place of every float."""
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        fields = {f.name: getattr(n.op, f.name) for f in dataclasses.fields(n.op)}
        changed = {k: _wide(v) for k, v in fields.items() if _wide(v) is not v}
        op = dataclasses.replace(n.op, **changed) if changed else n.op
        new[n] = node(op, *(new[x] for x in n.inputs))
    inputs = tuple(new[n] for n in graph.inputs)
    return Graph(graph.name, inputs, tuple(new[o] for o in graph.outputs))


def _wide(x: Any) -> Any:
    if isinstance(x, DType):
        return f64 if x.is_float else x
    if isinstance(x, TensorType):
        return TensorType(f64, x.shape) if x.dtype.is_float else x
    if isinstance(x, Literal):
        return Literal(x.array.astype(np.float64), f64) if x.dtype.is_float else x
    if isinstance(x, Graph):
        return in_double(x)
    return x
