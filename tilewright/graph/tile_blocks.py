"""Convolutions by tiles as one kernel: points of a block of tiles never leave the cache.

What makes the points of an image's tiles, their products with weights, and what makes pixels of
these are three kernels otherwise, and points take several times as many bytes as pixels. Gradients
of weights have points of two images, and taps of a window in place of pixels. The pass that writes
a convolution so (graph/winograd.py) says by the form of the products whether blocks of tiles pay;
here all become one kernel, where nothing else reads what is between them. Several of them that read
the same points, such as convolutions of one image, make these each for itself: it takes less than
to read what another kernel stored, which is several times as large as the image.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from tilewright.graph.cluster import Why
from tilewright.graph.joining import Joining
from tilewright.graph.regions import Region
from tilewright.ir import dim as D
from tilewright.ir.node import Node, Op
from tilewright.ops.winograd import (
    WinogradGradient,
    WinogradInput,
    WinogradOutput,
    WinogradProducts,
    WinogradSums,
    WinogradTaps,
)

RANK = 6  # of products of tiles that are rows and columns, which are not rows of a matrix


@dataclass
class TileBlocks(Joining):
    """Finds such products among regions, and gives the reason where they stay apart."""

    inlined: Set[Node] = frozenset()  # what readers make, each for itself
    again: set[Node] = field(default_factory=set)  # what they should make so
    unfit: set[Node] = field(default_factory=set)  # what they should not

    def link(self) -> dict[tuple[Node, Node], Why]:
        refused: dict[tuple[Node, Node], Why] = {}
        for products in self.regions.live():
            anchor = products.anchor
            if anchor is None or products.kind != "contract":
                continue
            if isinstance(anchor.op, WinogradProducts) and anchor.rank == RANK:
                roles = {"points": anchor.inputs[0], "products": anchor}
                why = self._join(roles, products, WinogradOutput)
            elif isinstance(anchor.op, WinogradSums) and anchor.inputs[0].rank == RANK:
                changes, points = anchor.inputs
                roles = {"points": points, "changes": changes, "products": anchor}
                why = self._join(roles, products, WinogradTaps)
            elif isinstance(anchor.op, WinogradSums):
                # Points of all tiles are there: the kernel goes through blocks of results.
                why = self._join({"products": anchor}, products, WinogradTaps)
            else:
                continue
            if why is not None:
                refused[anchor.inputs[0], anchor] = why
                self.unfit |= {x for x in anchor.inputs if _makes_points(x) and x in self.inlined}
        return refused

    def _join(self, roles: dict[str, Node], products: Region, ends: type[Op]) -> Why | None:
        """One kernel of the products, of what makes their operands, and of what is made of them;
        the reason where that is refused."""
        made = [x for what, x in roles.items() if what != "products" and x not in self.inlined]
        before = [self.regions.of.get(x) for x in made]
        operands = [x for x in before if x is not None and x.kind == "map"]
        after = self._after(products, ends)
        if len(operands) < len(before) or len(products.nodes) != 1:
            return "not fusible", "points are made by more than a map"
        if after is None:
            return "more than one consumer", "tiles become more than one result"
        if shared := [x for x in operands if self._readers(x) != [products]]:
            for x in shared:
                if self._made_by_each(x):
                    self.again |= set(x.nodes)
            return "more than one consumer", "several kernels read it"
        if any(n in self.results for x in (*operands, products) for n in x.nodes):
            return "more than one consumer", "its value is also a result"
        own = [*operands, products]
        for last in own[1:] + [after]:
            for p in self.regions.preceding(last):
                if p not in own and any(p.ancestors & x.mask for x in own):
                    return "changed semantics", "a third kernel has to run between the two"
        for x in (*operands, products):
            if (why := self.too_large(x, after)) is not None:
                return why
        for x in operands:
            self.regions.merge(x, products)
        self.regions.merge(products, after)
        after.kind, after.roles = "chain", roles
        return None

    def _made_by_each(self, points: Region) -> bool:
        """Do only such products read points, each of which makes pixels or taps, and takes little
        else to make them?"""
        for x in self._readers(points):
            n, sums = x.anchor, (WinogradProducts, WinogradSums)
            if n is None or not isinstance(n.op, sums) or n.inputs[0].rank != RANK:
                return False
            ends = WinogradOutput if isinstance(n.op, WinogradProducts) else WinogradTaps
            after = self._after(x, ends)
            if after is None or len(x.nodes) != 1 or self.too_large(points, after) is not None:
                return False
        cheap = (_makes_points(n) or self.facts[n].flops <= self.cheap for n in points.nodes)
        return all(cheap) and not any(n in self.results for n in points.nodes)

    def _after(self, products: Region, ends: type[Op]) -> Region | None:
        """The one region that reads the products, if it makes pixels or taps of them. Other results
        of the same shape may be made there, too, of pixels."""
        found = self._readers(products)
        if len(found) != 1 or found[0].kind != "map":
            return None
        (after,) = found
        made = [n for n in after.nodes if isinstance(n.op, ends)]
        stored = [n for n in after.nodes if n in self.results or self._leaves(n, after)]
        views = any(self.facts[n].kind == "view" for n in after.nodes)
        if len(made) != 1 or views or (len(stored) != 1 and ends is not WinogradOutput):
            return None
        same = all(len(n.shape) == len(after.domain) for n in (*made, *stored))
        both = (n.shape for n in (*made, *stored))
        return after if same and all(all(map(D.known_eq, x, after.domain)) for x in both) else None

    def _readers(self, region: Region) -> list[Region]:
        of = self.regions.of
        read = (of[q] for n in region.nodes for q, _ in self.readers.get(n, ()))
        return list({id(x): x for x in read if x is not region}.values())

    def _leaves(self, n: Node, region: Region) -> bool:
        return any(self.regions.of[q] is not region for q, _ in self.readers.get(n, ()))


def _makes_points(n: Node) -> bool:
    return isinstance(n.op, (WinogradInput, WinogradGradient))
