"""Reciprocals: softmax with one division per row."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import rewrites
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import rewrite


@dataclass(frozen=True)
class Reciprocals(Pass, needs=("Decompose",), after=("KeyBlocks",), rounds=True, regions=True):
    """Softmax divides once per row. After the passes that recognise a softmax by its division; not
    with strict precision."""

    def apply(self, program: Graph, log: Log) -> Graph:
        return rewrite(program, rewrites.rules("rounding", ("softmax",)), log, 1)
