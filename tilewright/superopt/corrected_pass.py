"""Layers by programs that were found and measured, as a pass."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.graph.pack import rebuild_knowing
from tilewright.ir.node import Graph, Node
from tilewright.ir.passes import Pass

_LAYERS = "tilewright.superopt.partial.layers"
_REGIONS = "tilewright.superopt.partial.regions"


@dataclass(frozen=True)
class Corrected(Pass, needs=("Decompose",), after=("FoldConstants",), rounds=True):
    """Contractions by other programs that compute the same. Each graph returns a layer, and what
    takes its place; whether they agree is tested first."""

    layers: tuple[Graph, ...] = ()

    def __post_init__(self) -> None:
        for g in self.layers:
            if not isinstance(g, Graph) or len(g.outputs) != 2:
                raise Invalid("Corrected takes graphs that return a layer and what takes its place")

    def apply(self, program: Graph, log: Log) -> Graph:
        if not self.layers:
            return program
        by, regions = import_module(_LAYERS), import_module(_REGIONS)
        for g in self.layers:
            if not regions.agreement(*g.outputs).agrees.all():
                raise Invalid(
                    f"Corrected: {g.outputs[0]!r} and what takes its place differ",
                    hint="correct that graph, or leave it out",
                )
        table = {g.outputs[0]: g for g in self.layers}

        def change(n: Node, constant: set[Node]) -> Node:
            found = by.layer_of(n, constant)
            if found is None or found[0].root not in table:
                return n
            layer, sources = found
            log.add("search", f"{n!r} by another program, corrected where it differs", detail=True)
            return by.on_nodes(table[layer.root].outputs[1], layer.inputs, sources)

        return rebuild_knowing(program, change)
