"""A graph as a model: every node by its entry in the table, or by what it is composed of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper

from tilewright.base.errors import Invalid
from tilewright.capture.onnx.elements import ELEMENT_OF, numpy_of
from tilewright.capture.to_onnx.writer import OLDEST, Out, Unwritten, Writer, refused, writers_of
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Graph, Input, Item, Node, topological
from tilewright.ir.operator import composition, is_composed
from tilewright.ir.polynomial import Sym
from tilewright.ir.positions import static
from tilewright.ir.types import DType, TupleType, b1, i64
from tilewright.ops.control import Cond, Scan, WhileLoop

OPSET = 20  # what a model is written in unless another is asked for
IR_VERSION = 10
MOVED = 1 << 20  # elements that may be moved by a table of their places


Keep = Callable[[str, np.ndarray], onnx.TensorProto]


def _inside(name: str, array: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def write(
    graph: Graph,
    weights: Mapping[str, np.ndarray],
    names: Sequence[str] = (),
    opset: int = OPSET,
    inputs: Mapping[str, str] | None = None,
    symbols: Mapping[str, str] | None = None,
    keep: Keep | None = None,
) -> onnx.ModelProto:
    """The model of a graph. `weights` are values of inputs by label, which become part of the
    model; `names` are those of outputs. `inputs` and `symbols` say what inputs and sizes are called
    in the model, `keep` makes its tensors of weights."""
    newest = defs.onnx_opset_version()
    if not OLDEST <= opset <= newest:
        raise Invalid(
            f"opset {opset} is not written", hint=f"{OLDEST} to {newest} are; {OPSET} by default"
        )
    walk = _Walk(graph, weights, names, opset)
    walk.inputs, walk.symbols = dict(inputs or {}), dict(symbols or {})
    walk.keep = keep or _inside
    return walk.run()


class _Walk:
    def __init__(
        self, graph: Graph, weights: Mapping[str, np.ndarray], names: Sequence[str], opset: int
    ) -> None:
        self.graph, self.weights, self.opset = graph, weights, opset
        self.names = list(names) or [f"output_{k}" for k in range(len(graph.outputs))]
        self.inputs: dict[str, str] = {}
        self.symbols: dict[str, str] = {}
        self.keep: Keep = _inside
        self.writer = Writer(opset)
        self.values: dict[Node, Out | tuple[Out | None, ...]] = {}
        self.reasons: dict[str, str] = {}

    def run(self) -> onnx.ModelProto:
        inputs, held = [], []
        for n in self.graph.inputs:
            assert isinstance(n.op, Input)
            name = self.inputs.get(n.op.label, n.op.label)
            self.values[n] = Out(name, n.dtype)
            if n.op.label in self.weights:
                held.append(self.keep(name, _given(self.weights[n.op.label], n)))
            else:
                inputs.append(self.described(name, n))
                for axis, d in enumerate(n.shape):
                    if isinstance(d, Int) and isinstance(s := _symbol(d), Sym):
                        self.writer.sizes.setdefault(s.name, (name, axis))
        self.visit(self.graph.outputs)
        if self.reasons:
            raise refused(self.reasons)
        outputs = []
        for name, n in zip(self.names, self.graph.outputs, strict=True):
            self.writer.nodes.append(helper.make_node("Identity", [self.result(n).name], [name]))
            outputs.append(self.described(name, n))
        nodes = _without_copies(self.writer.nodes, {o.name for o in outputs})
        read = set(_names_read(nodes))
        held += [t for name, t in self.writer.constants.items() if name in read]
        made = helper.make_model(
            helper.make_graph(nodes, self.graph.name, inputs, outputs, held),
            opset_imports=[helper.make_opsetid("", self.opset)],
            producer_name="tilewright",
            ir_version=IR_VERSION,
        )
        if self.keep is _inside:
            checker.check_model(made, full_check=True)
        return made

    def described(self, name: str, n: Node) -> onnx.ValueInfoProto:
        return self.typed(name, n.dtype, n.shape)

    def typed(self, name: str, dtype: DType, shape: Sequence[Dim]) -> onnx.ValueInfoProto:
        shown = [self.shown(d) if isinstance(d, Int) else d for d in shape]
        return helper.make_tensor_value_info(name, ELEMENT_OF[dtype], shown)

    def shown(self, d: Int) -> str:
        """A symbolic size by the names that the model has for symbols."""
        table = {s: D.sym(self.symbols.get(s.name, s.name), s.lo, s.hi) for s in D.symbols(d)}
        return str(D.substitute(d, table))

    def visit(self, roots: Sequence[Node]) -> None:
        """Writes all nodes that the roots depend on; what cannot be written is noted, and what
        depends on it is written with a name that nothing makes."""
        order = topological(roots, stop=self.values)
        for n in order:
            if isinstance(n.op, Item):
                self.writer.asked.setdefault(n.inputs[0], set()).add(n.op.k)
        for n in order:
            self.values[n] = self.value(n)

    def value(self, n: Node) -> Out | tuple[Out | None, ...]:
        if isinstance(n.op, Item):
            (whole,) = (self.values[x] for x in n.inputs)
            assert isinstance(whole, tuple)
            found = whole[n.op.k]
            if found is None:  # nobody had asked for it when the node was written
                (own,) = n.inputs
                parts = composition(own)
                self.visit(parts)
                return self.result(parts[n.op.k])
            return found
        xs = [self.result(x) for x in n.inputs]
        why = "it has no counterpart there"
        for f in writers_of(n.op.name, self.opset):
            mark = len(self.writer.nodes)
            try:
                return f(self.writer, n, *xs)
            except Unwritten as error:
                why = str(error)
                self.writer.back_to(mark)
        if n.op.view and (gathered := self.moved(n, xs[0])) is not None:
            return gathered
        if isinstance(n.op, Cond | WhileLoop | Scan):
            return self.flow(n, *xs)
        if is_composed(n.op):
            parts = composition(n)
            self.visit(parts)
            made = tuple(self.result(p) for p in parts)
            return made if _several(n) else made[0]
        self.reasons.setdefault(n.op.name, why)
        if _several(n):
            assert isinstance(n.type, TupleType)
            return tuple(Out("?", t.dtype) for t in n.type.items)
        return Out("?", n.dtype)

    def result(self, n: Node) -> Out:
        """Of a node with one result."""
        found = self.values[n]
        assert isinstance(found, Out)
        return found

    def moved(self, n: Node, x: Out) -> Out | None:
        """An operator that only moves elements, by the places that they come from."""
        given, wanted = n.inputs[0].ttype.size, n.ttype.size
        if isinstance(given, Int) or isinstance(wanted, Int) or wanted > MOVED:
            return None
        places = np.arange(given).reshape(static(n.inputs[0].shape))
        op: Any = n.op  # every operator with a definition has a reference
        found = op.reference(places)
        flat = self.writer.reshape(x, (given,))
        return self.writer.op("Gather", flat, self.writer.constant(found, i64), axis=0)

    # ---- control flow: bodies read names of the graph around them

    def flow(self, n: Node, *xs: Out) -> tuple[Out, ...]:
        if isinstance(n.op, Cond):
            return self.branches(n, n.op, *xs)
        if isinstance(n.op, WhileLoop):
            return self.loop(n, n.op, xs)
        assert isinstance(n.op, Scan)
        return self.rounds(n, n.op, xs)

    def branches(self, n: Node, op: Cond, predicate: Out, *operands: Out) -> tuple[Out, ...]:
        sides = (("then_branch", op.then), ("else_branch", op.other))
        bodies = {name: self.body([(graph, operands)], []) for name, graph in sides}
        return self.several(n, "If", [predicate.name], **bodies)

    def loop(self, n: Node, op: WhileLoop, xs: Sequence[Out]) -> tuple[Out, ...]:
        """The condition is computed before the loop, and at the end of each round of the new
        values."""
        count = len(op.body.outputs)
        self.values |= dict(zip(op.condition.inputs, xs))
        self.visit(op.condition.outputs)
        (first,) = (self.result(o) for o in op.condition.outputs)
        taken = [(Out(self.writer.name("k"), i64), ()), (Out(self.writer.name("c"), b1), ())]
        carried = [Out(self.writer.name("x"), o.dtype) for o in op.body.outputs]
        taken += [(x, o.shape) for x, o in zip(carried, op.body.outputs)]
        rest = xs[count:]
        body = self.body([(op.body, (*carried, *rest)), (op.condition, rest)], taken)
        return self.several(n, "Loop", ["", first.name, *(x.name for x in xs[:count])], body=body)

    def rounds(self, n: Node, op: Scan, xs: Sequence[Out]) -> tuple[Out, ...]:
        last, w = op.carried + op.sliced, self.writer
        own = [Out(w.name("x"), x.dtype) for x in xs[:last]]
        taken = [(x, i.shape) for x, i in zip(own, op.body.inputs)]
        given, back = [x.name for x in xs[:last]], [int(b) for b in op.reverse]
        if not op.sliced:  # ONNX goes through something
            places = w.op("Range", w.number(0, i64), w.scalar(op.length), w.number(1, i64))
            given.append(places.name)
            taken.append((Out(w.name("k"), i64), ()))
            back.insert(0, 0)
        body = self.body([(op.body, (*own, *xs[last:]))], taken)
        sliced = max(op.sliced, 1)
        settings = {"num_scan_inputs": sliced, "scan_input_directions": back[:sliced]}
        if back[sliced:]:
            settings["scan_output_directions"] = back[sliced:]
        return self.several(n, "Scan", given, body=body, **settings)

    def several(self, n: Node, kind: str, given: Sequence[str], **settings: Any) -> tuple[Out, ...]:
        assert isinstance(n.type, TupleType)
        results = tuple(Out(self.writer.name(kind.lower()), t.dtype) for t in n.type.items)
        names = [r.name for r in results]
        self.writer.nodes.append(helper.make_node(kind, list(given), names, **settings))
        return results

    def body(
        self,
        graphs: Sequence[tuple[Graph, Sequence[Out]]],
        taken: Sequence[tuple[Out, Sequence[Dim]]],
    ) -> onnx.GraphProto:
        """Graphs over operands as a graph of ONNX that takes some names. The second one, a
        condition, is of what the first one gives; its result comes first."""
        w = self.writer
        outer, known, values = w.nodes, w.known_here(), self.values
        w.nodes, self.values = [], {}
        found: list[tuple[Out, Sequence[Dim]]] = []
        for graph, operands in graphs:
            given = (*(x for x, _ in found), *operands)
            self.values |= dict(zip(graph.inputs, given, strict=True))
            self.visit(graph.outputs)
            found = [*((self.result(o), o.shape) for o in graph.outputs), *found]
        outputs = []
        for x, shape in found:
            name = w.name("out")
            w.nodes.append(helper.make_node("Identity", [x.name], [name]))
            outputs.append(self.typed(name, x.dtype, shape))
        inputs = [self.typed(x.name, x.dtype, shape) for x, shape in taken]
        made = helper.make_graph(w.nodes, graphs[0][0].name, inputs, outputs)
        w.nodes, self.values = outer, values
        w.known_again(known)
        return made


def _several(n: Node) -> bool:
    return isinstance(n.type, TupleType)


def _symbol(d: Int) -> object:
    """The symbol that a size is, by itself."""
    (term, *more) = d.terms
    return term[0][0] if not more and term[1] == 1 and len(term[0]) == 1 else None


def _names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for n in nodes:
        yield from n.input
        for a in n.attribute:
            yield from _names_read(a.g.node)


def _given(array: np.ndarray, n: Node) -> np.ndarray:
    wanted = numpy_of(ELEMENT_OF[n.dtype])
    held = np.asarray(array)
    if held.dtype != wanted and held.dtype.itemsize == wanted.itemsize and held.dtype.kind in "uV":
        held = held.view(wanted)
    if held.shape != n.shape:
        assert isinstance(n.op, Input)
        raise Invalid(f"the weight {n.op.label} is {n.type!r}, and {list(held.shape)} was given")
    return np.ascontiguousarray(held.astype(wanted, copy=False)).reshape(held.shape)


def _without_copies(nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The last Identity of each output becomes a name of what it copies, where only that reads it;
    nodes that nothing reads are left out."""
    readers = Counter(_names_read(nodes))
    made = {name: n for n in nodes for name in n.output}
    gone: set[int] = set()
    for k, n in enumerate(nodes):
        if n.op_type == "Identity" and n.output[0] in outputs:
            source = made.get(n.input[0])
            if source is None or readers[n.input[0]] > 1 or n.input[0] in outputs:
                continue
            at = list(source.output).index(n.input[0])
            source.output[at] = n.output[0]
            gone.add(k)
    kept: list[onnx.NodeProto] = []
    needed = set(outputs)
    for k in reversed(range(len(nodes))):
        if k not in gone and needed.intersection(nodes[k].output):
            needed.update(_names_read([nodes[k]]))
            kept.append(nodes[k])
    return kept[::-1]
