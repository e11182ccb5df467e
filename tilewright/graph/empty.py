"""Empty values: what has no elements, or is read nowhere, is not computed.

An operator reads the operand of an empty view nowhere, and a pad that cuts off more than there is
(`F.pad(x, (-1, 1))` of one element) reads nothing but its own value. Fusion would store such an
operand without a reader, and name memory that does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.classify import facts
from tilewright.ir.node import Graph, Node, node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import map_subgraphs
from tilewright.ir.types import TensorType
from tilewright.ops.creation import full

_WHY = "values without elements have no memory"


@dataclass(frozen=True)
class EmptyValues(
    Pass, after=("Decompose",), repeats=True, required=_WHY, inside=True, regions=True
):
    """`full` in place of every computed value that has an axis of size 0, and of every operand
    that its operator's definition does not read."""

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            if n.inputs and isinstance(n.type, TensorType) and 0 in n.shape:
                return full(n.shape, 0, n.dtype)
            op = map_subgraphs(n.op, lambda g: self.apply(g, log))
            inputs = _read(n)
            return n if op is n.op and inputs == n.inputs else node(op, *inputs)

        return rebuild(program, change)


def _read(n: Node) -> tuple[Node, ...]:
    """The operands, with zeros for those that are computed and read nowhere."""
    f = facts(n)
    if f.kind in ("source", "program"):
        return n.inputs
    read = {a.operand for a in f.accesses}
    return tuple(
        full(x.shape, 0, x.dtype) if k not in read and x.inputs else x
        for k, x in enumerate(n.inputs)
    )
