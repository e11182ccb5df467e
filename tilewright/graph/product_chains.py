"""Products of what other products make, element by element, as one kernel of a GPU.

The gradients of attention: scores and their gradients are two products of equal shape, and what is
made of both are the rows of one or two more. None of it is stored: a tile of rows walks over the
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from tilewright.graph.classify import Facts, contraction, same_prefix
from tilewright.graph.regions import Read, Region, Regions
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.target import Target

WIDEST = 128  # columns of a result: sums of a tile are in the registers of a group of warps
FEW_ROWS = 16  # fewer leave most of a product's rows empty
GROUP_ROWS = 64  # of an instruction of a group of warps


@dataclass
class ProductChains:
    """Finds such products among regions and makes one of them."""

    regions: Regions
    facts: Mapping[Node, Facts]
    readers: Mapping[Node, list[tuple[Node, Read]]]
    results: Set[Node]
    target: Target

    def link(self) -> None:
        halves = [p for p in self.target.products if p.a.is_float and p.a.bits == 16]
        if self.target.grid is None or not any(
            p.tile is not None and p.tile[0] >= GROUP_ROWS for p in halves
        ):
            return
        for last in self.regions.live():
            if last.kind == "contract" and last.nodes:
                first = self._made_by(last)
                if first is not None:
                    self._unite(first)

    def _made_by(self, last: Region, across: bool = False) -> Region | None:
        """The product whose elements are the rows that another one multiplies; `across`: whose
        columns are."""
        anchor = last.anchor
        c = contraction(anchor) if anchor is not None else None
        if anchor is None or c is None or len(self.facts[anchor].inner) != 1:
            return None
        left = [r for r in self.regions.reads[anchor] if r.via[0][1].operand == c.left]
        if len(left) != 1:
            return None
        (read,) = left
        made = self.regions.of.get(read.source)
        rank = anchor.rank
        batch = same_prefix(read.axes, read.source.shape, rank - 2)
        rows = batch and read.axes[-2:] == ((rank, rank - 2) if across else (rank - 2, rank))
        fits = made is not None and made is not last and made.kind == "contract"
        if not fits or not rows or len(read.axes) != rank or read.source.dtype.bits != 16:
            return None
        width = anchor.shape[-1]
        if not anchor.ttype.is_static or not isinstance(width, int) or width > WIDEST:
            return None
        return made

    def _unite(self, first: Region) -> None:
        """One kernel of a product, those whose elements it is made with, and those of its rows. One
        of its columns may be there too: its sums are over all tiles of rows."""
        firsts = self._beside(first)
        lasts: list[Region] = []
        across: list[Region] = []
        for n in self._made_of_products(firsts):
            if n in self.results:
                return
            for q, read in self.readers.get(n, ()):
                reader = self.regions.of[q]
                if reader in firsts:
                    if not self._same_place(read):
                        return
                elif reader.kind == "contract" and self._made_by(reader) in firsts:
                    if reader not in lasts:
                        lasts.append(reader)
                elif reader.kind == "contract" and self._made_by(reader, True) in firsts:
                    if reader not in across:
                        across.append(reader)
                else:
                    return
        whole = [*firsts, *across, *lasts]
        if not all(map(self._small, whole)) or not lasts or len(across) > 1:
            return
        if len({x.domain for x in lasts}) != 1 or any(self._between(a, whole) for a in whole):
            return
        roles: dict[str, Node] = {}
        for name, found in (("first", firsts), ("last", lasts), ("across", across)):
            roles |= {f"{name}{k}": x.anchor for k, x in enumerate(found) if x.anchor is not None}
        end = lasts[-1]
        for x in whole[:-1]:
            self.regions.merge(x, end)
        end.kind, end.roles = "chain", roles

    def _made_of_products(self, firsts: list[Region]) -> list[Node]:
        """All but what such a product is only made with, such as a value for each column."""
        made: list[Node] = []
        for r in firsts:
            for n in r.nodes:
                if n is r.anchor or any(x.source in made for x in self.regions.reads[n]):
                    made.append(n)
        return [*made, *(n for r in firsts for n in r.nodes if n in self.results)]

    def _small(self, r: Region) -> bool:
        """Is it a product of matrices of 16 bits, as they are stored, that has a tile of rows, and
        is what it adds up either short or walked over?"""
        assert r.anchor is not None
        *_, rows, columns = r.anchor.shape
        (deep,) = self.facts[r.anchor].inner
        short = [d for d in (columns, deep) if isinstance(d, int) and d <= WIDEST]
        stored = all(
            read.source.dtype.bits == 16 and all(v.op.view for v, _ in read.via[1:])
            for read in self.regions.reads[r.anchor]
        )
        return stored and bool(short) and isinstance(rows, int) and rows >= FEW_ROWS

    def _beside(self, first: Region) -> list[Region]:
        """Products of the same shape that are read element by element, however indirectly, and
        those that read what they make; producers first."""
        found = [first]
        for x in found:
            near = [p for p in self.regions.preceding(x) if self._feeds(p, x)]
            after = {self.regions.of[q]: None for n in x.nodes for q, _ in self.readers.get(n, ())}
            near += [r for r in after if r is not x and self._feeds(x, r)]
            found += [p for p in dict.fromkeys(near) if p not in found]
        return sorted(found, key=lambda r: r.ancestors.bit_count())

    def _feeds(self, p: Region, x: Region) -> bool:
        """Are both products of one shape, and what one makes read by the maps after the other?"""
        if p.kind != "contract" or x.kind != "contract" or len(p.domain) != len(x.domain):
            return False
        of = self.regions.of
        reads = [q for n in p.nodes for q, _ in self.readers.get(n, ()) if of[q] is x]
        return all(map(D.known_eq, p.domain, x.domain)) and x.anchor not in reads

    @staticmethod
    def _same_place(r: Read) -> bool:
        return same_prefix(r.axes, r.source.shape, len(r.axes))

    def _between(self, a: Region, whole: list[Region]) -> bool:
        """Must a region outside run after one of them and before another?"""
        return any(
            p not in whole and any(p.ancestors & x.mask for x in whole)
            for p in self.regions.preceding(a)
        )
