"""Totals: reductions of all elements of a value, computed in the loop of a map over them.

`x.relu()` and `(x > 0).sum()`, or a gather and the largest of its indices: each would read the same
elements in a loop of its own. One kernel does both: pieces of the map's loop also give
partial results, which are put together after it (kernel/defaults/totals.py). The map may go
through more axes than the total, as the rows of an embedding do for each of its indices.

On a GPU the loss of a batch is a total of those of its rows, too: the last block of these adds them
up (kernel/defaults/grid_totals.py), so that it is no launch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.graph.classify import Facts, guess, same_index
from tilewright.graph.cluster import Why
from tilewright.graph.regions import Read, Region, Regions
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.target import Target
from tilewright.ir.types import TupleType

MOST_ROWS = 1 << 15  # whose results one block of a GPU adds up


def is_total(n: Node, f: Facts) -> bool:
    """Is it one number, reduced from all elements of what it reads?"""
    return f.kind == "reduce" and n.rank == 0 and f.outer == 0 and f.reduce is not None


def totals_last(nodes: list[Node], facts: Mapping[Node, Facts]) -> list[Node]:
    """In order, but totals and what is computed from them after all else: a schedule moves them
    into the loops before them."""
    late: dict[Node, None] = {}
    for n in nodes:
        if is_total(n, facts[n]) or any(x in late for x in n.inputs):
            late[n] = None
    return [*(n for n in nodes if n not in late), *late]


@dataclass
class Totals:
    """Finds totals among regions, and the maps whose loops they join."""

    regions: Regions
    facts: Mapping[Node, Facts]
    readers: Mapping[Node, list[tuple[Node, Read]]]
    too_large: Callable[[Region, Region], Why | None]
    target: Target

    def join(self) -> None:
        rows: list[Region] = []
        for total in self.regions.live():
            inner = self._reduced(total)
            if inner is None:
                continue
            for host in self._hosts(total, inner):
                if self._apart(total, host) and self.too_large(total, host) is None:
                    if host.kind == "row":
                        rows.append(host)
                    else:
                        host.kind = "total"
                    self.regions.merge(total, host)
                    break
        for region in self.regions.live() if rows else ():
            self._follow(region, rows)

    def _follow(self, region: Region, rows: list[Region]) -> None:
        """Single values that are computed from totals of rows alone stay with them."""
        made = self.regions.preceding(region)
        if region.kind == "map" and not region.domain and len(made) == 1 and made[0] in rows:
            if self.too_large(region, made[0]) is None:
                self.regions.merge(region, made[0])

    def _reduced(self, region: Region) -> tuple[Dim, ...] | None:
        """The extents of what a region of totals alone reduces. It has single values besides, and
        maps of the elements that do not read those."""
        anchor = region.anchor
        if anchor is None or region.kind not in ("row", "column"):
            return None
        inner = self.facts[anchor].inner
        # The number of pieces is a size of memory, which has to be known.
        if not inner or not all(isinstance(d, int) for d in inner):
            return None
        elements: set[Node] = set()
        for n in region.nodes:  # producers first
            f = self.facts[n]
            if isinstance(n.type, TupleType):
                return None
            if is_total(n, f):
                if not _same(f.inner, inner):
                    return None
            elif n.rank == 0:
                continue
            elif f.kind == "map" and _same(n.shape, inner):
                elements.add(n)
            else:
                return None
        own = (r for n in region.nodes if n.rank for r in self.regions.reads[n])
        plain = all(r.source in elements or r.source not in region.nodes for r in own)
        return inner if plain else None

    def _hosts(self, total: Region, inner: tuple[Dim, ...]) -> Iterator[Region]:
        """Regions of maps, and on GPUs of rows, that make or read an element of what is reduced in
        each iteration."""
        for n in list(total.nodes):
            if n.rank == 0 and self.facts[n].kind != "reduce":
                continue
            for r in self.regions.reads[n]:
                if not r.source.rank or not same_index(r.axes, r.source.shape, inner):
                    continue
                made = self.regions.of.get(r.source)
                if made is not None and made is not total and self._goes_through(made, inner):
                    yield made
                for q, other in self.readers.get(r.source, ()):
                    host = self.regions.of[q]
                    if (
                        host is not total
                        and self._goes_through(host, inner)
                        and same_index(other.axes, r.source.shape, host.domain[: len(inner)])
                    ):
                        yield host

    def _goes_through(self, host: Region, inner: tuple[Dim, ...]) -> bool:
        if host.kind == "row":
            few = prod(map(guess, inner)) <= MOST_ROWS
            return self.target.grid is not None and few and _same(host.outer, inner)
        return host.kind in ("map", "total") and _same(host.domain[: len(inner)], inner)

    def _apart(self, total: Region, host: Region) -> bool:
        """Does the host not wait for the total, nor the total for anything but the host's own
        elements?"""
        if host.ancestors & total.mask or self.regions.between(host, total):
            return False
        for n in total.nodes:
            for r in self.regions.reads[n]:
                domain = host.outer if host.kind == "row" else host.domain
                if r.source in host.nodes and (
                    r.source.rank == 0 or not same_index(r.axes, r.source.shape, domain)
                ):
                    return False
        return True


def _same(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(map(D.known_eq, a, b))
