"""Chains: a contraction, rows made of its result, and a contraction of those rows (attention).

Where a block of such rows stays in the cache, the three are one kernel: the first result is never
stored. A reduction over parts of the rows (blocks of keys) may be its end, which has running
results. Otherwise a chain is refused, with the reason.

Two contractions with elementwise work between them (an MLP) are a chain as well, where what lies
between them is much larger than a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tilewright.graph.classify import OTHER, UNIT, contraction, guess, nbytes, same_prefix
from tilewright.graph.cluster import Why
from tilewright.graph.joining import Joining
from tilewright.graph.regions import Read, Region
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ops.views import Pad, Permute

# Scores of this many rows are a thread's scratch; see kernel/defaults/chains.py.
TILE_ROWS = 12
# Fewer rows than this are products of a vector: their matrices are read as they lie, once.
FEW_ROWS = 8
# Bytes between two contractions from which on a chain, which leaves them in the cache, pays. With 4
# MiB it gained 2 to 3 %, with 16 MiB up to 11 %, with 3 MiB it lost 4 %: weights are read again for
# every block.
BETWEEN_BYTES = 4 * 1024 * 1024
# Pieces of work below which threads would have nothing to share.
FEW_PIECES = 4


@dataclass
class Chains(Joining):
    """Finds chains among regions, and gives the reason where there is none."""

    def link(self) -> dict[tuple[Node, Node], Why]:
        """Makes regions of chains; the reasons why rows were not made where they are read."""
        refused: dict[tuple[Node, Node], Why] = {}
        for chain in self.regions.live():
            if chain.kind == "chain":  # products that are one already
                self._with_turn(chain)
        for second in self.regions.live():
            if second.kind != "contract":
                continue
            anchor = second.anchor
            assert anchor is not None
            for weights in self._rows_read(anchor):
                rows = self.regions.of[weights]
                first = self._scores(rows)
                if first is None:
                    continue
                last = self._end(rows, second)
                why = self._refusal(first, rows, second, weights, last)
                if why is None:
                    self._unite(first, rows, second, last)
                else:
                    refused[weights, anchor] = why
                break
            else:
                self._link_products(second)
        return refused

    def _link_products(self, second: Region) -> None:
        """A contraction whose rows another one makes, element by element, joins that."""
        anchor = second.anchor
        c = contraction(anchor) if anchor is not None and self.target.grid is None else None
        if anchor is None or c is None or len(self.facts[anchor].inner) != 1:
            return
        left = [r for r in self.regions.reads[anchor] if r.via[0][1].operand == c.left]
        first = self.regions.of.get(left[0].source) if len(left) == 1 else None
        if first is None or first.kind != "contract" or first.anchor is None:
            return
        (read,) = left
        made = read.source
        plain = made.rank == anchor.rank == 2 and read.axes == (0, 2) and made.ttype.is_static
        if not plain or D.known_lt(made.ttype.size * made.dtype.bytes, BETWEEN_BYTES):
            return
        rows = TILE_ROWS * guess(made.shape[-1]) * made.dtype.accumulator.bytes
        why = (
            self._alone(first, second)
            or self._packed(first.anchor)
            or self._packed(anchor)
            or self._mergeable(first, second)
        )
        fits = rows <= self.target.scratch
        if fits and why is None and _same(first.domain, made.shape):
            second.kind, second.roles = "chain", _roles(first.anchor, anchor)
            self.regions.merge(first, second)

    def _rows_read(self, anchor: Node) -> list[Node]:
        """What a contraction multiplies row by row, if the kernel of a row computes it."""
        c = contraction(anchor)
        if c is None:
            return []
        left = [r for r in self.regions.reads[anchor] if r.via[0][1].operand == c.left]
        found = [r.source for r in left if r.source in self.regions.of]
        return [x for x in found if self.regions.of[x].kind == "row"] if len(left) == 1 else []

    def _scores(self, rows: Region) -> Region | None:
        """The contraction that makes these rows, element by element."""
        found = []
        for p in self.regions.preceding(rows):
            if p.kind == "contract" and _same(p.domain, rows.domain) and len(rows.inner) == 1:
                edges = self._edges(p, rows)
                if all(self._own_row(r, rows) and r.axes[-1] >= 0 for _, r in edges):
                    found.append(p)
        return found[0] if len(found) == 1 else None

    def _edges(self, p: Region, e: Region) -> list[tuple[Node, Read]]:
        of = self.regions.of
        return [(q, r) for n in p.nodes for q, r in self.readers.get(n, ()) if of[q] is e]

    @staticmethod
    def _own_row(r: Read, rows: Region) -> bool:
        return same_prefix(r.axes, r.source.shape, len(rows.outer))

    def _end(self, rows: Region, second: Region) -> Region | None:
        """The reduction over one of the axes around the rows that alone reads what they and their
        products are."""
        of = self.regions.of
        found = {id(x): x for n in second.nodes for q, _ in self.readers.get(n, ()) if (x := of[q])}
        found.pop(id(second), None)
        if len(found) != 1:
            return None
        (last,) = found.values()
        if last.kind != "column" or last.anchor is None:
            return None
        rank = len(self.facts[last.anchor].outputs[0].shape)
        around = (*range(rank - 2), rank, rank - 2)  # parts of the rows are right outside of them
        for p in (rows, second):
            for q, r in self._edges(p, last):
                own = r.axes[: len(around)]
                fits = all(
                    a == k or d == 1 for a, k, d in zip(own, around, r.source.shape, strict=False)
                )
                if q is not last.anchor or len(r.axes) != len(around) + 1 or not fits:
                    return None
        return last

    def _refusal(
        self, first: Region, rows: Region, second: Region, weights: Node, last: Region | None
    ) -> Why | None:
        assert first.anchor is not None and second.anchor is not None
        return (
            self._alone(first, rows)
            or self._alone(rows, second, last)
            or (None if last is None else self._alone(second, last))
            or self._shapes(rows, second, weights)
            or self._small_enough(first.anchor, second.anchor, rows, weights, last)
            or self._packed(first.anchor)
            or self._packed(second.anchor)
            or self._mergeable(*(x for x in (first, rows, second, last) if x is not None))
        )

    def _alone(self, p: Region, e: Region, last: Region | None = None) -> Why | None:
        """Does nothing but e, and what ends the chain, read what p computes?"""
        if any(n in self.results for n in p.nodes):
            return "more than one consumer", "its value is also a result"
        others = {
            id(x): x
            for n in p.nodes
            for q, _ in self.readers.get(n, ())
            if (x := self.regions.of[q]) not in (p, e, last)
        }
        if others:
            return "more than one consumer", "several kernels read it"
        return None

    def _shapes(self, rows: Region, second: Region, weights: Node) -> Why | None:
        anchor = second.anchor
        assert anchor is not None
        f = self.facts[anchor]
        rank = len(rows.outer)
        if len(f.inner) != 1 or not _same(anchor.shape[:-1], rows.outer):
            return "incompatible iteration", "the contraction is not one of row by row"
        for q, r in self._edges(rows, second):
            if q is anchor and r.source is weights:
                if not self._own_row(r, rows) or r.axes[rank:] != (rank + 1,):
                    return "incompatible iteration", "the contraction reads other rows"
            elif not self._own_row(r, rows) or set(r.axes[rank:]) - {UNIT} or OTHER in r.axes:
                return "incompatible iteration", "rows are read that it does not multiply"
        return None

    def _small_enough(
        self, first: Node, second: Node, rows: Region, weights: Node, last: Region | None
    ) -> Why | None:
        if self.target.grid is not None:
            return self._in_blocks(weights, last)
        return self._sizes(rows, weights) or self._read_again(first, second, weights)

    def _sizes(self, rows: Region, weights: Node) -> Why | None:
        many, (keys,) = rows.outer[-1], rows.inner
        if TILE_ROWS * guess(keys) * weights.dtype.accumulator.bytes > self.target.scratch:
            return "too large", f"{TILE_ROWS} rows of {keys} do not fit the cache"
        if isinstance(many, int) and many < FEW_ROWS:
            return "not fusible", f"{many} rows are too few to keep a block of them"
        if prod(map(guess, rows.outer[:-1])) * max(1, guess(many) // (2 * FEW_ROWS)) < FEW_PIECES:
            return "not fusible", "there are too few rows for several threads"
        return None

    def _read_again(self, first: Node, second: Node, weights: Node) -> Why | None:
        """Matrices that all rows share are read again for every block of rows. Are they small
        enough for a cache, or what lies between them so large that the chain pays all the same?"""
        again = 0
        for anchor in (first, second):
            c = contraction(anchor)
            if c is not None and all(anchor.shape[k] == 1 for k in c.batch):
                again += guess(nbytes(anchor.inputs[c.right].ttype))
        if again <= self.target.l2 or guess(nbytes(weights.ttype)) >= BETWEEN_BYTES:
            return None
        return "too large", f"every block of rows would read the same {again} bytes"

    @staticmethod
    def _in_blocks(weights: Node, last: Region | None) -> Why | None:
        """Of a GPU: rows of a block of keys are in registers, as an instruction takes them."""
        if last is None:
            return "too large", "rows of all keys are in no registers"
        if weights.dtype.bits != 16:
            return "not fusible", f"no instruction multiplies rows of {weights.dtype}"
        return None

    def _packed(self, anchor: Node) -> Why | None:
        if self.target.grid is not None:
            return None  # operands lie as they come
        c = contraction(anchor)
        if c is None or c.lane != anchor.rank - 1 or not anchor.inputs[c.right].op.inline:
            return "misaligned access", "an operand of the contraction is not packed"
        return None

    def _mergeable(self, *chain: Region) -> Why | None:
        for k, a in enumerate(chain):
            for b in chain[k + 1 :]:
                between = [
                    p for p in self.regions.preceding(b) if p not in chain and p.ancestors & a.mask
                ]
                if between:
                    return "changed semantics", "a third kernel has to run between the two"
        too_large = (self.too_large(a, b) for a, b in pairwise(chain))
        return next((why for why in too_large if why is not None), None)

    def _unite(self, first: Region, rows: Region, second: Region, last: Region | None) -> None:
        assert first.anchor is not None and second.anchor is not None
        second.roles = _roles(first.anchor, second.anchor)
        self.regions.merge(first, rows)
        second.kind, second.outer, second.inner = "chain", rows.outer, rows.inner
        self.regions.merge(rows, second)
        if last is not None:
            assert last.anchor is not None
            last.kind, last.roles = "chain", {"end": last.anchor}
            self.regions.merge(second, last)
            if self.target.grid is not None:
                self._with_edges(last)
                self._with_turn(last)

    def _with_edges(self, chain: Region) -> None:
        """Zeros past the last key are made where keys and values are copied to."""
        for p in list(self.regions.preceding(chain)):
            padded = p.kind == "map" and all(n.op.view or isinstance(n.op, Pad) for n in p.nodes)
            if padded and (self._alone(p, chain) or self._mergeable(p, chain)) is None:
                self.regions.merge(p, chain)

    def _with_turn(self, chain: Region) -> None:
        """Results whose axes are only wanted in another order are stored in that."""
        of = self.regions.of
        read = {id(x): x for n in chain.nodes for q, _ in self.readers.get(n, ()) if (x := of[q])}
        read.pop(id(chain), None)
        for after in read.values():
            turns = after.kind == "map" and all(isinstance(n.op, Permute) for n in after.nodes)
            if turns and self._only_for(chain, after) and self._mergeable(chain, after) is None:
                roles = chain.roles
                self.regions.merge(after, chain)
                chain.kind, chain.roles = "chain", roles

    def _only_for(self, chain: Region, after: Region) -> bool:
        """Does nothing else read what the one reads of the other?"""
        for n in chain.nodes:
            found = {id(self.regions.of[q]) for q, _ in self.readers.get(n, ())}
            if id(after) in found and (n in self.results or found - {id(after), id(chain)}):
                return False
        return True


def _roles(scores: Node, sums: Node) -> dict[str, Node]:
    """What the contractions of a chain are in it, and what the second one multiplies by rows."""
    c = contraction(sums)
    assert c is not None
    return {"scores": scores, "weights": sums.inputs[c.left], "sums": sums}


def _same(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(map(D.known_eq, a, b))
