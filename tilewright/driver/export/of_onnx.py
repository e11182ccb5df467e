"""ONNX models to be exported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.capture.onnx.elements import DTYPE_OF, name_of
from tilewright.capture.onnx.model import read
from tilewright.capture.onnx.translate import Leaf, Translated, Tree, symbols_of, translate
from tilewright.driver.export.model import (
    Check,
    Described,
    Model,
    Weight,
    counted_names,
)
from tilewright.driver.onnx.session import Session, fit
from tilewright.ir import dim as D
from tilewright.ir.node import Input
from tilewright.ir.types import to_memory
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
    made = translate(model, known, sizes, least=0)
    if not made.whole:
        raise Unsupported(
            f"{name} cannot be exported: a size that only data decides has to be a number in it",
            hint="tw.onnx.load runs it",
        )
    for c in made.cuts:
        if c.most is None:
            raise Unsupported(
                f"{name} cannot be exported: data decides how many rounds a loop has, and nothing "
                "says how many there may be, which memory for its stacked results has to have",
                hint="tw.onnx.load runs it",
            )
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
        numbers = {**sizes, **made.sizes}
        counted = _counted(made, numbers)
        if (free or counted) and not fit(made, {**numbers, **counted}):
            shown = ", ".join(f"{s} = {n}" for s, n in sizes.items())
            raise Unsupported(
                f"{name} cannot be exported with symbolic sizes: its shapes do not fit together "
                f"for {shown}",
                hint="give one name to dims that are equal, or numbers: dynamic={dim: size}",
            )


def _counted(made: Translated, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes that data decides, each another one, for sizes of inputs."""
    names = {symbol: name for name, symbol in made.symbols.items()}
    known = {made.symbols[name]: n for name, n in sizes.items()}
    found: dict[str, int] = {}
    for k, c in enumerate(made.cuts):
        assert c.most is not None
        n = max(0, int(D.evaluate(c.most, known)) - k)
        known[c.symbol] = found[names[c.symbol]] = n
    return found


def _model(
    made: Translated,
    name: str,
    known: Mapping[str, Any],
    words: Mapping[str, str],
    symbols: Mapping[str, str],
    bounds: Mapping[str, tuple[int, int]],
) -> Model:
    weights = {}
    for n, value in made.weights.items():
        assert isinstance(n.op, Input)
        weights[n.op.label] = Weight(n.op.label, Stored(n.dtype, to_memory(value(), n.dtype)))
    inputs = []
    for k, tree in made.inputs.items():
        x = _described(k, tree, name)
        if k not in known:
            inputs.append(x)
            continue
        array = np.ascontiguousarray(known[k])
        weights[x.label] = Weight(k, Stored(x.dtype, to_memory(array, x.dtype)))
    outputs = [_described(k, tree, name) for k, tree in made.outputs.items()]
    return Model(
        name,
        made.watched(),
        weights,
        tuple(inputs),
        tuple(outputs),
        tuple(Check(c.template, c.size) for c in made.checks.values()),
        {own: words[theirs] for theirs, own in symbols.items()} | counted_names(outputs, made.cuts),
        {**{k: np.asarray(v) for k, v in known.items()}, **made.sizes},
        {symbols[k]: v for k, v in bounds.items()},
        made.cuts,
    ).checked()


def _described(name: str, tree: Tree, model: str) -> Described:
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
    t, op = tree.node.ttype, tree.node.op
    return Described(name, t.dtype, t.shape, op.label if isinstance(op, Input) else "")


def _word(dim: str) -> str:
    """The model's name of a symbol, made a word where it is none."""
    word = re.sub(r"\W", "_", dim)
    return word if word[:1].isalpha() else f"d_{word}"
