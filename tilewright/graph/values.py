"""Values of nodes at a point: what a graph's inputs are there, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.traverse import operands_first
from tilewright.graph.classify import flops, guess
from tilewright.graph.specialise import graph_symbols
from tilewright.ir.agreement import drawn, small_sizes
from tilewright.ir.in_double import Doubles
from tilewright.ir.interpret import Evaluator, bind_dims, node_value
from tilewright.ir.node import Graph, Input, Node
from tilewright.ir.operator import composition, is_composed
from tilewright.ir.rewrite import subgraphs
from tilewright.ir.types import TupleType, as_dtype, f64
from tilewright.ops.control import Scan

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

    def change(self, n: Node, array: np.ndarray, users: Mapping[Node, Sequence[Node]]) -> None:
        """Another value of an input; what depends on it is computed again."""
        stack = [n]
        while stack:
            for x in users.get(stack.pop(), ()):
                if self.known.pop(x, None) is not None:
                    stack.append(x)
        self.known[n] = self._by.stored(as_dtype(array, n.dtype), n.dtype)

    def dtype(self, n: Node) -> Any:
        """Of the values of a node."""
        return f64 if self.double and n.dtype.is_float else n.dtype


def work(graph: Graph) -> int:
    """Scalar operations of a graph, about."""
    return sum(map(_work, graph.nodes()))


def _work(n: Node) -> int:
    if hasattr(n.op, "interpret"):
        rounds = guess(n.op.length) if isinstance(n.op, Scan) else 1
        return rounds * sum(work(g) for g in subgraphs(n.op))
    if not is_composed(n.op):
        return flops(n)
    return work(Graph("", n.inputs, composition(n))) - sum(map(_work, n.inputs))


def random_point(graph: Graph, seed: int, special: bool = False) -> Point:
    """Random arguments, on which the graph can be evaluated: `special` mixes in zeros of both
    signs, infinities and NaN. Without it, those that would make NaN of numbers are positive: a
    variance is not negative, and where all is NaN nothing differs."""
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
            return point if special else _in_domain(graph, point, values)
        except (IndexError, TilewrightError) as why:
            problem = why
    raise Invalid(
        f"{graph.name} cannot be evaluated on random inputs: {problem}",
        hint="its inputs are bound by more than their types: give inputs that fit",
    )


def _in_domain(graph: Graph, point: Point, values: Values) -> Point:
    """The point with other signs of inputs that make something no number."""
    given = dict(zip(graph.inputs, point.arrays, strict=True))
    users = graph.users()
    for n in graph.nodes():
        if not n.inputs or not _makes_nan(n, values):
            continue
        for x in _nearest_inputs(n):
            if x in given and given[x].dtype.kind == "f":
                given[x] = np.abs(given[x])
                values.change(x, given[x], users)
    return Point(tuple(given[n] for n in graph.inputs), point.sizes)


def _makes_nan(n: Node, values: Values) -> bool:
    operands = [x for x in n.inputs if is_tensor(x)]
    if not is_tensor(n) or not n.dtype.is_float or not _is_finite(operands, values):
        return False
    return bool(np.isnan(values(n)).any())


def _is_finite(nodes: Sequence[Node], values: Values) -> bool:
    return all(np.isfinite(values(x)).all() for x in nodes if x.dtype.is_float)


def _nearest_inputs(n: Node) -> list[Node]:
    """The inputs of the graph that n reads with the fewest operators between them."""
    level = list(n.inputs)
    while level:
        found = [x for x in level if isinstance(x.op, Input)]
        if found:
            return found
        level = list(dict.fromkeys(y for x in level for y in x.inputs))
    return []


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
    """A few numbers that are nearly equal for nodes of nearly equal values; none where no value is
    a finite number, which says nothing."""
    out = []
    for v in values:
        x = np.asarray(v(n), np.float64).reshape(-1)
        finite = np.isfinite(x)
        if x.size and not finite.any():
            return []
        out.append(float(np.where(finite, x, 0.5) @ np.cos(np.arange(1, x.size + 1))))
    return out
