"""Values that would be computed again: where they are read at other elements than their own, or
once for each of several readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from tilewright.graph.classify import OTHER, Facts, same_index, same_prefix
from tilewright.graph.cluster import Why
from tilewright.graph.regions import Read, Region, Regions, misaligned, repeats
from tilewright.ir.node import Node

# Readers of an element that is found through an index, from which on it is stored for them.
GATHERED = 2
Edges = list[tuple[Node, Read]]


@dataclass(frozen=True)
class Crossing:
    """`cheap` is how many operations an element may cost to be computed again."""

    regions: Regions
    facts: Mapping[Node, Facts]
    readers: Mapping[Node, Edges]
    results: Set[Node]
    cheap: int

    def recomputed(self, nodes: Iterable[Node], edges: Edges, own: int = 0) -> Why | None:
        """Is computing nodes where they are read, and at `own` elements besides, too much work, or
        work on scattered elements?"""
        nodes = tuple(nodes)
        cost = sum(self.facts[n].flops for n in nodes)
        points, size = own, 0
        apart = False
        for q, r in edges:
            p, s = repeats(r, self.facts[q].domain)
            points, size = points + p, max(size, s)
            apart = apart or misaligned(r, self.facts[q])
        times = points / max(size, 1)
        if times > 1.01 and cost > self.cheap:
            return "too large", f"{cost} operations per element, computed {times:.3g} times"
        if times >= GATHERED and any(map(self.gathers, nodes)):
            return "misaligned access", f"its elements would be gathered {times:.3g} times"
        if apart and (cost > 2 * self.cheap or times > 1.01):
            return "misaligned access", "its elements would be gathered one by one"
        return None

    def gathers(self, n: Node) -> bool:
        """Does it find neighbours one by one, through an index that is computed?"""
        found = self.facts[n].accesses
        return any(not a.affine and a.axes and a.axes[-1] == OTHER for a in found)

    def between(self, a: Region, b: Region) -> Why | None:
        """Would one kernel of both compute again what one of them reads of the other?"""
        return self._of(a, b) or self._of(b, a)

    def _of(self, made: Region, reader: Region) -> Why | None:
        if made.nodes.keys().isdisjoint(reader.inputs):
            return None
        rows = next((len(r.outer) for r in (made, reader) if r.kind == "row"), None)
        edges: Edges = []
        for source in [n for n in made.nodes if n in reader.inputs]:
            for q, r in self.readers.get(source, ()):
                if q in reader.nodes and not self._at_its_own(q, r, rows):
                    edges.append((q, r))
        if not edges:
            return None
        if made.kind == "row":
            return "incompatible iteration", "it reads other rows than its own"
        sources = {r.source for _, r in edges}
        again = self._made_of(sources, made)
        shared = any(n in self.results for n in sources) or any(
            (q, r) not in edges for n in sources for q, r in self.readers[n]
        )
        size = max(repeats(r, self.facts[q].domain)[1] for q, r in edges)
        return self.recomputed(again, edges, size if shared else 0)

    def _at_its_own(self, q: Node, r: Read, rows: int | None) -> bool:
        if rows is not None:
            return same_prefix(r.axes, r.source.shape, rows)
        return same_index(r.axes, r.source.shape, self.facts[q].domain)

    def _made_of(self, sources: Set[Node], region: Region) -> set[Node]:
        """These and what computes them, inside of a region."""
        found, waiting = set(sources), list(sources)
        while waiting:
            for r in self.regions.reads[waiting.pop()]:
                if r.source in region.nodes and r.source not in found:
                    found.add(r.source)
                    waiting.append(r.source)
        return found
