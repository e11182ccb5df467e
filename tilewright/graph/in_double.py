"""Programs in float64: the same operators, with every float twice as wide."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tilewright.base.traverse import operands_first
from tilewright.ir.node import Graph, Literal, Node, node
from tilewright.ir.types import DType, TensorType, f64


class Doubled:
    """Nodes in float64. What was made once is known: graphs that share nodes share these."""

    def __init__(self) -> None:
        self.new: dict[Node, Node] = {}

    def __call__(self, n: Node) -> Node:
        for x in operands_first(n, lambda y: y.inputs, self.new):
            fields = {f.name: getattr(x.op, f.name) for f in dataclasses.fields(x.op)}
            changed = {k: w for k, v in fields.items() if (w := _wide(v)) is not v}
            op = dataclasses.replace(x.op, **changed) if changed else x.op
            self.new[x] = node(op, *(self.new[y] for y in x.inputs))
        return self.new[n]


def in_double(graph: Graph) -> Graph:
    """The same program with float64 in place of every float."""
    wide = Doubled()
    inputs = tuple(wide(n) for n in graph.inputs)
    return Graph(graph.name, inputs, tuple(wide(o) for o in graph.outputs))


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
