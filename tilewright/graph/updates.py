"""Maps whose elements an ordered update takes one by one: both are one kernel, without a copy of
the elements between them, as where rows of a table are added to others."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.joining import Joining
from tilewright.graph.regions import Region
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Tensor, loads
from tilewright.ir.node import Node

# How many times as much as is cheap a map may be: updates run on one thread, one after the other.
SERIAL = 3


@dataclass
class Updates(Joining):
    """Joins a region of maps with the update that alone reads it, each element once."""

    def join(self) -> None:
        if self.target.grid is not None:
            return
        for e in self.regions.live():
            if e.kind == "program" and e.anchor is not None and len(e.nodes) == 1:
                for c in self.regions.preceding(e):
                    if self._is_taken(c, e.anchor) and self.too_large(c, e) is None:
                        self.regions.merge(c, e)

    def _is_taken(self, c: Region, update: Node) -> bool:
        if c.kind != "map" or any(n in self.results for n in c.nodes):
            return False
        edges = [(q, r) for n in c.nodes for q, r in self.readers.get(n, ()) if q not in c.nodes]
        if len(edges) != 1 or edges[0][0] is not update:
            return False
        read = edges[0][1].source
        f = self.facts[update]
        if len(f.outputs) != 1 or update.inputs.count(read) != 1:
            return False
        # What is updated may lie where it is read, so that nothing else may read it.
        (t,) = f.outputs
        if t.kind != "update" or t.base is None or t.base not in f.inputs:
            return False
        base = update.inputs[f.inputs.index(t.base)]
        if base in c.inputs or base is read:
            return False
        cost = sum(self.facts[n].flops for n in c.nodes)
        return cost <= SERIAL * self.cheap and _once(t, f.inputs[update.inputs.index(read)])


def _once(t: Tensor, x: Tensor) -> bool:
    """Does an update read x at its own place in each step, for what it stores there and nothing
    else, with lanes along the last axis?"""
    assert t.body is not None
    places = [v for w in t.where or () for v in D.data_values(w)]
    if any(load.source is x for v in places for load in loads(v)):
        return False
    found = [v for v in loads(t.body) if isinstance(v, Load) and v.source is x]
    own: tuple[Dim, ...] = tuple(D.as_int(a) for a in t.axes)
    return len(found) == 1 and found[0].index == own and (t.where or (0,))[-1] == own[-1]
