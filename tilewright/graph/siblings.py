"""Kernels that go through the same elements and read the same value become one: maps of one shape,
long sums of columns, and on GPUs, where each would be launches of its own, small maps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.graph.classify import Facts, guess, same_index
from tilewright.graph.cluster import Why
from tilewright.graph.regions import Read, Region, Regions
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.target import Target
from tilewright.ir.types import TupleType

SMALL = 256  # elements: a block of threads
LONG = 1 << 16  # elements: shorter sums read them from a cache


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

    def join_sums(
        self,
        order: Sequence[Node],
        too_large: Callable[[Region, Region], Why | None],
        unite: Callable[[Region, Region], None],
    ) -> None:
        """Sums of all but one axis that read the same large value, be it in maps before them: it
        arrives once. On GPUs these have been joined before."""
        if self.target.grid is not None:
            return
        found: dict[tuple[Node, Hashable], list[Region]] = {}
        for n in order:
            region = self.regions.of.get(n)
            if region is None or region.kind != "column" or n is not region.anchor:
                continue
            for read in self.columns(n, region):
                others = found.setdefault(read, [])
                for first in others:
                    now = self.regions.of[n]
                    if first is now or not first.nodes or not self.apart(first, now):
                        continue
                    if too_large(first, now) is None:
                        unite(now, first)
                        break
                others.append(self.regions.of[n])

    def columns(self, n: Node, region: Region) -> list[tuple[Node, Hashable]]:
        """What a long sum of each column, or of many rows for each, reads element by element, with
        how it goes through that; none where operands lie in different ways."""
        f = self.facts[n]
        if isinstance(n.type, TupleType) or f.kind != "reduce" or f.outer is not None:
            return []
        wide = [k for k, d in enumerate(n.shape) if not D.known_eq(d, 1)]
        known = [d for d in f.domain if isinstance(d, int)]
        if len(wide) != 1 or len(known) < len(f.domain) or prod(known) < LONG:
            return []
        found: list[Read] = []
        todo = list(self.regions.reads[n])
        while todo:
            r = todo.pop()
            if prod(map(guess, r.source.shape)) != prod(known):
                continue  # the same for all rows
            if r.source not in region.nodes:
                found.append(r)
                continue
            inside = self.regions.reads[r.source]
            large = [x for x in inside if prod(map(guess, x.source.shape)) == prod(known)]
            if not all(same_index(x.axes, x.source.shape, r.source.shape) for x in large):
                return []
            todo += [replace(x, axes=r.axes) for x in large]
        ways = {tuple(r.axes) for r in found}
        if len(ways) != 1:
            return []
        last = found[0].axes[-1]
        beside = last == wide[0] and guess(n.shape[last]) >= self.target.lanes(32)
        if not beside and last < n.rank:
            return []  # lanes run along rows and columns, or numbers are gathered
        return [(r.source, (n.shape, f.domain, r.axes)) for r in dict.fromkeys(found)]

    def apart(self, a: Region, b: Region) -> bool:
        """Does neither wait for the other? Sums must not; what is made of both may."""
        if not (a.ancestors & b.mask or b.ancestors & a.mask):
            return True
        if a.kind != "column" or b.kind != "column" or not self.regions.mergeable(a, b):
            return False
        mask = a.mask | b.mask
        todo = [n for r in (a, b) for n in r.nodes if self.facts[n].kind == "reduce"]
        seen = set(todo)
        while todo:
            for r in self.regions.reads[todo.pop()]:
                p, of = r.source, self.regions.of.get(r.source)
                if of is not a and of is not b:
                    if of is not None and of.ancestors & mask:
                        return False
                elif self.facts[p].kind == "reduce":
                    return False
                elif p not in seen:
                    seen.add(p)
                    todo.append(p)
        return True

    def kind(self, p: Node, n: Node, r: Read, region: Region) -> Hashable:
        """Those that have the same one read p in the same way; None where others have no part."""
        if region.kind == "map" and same_index(r.axes, p.shape, region.domain):
            return region.domain
        if region.kind != "column" or n is not region.anchor or isinstance(n.type, TupleType):
            return None
        if self.target.grid is None or n.rank == 0 or self.facts[n].outer is not None:
            return None
        return n.shape, self.facts[n].domain, tuple(r.axes)
