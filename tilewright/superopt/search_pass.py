"""The search as a pass. What it needs is loaded when it runs: most programs have no search."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module

from tilewright.base.errors import Invalid, require
from tilewright.base.events import Log
from tilewright.ir.node import Graph
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.target import Target

_SEARCH = "tilewright.superopt.search"
WAYS = ("saturation", "queue")


@dataclass(frozen=True)
class Search(Pass, before=("Decompose",), rounds=True):
    """The cheapest of all graphs that the rules make of one, by an estimate of seconds."""

    seconds: int = 60  # after which it ends, whatever it has found
    members: int = 800
    most: int = 40  # operators that are searched at once, but for those of weights alone
    by: str = "saturation"  # or "queue"
    measured: tuple[tuple[str, float], ...] = ()  # operators and their seconds
    machine: Target | None = of_target(None, lambda t: t)

    def __post_init__(self) -> None:
        known = ", ".join(map(repr, WAYS))
        require(self.by in WAYS, f"by of Search is one of {known}")
        fits = all(isinstance(x, tuple) and len(x) == 2 for x in self.measured)
        require(fits, "measured of Search has pairs: an operator and its seconds")

    def apply(self, program: Graph, log: Log) -> Graph:
        if self.machine is None:
            raise Invalid("Search compares costs on a machine, and no target is known")
        by = import_module(_SEARCH)
        budget = by.Budget(self.seconds, self.members)
        measured = dict(self.measured)
        began = time.perf_counter()
        whole = by.search_pieces(program, self.machine, budget, self.most, self.by, measured)
        took = time.perf_counter() - began
        log.add(
            "search",
            f"{program.name}: searched in {took:.2f} s",
            detail=True,
            whole=whole,
            seconds=took,
        )
        if whole.pieces > 1:
            log.add(
                "search",
                f"{program.name}: {len(program.nodes())} operators are more than a search of"
                f" {self.most}: {whole.pieces} pieces, {whole.different} of them different",
            )
        late = sum(found.ended == "seconds" for found, _ in whole.found)
        if late:
            log.add(
                "search",
                f"{program.name}: {self.seconds} seconds ended the search of {late} of"
                f" {whole.different} pieces: another run may find another graph",
            )
        for found, times in whole.found:
            log.add(
                "search",
                f"{program.name}: {found.before * 1e6:.1f} us by the estimate, then"
                f" {found.after * 1e6:.1f}; {found.members} operators in classes, {found.ended}"
                + (f"; {times} times" if times > 1 else ""),
                detail=True,
                found=found,
                times=times,
            )
        return whole.graph
