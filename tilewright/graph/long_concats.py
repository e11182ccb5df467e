"""Concatenations of very many operands, cut into pieces of a size for one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Node, node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ops.views import Concat


@dataclass(frozen=True)
class LongConcats(Pass, after=("Simplify",), regions=True):
    """Concatenations of very many operands are cut into parts. For every element, the operand it is
    from is found by one comparison after another: with many operands it is cheaper to join some of
    them first and copy the result. After simplification, which would put all of them together
    again."""

    most: int = 32  # operands of one

    def apply(self, program: Graph, log: Log) -> Graph:
        return rebuild(program, self._cut)

    def _cut(self, n: Node) -> Node:
        parts = list(n.inputs)
        while isinstance(n.op, Concat) and len(parts) > self.most:
            count = -(-len(parts) // self.most)
            ends = [len(parts) * k // count for k in range(count + 1)]
            parts = [node(n.op, *parts[a:b]) for a, b in pairwise(ends)]
        return n if len(parts) == len(n.inputs) else node(n.op, *parts)
