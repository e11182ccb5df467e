"""A graph that torch.export made, as one graph of ours: no call of torch is left between its parts.

Memory is contiguous and row-major, and results are memory of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from tilewright import ops
from tilewright.base.errors import Unsupported
from tilewright.capture.torch.dtypes import FROM_TORCH
from tilewright.capture.torch.layout import contiguous
from tilewright.capture.torch.registry import Untranslated
from tilewright.capture.torch.segments import watched
from tilewright.capture.torch.shapes import limits
from tilewright.capture.torch.translate import Translation
from tilewright.graph.divide import Cut
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ir.slots import Check
from tilewright.ir.types import TensorType, i64

_OF_SIZES = "aten._assert_scalar.default"


@dataclass(frozen=True)
class Whole:
    """Inputs of the graph have the names of the exported one's placeholders. Where there are
    `checks`, its last outputs are integers: whether one failed, then each of them."""

    graph: Graph
    inputs: Mapping[str, TensorType]  # of all placeholders that are tensors
    constants: Mapping[str, torch.Tensor]  # values of further inputs, by name
    checks: tuple[Check, ...]
    counted: tuple[Cut, ...]  # sizes that data decides


class _Named(Translation):
    """Knows inputs by their names, and has sizes that data decides as symbols."""

    def __init__(self, gm: torch.fx.GraphModule, weights: Collection[int], name: str) -> None:
        super().__init__(gm, weights, "own", name, True)
        self.counts: dict[Node, Cut] = {}
        self.context.bounded = self.bounded

    def slot(self, n: torch.fx.Node, index: int) -> str:
        return n.name

    def bounded(
        self, count: Node, sources: Sequence[Node], axis: int, size: Any
    ) -> tuple[Node, ...]:
        if not isinstance(size, torch.SymInt):
            return tuple(ops.slice(x, axis, 0, int(size)) for x in sources)
        if not sources:
            raise Untranslated("nothing says how large a number is that it reads from data")
        most = sources[0].shape[axis]
        if count not in self.counts:
            symbol = f"n{len(self.counts)}"
            self.counts[count] = Cut(symbol, count, D.sym(symbol, 0), most)
        return tuple(ops.slice(x, axis, 0, self.counts[count].size) for x in sources)

    def require_ranges(self) -> None:
        """The user's own bounds of sizes that data decides are checked."""
        by_size = {c.size: c for c in self.counts.values()}
        for s in self.shapes.ranges:
            c = by_size.get(self.shapes.symbols(s).get(str(s), -1))
            if c is None:
                continue
            low, high = limits(self.shapes.ranges[s])
            words = f"Runtime assertion failed for expression {s}"
            if low > 0:
                self.context.checks.never(
                    ops.lt(c.count, ops.number(low, i64)), f"{words} >= {low}"
                )
            if high is not None and not (c.most is not None and D.known_le(c.most, high)):
                above = ops.gt(c.count, ops.number(high, i64))
                self.context.checks.never(above, f"{words} <= {high}")


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
    made = _Named(gm, {k for k, n in enumerate(given) if n.name in weights}, name)
    made.shapes.ranges = ranges
    types = {n.name: _type(n.meta["val"], made) for n in given if _is_real(n.meta.get("val"))}
    made.strides = {k: contiguous(t.shape) for k, t in types.items()}
    made.walk()
    made.require_ranges()
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
    counted = tuple(made.counts.values())
    return Whole(graph, types, made.constants, tuple(checks.values()), counted)


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
