"""JoinSums: sums over the same data that are added or subtracted become one sum."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import rewrite


@dataclass(frozen=True)
class JoinSums(Pass, needs=("Decompose",), rounds=True, regions=True):
    """Two sums over the same data, added or subtracted, are one: it is read once, and terms that
    cancel do so before they are added up. Not with strict precision."""

    rounds: int = 8

    def apply(self, program: Graph, log: Log) -> Graph:
        return rewrite(program, rewrites.rules("rounding", ("joined_sums",)), log, self.rounds)
