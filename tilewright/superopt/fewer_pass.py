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
from tilewright.ir.target import Target

_SEARCH = "tilewright.superopt.search"


@dataclass(frozen=True)
class FewerProducts(Pass, before=("Decompose",), rounds=True):
    """Products that share an operand become one where they are added up or put together, by mined
    rules, where the estimate of a search says that this is cheaper."""

    most: int = 50  # times that a rule is applied
    machine: Target | None = of_target(None, lambda t: t)

    def apply(self, program: Graph, log: Log) -> Graph:
        if self.machine is None or not any(map(_of_shared, program.nodes())):
            return program
        found = import_module(_SEARCH).with_fewer_products(program, self.machine, self.most)
        for step in found.steps:
            for n, other, why in step:
                said = f"{why.rule}: {n.op} to {other.op}"
                log.add("rewrite", said, where=program.place(n), detail=True, rule=why.rule)
                program = program.with_outputs(program.outputs, {n: other})
        return program.with_outputs(found.roots)


def _of_shared(n: Node) -> bool:
    """Are two of its operands next to each other products of one tensor?"""
    return any(
        a is not b
        and a.op.name == b.op.name
        and not set(a.inputs).isdisjoint(b.inputs)
        and contractions(a) > 0
        for a, b in pairwise(n.inputs)
    )
