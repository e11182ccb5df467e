"""An ONNX model that runs as native code, with the habits of a session of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.base.errors import Invalid
from tilewright.capture.onnx.elements import DTYPE_OF, dtype_for, name_of, numpy_of, to_user
from tilewright.capture.onnx.known import NeedsSizes, NeedsValue
from tilewright.capture.onnx.model import Model, read
from tilewright.capture.onnx.translate import (
    Leaf,
    Translated,
    Tree,
    Watched,
    leaves_of,
    symbol_of,
    translate,
)
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.graph.divide import Cut
from tilewright.graph.specialise import specialise
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, topological
from tilewright.ir.types import from_memory, to_memory
from tilewright.runtime.program import Program

OFFERED = 4096  # elements of an input whose value a call may offer as a constant


@dataclass(frozen=True)
class Argument:
    """An input or output: its name, ONNX's name of its type, and sizes (text where symbolic)."""

    name: str
    type: str
    shape: list[int | str | None]


class _Part:
    """One program of those that compute a model: all of it, or what comes before or after a size
    that data decides."""

    def __init__(self, watched: Watched, made: Translated, options: Options) -> None:
        self.part, self.checks = watched.part, watched.checks
        self.program: Program = compile_graph(self.part.graph, options)
        self.watched = len(self.checks) + 1 if self.checks else 0
        self.program.watch(self.watched)
        weights = [n for n in self.part.reads if n in made.weights]
        self.reads = self.part.reads[len(weights) :]
        self.weights = [to_memory(made.weights[n](), n.dtype) for n in weights]
        self.bound = self.program.bind([w.ctypes.data for w in self.weights])
        self.outputs = self.program.outputs[: len(self.program.outputs) - self.watched]

    def run(self, values: dict[Node, np.ndarray], known: Mapping[str, int]) -> None:
        """Adds what it gives to the values of nodes. `known` are sizes by their symbols."""
        outputs = []
        for t in self.outputs:
            shape = tuple(int(D.evaluate(d, known)) for d in t.shape)
            outputs.append(np.empty(shape, t.dtype.memory))
        arrays = [values[n] for n in self.reads]
        found = self.program.run_bound(
            self.bound,
            [a.ctypes.data for a in arrays],
            [o.ctypes.data for o in outputs],
            [known[d] for d in self.program.dims],
        )
        for value, check in zip(found[1:] if found else (), self.checks):
            if value:
                raise Invalid(check.words(value, int(D.evaluate(check.size, known))))
        values.update(zip(self.part.gives, outputs))


class _Compiled:
    """The programs of a model: for all values, or for those that they were specialised to."""

    def __init__(self, made: Translated, options: Options) -> None:
        self.made = made
        self._fitting: set[tuple[int, ...]] = set()
        self.parts = [_Part(w, made, options) for w in made.parts]
        self.names = {symbol: name for name, symbol in made.symbols.items()}

    def takes(self, sizes: Mapping[str, int]) -> bool:
        """Do the shapes of its graph fit together for these sizes? Operators on symbolic sizes
        assume what they cannot prove."""
        opened = {name: n for name, n in sizes.items() if name not in self.made.sizes}
        if not opened or (key := tuple(opened.values())) in self._fitting:
            return True
        if 0 in opened.values() or not fit(self.made, opened):
            return False
        self._fitting.add(key)
        return True

    @property
    def constant(self) -> bool:
        """Does no output depend on an input?"""
        leaves = [x.node for tree in self.made.outputs.values() for x in leaves_of(tree)]
        inputs = set(self.made.graph.inputs) - set(self.made.weights)
        return not inputs & set(topological(leaves))

    def fits(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
        """Was it made for this call, and does it say more than is known?"""
        if any(sizes.get(symbol) != n for symbol, n in self.made.sizes.items()):
            return False
        if any(not _alike(tree, feeds[name]) for name, tree in self.made.inputs.items()):
            return False
        if not all(_equal(feeds[name], v) for name, v in self.made.specialised.items()):
            return False
        if not self.made.whole and all(self.names[c.symbol] in sizes for c in self.made.cuts):
            return False
        return self.takes(sizes)

    def run(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Any] | dict[str, int]:
        """Results; or sizes that data decided, where it was not made for these."""
        values: dict[Node, np.ndarray] = {}
        for name, tree in self.made.inputs.items():
            _collect(tree, feeds[name], values)
        sizes = dict(sizes)
        known = {self.made.symbols[name]: n for name, n in sizes.items()}
        cuts = list(self.made.cuts)
        for part in self.parts:
            part.run(values, known)
            if cuts and self._count(cuts, values, known, sizes) and not self.takes(sizes):
                return sizes
        if not self.made.whole:
            return sizes
        return [_given(tree, values) for tree in self.made.outputs.values()]

    def _count(
        self,
        cuts: list[Cut],
        values: dict[Node, np.ndarray],
        known: dict[str, int],
        sizes: dict[str, int],
    ) -> bool:
        """Reads the sizes that are there now. Were there any? `cuts` are those whose size is not
        known yet."""
        more = False
        for cut in [c for c in cuts if c.count in values]:
            cuts.remove(cut)
            sizes[self.names[cut.symbol]] = known[cut.symbol] = int(values[cut.count])
            more = True
        return more


def fit(made: Translated, sizes: Mapping[str, int]) -> bool:
    """Has a graph types for these sizes?"""
    known = {made.symbols[name]: n for name, n in sizes.items()}
    try:
        for w in made.parts:
            specialise(w.part.graph, known)
    except Invalid:
        return False
    return True


def _alike(tree: Tree, value: Any) -> bool:
    """Has a value the structure, and the sizes that are numbers, of what a program was made for?"""
    if isinstance(tree, list):
        same = isinstance(value, list | tuple) and len(value) == len(tree)
        return same and all(_alike(t, v) for t, v in zip(tree, value))
    if tree is None or value is None:
        return tree is value
    wanted, shape = tree.node.shape, np.shape(value)
    return len(wanted) == len(shape) and all(
        not isinstance(d, int) or d == n for d, n in zip(wanted, shape)
    )


def _equal(a: Any, b: np.ndarray) -> bool:
    x = np.asarray(a)
    return x.shape == b.shape and x.dtype == b.dtype and x.tobytes() == b.tobytes()


def _collect(tree: Tree, value: Any, values: dict[Node, np.ndarray]) -> None:
    """Arrays as native code reads them, by the inputs of the graph."""
    if isinstance(tree, list):
        for t, v in zip(tree, value):
            _collect(t, v, values)
    elif tree is not None:
        array = np.asarray(value)
        if tree.element in DTYPE_OF:
            memory = dtype_for(tree.element).memory
            array = np.asarray(array, order="C")
            values[tree.node] = array if array.dtype == memory else array.view(memory)
        else:
            values[tree.node] = np.asarray(array.astype(tree.node.dtype.numpy), order="C")


def _given(tree: Tree, values: Mapping[Node, np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_given(t, values) for t in tree]
    return to_user(values[tree.node], tree.element) if isinstance(tree, Leaf) else None


class Session:
    """A model to call: `run(None, {"x": array})`, or `session(array, …)`.

    It is compiled when it is loaded where everything is known then, else when it is first called.
    Where a value of an input decides a shape or a setting, a program holds for that value:
    `specialised` lists them, and another value is another program.
    """

    def __init__(
        self, model: Model, values: Mapping[str, Any] | None, options: Options | None
    ) -> None:
        self._model, self._options = model, options or Options()
        weights = {t.name for t in model.proto.graph.initializer}
        graph = model.proto.graph
        self._inputs = {v.name: v.type for v in graph.input if v.name not in weights}
        self._outputs = {v.name: v.type for v in graph.output}
        self._compiled: list[_Compiled] = []
        self._values = {k: np.asarray(v) for k, v in (values or {}).items()}
        for name in self._values:
            if name not in self._inputs:
                raise Invalid(
                    f"values: the model has no input {name!r}",
                    where=model.where,
                    hint=f"its inputs are {_listed(self._inputs)}",
                )
        with suppress(NeedsValue, NeedsSizes):  # a call says more
            self._compile(translate(model, self._values))

    # ---- what it takes and gives

    def get_inputs(self) -> list[Argument]:
        return [_argument(name, t) for name, t in self._inputs.items()]

    def get_outputs(self) -> list[Argument]:
        return [_argument(name, t) for name, t in self._outputs.items()]

    @property
    def model(self) -> Model:
        return self._model

    @property
    def values(self) -> Mapping[str, np.ndarray]:
        """Inputs that are always the same."""
        return self._values

    @property
    def specialised(self) -> list[dict[str, Any]]:
        """Of each program so far, the values of inputs and the sizes that it was made for."""
        return [{**c.made.specialised, **c.made.sizes} for c in self._compiled]

    @property
    def constant(self) -> bool:
        """Is every output of every program so far known without a call?"""
        return all(c.constant for c in self._compiled)

    @property
    def random(self) -> bool:
        """Does some program draw numbers?"""
        graphs = (c.made.graph for c in self._compiled)
        return any(n.op.random for g in graphs for n in g.nodes())

    @property
    def programs(self) -> list[Program]:
        return [part.program for c in self._compiled for part in c.parts]

    # ---- calls

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Outputs as a list; the only one by itself."""
        names = list(self._inputs)
        if len(arrays) > len(names):
            raise Invalid(
                f"the model has {len(names)} inputs, and {len(arrays)} were given",
                where=self._model.where,
                hint=f"they are {_listed(names)}",
            )
        found = self.run(None, {**dict(zip(names, arrays)), **named})
        return found[0] if len(found) == 1 else found

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs (None: all) for inputs by name."""
        names = list(self._outputs)
        for name in output_names or ():
            if name not in names:
                raise Invalid(
                    f"the model has no output {name!r}",
                    where=self._model.where,
                    hint=f"its outputs are {_listed(names)}",
                )
        feeds = {**self._values, **feeds}
        sizes = self._checked(feeds)
        results: list[Any] | dict[str, int] = sizes
        while isinstance(results, dict):  # data decided sizes that a program has to be made for
            sizes = results
            program = next((c for c in self._compiled if c.fits(feeds, sizes)), None)
            if program is None:
                program = self._compile_for(feeds, sizes)
            results = program.run(feeds, sizes)
        if output_names is None:
            return results
        return [results[names.index(name)] for name in output_names]

    def definition(
        self, feeds: Mapping[str, Any]
    ) -> tuple[Graph, list[np.ndarray], dict[str, int]] | None:
        """What a call with these inputs, which was made before, computes: a graph with one result
        for each output that is a tensor, its arguments (the weights first), and the sizes of its
        symbolic dims. None where several graphs run, one after the other."""
        feeds = {**self._values, **feeds}
        sizes = self._checked(feeds)
        made = next(c.made for c in self._compiled if c.fits(feeds, sizes))
        if made.cuts:
            return None
        given: dict[Node, np.ndarray] = {}
        for name, tree in made.inputs.items():
            _collect(tree, feeds[name], given)
        arguments = [
            made.weights[n]() if n in made.weights else from_memory(given[n], n.dtype)
            for n in made.graph.inputs
        ]
        outputs = tuple(t.node for t in made.outputs.values() if isinstance(t, Leaf))
        graph = Graph(made.graph.name, made.graph.inputs, outputs)
        return graph, arguments, {made.symbols[symbol]: n for symbol, n in sizes.items()}

    def _compile_for(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> _Compiled:
        offered = {k: v for k, v in feeds.items() if k in self._values or _offers(v)}
        if 0 not in sizes.values():
            with suppress(NeedsSizes):
                made = translate(self._model, offered, {})
                if fit(made, sizes):
                    return self._compile(made)
        return self._compile(translate(self._model, offered, sizes))

    def _compile(self, made: Translated) -> _Compiled:
        program = _Compiled(made, self._options)
        self._compiled.append(program)
        return program

    # ---- checks of a call

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of symbolic dims, after all checks."""
        for name in feeds:
            if name not in self._inputs:
                raise Invalid(
                    f"the model has no input {name!r}",
                    where=self._model.where,
                    hint=f"its inputs are {_listed(self._inputs)}",
                )
        sizes: dict[str, int] = {}
        for name, t in self._inputs.items():
            if name not in feeds:
                if t.WhichOneof("value") == "optional_type":
                    raise Invalid(f"the input {name!r} is missing", hint="give None for no element")
                raise Invalid(
                    f"the input {name!r} is missing",
                    where=self._model.where,
                    hint=f"the model's inputs are {_listed(self._inputs)}",
                )
            self._check(name, t, feeds[name], sizes)
        return sizes

    def _check(self, name: str, t: onnx.TypeProto, value: Any, sizes: dict[str, int]) -> None:
        kind = t.WhichOneof("value")
        if kind == "optional_type":
            if value is not None:
                self._check(name, t.optional_type.elem_type, value, sizes)
            return
        if kind == "sequence_type":
            if not isinstance(value, list | tuple):
                raise Invalid(f"the input {name!r} is a sequence: give a list of arrays")
            for v in value:  # symbolic dims of elements are those of each
                self._check(name, t.sequence_type.elem_type, v, {})
            return
        tensor, array = t.tensor_type, np.asarray(value)
        wanted = numpy_of(tensor.elem_type)
        if array.dtype != wanted:
            raise Invalid(
                f"the input {name!r} is of dtype {wanted}, and {array.dtype} was given",
                where=self._model.where,
                hint=f"{name}.astype({str(wanted)!r})",
            )
        if not tensor.HasField("shape"):
            return
        shown = _argument(name, t).shape
        fits = len(shown) == array.ndim
        for k, (d, n) in enumerate(zip(tensor.shape.dim, array.shape)):
            if d.WhichOneof("value") == "dim_value":
                fits = fits and d.dim_value == n
            else:
                symbol = symbol_of(name, k, d)
                if sizes.setdefault(symbol, n) != n:
                    raise Invalid(
                        f"the dim {symbol!r} is {sizes[symbol]} in one input and {n} in {name!r}",
                        where=self._model.where,
                    )
        if not fits:
            raise Invalid(
                f"the input {name!r} has the shape {shown}, and {list(array.shape)} was given",
                where=self._model.where,
            )


def _offers(value: Any) -> bool:
    """Is it small enough, or a sequence or an optional, whose structure has to be known?"""
    if value is None or isinstance(value, list | tuple):
        return True
    return np.asarray(value).size <= OFFERED


def _argument(name: str, t: onnx.TypeProto) -> Argument:
    kind = t.WhichOneof("value")
    if kind != "tensor_type":
        return Argument(name, str(kind).removesuffix("_type"), [])
    dims = [
        d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or None
        for d in t.tensor_type.shape.dim
    ]
    return Argument(name, f"tensor({name_of(t.tensor_type.elem_type).lower()})", dims)


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives, and how large it is."""

    inputs: list[Argument]
    outputs: list[Argument]
    opset: int
    nodes: int
    weights: int  # numbers in initializers


def interface(source: str | Path | bytes) -> Interface:
    """Of a model that is read and checked, but not compiled."""
    model = read(source)
    graph = model.proto.graph
    weights = {t.name for t in graph.initializer}
    return Interface(
        [_argument(v.name, v.type) for v in graph.input if v.name not in weights],
        [_argument(v.name, v.type) for v in graph.output],
        model.opset,
        len(graph.node),
        sum(int(np.prod(t.dims, dtype=np.int64)) for t in graph.initializer),
    )


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def load(
    source: str | Path | bytes,
    values: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Session:
    """The model of a file, or of its bytes, compiled to native code. `values` are inputs that are
    always the same: shapes may be computed from them, and calls need not give them."""
    return Session(read(source), values, options)
