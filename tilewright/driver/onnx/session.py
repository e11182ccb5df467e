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
    symbol_of,
    symbols_of,
    translate,
)
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.graph.specialise import specialise
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, topological
from tilewright.ir.types import from_memory, to_memory
from tilewright.runtime.program import Program

OFFERED = 4096  # elements of an input whose value a call may offer as a constant


@dataclass(frozen=True)
class Argument:
    """An input or output: its name, ONNX's name of its type, and sizes (text where symbolic)."""

    name: str
    type: str
    shape: list[int | str | None]


class _Compiled:
    """One program of a model: for all values, or for those that it was specialised to."""

    def __init__(self, made: Translated, symbols: Mapping[str, str], options: Options) -> None:
        self.made = made
        self._fitting: set[tuple[int, ...]] = set()
        self.program: Program = compile_graph(made.graph, options)
        self.watched = len(made.checks) + 1 if made.checks else 0
        self.program.watch(self.watched)
        count = len(made.weights)
        types = self.program.inputs[:count]
        self.weights = [to_memory(w(), t.dtype) for w, t in zip(made.weights, types)]
        self.bound = self.program.bind([w.ctypes.data for w in self.weights])
        self.types = self.program.inputs[count:]
        by_dim = {dim: symbol for symbol, dim in symbols.items()}
        self.dims = [by_dim[d] for d in self.program.dims]
        self.symbols = symbols

    def takes(self, sizes: Mapping[str, int]) -> bool:
        """Do the shapes of its graph fit together for these sizes? Operators on symbolic sizes
        assume what they cannot prove."""
        if self.made.sizes or not sizes or (key := tuple(sizes.values())) in self._fitting:
            return True
        if not fit(self.made, self.symbols, sizes):
            return False
        self._fitting.add(key)
        return True

    @property
    def constant(self) -> bool:
        """Does no output depend on an input?"""
        graph, count = self.made.graph, len(self.made.weights)
        results = graph.outputs[: len(graph.outputs) - self.watched]
        return not set(graph.inputs[count:]) & set(topological(results))

    def fits(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
        """Was it made for this call?"""
        if any(sizes[symbol] != n for symbol, n in self.made.sizes.items()):
            return False
        if not self.made.sizes and 0 in sizes.values():
            return False
        if any(not self._alike(tree, feeds[name]) for name, tree in self.made.inputs.items()):
            return False
        if not all(_equal(feeds[name], v) for name, v in self.made.specialised.items()):
            return False
        return self.takes(sizes)

    def _alike(self, tree: Tree, value: Any) -> bool:
        """Has a value the structure, and the sizes that are numbers, of what it was made for?"""
        if isinstance(tree, list):
            same = isinstance(value, list | tuple) and len(value) == len(tree)
            return same and all(self._alike(t, v) for t, v in zip(tree, value))
        if tree is None or value is None:
            return tree is value
        wanted, shape = self.types[tree.place].shape, np.shape(value)
        return len(wanted) == len(shape) and all(
            not isinstance(d, int) or d == n for d, n in zip(wanted, shape)
        )

    def run(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Any]:
        arrays: list[np.ndarray] = []
        for name, tree in self.made.inputs.items():
            _collect(tree, feeds[name], arrays)
        known = {self.symbols[symbol]: n for symbol, n in sizes.items()}
        outputs = []
        for t in self.program.outputs[: len(self.program.outputs) - self.watched]:
            shape = tuple(int(D.evaluate(d, known)) for d in t.shape)
            outputs.append(np.empty(shape, t.dtype.memory))
        found = self.program.run_bound(
            self.bound,
            [a.ctypes.data for a in arrays],
            [o.ctypes.data for o in outputs],
            [sizes[symbol] for symbol in self.dims],
        )
        for value, check in zip(found[1:] if found else (), self.made.checks):
            if value:
                raise Invalid(check.words(value, int(D.evaluate(check.size, known))))
        return [_given(tree, outputs) for tree in self.made.outputs.values()]


def fit(made: Translated, symbols: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
    """Has a graph types for these sizes?"""
    try:
        specialise(made.graph, {symbols[symbol]: n for symbol, n in sizes.items()})
    except Invalid:
        return False
    return True


def _equal(a: Any, b: np.ndarray) -> bool:
    x = np.asarray(a)
    return x.shape == b.shape and x.dtype == b.dtype and x.tobytes() == b.tobytes()


def _collect(tree: Tree, value: Any, arrays: list[np.ndarray]) -> None:
    """Arrays as native code reads them, in the order of the graph's inputs."""
    if isinstance(tree, list):
        for t, v in zip(tree, value):
            _collect(t, v, arrays)
    elif tree is not None:
        array = np.asarray(value)
        if tree.element in DTYPE_OF:
            memory = dtype_for(tree.element).memory
            array = np.asarray(array, order="C")
            arrays.append(array if array.dtype == memory else array.view(memory))
        else:
            arrays.append(np.asarray(array.astype(dtype_for(tree.element).numpy), order="C"))


def _given(tree: Tree, outputs: Sequence[np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_given(t, outputs) for t in tree]
    return to_user(outputs[tree.place], tree.element) if isinstance(tree, Leaf) else None


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
        self._symbols = symbols_of(model)
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
        return [c.program for c in self._compiled]

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
        program = next((c for c in self._compiled if c.fits(feeds, sizes)), None)
        if program is None:
            program = self._compile_for(feeds, sizes)
        results = program.run(feeds, sizes)
        if output_names is None:
            return results
        return [results[names.index(name)] for name in output_names]

    def definition(
        self, feeds: Mapping[str, Any]
    ) -> tuple[Graph, list[np.ndarray], dict[str, int]]:
        """What a call with these inputs, which was made before, computes: a graph with one result
        for each output that is a tensor, its arguments (the weights first), and the sizes of its
        symbolic dims."""
        feeds = {**self._values, **feeds}
        sizes = self._checked(feeds)
        found = next(c for c in self._compiled if c.fits(feeds, sizes))
        made, given = found.made, list[np.ndarray]()
        for name, tree in made.inputs.items():
            _collect(tree, feeds[name], given)
        arguments = [from_memory(a, t.dtype) for a, t in zip(given, found.types, strict=True)]
        places = [t.place for t in made.outputs.values() if isinstance(t, Leaf)]
        outputs = tuple(made.graph.outputs[k] for k in places)
        graph = Graph(made.graph.name, made.graph.inputs, outputs)
        known = {self._symbols[symbol]: n for symbol, n in sizes.items()}
        return graph, [*(w() for w in made.weights), *arguments], known

    def _compile_for(self, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> _Compiled:
        offered = {k: v for k, v in feeds.items() if k in self._values or _offers(v)}
        if 0 not in sizes.values():
            with suppress(NeedsSizes):
                made = translate(self._model, offered, {})
                if fit(made, self._symbols, sizes):
                    return self._compile(made)
        return self._compile(translate(self._model, offered, sizes))

    def _compile(self, made: Translated) -> _Compiled:
        program = _Compiled(made, self._symbols, self._options)
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
