"""The search as a pass. What it needs is loaded when it runs: most programs have no search."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.target import Target

_SEARCH = "tilewright.superopt.search"


@dataclass(frozen=True)
class Search(Pass, needs=("Decompose",), after=("FoldConstants",), rounds=True):
    """The cheapest of all graphs that the rules make of one, by an estimate of seconds."""

    seconds: int = 10
    members: int = 4_000
    machine: Target | None = of_target(None, lambda t: t)

    def apply(self, program: Graph, log: Log) -> Graph:
        if self.machine is None:
            raise Invalid("Search compares costs on a machine, and no target is known")
        by = import_module(_SEARCH)
        found = by.search(program, self.machine, by.Budget(self.seconds, self.members))
        log.add(
            "search",
            f"{program.name}: {found.before * 1e6:.1f} us by the estimate, then"
            f" {found.after * 1e6:.1f}; {found.members} operators in classes, {found.ended}",
            detail=True,
            before=program,
            found=found,
        )
        return found.graph
