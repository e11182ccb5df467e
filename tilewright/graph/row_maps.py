"""Maps that read many elements of their own row, such as the passes of a transform: one kernel, in
which all of them are done for one row before the next one.

Each element is computed once and stored, but in memory of one row, which stays in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.graph.classify import guess, same_prefix
from tilewright.graph.joining import Joining
from tilewright.graph.regions import Read, Region
from tilewright.ir.node import Node


@dataclass
class RowMaps(Joining):
    """Joins a region of costly maps with the one that reads it, where both go row by row."""

    def join(self) -> None:
        if self.target.grid is not None:
            return
        rows: dict[int, int] = {}  # by region: how many axes say which row it is
        for e in reversed(self.regions.live()):
            again = True
            while again and e.nodes and e.kind == "map":
                again = any(self._joined(c, e, rows) for c in self.regions.preceding(e))

    def _joined(self, c: Region, e: Region, rows: dict[int, int]) -> bool:
        if c.kind != "map" or len(c.nodes) == 0 or any(n in self.results for n in c.nodes):
            return False
        edges = [(q, r) for n in c.nodes for q, r in self.readers.get(n, ()) if q not in c.nodes]
        if not edges or any(self.regions.of[q] is not e for q, _ in edges):
            return False
        if max(self.facts[r.source].flops for _, r in edges) <= 4 * self.cheap:
            return False
        outer = min(_shared(r) for _, r in edges)
        size = sum(_row_bytes(n, outer) for n in {r.source for _, r in edges})
        if outer == 0 or rows.get(id(e), outer) != outer or e.work + size > self.target.l1:
            return False
        if not self.regions.mergeable(c, e) or self.too_large(c, e) is not None:
            return False
        self.regions.merge(c, e)
        e.work += size
        rows[id(e)] = outer
        return True


def _shared(r: Read) -> int:
    """How many first axes are the same in what is read and in the reader."""
    rank = len(r.axes)
    return next((k for k in range(rank) if not same_prefix(r.axes, r.source.shape, k + 1)), rank)


def _row_bytes(n: Node, outer: int) -> int:
    return prod(map(guess, n.shape[outer:])) * n.dtype.bytes
