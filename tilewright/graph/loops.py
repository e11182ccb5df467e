"""What need not be computed in every round of a loop is computed outside of it.

`HoistFromLoops` takes out of a loop what depends only on operands that stay the same, and products
of slices with such operands: those of all rounds are one large product. It also drops what nothing
reads, has operands that no round changes stay the same, and goes through operands that are turned
around from their end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright import ops
from tilewright.base.events import Log
from tilewright.graph.batched import over_rounds
from tilewright.graph.fold import split_weights, weight_facts
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Input, Item, Node, Op, Place, input, item, node, topological
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.types import TensorType
from tilewright.ops.control import Cond, Scan, WhileLoop
from tilewright.ops.linear import Matmul
from tilewright.ops.views import Flip

GRID_ALIGNMENT = 16  # bytes: kernels of a GPU read whole vectors
Places = dict[Node, frozenset[Place]]


@dataclass(frozen=True)
class HoistFromLoops(Pass, needs=("Decompose",), repeats=True, regions=True):
    """Compute before a loop, once, what is the same in all its rounds, and products of all slices
    of an operand with what is the same. Of a branch: what depends on weights only. Slices are
    padded to the alignment that kernels expect of memory."""

    products: bool = True  # those of all slices too: they need memory for all rounds
    align: int = of_target(1, lambda t: 1 if t.grid is None else GRID_ALIGNMENT)

    def apply(self, program: Graph, log: Log) -> Graph:
        nodes = program.nodes()
        if not any(subgraphs(n.op) for n in nodes):
            return program
        users = program.users()
        results = set(program.outputs)
        weights = {n for n, f in weight_facts(program).items() if f.only and f.weights}
        new: dict[Node, Node] = {}
        parts: dict[Node, Mapping[int, Node]] = {}  # of operators of control flow
        places: Places = dict(program.places)
        turned = {n for n in nodes if n not in results and _is_turned(n, users[n])}
        for n in nodes:
            if isinstance(n.op, Item) and n.inputs[0] in parts:
                new[n] = parts[n.inputs[0]][n.op.k]
            elif n.inputs and n.inputs[0] in turned:
                new[n] = new[n.inputs[0]]
            elif subgraphs(n.op) and n not in results:
                # Of each result that something reads, whether it is only read from its end.
                used = {u.op.k: u in turned for u in users[n] if isinstance(u.op, Item)}
                operands = tuple(new[x] for x in n.inputs)
                fixed = [x in weights for x in n.inputs]
                parts[n] = _hoisted(n.op, operands, fixed, used, places, self)
                new[n] = n  # nothing reads it but its items
            else:
                ins = tuple(new[x] for x in n.inputs)
                new[n] = n if ins == n.inputs else node(n.op, *ins)
            if n in program.places:
                places[new[n]] = places.get(new[n], frozenset()) | program.places[n]
        outputs = tuple(new[o] for o in program.outputs)
        if outputs == program.outputs:
            return program
        live = topological(outputs, first=program.inputs)
        kept = {n: places[n] for n in live if n in places}
        log.add("loops", "what is the same in all rounds is computed before loops", detail=True)
        return Graph(program.name, program.inputs, outputs, kept)


def _is_turned(n: Node, users: Sequence[Node]) -> bool:
    """Is it a result that a scan stacks, and do all its readers turn it around?"""
    if not isinstance(n.op, Item) or not isinstance(n.inputs[0].op, Scan):
        return False
    stacked = n.op.k >= n.inputs[0].op.carried
    return stacked and bool(users) and all(_turns(u.op) for u in users)


def _turns(op: Op) -> bool:
    return isinstance(op, Flip) and op.axes == (0,)


def _hoisted(
    op: Op,
    operands: Sequence[Node],
    weights: Sequence[bool],
    used: Mapping[int, bool],
    places: Places,
    how: HoistFromLoops,
) -> Mapping[int, Node]:
    """The used results of an operator of control flow, with as much outside as can be."""
    if isinstance(op, Cond):
        predicate, *given = operands
        graphs, given = _invariant(subgraphs(op), given, weights[1:], places)
        n = node(Cond(*graphs), predicate, *given)
        return {k: item(n, k) for k in used}
    assert isinstance(op, (Scan, WhileLoop))
    loop = _Loop.of(op, operands, used)
    loop.keep_unchanged()
    loop.drop_unread()
    if how.products:
        loop.take_products(places)
        loop.drop_unread()
    loop.pad_slices(how.align)
    return loop.results(places)


def _invariant(
    graphs: Sequence[Graph], operands: Sequence[Node], fixed: Sequence[bool], places: Places
) -> tuple[list[Graph], list[Node]]:
    """Graphs over the same operands, and these: what depends on `fixed` ones only is an operand.
    In the graphs such operands are weights, which is how passes know them."""
    marked = [
        input(f"x{k}", x.ttype, "weight" if same else "arg")
        for k, (x, same) in enumerate(zip(graphs[0].inputs, fixed, strict=True))
    ]
    outside = dict(zip(marked, operands, strict=True))
    mains: list[tuple[Graph, dict[Node, Node]]] = []
    for g in graphs:
        body = _over(g, dict(zip(g.inputs, marked, strict=True)), tuple(marked))
        prologue, main = split_weights(body, symbolic=True)
        moved = Places()
        table = _copied(prologue.outputs, outside, prologue.places, moved)
        _join(places, moved)
        names = main.inputs[len(main.inputs) - len(prologue.outputs) :]
        mains.append((main, {n: table[o] for n, o in zip(names, prologue.outputs, strict=True)}))
    read = {x for main, _ in mains for x in topological(main.outputs)}
    kept = [x for x, same in zip(marked, fixed, strict=True) if not same or x in read]
    extra = dict.fromkeys(value for _, taken in mains for value in taken.values())
    given = [*(outside[x] for x in kept), *extra]
    seen = [(x.ttype, x.op.role) for x in kept if isinstance(x.op, Input)]
    seen += [(x.ttype, "weight") for x in extra]
    ins = [input(f"x{k}", t, role) for k, (t, role) in enumerate(seen)]
    place_of = dict(zip(extra, ins[len(kept) :], strict=True))
    out = []
    for g, (main, taken) in zip(graphs, mains, strict=True):
        table = dict(zip(kept, ins)) | {n: place_of[value] for n, value in taken.items()}
        out.append(replace(_over(main, table, tuple(ins)), name=g.name))
    return out, given


def _over(g: Graph, table: dict[Node, Node], inputs: tuple[Node, ...]) -> Graph:
    """The graph with other inputs in the place of its own."""
    moved = Places()
    new = _copied(g.outputs, table, g.places, moved)
    return Graph(g.name, inputs, tuple(new[o] for o in g.outputs), moved)


def _copied(
    outputs: Iterable[Node],
    table: Mapping[Node, Node],
    places: Mapping[Node, frozenset[Place]],
    moved: Places,
) -> dict[Node, Node]:
    """Nodes with others in the place of those in the table; their places follow."""
    new = dict(table)
    for n in topological(tuple(outputs), stop=table):
        ins = tuple(new[x] for x in n.inputs)
        new[n] = n if ins == n.inputs else node(n.op, *ins)
        if n in places:
            moved[new[n]] = moved.get(new[n], frozenset()) | places[n]
    return new


def _join(places: Places, more: Mapping[Node, frozenset[Place]]) -> None:
    for n, where in more.items():
        places[n] = places.get(n, frozenset()) | where


@dataclass
class _Carried:
    first: Node  # the operand
    seen: Node  # by the body
    made: Node
    result: int  # its number among the loop's results


@dataclass
class _Sliced:
    operand: Node
    seen: Node
    back: bool


@dataclass
class _Stacked:
    made: Node
    back: bool
    result: int
    padded: Node | None = None  # what is stacked in the place of `made`


@dataclass
class _Loop:
    """A loop in its parts, over inputs that its condition and its body share."""

    name: str
    length: Dim | None  # of a scan
    more: Node | None  # of a loop with a condition: whether there is another round
    carried: list[_Carried]
    sliced: list[_Sliced]
    captured: dict[Node, Node]  # what the body sees, and the operand
    stacked: list[_Stacked]
    used: Mapping[int, bool]  # results, and whether they are to be turned around
    places: Places = field(default_factory=dict)
    same: dict[int, Node] = field(default_factory=dict)  # results that are known before the loop

    @staticmethod
    def of(op: Scan | WhileLoop, operands: Sequence[Node], used: Mapping[int, bool]) -> _Loop:
        is_scan = isinstance(op, Scan)
        count = op.carried if is_scan else len(op.body.outputs)
        last = count + (op.sliced if is_scan else 0)
        seen = op.body.inputs
        outputs = op.body.outputs
        carried = [_Carried(operands[k], seen[k], outputs[k], k) for k in range(count)]
        back = op.reverse if is_scan else ()
        sliced = [_Sliced(operands[k], seen[k], back[k - count]) for k in range(count, last)]
        for s in sliced:
            while _turns(s.operand.op):
                s.operand, s.back = s.operand.inputs[0], not s.back
        stacked = [
            _Stacked(outputs[k], back[last - count + k - count] != used.get(k, False), k)
            for k in range(count, len(outputs))
        ]
        captured = dict(zip(seen[last:], operands[last:], strict=True))
        length, more = (op.length, None) if is_scan else (None, None)
        places = dict(op.body.places)
        if isinstance(op, WhileLoop):
            table = dict(zip(op.condition.inputs, seen, strict=True))
            more = _copied(op.condition.outputs, table, op.condition.places, places)[
                op.condition.outputs[0]
            ]
        return _Loop(op.body.name, length, more, carried, sliced, captured, stacked, used, places)

    def outputs(self) -> list[Node]:
        made = [c.made for c in self.carried] + [s.made for s in self.stacked]
        return made if self.more is None else [*made, self.more]

    def replace(self, table: Mapping[Node, Node]) -> None:
        """Other nodes in the place of those in the table."""
        moved = Places()
        new = _copied(self.outputs(), table, self.places, moved)
        _join(self.places, moved)
        for x in (*self.carried, *self.stacked):
            x.made = new[x.made]
        self.more = None if self.more is None else new[self.more]

    def keep_unchanged(self) -> None:
        """A carried value that no round changes stays the same."""
        for c in [c for c in self.carried if c.made is c.seen]:
            self.carried.remove(c)
            self.captured[c.seen] = c.first
            self.same[c.result] = c.first

    def drop_unread(self) -> None:
        """Only what some used result depends on, or whether there is another round, is computed."""
        self.stacked = [s for s in self.stacked if s.result in self.used]
        roots = [s.made for s in self.stacked] + ([self.more] if self.more is not None else [])
        live: list[_Carried] = [c for c in self.carried if c.result in self.used]
        while True:
            read = set(topological((*roots, *(c.made for c in live))))
            found = [c for c in self.carried if c in live or c.seen in read]
            if found == live:
                break
            live = found
        self.carried = live
        self.sliced = [s for s in self.sliced if s.seen in read]
        self.captured = {x: y for x, y in self.captured.items() if x in read}

    def take_products(self, places: Places) -> None:
        """Products of slices with what stays the same: one product before the loop."""
        if self.length is None or not self.sliced:
            return
        order = topological(self.outputs())
        if not any(isinstance(n.op, Matmul) for n in order):
            return
        wholes: dict[Node, tuple[Node, bool]] = {s.seen: (s.operand, s.back) for s in self.sliced}
        outside = dict(self.captured)
        carried = {c.seen for c in self.carried}
        found: dict[Node, tuple[Node, bool]] = {}
        for n in order:
            if n in wholes or n in outside:
                continue
            if n in carried or not all(x in wholes or x in outside for x in n.inputs):
                continue
            varying = [wholes[x] for x in n.inputs if x in wholes]
            if not varying:
                if not n.op.random:
                    outside[n] = node(n.op, *(outside[x] for x in n.inputs))
                continue
            if len({back for _, back in varying}) > 1 or n.op.random:
                continue
            args = [wholes[x][0] if x in wholes else outside[x] for x in n.inputs]
            whole = over_rounds(n, args, [x in wholes for x in n.inputs], self.length)
            if whole is None:
                continue
            wholes[n] = whole, varying[0][1]
            if isinstance(n.op, Matmul) and len(varying) == 1:
                found[n] = wholes[n]
                if n in self.places:
                    _join(places, {whole: self.places[n]})
        table: dict[Node, Node] = {}
        for k, (n, (whole, back)) in enumerate(found.items()):
            seen = input(f"product{k}", n.ttype)
            self.sliced.append(_Sliced(whole, seen, back))
            table[n] = seen
        if table:
            self.replace(table)

    def pad_slices(self, align: int) -> None:
        """Slices of as many bytes as memory is aligned to, as vectors."""
        table: dict[Node, Node] = {}
        for k, s in enumerate(self.sliced):
            size, more = _padding(s.seen.ttype, align)
            if more != 0:
                rows = ops.reshape(s.operand, (s.operand.shape[0], size))
                s.operand = ops.pad(rows, (0, 0), (0, more))
                wide = input(f"padded{k}", TensorType(s.seen.dtype, (size + more,)))
                table[s.seen] = ops.reshape(ops.slice(wide, 0, 0, size), s.seen.shape)
                s.seen = wide
        if table:
            self.replace(table)
        for t in self.stacked:
            size, more = _padding(t.made.ttype, align)
            if more != 0:
                t.padded = ops.pad(ops.reshape(t.made, (size,)), (0,), (more,))

    def results(self, places: Places) -> dict[int, Node]:
        """The loop again, and its results by their old numbers."""
        found = {k: x for k, x in self.same.items() if k in self.used}
        seen = [c.seen for c in self.carried] + [s.seen for s in self.sliced] + [*self.captured]
        operands = [c.first for c in self.carried] + [s.operand for s in self.sliced]
        changing = len(operands)
        operands += self.captured.values()
        made = [c.made for c in self.carried] + [s.padded or s.made for s in self.stacked]
        if not made:
            return found
        graphs = [Graph(self.name, tuple(seen), tuple(made), self.places)]
        if self.more is not None:
            graphs.append(Graph("condition", tuple(seen), (self.more,), self.places))
        fixed = [k >= changing for k in range(len(operands))]
        graphs, operands = _invariant(graphs, operands, fixed, places)
        if self.length is None:
            op: Op = WhileLoop(graphs[1], graphs[0])
        else:
            back = (*(s.back for s in self.sliced), *(s.back for s in self.stacked))
            op = Scan(graphs[0], self.length, len(self.carried), len(self.sliced), back)
        n = node(op, *operands)
        for j, c in enumerate(self.carried):
            if c.result in self.used:
                found[c.result] = item(n, j)
        for j, t in enumerate(self.stacked, len(self.carried)):
            found[t.result] = _unpadded(item(n, j), t.made) if t.padded else item(n, j)
        return found


def _padding(t: TensorType, align: int) -> tuple[Dim, Dim]:
    """(elements, how many more make them a multiple of so many bytes)"""
    size, most = t.size, max(1, align // t.dtype.bytes)
    if D.divisor(size) % most == 0:
        return size, 0
    return size, D.ceildiv(size, most) * most - size


def _unpadded(whole: Node, made: Node) -> Node:
    """Padded slices that were stacked, without what they are padded with."""
    length = whole.shape[0]
    return ops.reshape(ops.slice(whole, 1, 0, made.ttype.size), (length, *made.shape))
