"""Products of one row with a matrix, on a GPU: what makes the row is computed again by all who need
it, which costs less than a kernel of its own that the others wait for.

Every warp of the product makes the row in its registers (kernel/defaults/grids.py), such as
a norm of what a layer before has left. A second product of the same row whose result the first one
multiplies (a gate) is computed along with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.graph.classify import contraction, same_index
from tilewright.graph.joining import Joining
from tilewright.graph.regions import Read, Region, is_scalar_constant
from tilewright.ir import dim as D
from tilewright.ir.node import Node

# Elements of the row that a lane has in registers, at most, and bytes of a vector.
SHARE = 64
VECTOR = 16


@dataclass(frozen=True)
class _Product:
    """A product of one row: what the row is, and the matrix, whose rows lie along the sum."""

    row: Node
    matrix: Node
    depth: int


@dataclass
class Prologues(Joining):
    """Joins regions that make a row with the region of the product that reads it."""

    def join(self) -> None:
        if self.target.grid is None:
            return
        for e in self.regions.live():
            if e.nodes and e.kind == "contract":
                self._with_gate(e)
                self._with_row(e)

    # ---- two products of a row

    def _with_gate(self, e: Region) -> None:
        own = self._products(e)
        if len(own) != 1:
            return
        for p in self.regions.preceding(e):
            made = self._products(p) if p.kind == "contract" else []
            if len(made) != 1 or made[0].row is not own[0].row or made[0].matrix is own[0].matrix:
                continue
            reads = list(self._edges(p, e))
            here = all(same_index(r.axes, r.source.shape, e.domain) for _, r in reads)
            if here and p.domain == e.domain and self._joins(p, e):
                self.regions.merge(p, e)
                return

    # ---- what makes the row

    def _with_row(self, e: Region) -> None:
        products = self._products(e)
        if not products or any(x.row is not products[0].row for x in products):
            return
        p = self.regions.of.get(products[0].row)
        if p is None or p is e or p.kind not in ("row", "map"):
            return
        shape = p.domain
        one = bool(shape) and all(D.known_eq(d, 1) for d in shape[:-1])
        by_product = all(contraction(q) is not None for q, _ in self._edges(p, e))
        if one and by_product and D.known_eq(shape[-1], products[0].depth) and self._joins(p, e):
            self._take_maps(p)
            self.regions.merge(p, e)

    def _take_maps(self, p: Region) -> None:
        """Cheap maps that only the row reads leave the region that they were joined to, where what
        they read is stored anyway: fewer bytes are read again."""
        for c in self.regions.preceding(p):
            for n in reversed(list(c.nodes)):
                f = self.facts[n]
                alone = all(self.regions.of[q] is p for q, _ in self.readers.get(n, ()))
                if n is c.anchor or f.kind != "map" or n in self.results or not alone:
                    continue
                stored = (self._is_stored(r.source, c, p) for r in self.regions.reads[n])
                if f.flops <= self.cheap and all(stored):
                    self.regions.move(n, c, p)

    def _is_stored(self, x: Node, c: Region, p: Region) -> bool:
        """Is it stored by its region, whether the row reads it or not?"""
        if self.regions.of.get(x) is not c or x in self.results or is_scalar_constant(x):
            return True
        found = (self.regions.of[q] for q, _ in self.readers.get(x, ()))
        # One that the row alone reads may be stored in place of what is made of it.
        return any(r is not c for r in found) or all(
            n is x or n.dtype.bytes >= x.dtype.bytes for n in c.nodes if x in n.inputs
        )

    # ---- helpers

    def _products(self, e: Region) -> list[_Product]:
        """The contractions of a region, if all are products of one row by rows of a matrix."""
        found = [(n, c) for n in e.nodes if (c := contraction(n)) is not None]
        made: list[_Product] = []
        for n, c in found:
            f = self.facts[n]
            wide = [d for d in n.shape if not D.known_eq(d, 1)]
            reads = {r.via[0][1].operand: r for r in self.regions.reads[n]}
            if len(f.inner) != 1 or len(wide) != 1 or len(reads) != 2:
                return []
            left, right = reads[c.left], reads[c.right]
            deep, depth = len(f.domain) - 1, f.inner[0]
            along = left.axes[-1:] == right.axes[-1:] == (deep,)
            whole = D.known_eq(right.source.shape[-1], depth) and right.source not in e.nodes
            if not isinstance(depth, int) or not along or not whole:
                return []
            bytes_ = depth * right.source.dtype.bytes
            warp = self.target.grid.warp if self.target.grid is not None else 1
            if depth > SHARE * warp or bytes_ % (VECTOR * warp):
                return []
            made.append(_Product(left.source, right.source, depth))
        return made

    def _edges(self, p: Region, e: Region) -> Iterator[tuple[Node, Read]]:
        for n in p.nodes:
            yield from ((q, r) for q, r in self.readers.get(n, ()) if self.regions.of[q] is e)

    def _joins(self, p: Region, e: Region) -> bool:
        """Does nothing else read what p makes, and may the two be one kernel?"""
        alone = not any(n in self.results for n in p.nodes) and all(
            self.regions.of[q] in (p, e) for n in p.nodes for q, _ in self.readers.get(n, ())
        )
        return alone and self.regions.mergeable(p, e) and self.too_large(p, e) is None
