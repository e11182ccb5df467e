"""Fusion: the nodes of a graph become clusters, one kernel each.

Kinds of cluster (what the kernel level schedules):
  map       maps whose outputs share one shape; other shapes inside are inlined
  row       reductions of the same trailing axes with maps around them (softmax, layer norm)
  column    one reduction of any axes, maps inlined before it, maps of its shape after it
  contract  one contraction, views of its operands before it, and maps of its shape after it; on a
            GPU what makes the one row that it multiplies (see graph/prologues.py)
  chain     a contraction, a row made of its result, a contraction of that (see graph/chains.py);
            products of transformed tiles, and both transforms (see graph/tile_blocks.py)
  total     maps, and reductions of all elements they go through (see graph/totals.py)
  program   a scan, an ordered update or a definition of several stages, alone

What is not fused is refused by name: a `Refusal` and an event with the user's file and line.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from tilewright.base import knobs
from tilewright.base.events import HeldLog, Log
from tilewright.graph.align import SinkReshapes, UndoPermutes
from tilewright.graph.chains import Chains
from tilewright.graph.classify import (
    Facts,
    contraction,
    facts,
    guess,
    same_index,
    same_prefix,
)
from tilewright.graph.cluster import Cluster, Fused, Refusal, Why
from tilewright.graph.crossing import Crossing
from tilewright.graph.cuts import Cut, Cuts, assembled, lengthened
from tilewright.graph.inline import inlining_of
from tilewright.graph.product_chains import ProductChains
from tilewright.graph.prologues import Prologues
from tilewright.graph.regions import (
    Read,
    Region,
    Regions,
    Size,
    is_row_shape,
    is_scalar_constant,
    repeats,
    trace,
)
from tilewright.graph.row_blocks import RowBlocks
from tilewright.graph.row_maps import RowMaps
from tilewright.graph.siblings import Siblings
from tilewright.graph.tile_blocks import TileBlocks
from tilewright.graph.totals import Totals, is_total
from tilewright.graph.updates import Updates
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Item, Node
from tilewright.ir.repeated import FEW as FEW_NODES
from tilewright.ir.repeated import shortened
from tilewright.ir.target import Target
from tilewright.ir.types import TupleType
from tilewright.ops.arranged import unarranged
from tilewright.ops.views import Pad

# Products of a sum, at most, for which conditions are evaluated again rather than a result stored.
FEW = 64


@dataclass(frozen=True)
class Fuse:
    """The pass and its limits."""

    # Beyond these a kernel's compile time grows without gain.
    max_inputs: int = 24
    max_nodes: int = 128
    max_operations: int = 2048  # scalar operations per element, of all operators together
    max_reductions: int = 8  # of rows: each has its own loops
    max_results: int = 64
    # Maps after a contraction are written out for every vector of its register tile: as many times
    # fewer operations fit into one kernel.
    tile: int = 8
    cheap: int = 4  # scalar operations that are computed again rather than stored and loaded

    def __call__(self, graph: Graph, target: Target, log: Log) -> Fused:
        return assembled(self.cuts(graph, target, log), target, log)

    def cuts(self, graph: Graph, target: Target, log: Log) -> Cuts:
        """What becomes of each node; that of equal regions is decided for a few of them."""
        short = shortened(graph) if knobs.regions.get() else None
        if short is not None:
            said = HeldLog()
            cuts = self.cuts if short.others > FEW_NODES else self.cuts_of_all
            found = lengthened(short, cuts(short.graph, target, said))
            if found is not None:
                said.release(log)
                return found
        return self.cuts_of_all(graph, target, log)

    def cuts_of_all(self, graph: Graph, target: Target, log: Log) -> Cuts:
        """The same, decided for each of them."""
        graph = UndoPermutes().apply(SinkReshapes().apply(graph, log), log)
        stored: set[Node] = set()
        again: set[Node] = set()
        while True:
            attempt = _Fuser(graph, target, log, self, stored, again)
            attempt.run()
            unfit, more = attempt.unfit_for_rows() | attempt.unfit, attempt.again - again
            if not unfit and not more:
                return attempt.cuts()
            stored |= unfit
            again |= more


def fuse(graph: Graph, target: Target, log: Log) -> Fused:
    """Clusters of a graph of primitive operators, for a machine."""
    return Fuse()(graph, target, log)


_PRIORITY = {"chain": 0, "contract": 0, "row": 1, "column": 2, "total": 2, "map": 3, "program": 4}


class _Fuser:
    def __init__(
        self,
        graph: Graph,
        target: Target,
        log: Log,
        limits: Fuse,
        stored: set[Node],
        again: Set[Node] = frozenset(),
    ) -> None:
        self.graph, self.target, self.log, self.limits = graph, target, log, limits
        self.order = graph.nodes()
        self.users = graph.users()
        self.facts = {n: facts(n) for n in self.order}
        inlining = inlining_of(graph, self.facts, limits.cheap, stored, again)
        self.inlined, self.apart, self.results = inlining.inlined, inlining.apart, inlining.results
        self.regions = Regions(self.results)
        self.why: dict[tuple[Node, Node], Why] = {}
        self.readers: dict[Node, list[tuple[Node, Read]]] = {}
        self.unchained: dict[tuple[Node, Node], Why] = {}
        self.again: set[Node] = set()  # what every reader should make for itself
        self.unfit: set[Node] = set()  # what none should, after all
        found = self.regions, self.facts, self.readers, self.results
        self.crossing = Crossing(*found, limits.cheap)

    def run(self) -> None:
        for n in self.order:
            if self.facts[n].kind != "source" and n not in self.inlined:
                self.place(n)
        siblings = Siblings(self.regions, self.facts, self.readers, self.target)
        siblings.join(self.order, self.too_large, self.unite)
        found = (self.regions, self.facts, self.readers, self.results)
        joining = (*found, self.too_large, self.target, self.limits.cheap)
        Updates(*joining).join()
        Totals(self.regions, self.facts, self.readers, self.too_large, self.target).join()
        self.absorb()
        siblings.join_sums(self.order, self.too_large, self.unite)
        RowMaps(*joining).join()
        ProductChains(*found, self.target).link()
        tiles = TileBlocks(*joining, inlined=self.inlined)
        self.unchained = Chains(*joining).link() | tiles.link()
        blocks = RowBlocks(*joining)
        blocks.join()
        self.again, self.unfit = blocks.again | tiles.again, tiles.unfit
        Prologues(*joining).join()

    # ---- forward: every node joins a producer's region or starts one

    def place(self, n: Node) -> None:
        f, regions = self.facts[n], self.regions
        reads = trace(n, self.inlined)
        regions.reads[n] = reads
        for r in reads:
            self.readers.setdefault(r.source, []).append((n, r))
        if isinstance(n.op, Item):
            regions.add(n, regions.of[n.inputs[0]])
            return
        if f.kind in ("program", "contract"):
            regions.new(f.kind, () if f.kind == "program" else n.shape, n).anchor = n
            return
        if isinstance(n.type, TupleType):
            regions.new("column", f.outputs[0].shape, n).anchor = n
            return
        row = f.kind == "reduce" and self.is_row(n, f)
        found = sorted(regions.producers(n), key=lambda r: _PRIORITY[r.kind])
        if n.rank == 0 and sum(map(self.is_total, found)) > 1:
            found = []  # each total may join the loop of a map, which need not wait for the others
        for region in found:
            why = self.fits(n, f, region) or self.refuse_join(n, f, region)
            if why is None:
                self.join(n, f, region)
                for other in found:
                    if other is not region:
                        self.join_also(n, f, other, regions.of[n])
                return
            self.note(n, region, why)
        region = regions.new("map", n.shape, n)
        if row:
            self.make_row(region, n, f)
        elif f.kind == "reduce":
            region.kind, region.anchor = "column", n

    def is_total(self, region: Region) -> bool:
        return region.anchor is not None and is_total(region.anchor, self.facts[region.anchor])

    def note(self, n: Node, region: Region, why: Why) -> None:
        for r in self.regions.reads[n]:
            if self.regions.of.get(r.source) is region:
                self.why[r.source, n] = why

    def is_row(self, n: Node, f: Facts) -> bool:
        if f.outer is None:
            return False
        widest = max(t.dtype.bytes for t in f.inputs)
        return self.inner_bytes(f.inner, widest) <= self.target.scratch

    @staticmethod
    def inner_bytes(inner: tuple[Dim, ...], itemsize: int) -> int:
        n = itemsize
        for d in inner:
            n *= guess(d)
        return n

    def make_row(self, region: Region, n: Node, f: Facts) -> None:
        assert f.outer is not None
        region.kind, region.anchor = "row", n
        region.outer, region.inner = n.shape[: f.outer], f.inner
        region.domain = region.outer + region.inner

    def fits(self, n: Node, f: Facts, region: Region) -> Why | None:
        """Why n cannot be computed by the region's kernel, or None."""
        reads = [r for r in self.regions.reads[n] if self.regions.of.get(r.source) is region]
        for r in reads:
            if r.source in self.apart:
                return self.apart[r.source]
        if region.kind == "program":
            return "not fusible", f"{next(iter(region.nodes)).op.name} runs alone"
        if f.kind == "reduce":
            return self.fits_reduce(n, f, region, reads)
        if region.kind == "row":
            if not is_row_shape(n.shape, region):
                rows = _show(region.domain)
                return "incompatible iteration", f"{_show(n.shape)} against rows of {rows}"
            if not all(same_prefix(r.axes, r.source.shape, len(region.outer)) for r in reads):
                return "incompatible iteration", "it reads other rows than its own"
            return None
        if not _same(n.shape, region.domain):
            return "incompatible iteration", f"{_show(n.shape)} against {_show(region.domain)}"
        if not all(same_index(r.axes, r.source.shape, n.shape) for r in reads):
            return "incompatible iteration", "it reads other elements than its own"
        if region.kind == "contract" and not all(a.affine for a in f.accesses):
            return "misaligned access", "an index read from memory or divided, inside a tile"
        return None

    def fits_reduce(self, n: Node, f: Facts, region: Region, reads: list[Read]) -> Why | None:
        if region.kind in ("contract", "column"):
            return "incompatible iteration", f"a reduction over the result of a {region.kind}"
        if f.outer is None:
            return "incompatible iteration", "the reduced axes are not the innermost ones"
        if not self.is_row(n, f):
            return "too large", f"a row of {_show(f.inner)} does not fit the cache"
        whole = n.shape[: f.outer] + f.inner
        if not _same(region.domain, whole) or (
            region.kind == "row" and len(region.outer) != f.outer
        ):
            return (
                "incompatible iteration",
                f"rows of {_show(whole)} against {_show(region.domain)}",
            )
        if not all(same_prefix(r.axes, r.source.shape, f.outer) for r in reads):
            return "incompatible iteration", "it reads other rows than its own"
        return None

    def refuse_join(self, n: Node, f: Facts, region: Region) -> Why | None:
        if self.regions.waits(n, region):
            return "changed semantics", "another operand is computed from this kernel's own result"
        why = self.too_much(region.size + self.regions.size_of(n), {region.kind})
        if why is not None:
            return why
        if len(region.inputs) + len(self.regions.reads[n]) > self.limits.max_inputs:
            fresh = {r.source for r in self.regions.reads[n]} - region.nodes.keys()
            fresh = {x for x in fresh if not is_scalar_constant(x)} - region.inputs
            count = self.regions.boundary(region) + len(fresh)
            if count > self.limits.max_inputs:
                return "too large", f"the kernel would read {count} values"
        work = self.row_work(n, region.inner) if region.kind == "row" else 0
        if region.work + work > self.target.scratch:
            return "too large", f"rows that are stored would take {region.work + work} bytes"
        return None

    def too_much(self, size: Size, kinds: set[str]) -> Why | None:
        """Is that more than one kernel is worth?"""
        times = self.limits.tile if "contract" in kinds else 1
        for what, count, most in (
            ("operators", size.nodes, self.limits.max_nodes),
            ("operations per element", size.operations, self.limits.max_operations // times),
            ("reductions", size.reductions, self.limits.max_reductions),
            ("results", size.results, self.limits.max_results),
        ):
            if count > most:
                return "too large", f"the kernel would have {count} {what}"
        return None

    def row_work(self, n: Node, inner: tuple[Dim, ...]) -> int:
        """Bytes per row of a value that several readers share."""
        full = n.rank >= len(inner) and _same(n.shape[n.rank - len(inner) :], inner)
        return self.inner_bytes(inner, n.dtype.bytes) if full and len(self.users[n]) > 1 else 0

    def join(self, n: Node, f: Facts, region: Region) -> None:
        self.regions.add(n, region)
        if region.kind == "map" and f.kind == "reduce":
            self.make_row(region, n, f)
            region.work = sum(self.row_work(m, region.inner) for m in region.nodes)
        elif region.kind == "row":
            region.work += self.row_work(n, region.inner)

    def join_also(self, n: Node, f: Facts, other: Region, region: Region) -> None:
        """n joined one producer's region; another producer's may merge with it."""
        why = self.fits(n, f, other) or self.alike(other, region)
        if why is None and not self.regions.mergeable(other, region):
            why = "changed semantics", "a third kernel has to run between the two"
        why = why or self.crossing.between(other, region) or self.too_large(other, region)
        if why is None:
            self.unite(other, region)
        else:
            self.note(n, other, why)

    def alike(self, a: Region, b: Region) -> Why | None:
        """Can two regions be one kernel, as far as their iterations go?"""
        kinds = {a.kind, b.kind}
        if kinds == {"map"} and _same(a.domain, b.domain):
            return None
        if kinds == {"row"} and _same(a.outer, b.outer) and _same(a.inner, b.inner):
            return None
        if kinds == {"row", "map"}:
            row, other = (a, b) if a.kind == "row" else (b, a)
            if is_row_shape(other.domain, row):
                return None
        return "incompatible iteration", f"{_show(a.domain)} against {_show(b.domain)}"

    def too_large(self, a: Region, b: Region) -> Why | None:
        if (why := self.too_much(a.size + b.size, {a.kind, b.kind})) is not None:
            return why
        inputs = (a.inputs | b.inputs) - a.nodes.keys() - b.nodes.keys()
        count = sum(not is_scalar_constant(x) for x in inputs)
        if count > self.limits.max_inputs:
            return "too large", f"the kernel would read {count} values"
        if a.work + b.work > self.target.scratch:
            return "too large", f"rows that are stored would take {a.work + b.work} bytes"
        return None

    def unite(self, a: Region, into: Region) -> None:
        """Merge; the result has the more demanding kind of the two."""
        if _PRIORITY[a.kind] < _PRIORITY[into.kind]:
            into.kind, into.anchor, into.domain = a.kind, a.anchor, a.domain
            into.outer, into.inner = a.outer, a.inner
        self.regions.merge(a, into)

    # ---- backward: a map all of whose readers are in one kernel is computed there

    def absorb(self) -> None:
        for c in reversed(self.sorted_regions()):
            if c.kind == "program":
                continue
            edges = [
                (q, r)
                for p in c.nodes
                for q, r in self.readers.get(p, ())
                if self.regions.of[q] is not c
            ]
            targets = {id(e): e for e in (self.regions.of[q] for q, _ in edges)}
            if not targets:
                continue
            if any(p in self.results for p in c.nodes):
                why = "more than one consumer", "its value is also a result"
            elif len(targets) > 1:
                why = "more than one consumer", "several kernels read it"
            else:
                (e,) = targets.values()
                why = self.absorbable(c, e, edges) or self.too_large(c, e)
                if why is None:
                    self.unite(c, e)
                    continue
            for q, r in edges:
                if c.kind == "map" or (r.source, q) not in self.why:
                    self.why[r.source, q] = why

    def absorbable(self, c: Region, e: Region, edges: list[tuple[Node, Read]]) -> Why | None:
        for _, r in edges:
            if r.source in self.apart:
                return self.apart[r.source]
        if e.kind == "program":
            return "not fusible", f"{next(iter(e.nodes)).op.name} runs alone"
        if c.kind != "map":
            return self.absorbable_anchor(c, e, edges)
        if e.kind == "contract" and any(q is e.anchor for q, _ in edges):
            if not self.few_products(c, e, edges):
                return "too large", "an operand would be computed again for every tile"
            return None
        if e.kind == "contract" and any(map(self.many_cases, c.nodes)):
            return "misaligned access", "much work on divided indices, inside a tile"
        rows = len(e.outer)
        if (
            e.kind == "row"
            and is_row_shape(c.domain, e)
            and all(same_prefix(r.axes, r.source.shape, rows) for _, r in edges)
        ):
            return None
        if e.kind == "row" and any(len(self.users[p]) > 1 for p in c.nodes):
            return "incompatible iteration", f"{_show(c.domain)} against rows of {_show(e.domain)}"
        return self.crossing.recomputed(c.nodes, edges)

    def few_products(self, c: Region, e: Region, edges: list[tuple[Node, Read]]) -> bool:
        """Is it the padding of images for sums of a few products that share nothing (a depthwise
        convolution)? Conditions cost less there than a padded copy of the images."""
        if not all(isinstance(unarranged(n.op), Pad) for n in c.nodes):
            return False
        assert e.anchor is not None
        reads = [repeats(r, self.facts[q].domain) for q, r in edges]
        few = all(points <= FEW * size for points, size in reads)
        return few and contraction(e.anchor) is None

    def many_cases(self, n: Node) -> bool:
        """Is it costly, and different for each remainder of an index?"""
        f = self.facts[n]
        return f.flops > 4 * self.limits.cheap and not all(a.affine for a in f.accesses)

    def absorbable_anchor(self, c: Region, e: Region, edges: list[tuple[Node, Read]]) -> Why | None:
        """The same for a region with a reduction, whose only reader is a region of maps."""
        if c.kind == "row":
            why = self.alike(c, e)
            rows = len(c.outer)
            if why is None and not all(same_prefix(r.axes, r.source.shape, rows) for _, r in edges):
                return "incompatible iteration", "other rows are read"
            if why is None and any(
                not is_row_shape(n.shape, c) and len(self.users[n]) > 1 for n in e.nodes
            ):
                return "incompatible iteration", "a shared value has another shape than the rows"
            return why
        if (
            e.kind == "map"
            and all(_same(n.shape, c.domain) for n in e.nodes)
            and all(same_index(r.axes, r.source.shape, c.domain) for _, r in edges)
            and (
                c.kind == "column" or all(a.affine for n in e.nodes for a in self.facts[n].accesses)
            )
        ):
            return None
        known = self.why.get((edges[0][1].source, edges[0][0]))
        return known or ("incompatible iteration", f"{_show(c.domain)} against {_show(e.domain)}")

    def sorted_regions(self) -> list[Region]:
        """Regions, producers first."""
        out: dict[int, Region] = {}
        for root in self.regions.live():
            stack: list[tuple[Region, Iterator[Region]]] = []
            if id(root) not in out:
                stack.append((root, iter(self.regions.preceding(root))))
            while stack:
                region, rest = stack[-1]
                for p in rest:
                    if id(p) not in out:
                        stack.append((p, iter(self.regions.preceding(p))))
                        break
                else:
                    stack.pop()
                    out[id(region)] = region
        return list(out.values())

    # ---- clusters

    def unfit_for_rows(self) -> set[Node]:
        """Cheap maps that a row's kernel would share although they are neither rows nor per row."""
        cheap = [n for n in self.inlined if self.facts[n].kind == "map" and n.inputs]
        if not cheap:
            return set()
        out: set[Node] = set()
        for region in self.regions.live():
            if region.kind == "row":
                own = self.contents(region)[0]
                for n in cheap:
                    if n in own and not is_row_shape(n.shape, region):
                        if sum(n in q.inputs for q in own) > 1:
                            out.add(n)
        return out

    def cuts(self) -> Cuts:
        aliases: dict[Node, Node] = {}
        found = [(r.first, self.cluster(r, aliases)) for r in self.regions.live()]
        cuts = tuple([Cut(first, c) for first, c in found if first is not None])
        for o in self.graph.outputs:
            if (base := self.renamed(o)) is not None:
                aliases[o] = base
        return Cuts(self.graph, cuts, tuple(self.refusals()), aliases)

    def renamed(self, x: Node) -> Node | None:
        """The stored value or source that a chain of reshapes renames."""
        base = x
        while base in self.inlined and self.facts[base].reshape:
            base = base.inputs[0]
        return None if base is x or base in self.inlined else base

    def contents(self, region: Region) -> tuple[dict[Node, None], dict[Node, None]]:
        """The nodes of the region's kernel, inlined ones included, and what it reads."""
        own = dict(region.nodes)
        inputs: dict[Node, None] = {}
        stack = [x for n in region.nodes for x in n.inputs]
        seen: set[Node] = set()
        while stack:
            x = stack.pop()
            if x in own or x in seen:
                continue
            seen.add(x)
            if is_scalar_constant(x):
                own[x] = None
                continue
            base = self.renamed(x)
            if base is not None and base not in region.nodes:
                inputs[x] = None
            elif x in self.inlined:
                own[x] = None
                stack.extend(x.inputs)
            else:
                inputs[x] = None
        return own, inputs

    def cluster(self, region: Region, aliases: dict[Node, Node]) -> Cluster:
        own, inputs = self.contents(region)
        for x in inputs:
            if (base := self.renamed(x)) is not None:
                aliases[x] = base
        outputs = [n for n in region.nodes if self.is_output(n, region)]
        roles = tuple(region.roles.items()) if region.kind == "chain" else ()
        parts = tuple(own), tuple(inputs), tuple(outputs)
        return Cluster(*parts, region.kind, region.anchor, roles)

    def is_output(self, n: Node, region: Region) -> bool:
        if isinstance(n.type, TupleType):
            return False
        read = any(self.regions.of[q] is not region for q, _ in self.readers.get(n, ()))
        return read or n in self.results

    def refusals(self) -> Iterator[Refusal]:
        for p, found in self.readers.items():
            if p not in self.regions.of:
                continue
            for q in dict.fromkeys(q for q, _ in found):
                if self.regions.of[q] is not self.regions.of[p] and not isinstance(q.op, Item):
                    yield Refusal(p, q, *self.reason(p, q))

    def reason(self, p: Node, q: Node) -> Why:
        of = self.regions.of
        for n in (q, p):
            if of[n].kind == "program":
                return "not fusible", f"{n.op.name} runs alone"
        if p in self.apart:
            return self.apart[p]
        if (p, q) in self.unchained:
            return self.unchained[p, q]
        if q is of[q].anchor and of[q].kind == "contract" and of[p].kind != "map":
            return "incompatible iteration", "a contraction needs whole rows of its operands"
        if q is of[q].anchor and of[q].kind == "contract":
            return "too large", "an operand would be computed again for every tile"
        return self.why.get((p, q), ("incompatible iteration", "their loops differ"))


def _same(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(map(D.known_eq, a, b))


def _show(shape: tuple[Dim, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
