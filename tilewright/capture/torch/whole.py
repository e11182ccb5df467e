"""A graph that torch.export made, as one graph of ours: no call of torch is left between its parts.

Memory is contiguous and row-major, and results are memory of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from tilewright.base.errors import Unsupported
from tilewright.capture.torch.dtypes import FROM_TORCH
from tilewright.capture.torch.layout import contiguous
from tilewright.capture.torch.segments import watched
from tilewright.capture.torch.translate import Translation
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ir.slots import Check
from tilewright.ir.types import TensorType

_OF_SIZES = "aten._assert_scalar.default"


@dataclass(frozen=True)
class Whole:
    """Inputs of the graph have the names of the exported one's placeholders. Where there are
    `checks`, its last outputs are integers: whether one failed, then each of them."""

    graph: Graph
    inputs: Mapping[str, TensorType]  # of all placeholders that are tensors
    constants: Mapping[str, torch.Tensor]  # values of further inputs, by name
    checks: tuple[Check, ...]


class _Named(Translation):
    def slot(self, n: torch.fx.Node, index: int) -> str:
        return n.name


def whole(
    gm: torch.fx.GraphModule,
    name: str,
    weights: Sequence[str],
    outputs: Sequence[str],
    ranges: Mapping[Any, Any],
) -> Whole:
    """The graph of what torch.export captured, after decompositions. `weights` and `outputs` are
    names of its nodes, `ranges` the bounds within which it holds, by torch's symbols."""
    given = gm.graph.find_nodes(op="placeholder")
    made = _Named(gm, {k for k, n in enumerate(given) if n.name in weights}, "own", name, True)
    made.shapes.ranges = ranges
    types = {n.name: _type(n.meta["val"], made) for n in given if _is_real(n.meta.get("val"))}
    made.strides = {k: contiguous(t.shape) for k, t in types.items()}
    made.walk()
    _require_native(made, name)
    values = {n.name: v for n, v in made.env.items()}
    checks = made.context.checks.found
    results = (*(_tensor(values[x], name) for x in outputs), *watched(list(checks)))
    read = [n for n in topological(results) if isinstance(n.op, Input)]
    known = {n.name for n in given} | set(made.constants)
    weights, others = [], []
    for n in read:
        assert isinstance(n.op, Input)
        (weights if n.op.role == "weight" else others).append(n)
        if n.op.label not in known:
            raise Unsupported(
                f"{name} cannot be exported: it computes with a number that depends on sizes in a "
                "way that integers do not express",
                hint="export it for fixed sizes",
            )
    places = {n: frozenset(p) for n, p in made.places.items()}
    graph = Graph(name, (*weights, *others), results, places)
    return Whole(graph, types, made.constants, tuple(checks.values()))


def _is_real(v: Any) -> bool:
    return isinstance(v, torch.Tensor) and v.dtype in FROM_TORCH


def _type(v: torch.Tensor, made: Translation) -> TensorType:
    return TensorType(FROM_TORCH[v.dtype], made.shapes.dims(v.shape))


def _tensor(value: Any, name: str) -> Node:
    if not isinstance(value, Node):
        raise Unsupported(
            f"{name} cannot be exported: a result is {_kind(value)}",
            hint="return real tensors",
        )
    return value


def _kind(value: Any) -> str:
    return "complex" if type(value).__name__ == "Complex" else f"no tensor ({value})"


def _require_native(made: Translation, name: str) -> None:
    # Conditions on sizes are those under which torch.export captured it: bounds of symbols.
    calls = (p.call for p in made.host_calls.pending)
    for call in (c for c in calls if c.operator != _OF_SIZES):
        raise Unsupported(
            f"{name} cannot be exported: {call.operator} runs in torch, because {call.why}",
            where=call.place,
            hint="write it with operators that have a native form",
        )
    if made.context.seed_used:
        raise Unsupported(
            f"{name} cannot be exported: it draws random numbers",
            hint="call .eval() first, or take the numbers as an input",
        )
    if made.mutated:
        raise Unsupported(
            f"{name} cannot be exported: it changes {next(iter(made.mutated)).name} in place, and "
            "a package keeps nothing between calls",
            hint="call .eval() first, or return the new value",
        )
    if made.shapes.opaque:
        raise Unsupported(
            f"{name} cannot be exported: a size is computed as {next(iter(made.shapes.opaque))}",
            hint="export it for fixed sizes",
        )
