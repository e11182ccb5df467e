"""`tw.to_onnx`: a graph or a model as an ONNX file, so that it runs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.export.api import model_of
from tilewright.driver.export.model import Model
from tilewright.ir.node import Graph, Input, Node, input
from tilewright.ir.types import TensorType

BESIDE = 1 << 30  # bytes of weights beyond which they are a file beside the model
_WRITE = "tilewright.capture.to_onnx.graph"
_EXTERNAL = "tilewright.capture.to_onnx.external"


def to_onnx(
    model: Any,
    *examples: Any,
    path: str | Path | None = None,
    opset: int | None = None,
    dynamic: Any = None,
    weights: Mapping[str, np.ndarray] | None = None,
    names: Sequence[str] = (),
) -> Any:
    """The `onnx.ModelProto` of a model, also written to `path` where one is given.

    `model` is a `tw.ir.Graph`, or what `tw.export` takes: a module with example inputs, what
    `torch.export` made, a `.pt2` or `.onnx` file. `weights` are values of a graph's inputs by name,
    which become part of the model, and `names` those of its outputs. `dynamic` sizes stay symbolic.
    Operators that ONNX cannot say are refused by name, all at once. Weights of more than a gigabyte
    are kept in a file beside the model.
    """
    if find_spec("onnx") is None:
        raise MissingExtra("onnx", "writing ONNX models")
    writing = import_module(_WRITE)
    version = writing.OPSET if opset is None else opset
    if isinstance(model, Graph):
        if examples or dynamic is not None:
            raise Invalid("a graph says what it takes", hint="leave out examples and dynamic=")
        graph, held, called, symbols = model, dict(weights or {}), tuple(names), {}
        inputs = _labels(graph)
    else:
        if weights is not None or names:
            raise Invalid("weights= and names= are for graphs", hint="a model has its own")
        found = model_of(model, examples, dynamic, None, None)
        graph = _with_all_inputs(found)
        held = {label: w.value.array for label, w in found.weights.items()}
        called, symbols = tuple(x.name for x in found.outputs), dict(found.names)
        inputs = _labels(graph) | {x.label: x.name for x in found.inputs}
    for label in held:
        if label not in inputs:
            raise Invalid(f"weights: the graph has no input {label!r}")
    target = None if path is None else Path(path)
    keep = _keeper(sum(np.asarray(a).nbytes for a in held.values()), target)
    made = writing.write(graph, held, called, version, inputs, symbols, keep)
    if target is not None:
        target.write_bytes(made.SerializeToString())
    return made


def _labels(graph: Graph) -> dict[str, str]:
    return {n.op.label: n.op.label for n in graph.inputs if isinstance(n.op, Input)}


def _with_all_inputs(model: Model) -> Graph:
    """Without the outputs of checks, and with inputs that nothing reads."""
    known = {n.op.label for n in model.graph.inputs if isinstance(n.op, Input)}
    more = [
        input(x.label, TensorType(x.dtype, x.shape)) for x in model.inputs if x.label not in known
    ]
    order = {x.label: k for k, x in enumerate(model.inputs)}

    def place(n: Node) -> int:
        assert isinstance(n.op, Input)
        return order.get(n.op.label, -1)

    inputs = tuple(sorted((*model.graph.inputs, *more), key=place))
    return Graph(model.name, inputs, model.graph.outputs[: len(model.outputs)], model.graph.places)


def _keeper(size: int, path: Path | None) -> Callable[[str, np.ndarray], Any] | None:
    """What makes a tensor of the model of a weight: None keeps it inside."""
    if size <= BESIDE:
        return None
    if path is None:
        raise Invalid(
            f"{size:,} bytes of weights do not fit into one message of ONNX",
            hint='give a path: tw.to_onnx(model, …, path="model.onnx")',
        )
    beside = path.with_name(f"{path.name}.data")
    beside.write_bytes(b"")
    outside = import_module(_EXTERNAL)
    return lambda name, array: outside.kept(beside, name, array)
