"""OnlineSoftmax: attention as one reduction over the keys."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import rewrite


@dataclass(frozen=True)
class OnlineSoftmax(Pass, before=("Decompose",), rounds=True, regions=True):
    """Attention becomes one reduction over the keys. On request only: whether one pass is faster
    than three depends on the schedule."""

    def apply(self, program: Graph, log: Log) -> Graph:
        return rewrite(program, rewrites.rules("rounding", ("online_softmax",)), log, 1)
