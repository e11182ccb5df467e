"""Regions: the clusters while they grow. Nodes join, regions merge, and no cycle ever appears.

A region's `ancestors` is a bit set over region numbers. A node may join a region unless another of
its producers already waits for that region; two regions may merge unless a third stands between.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass

from tilewright.graph.classify import OTHER, UNIT, Access, Facts, facts, guess
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Constant, Node
from tilewright.ir.positions import linear_index


@dataclass(frozen=True)
class Read:
    """A node reads a stored value, perhaps through views. `axes` as in classify.Access."""

    source: Node
    axes: tuple[int, ...]
    # The accesses on the way, the reader's first, then one per view or cheap map in between.
    via: tuple[tuple[Node, Access], ...] = ()

    def index(self) -> tuple[Dim, ...]:
        """The index functions over the reader's axes."""
        out = self.via[0][1].index
        for v, access in self.via[1:]:
            table = dict(zip(facts(v).axes, out, strict=True))
            out = tuple(D.substitute(i, table) for i in access.index)
        return out


@dataclass(frozen=True)
class Size:
    """The size of a region's kernel."""

    nodes: int = 0
    operations: int = 0  # of its maps, per element
    reductions: int = 0
    results: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.nodes + other.nodes,
            self.operations + other.operations,
            self.reductions + other.reductions,
            self.results + other.results,
        )


class Region:
    """A growing cluster. `domain` is the shape of its outputs; of a row, outer + inner."""

    def __init__(
        self, number: int, kind: str, domain: tuple[Dim, ...], first: Node | None = None
    ) -> None:
        self.first = first  # the node that it began with
        self.number, self.kind, self.domain = number, kind, domain
        self.outer: tuple[Dim, ...] = ()
        self.inner: tuple[Dim, ...] = ()
        self.anchor: Node | None = None
        self.roles: dict[str, Node] = {}  # see Cluster
        self.nodes: dict[Node, None] = {}
        self.inputs: set[Node] = set()  # stored values and sources it reads, own nodes included
        self.mask = 1 << number
        self.ancestors = 0
        self.used = False  # does any region read this one?
        self.work = 0  # bytes of rows that several readers share
        self.size = Size()


class Regions:
    """All regions of a graph, and the region of each node."""

    def __init__(self, results: Container[Node] = ()) -> None:
        self.results = results
        self.all: list[Region] = []
        self.of: dict[Node, Region] = {}
        self.reads: dict[Node, tuple[Read, ...]] = {}
        self._count = 0

    def live(self) -> list[Region]:
        return [r for r in self.all if r.nodes]

    def new(self, kind: str, domain: tuple[Dim, ...], n: Node) -> Region:
        region = Region(self._count, kind, domain, n)
        self._count += 1
        self.all.append(region)
        self.add(n, region)
        return region

    def producers(self, n: Node) -> list[Region]:
        """Regions that n reads, each once."""
        found = {id(r): r for x in self.reads[n] if (r := self.of.get(x.source)) is not None}
        return list(found.values())

    def waits(self, n: Node, region: Region) -> bool:
        """Does a producer of n already wait for the region, so that joining would make a cycle?"""
        return any(p is not region and p.ancestors & region.mask for p in self.producers(n))

    def size_of(self, n: Node) -> Size:
        f = facts(n)
        return Size(1, f.flops if f.kind == "map" else 0, f.kind == "reduce", n in self.results)

    def add(self, n: Node, region: Region) -> None:
        region.nodes[n] = None
        region.size += self.size_of(n)
        self.of[n] = region
        before = region.ancestors
        for r in self.reads[n]:
            region.inputs.add(r.source)
        for p in self.producers(n):
            if p is not region:
                p.used = True
                region.ancestors |= p.ancestors | p.mask
        if region.used and region.ancestors != before:
            self._spread(region)

    def move(self, n: Node, region: Region, to: Region) -> None:
        """Another region, which read its value, computes a node."""
        del region.nodes[n]
        region.inputs = {r.source for m in region.nodes for r in self.reads[m]}
        self.add(n, to)

    def _spread(self, region: Region) -> None:
        """What waits for the region waits for its ancestors too."""
        for r in self.all:
            if r.nodes and r.ancestors & region.mask:
                r.ancestors |= region.ancestors

    def preceding(self, region: Region) -> list[Region]:
        """Regions that it reads, in the order in which they began."""
        found = {r.number: r for x in region.inputs if (r := self.of.get(x)) is not None}
        found.pop(region.number, None)
        return [found[k] for k in sorted(found)]

    def between(self, first: Region, second: Region) -> bool:
        """Must some third region run after `first` and before `second`?"""
        if not second.ancestors & first.mask:
            return False
        return any(p is not first and p.ancestors & first.mask for p in self.preceding(second))

    def mergeable(self, a: Region, b: Region) -> bool:
        return not self.between(a, b) and not self.between(b, a)

    def merge(self, a: Region, into: Region) -> None:
        for n in a.nodes:
            self.of[n] = into
        into.nodes.update(a.nodes)
        into.roles = a.roles | into.roles
        into.inputs |= a.inputs
        into.mask |= a.mask
        into.work += a.work
        into.size += a.size
        into.ancestors = (into.ancestors | a.ancestors) & ~into.mask
        into.used = into.used or a.used
        a.nodes = {}
        self._spread(into)

    def boundary(self, region: Region) -> int:
        """How many arguments its kernel takes from outside."""
        return sum(1 for x in region.inputs if x not in region.nodes and not is_scalar_constant(x))


def _same(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(map(D.known_eq, a, b))


def is_row_shape(shape: tuple[Dim, ...], row: Region) -> bool:
    """Does the shape have one element, or one whole row, for each row?"""
    p = len(row.outer)
    if not _same(shape[:p], row.outer):
        return False
    rest = shape[p:]
    ones = len(rest) == len(row.inner) and all(D.known_eq(d, 1) for d in rest)
    return not rest or ones or _same(rest, row.inner)


def is_scalar_constant(n: Node) -> bool:
    """Literals of one element are written into the code, unless kernels are to share theirs."""
    return isinstance(n.op, Constant) and n.op.literal.array.size == 1 and not n.op.passed


def trace(n: Node, inlined: Container[Node]) -> tuple[Read, ...]:
    """The stored values and sources that n reads, seen through the inlined nodes."""
    f = facts(n)
    if f.kind == "program":
        return tuple([r for x in n.inputs for r in _opaque(x, inlined)])
    return tuple([r for a in f.accesses for r in _through(n, a, a.axes, inlined)])


def _opaque(x: Node, inlined: Container[Node]) -> Iterator[Read]:
    stack = [x]
    while stack:
        x = stack.pop()
        if x in inlined:
            stack += reversed(x.inputs)
        else:
            yield Read(x, (OTHER,) * len(getattr(x.type, "shape", ())))


def _through(
    n: Node, access: Access, axes: tuple[int, ...], inlined: Container[Node]
) -> Iterator[Read]:
    stack: list[tuple[Node, Access, tuple[int, ...], tuple[tuple[Node, Access], ...]]]
    stack = [(n, access, axes, ())]
    while stack:
        n, access, axes, via = stack.pop()
        x = n.inputs[access.operand]
        via = (*via, (n, access))
        if x not in inlined:
            yield Read(x, axes, via)
            continue
        for a in reversed(facts(x).accesses):
            stack.append((x, a, tuple([axes[k] if k >= 0 else k for k in a.axes]), via))


def repeats(read: Read, domain: tuple[Dim, ...]) -> tuple[int, int]:
    """(points at which the value is computed, its size), were it computed where it is read.

    A value that does not vary along the innermost axes is computed once outside of them.
    """
    used = set(read.axes) - {UNIT}
    last = len(domain) if OTHER in used else max(used, default=-1) + 1
    return math.prod(map(guess, domain[:last])), math.prod(map(guess, read.source.shape))


# Vectors of this many elements or fewer stay contiguous where the test below says so.
_BLOCK = 16


def misaligned(read: Read, reader: Facts) -> bool:
    """Do neighbours along the reader's innermost axis lie apart in the value that is read?"""
    domain = reader.domain
    wide = [k for k, d in enumerate(domain) if not D.known_eq(d, 1)]
    shape = read.source.shape
    own = [a for a, d in zip(read.axes, shape, strict=True) if not D.known_eq(d, 1)]
    if not wide or not own or own[-1] == wide[-1]:
        return False
    if reader.reduce is not None and reader.outer is None and own[-1] >= 0:
        return False  # only the reduction of rows has to run its vectors along the last axis
    if wide[-1] not in own and OTHER not in own:
        return False  # the same element for all neighbours
    if not read.via:
        return True
    lane = reader.axes[wide[-1]]
    position = linear_index(read.index(), shape)
    step = D.coefficient(position, lane)
    if step is None and D.divisor(domain[wide[-1]]) % _BLOCK == 0:
        block, inside = D.var("block", domain[wide[-1]] // _BLOCK), D.var("inside", _BLOCK)
        position = D.substitute(position, {lane: block * _BLOCK + inside})
        step = D.coefficient(position, D.the_sym(inside))
    return not (isinstance(step, int) and step in (0, 1))
