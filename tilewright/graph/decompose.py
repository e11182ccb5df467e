"""Decompose: operators written in terms of others become those, down to the primitive ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Item, Node, Place, node, topological
from tilewright.ir.operator import composition, is_composed
from tilewright.ir.passes import Pass
from tilewright.ir.rewrite import map_subgraphs, pending
from tilewright.ir.types import TupleType

_WHY = "fusion takes operators that are not written in others"


@dataclass(frozen=True)
class Decompose(Pass, repeats=True, required=_WHY, inside=True, regions=True):
    """Expand every composed operator but those named in `keep`; the user's places are passed on."""

    keep: tuple[str, ...] = ()

    def apply(self, program: Graph, log: Log) -> Graph:
        return _Decomposition(self, program, log).run()


class _Decomposition:
    def __init__(self, rule: Decompose, graph: Graph, log: Log) -> None:
        self.rule, self.graph, self.log = rule, graph, log
        self.new: dict[Node, Node] = {n: n for n in graph.inputs}
        self.parts: dict[Node, tuple[Node, ...]] = {}  # of multi-output nodes that were expanded
        self.places: dict[Node, frozenset[Place]] = dict(graph.places)

    def run(self) -> Graph:
        self.visit(self.graph.outputs)
        outputs = tuple(self.new[o] for o in self.graph.outputs)
        live = topological(outputs, first=self.graph.inputs)
        places = {n: self.places[n] for n in live if n in self.places}
        return Graph(self.graph.name, self.graph.inputs, outputs, places)

    def visit(self, roots: Iterable[Node]) -> None:
        for n in pending(roots, self.new):
            self.new[n] = self.expanded(n)
            self.follow(self.new[n], self.places.get(n))

    def expanded(self, n: Node) -> Node:
        ins = tuple(self.new[x] for x in n.inputs)
        if isinstance(n.op, Item) and ins[0] in self.parts:
            return self.parts[ins[0]][n.op.k]
        op = map_subgraphs(n.op, lambda g: self.rule.apply(g, self.log))
        fresh = n if op is n.op and ins == n.inputs else node(op, *ins)
        if not is_composed(op) or op.name in self.rule.keep or fresh in self.parts:
            return fresh
        outs = composition(fresh)
        where = self.places.get(n)
        for x in pending(outs, self.new):
            self.follow(x, where)
        self.visit(outs)
        if isinstance(n.type, TupleType):
            self.parts[fresh] = tuple(self.new[o] for o in outs)
            return fresh
        return self.new[outs[0]]

    def follow(self, n: Node, where: frozenset[Place] | None) -> None:
        if where:
            self.places[n] = self.places.get(n, frozenset()) | where
