"""A graph as a model: every node by its entry in the table, or by what it is composed of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper

from tilewright.base.errors import Invalid
from tilewright.capture.onnx.elements import ELEMENT_OF, numpy_of
from tilewright.capture.to_onnx.writer import OLDEST, Out, Unwritten, Writer, refused, writers_of
from tilewright.ir import dim as D
from tilewright.ir.dim import Int
from tilewright.ir.node import Graph, Input, Item, Node, topological
from tilewright.ir.operator import composition, is_composed
from tilewright.ir.polynomial import Sym
from tilewright.ir.types import i64
from tilewright.ops.control import Cond

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
            found = self.values[n]
            assert isinstance(found, Out)
            self.writer.nodes.append(helper.make_node("Identity", [found.name], [name]))
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
        shape = [self.shown(d) if isinstance(d, Int) else d for d in n.shape]
        return helper.make_tensor_value_info(name, ELEMENT_OF[n.dtype], shape)

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
            assert found is not None
            return found
        xs = [self.values[x] for x in n.inputs]
        why = "it has no counterpart there"
        for f in writers_of(n.op.name, self.opset):
            mark = len(self.writer.nodes)
            try:
                return f(self.writer, n, *xs)
            except Unwritten as error:
                why = str(error)
                self.writer.back_to(mark)
        if n.op.view and (found := self.moved(n, *xs)) is not None:
            return found
        if isinstance(n.op, Cond):
            return self.branches(n.op, *xs)
        if is_composed(n.op):
            parts = composition(n)
            self.visit(parts)
            found = tuple(self.values[p] for p in parts)
            return found if len(found) > 1 or _several(n) else found[0]  # type: ignore[return-value]
        self.reasons.setdefault(n.op.name, why)
        if _several(n):
            return tuple(Out("?", t.dtype) for t in n.type.items)  # type: ignore[union-attr]
        return Out("?", n.dtype)

    def moved(self, n: Node, x: Out) -> Out | None:
        """An operator that only moves elements, by the places that they come from."""
        own = n.inputs[0].ttype
        if not (own.is_static and n.ttype.is_static) or int(n.ttype.size) > MOVED:
            return None
        places = np.arange(own.size).reshape(own.shape)
        found = n.op.reference(places)  # type: ignore[attr-defined]
        flat = self.writer.reshape(x, (own.size,))
        return self.writer.op("Gather", flat, self.writer.constant(found, i64), axis=0)

    def branches(self, op: Cond, predicate: Out, *operands: Out) -> tuple[Out, ...]:
        """Two graphs, of which one runs; they read names of this one."""
        bodies = {}
        for name, graph in (("then_branch", op.then), ("else_branch", op.other)):
            bodies[name] = self.body(graph, operands)
        w = self.writer
        results = [Out(w.name("if"), o.dtype) for o in op.then.outputs]
        names = [r.name for r in results]
        w.nodes.append(helper.make_node("If", [predicate.name], names, **bodies))
        return tuple(results)

    def body(self, graph: Graph, operands: Sequence[Out]) -> onnx.GraphProto:
        outer = self.writer.nodes
        known = self.writer.known_here()
        self.writer.nodes = []
        values, self.values = self.values, dict(zip(graph.inputs, operands))
        self.visit(graph.outputs)
        outputs = []
        for o in graph.outputs:
            found = self.values[o]
            assert isinstance(found, Out)
            name = self.writer.name("out")
            self.writer.nodes.append(helper.make_node("Identity", [found.name], [name]))
            outputs.append(self.described(name, o))
        made = helper.make_graph(self.writer.nodes, graph.name, [], outputs)
        self.writer.nodes, self.values = outer, values
        self.writer.known_again(known)
        return made


def _several(n: Node) -> bool:
    return hasattr(n.type, "items")


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
        label = n.op.label  # type: ignore[attr-defined]
        raise Invalid(f"the weight {label} is {n.type!r}, and {list(held.shape)} was given")
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
