"""Attention of few rows on a GPU, such as a step of a language model: what is between two products
stays in the block of a row.

A product, rows made of its results and a product of these rows share their first axes. With few of
them a kernel each is mostly waiting; a block for every row does all of it, one part after the other
(kernel/defaults/grid_row_blocks.py). What only these products read is made there too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from tilewright.graph.classify import contraction, nbytes, same_prefix
from tilewright.graph.joining import Joining
from tilewright.graph.regions import Read, Region
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node

# Bytes of all that one block reads, at most: a few microseconds of one multiprocessor.
MOST_BYTES = 512 * 1024
# Threads of a block.
THREADS = 256
VECTOR = 16  # bytes
WARP = 32
# Elements of what blocks make again, each for itself.
MOST_AGAIN = 8192


def block_threads(columns: int, lanes: int) -> tuple[int, int] | None:
    """Threads of a block, where each has a vector of so many columns of the last product: along its
    columns, and rows of these; None where they do not fill warps."""
    across = columns // lanes
    whole = columns % lanes == 0 and 1 < across <= WARP and across & (across - 1) == 0
    return (across, THREADS // across) if whole and lanes > 1 else None


def _count(shape: tuple[Dim, ...]) -> int:
    """The elements of a shape; 0 where that is not known."""
    return prod(d if isinstance(d, int) else 0 for d in shape)


@dataclass
class RowBlocks(Joining):
    """Joins regions that share rows, where rows are few."""

    # What others read too, and blocks need not wait for where they make it themselves.
    again: set[Node] = field(default_factory=set)

    def join(self) -> None:
        if self.target.grid is None:
            return
        for e in self.regions.live():
            if e.nodes and e.kind == "contract":
                self._with_rows(e)

    def _with_rows(self, e: Region) -> None:
        for p in self.regions.preceding(e):
            rows = p.outer
            if p.kind != "row" or not self._few(rows) or not self._starts(e.domain, rows):
                continue
            by_row = all(self._by_row(q, r, rows) for q, r in self._edges(p, e))
            firsts = [c for c in self.regions.preceding(p) if self._first(c, p, rows)]
            if not firsts or not by_row or not self._joins(p, e):
                continue
            if not self._threads_fit(e, firsts) or not self._one_kernel(e, p, *firsts):
                continue
            if sum(map(self._bytes, (*firsts, e))) > MOST_BYTES * _count(rows):
                continue
            for c in (p, *firsts):
                self.regions.merge(c, e)
            for m in self.regions.preceding(e):
                if m.kind != "map" or not 0 < _count(m.domain) <= MOST_AGAIN:
                    continue
                if self._joins(m, e):
                    self.regions.merge(m, e)
                elif any(p.kind == "contract" for p in self.regions.preceding(m)):
                    self.again.update(self._made_for(m, e))
            return

    def _one_kernel(self, *parts: Region) -> bool:
        """Are all of them together no more than one kernel is worth?"""
        whole, nothing = (Region(0, "contract", ()) for _ in range(2))
        for x in parts:
            whole.nodes |= x.nodes
            whole.inputs |= x.inputs
            whole.size += x.size
            whole.work += x.work
        return self.too_large(whole, nothing) is None

    def _made_for(self, m: Region, e: Region) -> Iterator[Node]:
        """The nodes of m that e needs, if each is cheap and none is a result."""
        needed = {r.source for n in e.nodes for r in self.regions.reads[n]} & m.nodes.keys()
        for n in reversed(list(m.nodes)):
            if n in needed:
                needed |= {r.source for r in self.regions.reads[n]} & m.nodes.keys()
        cheap = all(self.facts[n].flops <= self.cheap for n in needed)
        yield from needed if cheap and not needed & set(self.results) else ()

    def _few(self, rows: tuple[Dim, ...]) -> bool:
        assert self.target.grid is not None
        return 0 < _count(rows) <= self.target.grid.multiprocessors

    def _first(self, c: Region, p: Region, rows: tuple[Dim, ...]) -> bool:
        """Is it a product whose results only rows of p are made of, each of its own ones?"""
        if c.kind != "contract" or c.anchor is None or contraction(c.anchor) is None:
            return False
        own = all(self._by_row(q, r, rows) for q, r in self._edges(c, p))
        return own and self._starts(c.domain, rows) and self._joins(c, p)

    def _threads_fit(self, e: Region, firsts: list[Region]) -> bool:
        """Do matrices lie as the schedule reads them, by vectors of threads that fill a block?"""
        n, columns = e.anchor, e.domain[-1]
        right = self._right(n) if n is not None else None
        if n is None or right is None or not isinstance(columns, int):
            return False
        lanes = VECTOR // right.source.dtype.bytes
        by = block_threads(columns, lanes)
        if by is None or right.axes[-1:] != (n.rank - 1,):
            return False
        steps = self.facts[n].inner
        for c in firsts:
            assert c.anchor is not None
            found = self._right(c.anchor)
            if found is None or len(self.facts[c.anchor].inner) != 1:
                return False
            if D.known_eq(c.domain[-1], 1):
                continue
            deep, depth = len(self.facts[c.anchor].domain) - 1, self.facts[c.anchor].inner[0]
            along = found.axes[-1:] == (deep,) and D.known_eq(D.mod(depth, lanes), 0)
            if not along or not D.known_eq(D.mod(c.domain[-1], by[1]), 0):
                return False
        return len(steps) == 1 and D.known_eq(D.mod(steps[0], by[1]), 0)

    def _right(self, n: Node) -> Read | None:
        """What a product reads of its second operand."""
        c = contraction(n)
        found = (r for r in self.regions.reads[n] if c and r.via[0][1].operand == c.right)
        return next(found, None)

    def _by_row(self, q: Node, r: Read, rows: tuple[Dim, ...]) -> bool:
        return same_prefix(r.axes, r.source.shape, len(rows))

    def _bytes(self, e: Region) -> int:
        """What the blocks of a product read of its second operand together."""
        n = e.anchor
        c = contraction(n) if n is not None else None
        if n is None or c is None:
            return MOST_BYTES**2
        shared = _count(tuple(n.shape[a] for a in c.rows)) if c.rows else 1
        size = nbytes(n.inputs[c.right].ttype)
        return size * shared if isinstance(size, int) else MOST_BYTES**2

    @staticmethod
    def _starts(shape: tuple[Dim, ...], rows: tuple[Dim, ...]) -> bool:
        return len(shape) > len(rows) and all(map(D.known_eq, shape, rows))

    def _edges(self, p: Region, e: Region) -> Iterator[tuple[Node, Read]]:
        for n in p.nodes:
            yield from ((q, r) for q, r in self.readers.get(n, ()) if self.regions.of[q] is e)

    def _joins(self, p: Region, e: Region) -> bool:
        """Does nothing else read what p makes, and may the two be one kernel?"""
        alone = not any(n in self.results for n in p.nodes) and all(
            self.regions.of[q] in (p, e) for n in p.nodes for q, _ in self.readers.get(n, ())
        )
        return alone and self.regions.mergeable(p, e) and self.too_large(p, e) is None
