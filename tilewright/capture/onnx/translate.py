"""A model as a graph: its nodes in order, each by its translation or by the body that ONNX gives
for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright import ops
from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.capture.onnx.context import (
    Check,
    Checks,
    Context,
    Entry,
    Value,
    entry_for,
    is_newer,
    refusal_of,
)
from tilewright.capture.onnx.elements import (
    DTYPE_OF,
    ELEMENT_OF,
    HELD,
    Narrow,
    dtype_for,
    element_of_array,
    values_of,
)
from tilewright.capture.onnx.flow import NAMES, Scope, translated_flow
from tilewright.capture.onnx.functions import body_of, defaults, schema_of, value_of
from tilewright.capture.onnx.known import Known, NeedsSizes, NeedsValue
from tilewright.capture.onnx.model import OWN_DOMAINS, Model, label, opsets
from tilewright.graph.divide import Cut, Part, divide
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, constant, input
from tilewright.ir.types import TensorType, i64

SMALL = 64  # elements of a constant that is part of the graph; larger ones are weights
# What Python and numpy raise where a node of a malformed model does not fit its operator.
MISFITS = (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError)
DEEPEST = 100  # bodies inside each other: a function that calls itself has no end


@dataclass(frozen=True)
class Leaf:
    """A tensor among the arguments or results: its node, and its element type."""

    node: Node
    element: int


Tree = Leaf | list["Tree"] | None


@dataclass(frozen=True)
class Watched:
    """A part of the graph. Where there are `checks`, its last outputs are integers: whether one
    failed, then each of them."""

    part: Part
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Translated:
    """A graph whose first inputs are the weights, then the model's inputs; sizes that data decides
    (`cuts`), and the parts that run one after the other. `symbols` are the names of sizes in
    graphs. `specialised` are the inputs whose values it was made for, `sizes` the symbolic dims
    that were given as numbers. Where the sizes of `cuts` have to be numbers to go on, there are no
    outputs yet (`whole` is false)."""

    graph: Graph
    weights: Mapping[Node, Callable[[], np.ndarray]]
    checks: Mapping[Node, Check]
    parts: tuple[Watched, ...]
    cuts: tuple[Cut, ...]
    inputs: Mapping[str, Tree]
    outputs: Mapping[str, Tree]
    symbols: Mapping[str, str]
    specialised: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]
    whole: bool

    def watched(self) -> Graph:
        """All of it as one graph, whose last outputs are those of the checks, where there are."""
        leaves = self.graph.outputs[: len(self.graph.outputs) - len(self.checks)]
        return self.graph.with_outputs([*leaves, *_flagged(list(self.checks))])


def translate(
    model: Model,
    values: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    least: int = 1,
) -> Translated:
    """The graph of a model. `values` are inputs that may be used as constants; sequences and
    optionals among the inputs are taken as they are there. `sizes` are numbers for symbolic dims.
    Sizes that data decides are `least` or more.
    """
    try:
        return _Walk(model, values or {}, sizes or {}, least).run()
    except _Newer:
        return _Walk(model.converted(), values or {}, sizes or {}, least).run()


class _Newer(Exception):
    """Some operator is translated in newer opsets only."""


class _Walk:
    def __init__(
        self, model: Model, values: Mapping[str, Any], sizes: Mapping[str, int], least: int
    ) -> None:
        self.model, self.values, self.sizes, self.least = model, values, sizes, least
        self.weights: dict[Node, Callable[[], np.ndarray]] = {}
        self.inputs: list[Node] = []
        self.given: dict[Node, np.ndarray] = {}
        self.names: dict[Node, str] = {}
        self.facts = Known(self.weights, self.given, self.names)
        self.checks = Checks()
        self.symbols = symbols_of(model)
        self.cuts: list[Cut] = []
        self.inside = 0
        self.counted: list[str] = []  # the names of their sizes
        self.functions = {(f.domain, f.name): f for f in model.proto.functions}

    def run(self) -> Translated:
        g = self.model.proto.graph
        env: dict[str, Value] = {}
        for t in g.initializer:
            env[t.name] = self.tensor(t)
        for sparse in g.sparse_initializer:
            env[sparse.values.name] = self.weight(*_dense(sparse))
        trees: dict[str, Tree] = {}
        for v in g.input:
            if v.name not in env:
                env[v.name], trees[v.name] = self.argument(v.name, v.type)
        whole, outputs = True, {}
        try:
            self.nodes(g.node, env, {}, opsets(self.model.proto), 0)
            outputs = {o.name: _tree(env[o.name]) for o in g.output}
        except NeedsSizes:
            if not self.cuts or set(self.symbols) - set(self.sizes) - set(self.counted):
                raise
            whole = False  # what there is so far computes the sizes
        used = {self.names[n] for n in self.facts.used}
        checks = self.checks.found
        leaves = [leaf.node for tree in outputs.values() for leaf in leaves_of(tree)]
        graph = Graph("onnx", (*self.weights, *self.inputs), (*leaves, *checks))
        return Translated(
            graph,
            self.weights,
            checks,
            tuple(_watched(p, checks) for p in divide(graph, self.cuts)),
            tuple(self.cuts),
            trees,
            outputs,
            self.symbols,
            {name: np.asarray(self.values[name]) for name in sorted(used)},
            self.sizes,
            whole,
        )

    # ---- sizes that data decides

    def bounded(
        self, where: str, count: Node, sources: Sequence[Node], axis: int
    ) -> tuple[Node, ...]:
        """The beginnings of some tensors along an axis, of a length that is the value of `count`:
        what reads them is a program of its own, whose sizes are known when it is called."""
        symbol, size = self._new_size(where)
        self.cuts.append(Cut(symbol, count, size, sources[0].shape[axis]))
        return tuple(ops.slice(x, axis, 0, size) for x in sources)

    def counted_size(self, where: str, count: Node) -> Dim:
        """The value of `count` as a size."""
        symbol, size = self._new_size(where)
        self.cuts.append(Cut(symbol, count, size, None))
        return size

    def _new_size(self, where: str) -> tuple[str, Dim]:
        name, symbol = f"{where}: size {len(self.counted)}", f"n{len(self.counted)}"
        self.counted.append(name)
        self.symbols[name] = symbol
        return symbol, self.sizes[name] if name in self.sizes else D.sym(symbol, self.least)

    # ---- inputs and constants

    def argument(self, name: str, t: onnx.TypeProto) -> tuple[Value, Tree]:
        kind = t.WhichOneof("value")
        value = self.values.get(name)
        if kind == "optional_type":
            if name not in self.values:
                raise NeedsValue(name)
            return (None, None) if value is None else self.argument(name, t.optional_type.elem_type)
        if kind == "sequence_type":
            if name not in self.values:
                raise NeedsValue(name)
            items = [self._item(name, np.asarray(v)) for v in value or ()]
            return [v for v, _ in items], [tree for _, tree in items]
        if kind != "tensor_type":
            raise Unsupported(f"the input {name!r} is a {kind}, which has no native form")
        shape: list[Dim] = []
        if not t.tensor_type.HasField("shape"):
            if value is None:
                raise NeedsSizes(f"the input {name!r} has no shape in the model")
            shape = list(np.asarray(value).shape)
        for k, d in enumerate(t.tensor_type.shape.dim):
            if d.WhichOneof("value") == "dim_value":
                shape.append(d.dim_value)
                continue
            symbol = symbol_of(name, k, d)
            known = self.sizes.get(symbol)
            shape.append(D.sym(self.symbols[symbol], 1) if known is None else known)
        return self._input(name, t.tensor_type.elem_type, shape, value)

    def _item(self, name: str, value: np.ndarray) -> tuple[Value, Tree]:
        return self._input(name, element_of_array(value), value.shape, value)

    def _input(
        self, name: str, element: int, shape: Sequence[Dim], value: Any
    ) -> tuple[Value, Tree]:
        n = input(f"x{len(self.inputs)}", TensorType(dtype_for(element), tuple(shape)))
        tree = Leaf(n, element)
        self.inputs.append(n)
        self.names[n] = name
        if value is not None:
            self.given[n] = values_of(np.asarray(value), element)
        return (n if element in DTYPE_OF else Narrow(n, element)), tree

    def tensor(self, t: onnx.TensorProto) -> Value:
        if t.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
            return _Text(numpy_helper.to_array(t))
        dtype, count = dtype_for(t.data_type), int(np.prod(t.dims, dtype=np.int64))
        read = partial(_read, t)
        if count <= SMALL or (dtype.is_int and count <= 16 * SMALL):
            n = constant(read(), dtype)
        else:
            n = self._weight(TensorType(dtype, tuple(t.dims)), read)
        return n if t.data_type in DTYPE_OF else Narrow(n, t.data_type)

    def _weight(self, t: TensorType, read: Callable[[], np.ndarray]) -> Node:
        n = input(f"w{len(self.weights)}", t, "weight")
        self.weights[n] = read  # when it is needed: nothing keeps a copy
        return n

    def weight(self, array: np.ndarray, element: int) -> Node:
        """A constant that a translation computed."""
        dtype = dtype_for(element)
        if array.size <= SMALL or (dtype.is_int and array.size <= 16 * SMALL):
            return constant(array, dtype)
        held = array.astype(dtype.numpy)
        return self._weight(TensorType(dtype, held.shape), lambda: held)

    # ---- nodes

    def nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        env: dict[str, Value],
        outer: Mapping[str, Any],
        versions: Mapping[str, int],
        depth: int,
    ) -> None:
        if depth > DEEPEST:
            raise Invalid("functions of the model call each other without an end")
        for n in nodes:
            try:
                try:
                    self.node(n, env, outer, versions, depth)
                except TilewrightError:
                    raise
                except MISFITS as error:  # e.g. fewer strides than axes, which nobody checked
                    raise Invalid(
                        f"{n.op_type}: operands and attributes do not fit together: {error}"
                    ) from error
            except TilewrightError as error:
                if isinstance(error, Invalid) and set(self.symbols) - set(self.sizes):
                    # Sizes that do not fit as symbols may do so as numbers.
                    raise NeedsSizes(f"{label(n)}: {error.what}") from error
                if error.where is None:
                    opset = versions.get("" if n.domain in OWN_DOMAINS else n.domain, 1)
                    error.where = f"{self.model.where}: node {label(n)}, opset {opset}"
                raise

    def node(
        self,
        n: onnx.NodeProto,
        env: dict[str, Value],
        outer: Mapping[str, Any],
        versions: Mapping[str, int],
        depth: int,
    ) -> None:
        domain = "" if n.domain in OWN_DOMAINS else n.domain
        attributes: dict[str, Any] = {}
        for a in n.attribute:
            if not a.ref_attr_name:
                attributes[a.name] = value_of(a)
            elif a.ref_attr_name in outer:
                attributes[a.name] = outer[a.ref_attr_name]
        for name in n.input:
            if name and name not in env:
                raise Invalid(f"node {label(n)} reads {name!r}, which nothing makes")
        operands = [env[name] if name else None for name in n.input]
        while operands and operands[-1] is None:
            operands.pop()
        opset = versions.get(domain, 1)
        function = self.functions.get((n.domain, n.op_type))
        entry = None if function else entry_for(domain, n.op_type, opset)
        found: list[Value] | None = None
        reason: Unsupported | None = None
        if domain == "" and n.op_type in NAMES and function is None:
            scope = Scope(env, outer, versions, depth)
            found = translated_flow(n.op_type, opset, attributes, operands, self, scope)
        elif entry is not None:
            try:
                found = self.by(entry, n, attributes, operands, opset)
            except (NeedsValue, NeedsSizes):
                raise
            except Unsupported as error:
                reason = error
        if found is None:
            found = self.by_body(n, domain, function, attributes, operands, opset, depth, reason)
        for name, value in zip(n.output, found):
            if name:
                env[name] = value

    def body(self, body: onnx.GraphProto, given: Mapping[str, Value], scope: Scope) -> list[Value]:
        """The results of a graph inside the model, which sees the values around it."""
        inner = {**scope.env, **{t.name: self.tensor(t) for t in body.initializer}, **given}
        self.nodes(body.node, inner, scope.outer, scope.versions, scope.depth + 1)
        for o in body.output:
            if o.name not in inner:
                raise Invalid(f"a body gives {o.name!r}, which nothing makes")
        return [inner[o.name] for o in body.output]

    def by(
        self,
        entry: Entry,
        n: onnx.NodeProto,
        attributes: Mapping[str, Any],
        operands: Sequence[Value],
        opset: int,
    ) -> list[Value]:
        outputs = len(n.output)
        c = Context(
            n.op_type,
            label(n),
            opset,
            attributes,
            operands,
            outputs,
            self.facts,
            self.weight,
            self.checks,
            partial(self.bounded, label(n)),
        )
        taken = operands if entry.narrow else [_unwrapped(x) for x in operands]
        if any(isinstance(x, _Text) for x in operands):
            c.refuse("strings have no native form")
        made = entry.translate(c, *taken)
        results = list(made) if isinstance(made, tuple) else [made]
        if not entry.narrow and any(isinstance(x, Narrow) for x in operands):
            results = self.elements(n, operands, results, opset)
        return results

    def elements(
        self, n: onnx.NodeProto, operands: Sequence[Value], results: list[Value], opset: int
    ) -> list[Value]:
        """Results of a translation that knows dtypes only, with the element types that the
        operator's schema says: those of the operands of the same type parameter."""
        schema = schema_of(n.domain, n.op_type, opset)
        assert schema is not None
        types: dict[str, int] = {}
        for k, x in enumerate(operands):
            if isinstance(x, Narrow):
                types[schema.inputs[min(k, len(schema.inputs) - 1)].type_str] = x.element
        out: list[Value] = []
        for k, r in enumerate(results):
            element = types.get(schema.outputs[min(k, len(schema.outputs) - 1)].type_str)
            if element is not None and isinstance(r, Node) and r.dtype is HELD[element]:
                out.append(Narrow(r, element))
            else:
                out.append(r)
        return out

    def by_body(
        self,
        n: onnx.NodeProto,
        domain: str,
        function: onnx.FunctionProto | None,
        attributes: dict[str, Any],
        operands: Sequence[Value],
        opset: int,
        depth: int,
        reason: Unsupported | None,
    ) -> list[Value]:
        """The operator by its body: a function of the model, or ONNX's own."""
        if function is None:
            schema = schema_of(domain, n.op_type, opset)
            refusal = refusal_of(domain, n.op_type)
            if schema is not None and refusal is None:
                function = body_of(n, schema, attributes, operands, opset)
                attributes = {**defaults(schema), **attributes}
            if function is None:
                if reason is not None:
                    raise reason
                if schema is not None and is_newer(domain, n.op_type, opset):
                    raise _Newer
                why = refusal or (
                    "there is no translation of it"
                    if schema
                    else f"the domain {domain or 'ai.onnx'!r} has no such operator in this opset"
                )
                raise Unsupported(f"{n.op_type}: {why}")
        inner: dict[str, Value] = dict.fromkeys(function.input)
        inner.update(zip(function.input, operands))
        given = {a.name: value_of(a) for a in function.attribute_proto}
        # What ONNX's bodies name as operands that were left out.
        inner[""] = None
        versions = opsets(function) or {"": opset}
        self.nodes(function.node, inner, {**given, **attributes}, versions, depth + 1)
        # Results that nobody asks for need not exist.
        asked = zip(function.output, n.output)
        return [inner[name] if wanted else None for name, wanted in asked]


def _watched(part: Part, checks: Mapping[Node, Check]) -> Watched:
    """A part with the outputs of its checks last: one that is not 0 where any failed, then all."""
    pairs = list(zip(part.gives, part.graph.outputs))
    results = [(n, o) for n, o in pairs if n not in checks]
    found = [(n, o) for n, o in pairs if n in checks]
    outputs = [o for _, o in results] + _flagged([o for _, o in found])
    kept = Part(part.graph.with_outputs(outputs), part.reads, tuple(n for n, _ in results))
    return Watched(kept, tuple(checks[n] for n, _ in found))


def _flagged(checks: list[Node]) -> list[Node]:
    """One that is not 0 where any check failed, then all of them; nothing where there are none."""
    failed = [ops.cast(ops.ne(x, ops.number(0, i64)), i64) for x in checks]
    return [reduce(ops.maximum, failed), *checks] if checks else []


class _Text(list[Value]):
    """An array of strings: nothing reads it but operators that refuse it."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        self.array = array


def _unwrapped(x: Value) -> Value:
    return x.node if isinstance(x, Narrow) else x


def _read(t: onnx.TensorProto) -> np.ndarray:
    try:
        return values_of(numpy_helper.to_array(t), t.data_type)
    except (TypeError, ValueError) as error:
        raise Invalid(f"the tensor {t.name!r} has other data than its shape says") from error


def _dense(sparse: onnx.SparseTensorProto) -> tuple[np.ndarray, int]:
    """A sparse constant with its zeros."""
    values, where = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    out = np.zeros(tuple(sparse.dims), values.dtype)
    if where.ndim == 1:
        out.reshape(-1)[where] = values
    else:
        out[tuple(where.T)] = values
    return out, sparse.values.data_type


def symbols_of(model: Model) -> dict[str, str]:
    """The model's symbolic dims and what graphs call them: names of models need not be
    identifiers. A dim without a name is one of its own."""
    found: dict[str, str] = {}
    for v in model.proto.graph.input:
        optional = v.type.WhichOneof("value") == "optional_type"
        t = v.type.optional_type.elem_type if optional else v.type
        for k, d in enumerate(t.tensor_type.shape.dim):
            if d.WhichOneof("value") != "dim_value":
                found.setdefault(symbol_of(v.name, k, d), f"d{len(found)}")
    return found


def symbol_of(name: str, axis: int, d: onnx.TensorShapeProto.Dimension) -> str:
    return d.dim_param or f"{name}.{axis}"


def _tree(x: Value) -> Tree:
    if isinstance(x, list):
        return [_tree(v) for v in x]
    if x is None:
        return None
    n = _unwrapped(x)
    assert isinstance(n, Node)
    return Leaf(n, x.element if isinstance(x, Narrow) else ELEMENT_OF[n.dtype])


def leaves_of(tree: Tree) -> list[Leaf]:
    if isinstance(tree, list):
        return [leaf for t in tree for leaf in leaves_of(t)]
    return [tree] if tree is not None else []
