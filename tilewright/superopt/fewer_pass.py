"""Mined rules without a search: those that leave out a product, where a graph costs less then.

A look at the graph says whether any could apply; most graphs have nothing of the kind, and then
neither rules nor their prover are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise

from tilewright.base.events import Log
from tilewright.graph.classify import contractions
from tilewright.ir.node import Graph, Node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.rewrite import rewrite
from tilewright.ir.target import Target
from tilewright.rewrites.facts import is_weight

_RULES = "tilewright.superopt.fewer"


@dataclass(frozen=True)
class FewerProducts(Pass, before=("Decompose",), rounds=True, regions=True):
    """Products of one tensor and of weights become one where they are added up or put together, by
    mined rules, where the estimate of a search says that this is cheaper."""

    rounds: int = 4
    machine: Target | None = of_target(None, lambda t: t)

    def apply(self, program: Graph, log: Log) -> Graph:
        if self.machine is None or not any(map(_of_shared, program.nodes())):
            return program
        rules = import_module(_RULES).where_cheaper(self.machine)
        return rewrite(program, rules, log, self.rounds)


def _of_shared(n: Node) -> bool:
    """Are two of its operands next to each other products of one tensor and of weights?"""
    return any(
        a is not b
        and a.op.name == b.op.name
        and (shared := set(a.inputs).intersection(b.inputs))
        and all(x in shared or is_weight(x) for x in (*a.inputs, *b.inputs))
        and contractions(a) > 0
        for a, b in pairwise(n.inputs)
    )
