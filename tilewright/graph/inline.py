"""What is computed in each reader, and what is stored: decided before clusters grow.

Views and cheap maps are inlined: every reader computes the elements that it needs. What the caller
or a program reads has to lie in memory, and so has what a reader would gather badly.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from math import prod

from tilewright.graph.classify import Facts, guess, nbytes
from tilewright.graph.cluster import Why
from tilewright.graph.regions import Read, is_scalar_constant, misaligned, trace
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Item, Node
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.types import TupleType
from tilewright.ops.views import Expand, Permute, Reshape

# What is read so many times for a map's elements, such as a mean of each channel, is in a cache.
REPEATED = 16

_CONJUNCTIONS = ("bitwise_and", "logical_and")


class Inlining:
    """Which values of a graph are inlined and which are stored. `inlining_of` makes it."""

    def __init__(
        self, graph: Graph, facts: Mapping[Node, Facts], cheap: int, stored: Set[Node]
    ) -> None:
        self.graph, self.facts, self.cheap, self.stored = graph, facts, cheap, stored
        self.users = graph.users()
        self.inlined: set[Node] = set()  # copied into each reader: views and cheap maps
        self.apart: dict[Node, Why] = {}  # stored although their consumers might compute them
        self.results: set[Node] = set()  # stored because the caller reads them
        self.positions: dict[Node, int] = {}  # what reads no memory at all, and what it costs
        self.masks: set[Node] = set()  # conditions of which positions are a part

    def run(self) -> None:
        for n, f in self.facts.items():
            if n.op.barrier:
                self.apart[n] = ("not fusible", "its result is stored on purpose")
            elif f.kind == "view" or n.op.inline:
                self.inlined.add(n)
            elif self.is_position(n, f) or self.is_mask(n, f):
                self.inlined.add(n)
        for o in self.graph.outputs:
            self.results.add(self.store(o))
        for n, f in self.facts.items():
            if f.kind == "program" and not isinstance(n.op, Item):
                flow = subgraphs(n.op)  # kernels inside read what is in memory
                for x in n.inputs:
                    if flow:
                        self.store(x)
                    elif self.unviewed(x) not in self.positions:  # it begins with zeros, say
                        self.store(self.repeated(x))
            elif f.kind == "contract":
                self.settle_operands(n, f)
            elif f.kind == "reduce":
                self.settle_row(n, f)
            elif self.is_shared_and_cheap(n, f):
                self.inlined.add(n)

    def repeated(self, x: Node) -> Node:
        """What a program reads again and again where it reads this: rows that share an index, say.
        Copies of it would only be more bytes."""
        base = x
        while isinstance(base.op, (Expand, Reshape)) and base in self.inlined:
            if isinstance(base.op, Expand):
                x = base.inputs[0]
            base = base.inputs[0]
        return x

    def store(self, x: Node, why: Why | None = None) -> Node:
        """Make x readable from memory: itself, or under reshapes what they rename."""
        while self.facts[x].reshape and x in self.inlined:
            x = x.inputs[0]
        if x in self.inlined:
            self.inlined.discard(x)
            if why is not None:
                self.apart[x] = why
        return x

    def settle_operands(self, n: Node, f: Facts) -> None:
        """Operands of a contraction are stored values, affine views of stored values, or what
        kernels read through by definition."""
        for read in self.reads_of(n):
            x = read.via[0][0].inputs[read.via[0][1].operand]
            if any(self.facts[v].kind != "view" and not v.op.inline for v, _ in read.via[1:]):
                self.store(x)
                continue
            while self.facts[x].reshape and x in self.inlined:
                x = x.inputs[0]
            if x not in self.inlined or read.source.op.barrier or x.op.inline:
                continue
            index = self.renamed(read).index()
            if not all(D.coefficient(i, s) is not None for i in index for s in f.axes):
                self.store(x, ("misaligned access", "the index of the view is not affine"))

    def renamed(self, read: Read) -> Read:
        """Up to a reshape of what is stored, which is only another shape of the same memory."""
        via = read.via
        while len(via) > 1 and self.facts[via[-1][0]].reshape:
            via = via[:-1]
        return replace(read, via=via)

    def settle_row(self, n: Node, f: Facts) -> None:
        """A view that several readers would gather with a stride is better copied once."""
        if f.outer is None:
            return
        for read in self.reads_of(n):
            x = read.via[0][0].inputs[read.via[0][1].operand]
            shared = len(self.users[x]) > 1
            if shared and x in self.inlined and misaligned(read, f):
                detail = "several readers would gather elements that lie apart"
                self.store(x, ("misaligned access", detail))

    def reads_of(self, n: Node) -> tuple[Read, ...]:
        if not any(x in self.inlined for x in n.inputs):
            return ()
        return trace(n, self.inlined)

    def is_position(self, n: Node, f: Facts) -> bool:
        """A cheap map of an element's position, such as the condition of a causal mask: computed
        again by every reader, whose schedule can then leave out what is masked."""
        if f.kind != "map" or n in self.stored or not all(map(self.without_memory, n.inputs)):
            return False
        cost = f.flops + sum(self.positions.get(self.unviewed(x), 0) for x in n.inputs)
        if cost > self.cheap:
            return False
        self.positions[n] = cost
        return True

    def is_mask(self, n: Node, f: Facts) -> bool:
        """A condition of which a position is one part and stored data the other, such as a causal
        mask for several texts in one row, or constants that it chooses between. As with positions
        alone, schedules can then leave out what is hidden; the data have no more bytes."""
        if f.kind != "map" or n in self.stored or not all(map(self.computes, self.users[n])):
            return False
        data = [x for x in n.inputs if not self.without_memory(x)]
        if len(data) != 1:
            return False
        both = n.op.name in _CONJUNCTIONS and n.dtype.is_bool
        known = both and any(self.unviewed(x) in self.positions for x in n.inputs)
        chosen = n.op.name == "where" and data[0] is n.inputs[0]
        if known or ((both or chosen) and self.unviewed(data[0]) in self.masks):
            self.masks.add(n)
        return n in self.masks

    def without_memory(self, x: Node) -> bool:
        return is_scalar_constant(x) or self.unviewed(x) in self.positions

    def unviewed(self, x: Node) -> Node:
        while self.facts[x].kind == "view":
            x = x.inputs[0]
        return x

    def is_shared_and_cheap(self, n: Node, f: Facts) -> bool:
        """Maps of what is in memory that are computed again in each reader at less cost than a
        load."""
        if f.kind != "map" or n in self.apart or n in self.results or n in self.stored:
            return False
        if isinstance(n.type, TupleType) or not all(self.computes(u) for u in self.users[n]):
            return False
        if is_widened(n):
            return True  # whoever stores it, fewer bytes are stored and loaded without it
        if len(self.users[n]) < 2:
            return self.is_summed_up(n)
        found = self.made_of(n)
        if found is None:
            return False
        self.inlined |= found  # what it is made of, too
        return True

    def made_of(self, n: Node) -> set[Node] | None:
        """The maps between a map and what is in memory, each read by this one alone or inlined
        already; None where they cost more than a load."""
        cost, bytes_in, size = 0, 0, guess(nbytes(n.ttype))
        found: set[Node] = set()
        waiting = [n]
        while waiting:
            y = waiting.pop()
            cost += 0 if is_widened(y) else self.facts[y].flops
            for x in map(self.renamed_value, y.inputs):
                if self.in_memory(x, n):
                    read = 0 if self.without_memory(x) else guess(nbytes(x.ttype))
                    bytes_in += read if read * REPEATED > size else 0
                elif self.facts[x].kind != "map" or x in self.apart or x in self.stored:
                    return None
                elif x not in self.inlined and len(self.users[x]) > 1:
                    return None
                else:
                    waiting.append(x)
                    found.add(x)
            if cost > self.cheap:
                return None
        return found if bytes_in <= size else None

    def is_summed_up(self, n: Node) -> bool:
        """Is its only reader a sum of columns, in a kernel of its own, which reads each element
        once, perhaps a square or the like of it? Then that makes it: along with what it is made of
        it would be stored and loaded again."""
        size = guess(n.ttype.size)
        while len(self.users[n]) == 1 and n not in self.results and n not in self.stored:
            (n,) = self.users[n]
            f = self.facts[n]
            if f.kind == "map" and f.flops <= self.cheap and n not in self.apart:
                if isinstance(n.type, TupleType) or guess(n.ttype.size) != size:
                    return False
            elif f.kind != "view":
                if f.kind != "reduce" or f.outer is not None or isinstance(n.type, TupleType):
                    return False
                return n.rank > 0 and prod(map(guess, f.domain)) == size
        return False

    def in_memory(self, x: Node, reader: Node) -> bool:
        """Is a value stored whatever clusters there will be: an input, a result, a reduction that
        something larger reads, whose kernel is another one, or a part of these?"""
        f = self.facts[x]
        if f.kind == "source" or x in self.results or self.without_memory(x):
            return True
        if isinstance(x.type, TupleType) or guess(x.ttype.size) >= guess(reader.ttype.size):
            return False
        if f.kind == "map" and x.inputs:  # of such a reduction, and as small
            return all(self.in_memory(self.renamed_value(y), reader) for y in x.inputs)
        if f.kind == "view":
            return self.in_memory(self.unviewed(x), reader)
        return f.kind == "reduce" and f.outer is None

    def renamed_value(self, x: Node) -> Node:
        """What a value is only another shape of: the same elements in the same order."""
        while self.facts[x].reshape or is_same_order(x):
            x = x.inputs[0]
        return x

    def computes(self, n: Node) -> bool:
        """Would this reader, or the readers of this view, compute an operand themselves?"""
        stack = [n]
        while stack:
            n = stack.pop()
            kind = self.facts[n].kind
            if (kind == "view" or n.op.inline) and n not in self.results:
                stack += self.users[n]
            elif kind not in ("map", "reduce"):
                return False
        return True


def is_same_order(n: Node) -> bool:
    """Are only axes of one element in other places?"""
    if not isinstance(n.op, Permute):
        return False
    moved = [k for k in n.op.perm if n.inputs[0].shape[k] != 1]
    return moved == sorted(moved)


def is_widened(n: Node) -> bool:
    """Is it a narrow float as a wider one?"""
    if n.op.name != "cast" or len(n.inputs) != 1:
        return False
    (x,) = n.inputs
    return x.dtype.is_float and n.dtype.is_float and x.dtype.bits < n.dtype.bits


def inlining_of(
    graph: Graph,
    facts: Mapping[Node, Facts],
    cheap: int,
    stored: Set[Node],
    again: Set[Node] = frozenset(),
) -> Inlining:
    """Maps of at most `cheap` operations may be inlined, those in `again` are, those in `stored`
    are not."""
    decided = Inlining(graph, facts, cheap, stored)
    decided.run()
    decided.inlined |= again - stored
    return decided
