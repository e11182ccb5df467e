"""ONNX models to be exported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.capture.onnx.elements import DTYPE_OF, name_of
from tilewright.capture.onnx.model import read
from tilewright.capture.onnx.translate import Leaf, Translated, Tree, symbols_of, translate
from tilewright.driver.export.model import Check, Described, Model, Weight
from tilewright.driver.onnx.session import Session, fit
from tilewright.ir.node import Input
from tilewright.ir.types import TensorType, to_memory
from tilewright.runtime.program_data import Stored

# Sizes that a model with symbolic ones is tried at: those of several dims differ.
_TRIED = ((64, 72, 80, 88, 96, 104), (101, 113, 127, 137, 149, 163))
_MOST = 1 << 62  # of a dim without an upper bound


def model_of_onnx(
    source: str | Path | Session, dynamic: Any, values: Mapping[str, Any] | None, name: str | None
) -> Model:
    """The model of a file or of a session. `dynamic` has numbers or bounds of symbolic dims, by
    name; `values` are inputs that are always the same, which the package does not take."""
    model = source.model if isinstance(source, Session) else read(source)
    known = {**(source.values if isinstance(source, Session) else {}), **(values or {})}
    stem = "model" if isinstance(source, Session) else Path(source).stem
    name = name or stem
    symbols = symbols_of(model)
    sizes, bounds = _sizes(dynamic, symbols, name)
    made = translate(model, known, sizes)
    _require_fitting(made, symbols, bounds, name)
    return _model(made, name, known, {k: _word(k) for k in symbols}, symbols, bounds)


def _sizes(
    dynamic: Any, symbols: Mapping[str, str], name: str
) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    sizes: dict[str, int] = {}
    bounds: dict[str, tuple[int, int]] = {}
    for dim, given in (dynamic or {}).items():
        if dim not in symbols:
            known = ", ".join(symbols) or "none"
            raise Invalid(f"{name} has no dim {dim!r}", hint=f"its symbolic dims are {known}")
        if isinstance(given, int):
            sizes[dim] = given
            continue
        low, high = given
        if not 1 <= low <= high:
            raise Invalid(f"the bounds {low} to {high} of {dim} are no range of sizes")
        bounds[dim] = low, high
    return sizes, bounds


def _require_fitting(
    made: Translated, symbols: Mapping[str, str], bounds: Mapping[str, tuple[int, int]], name: str
) -> None:
    """Operators on symbolic sizes assume what they cannot prove: sizes that differ show it."""
    free = [s for s in symbols if s not in made.sizes]
    for tried in _TRIED:
        sizes = {}
        for k, s in enumerate(free):
            low, high = bounds.get(s, (1, _MOST))
            sizes[s] = min(max(tried[k % len(tried)] + k // len(tried), low), high)
        if free and not fit(made, symbols, {**sizes, **made.sizes}):
            shown = ", ".join(f"{s} = {n}" for s, n in sizes.items())
            raise Unsupported(
                f"{name} cannot be exported with symbolic sizes: its shapes do not fit together "
                f"for {shown}",
                hint="give one name to dims that are equal, or numbers: dynamic={dim: size}",
            )


def _model(
    made: Translated,
    name: str,
    known: Mapping[str, Any],
    words: Mapping[str, str],
    symbols: Mapping[str, str],
    bounds: Mapping[str, tuple[int, int]],
) -> Model:
    graph, held = made.graph, len(made.weights)
    types = [n.ttype for n in graph.inputs[held:]]
    labels = [n.op.label for n in graph.inputs if isinstance(n.op, Input)]
    weights = {
        label: Weight(label, Stored(n.dtype, to_memory(value(), n.dtype)))
        for label, n, value in zip(labels, graph.inputs, made.weights)
    }
    inputs = []
    for k, tree in made.inputs.items():
        x = _described(k, tree, types, labels[held:], name)
        if k not in known:
            inputs.append(x)
            continue
        array = np.ascontiguousarray(known[k])
        weights[x.label] = Weight(k, Stored(x.dtype, to_memory(array, x.dtype)))
    results = [n.ttype for n in graph.outputs]
    outputs = [_described(k, tree, results, None, name) for k, tree in made.outputs.items()]
    return Model(
        name,
        graph,
        weights,
        tuple(inputs),
        tuple(outputs),
        tuple(Check(c.template, c.size) for c in made.checks),
        {own: words[theirs] for theirs, own in symbols.items()},
        {**{k: np.asarray(v) for k, v in known.items()}, **made.sizes},
        {symbols[k]: v for k, v in bounds.items()},
    ).checked()


def _described(
    name: str, tree: Tree, types: Sequence[TensorType], labels: Sequence[str] | None, model: str
) -> Described:
    if not isinstance(tree, Leaf):
        raise Unsupported(
            f"{model} cannot be exported: {name} is a sequence or an optional",
            hint="take and give tensors",
        )
    if tree.element not in DTYPE_OF:
        raise Unsupported(
            f"{model} cannot be exported: {name} has elements of type {name_of(tree.element)}",
            hint="cast it inside of the model",
        )
    t = types[tree.place]
    return Described(name, t.dtype, t.shape, labels[tree.place] if labels else "")


def _word(dim: str) -> str:
    """The model's name of a symbol, made a word where it is none."""
    word = re.sub(r"\W", "_", dim)
    return word if word[:1].isalpha() else f"d_{word}"
