"""Empty values: what has no elements is not computed.

An operator reads the operand of an empty view nowhere, so fusion would store that operand for
nobody, and leave the view a name for memory that does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Node, node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import map_subgraphs
from tilewright.ir.types import TensorType
from tilewright.ops.creation import full


@dataclass(frozen=True)
class EmptyValues(Pass):
    """`full` in place of every computed value that has an axis of size 0."""

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            if n.inputs and isinstance(n.type, TensorType) and 0 in n.shape:
                return full(n.shape, 0, n.dtype)
            op = map_subgraphs(n.op, lambda g: self.apply(g, log))
            return n if op is n.op else node(op, *n.inputs)

        return rebuild(program, change)
