"""Control flow in a program's entry: graphs inside the graph become entries of their own, which
branches and loops call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.base.errors import Unsupported
from tilewright.driver.program.storage import Where
from tilewright.graph.classify import nbytes
from tilewright.graph.cluster import Cluster
from tilewright.graph.memory import aligned
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Item, Literal, Node
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.types import TensorType
from tilewright.llvm.entry import Branch, Carried, Entry, Loop, Slices, Slot
from tilewright.ops.control import Cond, Scan, WhileLoop


class Entries(Protocol):
    """What compiles graphs to entries and their kernels."""

    constants: dict[Literal, int]

    def inside(
        self, graph: Graph, symbol: str, given: int, overwritten: Mapping[Node, int]
    ) -> tuple[Entry, Dim]:
        """The entry of a graph with as many inputs as are given, after which constants are passed;
        and the bytes of its arena. Some inputs may lie where a result goes."""
        ...

    def copy(self, t: TensorType) -> tuple[str, tuple[str, ...]]:
        """The kernel that copies such a tensor, and the sizes that it takes."""
        ...


def control_of(c: Cluster) -> Node | None:
    """The operator of control flow that a cluster is, if it is one."""
    return next((n for n in c.nodes if subgraphs(n.op)), None)


def inner_graphs(graph: Graph) -> Iterator[Graph]:
    """The graphs inside that become entries of their own, as they are compiled."""
    nodes = graph.nodes()
    read: dict[Node, set[int]] = {}
    for n in nodes:
        if isinstance(n.op, Item):
            read.setdefault(n.inputs[0], set()).add(n.op.k)
    for n in nodes:
        if isinstance(n.op, Scan):
            yield _round(n.op, read.get(n, set()))
        else:
            yield from subgraphs(n.op)


def _also_stacked(op: Scan, read: Collection[int]) -> list[int | None]:
    """Of each carried value the stacked result that it is too, if something reads that: the next
    round reads it from there."""
    carried, stacked = op.body.outputs[: op.carried], op.body.outputs[op.carried :]
    kept = [o if op.carried + k in read else None for k, o in enumerate(stacked)]
    return [kept.index(o) if o in kept else None for o in carried]


def _round(op: Scan, read: Collection[int]) -> Graph:
    """What a round computes: each value once."""
    places = zip(op.body.outputs[: op.carried], _also_stacked(op, read), strict=True)
    own = [o for o, at in places if at is None]
    return replace(op.body, outputs=(*own, *op.body.outputs[op.carried :]))


def literals_in(graph: Graph) -> dict[Literal, None]:
    """The constants of a graph and of those inside it."""
    found: dict[Literal, None] = {}
    for n in graph.nodes():
        literal = getattr(n.op, "literal", None)
        if isinstance(literal, Literal):
            found[literal] = None
        for g in subgraphs(n.op):
            found |= literals_in(g)
    return found


@dataclass
class Scratch:
    """Bytes of the arena behind `base`, given out one after the other."""

    base: Dim
    size: Dim = 0

    def take(self, bytes_: Dim) -> Slot:
        slot = Slot("arena", self.base + self.size)
        self.size = self.size + aligned(bytes_)
        return slot

    @property
    def end(self) -> Dim:
        return self.base + self.size


def action_of(
    n: Node, c: Cluster, by: Entries, where: Where, symbol: str, base: Dim
) -> tuple[Branch | Loop, Dim]:
    """What the entry does for an operator of control flow, and the bytes that it takes of the
    arena, from `base` on. `symbol` begins the names of the entries inside."""
    items = {x.op.k: x for x in c.outputs if isinstance(x.op, Item)}
    results = {k: where(x) for k, x in items.items()}
    scratch = Scratch(base)
    control = _Control(n, by, where, symbol, scratch, results)
    if isinstance(n.op, Cond):
        return control.branch(n.op), scratch.size
    if isinstance(n.op, Scan):
        return control.scan(n.op), scratch.size
    if isinstance(n.op, WhileLoop):
        return control.while_loop(n.op), scratch.size
    raise Unsupported(f"{n.op.name} has no native form")


@dataclass(frozen=True)
class _Control:
    n: Node
    by: Entries
    where: Where
    symbol: str
    scratch: Scratch
    results: Mapping[int, Slot]  # those that something reads

    def result(self, k: int, t: TensorType) -> Slot:
        """Where a result goes; into scratch memory, where nothing reads it."""
        return self.results[k] if k in self.results else self.scratch.take(nbytes(t))

    def passed(self, operands: Sequence[Node]) -> tuple[Slot, ...]:
        """Operands, then all constants: what a graph inside is given."""
        constants = (Slot("in", j) for j in self.by.constants.values())
        return (*map(self.where, operands), *constants)

    def entries(
        self, graphs: Mapping[str, Graph], carried: Mapping[Node, int] | None = None
    ) -> tuple[list[Entry], Dim]:
        """The entries of graphs that never run at the same time, and where their arena begins.
        `carried`: values of the body, by the results that are made of them."""
        made, sizes = [], []
        for label, g in graphs.items():
            own = carried if carried is not None and label == "body" else {}
            e, size = self.by.inside(g, f"{self.symbol}_{label}", len(g.inputs), own)
            made.append(e)
            sizes.append(size)
        arena = self.scratch.end
        most: Dim = 0
        for size in sizes:
            most = D.maximum(most, size)
        self.scratch.take(most)
        return made, arena

    def branch(self, op: Cond) -> Branch:
        outs = tuple(self.result(k, o.ttype) for k, o in enumerate(op.then.outputs))
        (then, other), arena = self.entries({"then": op.then, "else": op.other})
        predicate, *operands = self.n.inputs
        ins = self.passed(operands)
        dims = then.dims, other.dims
        return Branch(self.where(predicate), then.symbol, other.symbol, ins, outs, dims, arena)

    def while_loop(self, op: WhileLoop) -> Loop:
        count = len(op.body.outputs)
        graphs = {"body": op.body, "condition": op.condition}
        (body, more), arena = self.entries(graphs, {op.body.inputs[k]: k for k in range(count)})
        first = enumerate(self.n.inputs[:count])
        carried = tuple(self.carried(k, x, in_place=k in body.in_place) for k, x in first)
        flag = self.scratch.take(1)
        inputs = self.passed(self.n.inputs[count:])
        asked = more.symbol, more.dims, flag
        return Loop(body.symbol, body.dims, 0, *asked, carried, (), inputs, (), arena)

    def scan(self, op: Scan) -> Loop:
        last = op.carried + op.sliced
        outputs = op.body.outputs[op.carried :]
        stacked = _also_stacked(op, self.results)
        own = [k for k, at in enumerate(stacked) if at is None]
        places = {op.body.inputs[k]: j for j, k in enumerate(own)}
        (body,), arena = self.entries({"body": _round(op, self.results)}, places)
        updated = {own[j] for j in body.in_place}
        given = zip(self.n.inputs[: op.carried], stacked, strict=True)
        carried = tuple(self.carried(k, x, at, k in updated) for k, (x, at) in enumerate(given))
        forward, rest = op.reverse[: op.sliced], op.reverse[op.sliced :]
        operands = zip(self.n.inputs[op.carried : last], op.body.inputs[op.carried :], forward)
        slices = tuple(Slices(self.where(x), nbytes(s.ttype), b) for x, s, b in operands)
        written = tuple(
            self.stacked(op.carried + k, o, back)
            for k, (o, back) in enumerate(zip(outputs, rest, strict=True))
        )
        inputs = self.passed(self.n.inputs[last:])
        endless = "", (), Slot("arena", 0)
        how = body.symbol, body.dims, op.length, *endless
        return Loop(*how, carried, slices, inputs, written, arena)

    def carried(
        self, k: int, first: Node, stacked: int | None = None, in_place: bool = False
    ) -> Carried:
        t = first.ttype
        result = self.result(k, t)
        alone = in_place or stacked is not None
        spare = result if alone else self.scratch.take(nbytes(t))
        wanted = (in_place or k in self.results) and t.size != 0
        copy, dims = self.by.copy(t) if wanted else ("", ())
        return Carried(self.where(first), result, spare, copy, dims, stacked, in_place)

    def stacked(self, k: int, slice: Node, back: bool) -> Slices:
        """Every slice at its place; where nothing reads them, all at the same."""
        size = nbytes(slice.ttype)
        if k in self.results:
            return Slices(self.results[k], size, back)
        return Slices(self.scratch.take(size), 0)
