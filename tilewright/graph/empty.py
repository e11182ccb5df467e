"""WithoutElements: what has no elements need not be computed."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import ops
from tilewright.base.events import Log
from tilewright.ir.node import Constant, Graph, Input, Node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.types import TensorType


@dataclass(frozen=True)
class WithoutElements(Pass):
    """A tensor with an axis of size 0 is one of zeros: it has no storage and nobody waits for it.

    What reads it (the sum of nothing) is computed as ever.
    """

    def apply(self, program: Graph, log: Log) -> Graph:
        return rebuild(program, _zeros)


def _zeros(n: Node) -> Node:
    if not isinstance(n.type, TensorType) or isinstance(n.op, (Input, Constant)):
        return n
    return ops.full(n.shape, 0, n.dtype) if any(d == 0 for d in n.shape) else n
