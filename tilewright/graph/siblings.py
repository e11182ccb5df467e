"""Kernels that go through the same elements and read the same value become one: maps of one shape,
and on GPUs, where each would be launches of its own, sums of columns and small maps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.graph.classify import Facts, guess, same_index
from tilewright.graph.cluster import Why
from tilewright.graph.regions import Read, Region, Regions
from tilewright.ir.node import Node
from tilewright.ir.target import Target
from tilewright.ir.types import TupleType

SMALL = 256  # elements: a block of threads


def sums_first(nodes: list[Node], facts: Mapping[Node, Facts]) -> list[Node]:
    """In order, but what is made of sums after all of these: schedules share loops among what
    follows them."""
    late: dict[Node, None] = {}
    for n in nodes:
        if any(x in late or facts[x].kind == "reduce" for x in n.inputs):
            late[n] = None
    return [*(n for n in nodes if n not in late), *late]


@dataclass(frozen=True)
class Siblings:
    regions: Regions
    facts: Mapping[Node, Facts]
    readers: Mapping[Node, list[tuple[Node, Read]]]
    target: Target

    def join(
        self,
        order: Sequence[Node],
        too_large: Callable[[Region, Region], Why | None],
        unite: Callable[[Region, Region], None],
    ) -> None:
        for p in order:
            found: dict[Hashable, Region] = {}
            if len(self.readers.get(p, ())) < 2 or isinstance(p.type, TupleType) or p.rank == 0:
                continue
            for n, r in self.readers[p]:
                region = self.regions.of[n]
                kind = self.kind(p, n, r, region)
                if kind is None:
                    continue
                first = found.setdefault(kind, region)
                if first is region or not self.apart(first, region):
                    continue
                if too_large(first, region) is None:
                    unite(region, first)
                else:
                    found[kind] = region  # which those that follow may join
        if self.target.grid is not None:
            self.join_small(too_large, unite)

    def join_small(
        self,
        too_large: Callable[[Region, Region], Why | None],
        unite: Callable[[Region, Region], None],
    ) -> None:
        """Maps of a few elements that read arguments only, such as the counters of norms: each
        would be a launch of its own."""
        found: dict[Hashable, Region] = {}
        for region in self.regions.live():
            small = prod(map(guess, region.domain)) <= SMALL
            if region.kind != "map" or region.ancestors or region.used or not small:
                continue  # others may compute what they read
            first = found.setdefault(region.domain, region)
            if first is not region and too_large(first, region) is None:
                unite(region, first)
            else:
                found[region.domain] = region

    def apart(self, a: Region, b: Region) -> bool:
        """Does neither wait for the other? Sums must not; what is made of both may."""
        if not (a.ancestors & b.mask or b.ancestors & a.mask):
            return True
        if a.kind != "column" or b.kind != "column" or not self.regions.mergeable(a, b):
            return False
        mask = a.mask | b.mask
        sums = (n for r in (a, b) for n in r.nodes if self.facts[n].kind == "reduce")
        return not any(
            p.mask & mask or p.ancestors & mask for n in sums for p in self.regions.producers(n)
        )

    def kind(self, p: Node, n: Node, r: Read, region: Region) -> Hashable:
        """Those that have the same one read p in the same way; None where others have no part."""
        if region.kind == "map" and same_index(r.axes, p.shape, region.domain):
            return region.domain
        if region.kind != "column" or n is not region.anchor or isinstance(n.type, TupleType):
            return None
        if self.target.grid is None or n.rank == 0 or self.facts[n].outer is not None:
            return None
        return n.shape, self.facts[n].domain, tuple(r.axes)
