"""A graph on random inputs: native code and the interpreter, both compared with float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.interpret import evaluate
from tilewright.ir.narrow import FORMATS
from tilewright.ir.node import Graph, Literal, Node, node
from tilewright.ir.types import DType, TensorType, f64

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
