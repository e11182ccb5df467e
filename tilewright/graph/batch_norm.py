"""BatchNormFold: scales and batch normalisation move into the weights before them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import rewrite


@dataclass(frozen=True)
class BatchNormFold(Pass, before=("Decompose",), rounds=True, regions=True):
    """Scales and batch normalisation move into the weights before them. For inference: the new
    weights are computed once, in the prologue, and round differently."""

    rounds: int = 4

    def apply(self, program: Graph, log: Log) -> Graph:
        rules = rewrites.rules("rounding", ("batch_norm", "scaling"))
        return rewrite(program, rules, log, self.rounds)
