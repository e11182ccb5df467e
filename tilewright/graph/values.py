"""Values of nodes at a point: what a graph's inputs are there, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.traverse import operands_first
from tilewright.graph.classify import flops
from tilewright.graph.specialise import graph_symbols
from tilewright.ir.agreement import drawn, small_sizes
from tilewright.ir.in_double import Doubles
from tilewright.ir.interpret import Evaluator, bind_dims, node_value
from tilewright.ir.node import Graph, Node
from tilewright.ir.operator import composition, is_composed
from tilewright.ir.types import TupleType, as_dtype, f64

# Scalar operations of a graph that the interpreter may take: some ten seconds.
MOST_WORK = 1 << 29
# Integers are drawn below these in turn: one that is an index outside its axis is an error.
_INTEGERS = (10, 2, 1)
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0)


@dataclass(frozen=True)
class Point:
    """Arguments of a graph, in the order of its inputs, and the values of symbols."""

    arrays: tuple[np.ndarray, ...]
    sizes: dict[str, int]


class Values:
    """Values of nodes over the inputs of a graph, computed when they are needed, once each. In
    float64, or in the dtypes of the program."""

    def __init__(self, graph: Graph, point: Point, double: bool = True) -> None:
        self.double, self.sizes = double, dict(point.sizes)
        self._by = Doubles if double else Evaluator
        self.known: dict[Node, Any] = {}
        for n, a in zip(graph.inputs, point.arrays, strict=True):
            bind_dims(n.ttype, a.shape, self.sizes, str(n.op))
            self.known[n] = self._by.stored(as_dtype(a, n.dtype), n.dtype)

    def __call__(self, n: Node) -> Any:
        with np.errstate(all="ignore"):
            for x in operands_first(n, lambda y: y.inputs, self.known):
                operands = [self.known[y] for y in x.inputs]
                self.known[x] = node_value(x, operands, self.sizes, self._by)
        return self.known[n]

    def dtype(self, n: Node) -> Any:
        """Of the values of a node."""
        return f64 if self.double and n.dtype.is_float else n.dtype


def work(graph: Graph) -> int:
    """Scalar operations of a graph, about."""
    return sum(map(_work, graph.nodes()))


def _work(n: Node) -> int:
    if hasattr(n.op, "interpret"):
        return sum(work(g) for g in vars(n.op).values() if isinstance(g, Graph))
    if not is_composed(n.op):
        return flops(n)
    return work(Graph("", n.inputs, composition(n))) - sum(map(_work, n.inputs))


def random_point(graph: Graph, seed: int, special: bool = False) -> Point:
    """Random arguments, on which the graph can be evaluated: `special` mixes in zeros of both
    signs, infinities and NaN."""
    sizes = small_sizes(list(graph_symbols(graph).values()))
    problem: Exception | None = None
    for most in _INTEGERS:
        rng = np.random.default_rng(seed)
        arrays = [drawn(n.ttype, sizes, rng, False, most) for n in graph.inputs]
        if special:
            arrays = [_with_special(a, rng) for a in arrays]
        point = Point(tuple(arrays), sizes)
        try:
            values = Values(graph, point, double=False)
            for o in graph.outputs:
                values(o)
            return point
        except (IndexError, TilewrightError) as why:
            problem = why
    raise Invalid(
        f"{graph.name} cannot be evaluated on random inputs: {problem}",
        hint="its inputs are bound by more than their types: give inputs that fit",
    )


def _with_special(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Up to half of the elements are special: each kind, where there is room for all."""
    if a.dtype.kind != "f":
        return a
    out = a.reshape(-1).copy()
    at = rng.permutation(out.size)[: min(out.size // 2, 4 * len(_SPECIAL))]
    out[at] = np.resize(rng.permutation(_SPECIAL), at.shape)
    return out.reshape(a.shape)


def is_tensor(n: Node) -> bool:
    return not isinstance(n.type, TupleType)


def signature(values: Sequence[Values], n: Node) -> list[float]:
    """A few numbers that are nearly equal for nodes of nearly equal values."""
    out = []
    for v in values:
        x = np.asarray(v(n), np.float64).reshape(-1)
        x = np.where(np.isfinite(x), x, 0.5)
        out.append(float(x @ np.cos(np.arange(1, x.size + 1))))
    return out
