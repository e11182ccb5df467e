"""OnePassNorms: statistics of batches without a second look at their elements."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Item, Node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.types import bf16, f16
from tilewright.ops.norms import BatchNormTrain


@dataclass(frozen=True)
class OnePassNorms(Pass, before=("Decompose",), rounds=True, regions=True):
    """Mean and variance of a batch of 16-bit floats by sums that read it once. On a GPU both are
    one kernel then, and else two, the second of which waits for the first."""

    def apply(self, program: Graph, log: Log) -> Graph:
        def several(n: Node) -> Node:
            if not isinstance(n.op, Item):
                return n
            source = n.inputs[0]
            x = source.inputs[0] if source.inputs else source
            if not isinstance(source.op, BatchNormTrain) or x.dtype not in (bf16, f16):
                return n
            if not all(isinstance(d, int) and d > 0 for d in x.shape):
                return n  # there is no first element, or nobody knows
            return source.op.in_one_pass(*source.inputs)[n.op.k]

        return rebuild(program, several)
