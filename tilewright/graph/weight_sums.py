"""WeightSums: what is added to a value and depends on weights alone is added up once."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import rewrite


@dataclass(frozen=True)
class WeightSums(Pass, rounds=True, regions=True):
    """Weights in a sum are added up first. For inference: their sum is computed once, in the
    prologue, and rounds differently."""

    rounds: int = 8

    def apply(self, program: Graph, log: Log) -> Graph:
        return rewrite(program, rewrites.rules("rounding", ("sums",)), log, self.rounds)
