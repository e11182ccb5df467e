"""OnePassNorms: statistics of batches without a second look at their elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Item, Node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.types import bf16, f16
from tilewright.ops.norms import BatchNormTrain

LARGE = 1 << 18  # elements: a second look at fewer finds them in a cache
SHARE = 1 / 8


@dataclass(frozen=True)
class OnePassNorms(Pass, before=("Decompose",), rounds=True, regions=True):
    """Mean and variance of a batch by sums that read it once, or else two kernels would, the second
    of which waits for the first. `large`: of large batches only, by their distance from the mean
    of an eighth of them; without it of 16-bit floats, by that from their first elements."""

    large: bool = False

    def apply(self, program: Graph, log: Log) -> Graph:
        def several(n: Node) -> Node:
            if not isinstance(n.op, Item):
                return n
            source = n.inputs[0]
            x = source.inputs[0] if source.inputs else source
            if not isinstance(source.op, BatchNormTrain):
                return n
            known = [d for d in x.shape if isinstance(d, int) and d > 0]
            if len(known) < x.rank:
                return n  # there is no first element, or nobody knows
            if prod(known) < LARGE if self.large else x.dtype not in (bf16, f16):
                return n
            share = SHARE if self.large else 0.0
            return source.op.in_one_pass(*source.inputs, share=share)[n.op.k]

        return rebuild(program, several)
