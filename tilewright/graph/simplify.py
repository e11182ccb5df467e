"""Simplify: the rules, each proved or marked as tested, to a fixpoint.

Common subexpressions and dead code need no pass: nodes are interned, and a graph is what its
outputs reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import rewrites
from tilewright.base.errors import require
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass
from tilewright.ir.pattern import CHANGES
from tilewright.ir.rewrite import rewrite


@dataclass(frozen=True)
class Simplify(Pass, repeats=True, inside=True, regions=True):
    """Rules that change no more than `changes`: "nothing", "sign of zero" or "rounding"."""

    rounds: int = 8
    changes: str = "nothing"

    def __post_init__(self) -> None:
        known = ", ".join(map(repr, CHANGES))
        require(self.changes in CHANGES, f"changes of Simplify is one of {known}")

    @property
    def rounds_differently(self) -> bool:
        return self.changes == "rounding"

    def apply(self, program: Graph, log: Log) -> Graph:
        return rewrite(program, rewrites.rules(self.changes), log, self.rounds)
