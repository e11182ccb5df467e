"""The judge of random graphs, a float64 evaluation, and the shrinker of those that fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Item, Literal, Node, input, node
from tilewright.ir.types import DType, TensorType, f32, f64

Args = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Call:
    """What a graph is called with: its arguments, and the values of its symbols."""

    args: tuple[np.ndarray, ...]
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph and the calls of it, one after the other."""

    graph: Graph
    calls: tuple[Call, ...]


# ---- the judge


def with_floats(graph: Graph, dtype: DType) -> Graph:
    """The same program with one dtype in place of every float."""
    new: dict[Node, Node] = {}
    for n in graph.nodes():
        given = {f.name: getattr(n.op, f.name) for f in dataclasses.fields(n.op)}
        wanted = {name: _as(x, dtype) for name, x in given.items()}
        changed = {name: x for name, x in wanted.items() if x is not given[name]}
        op = dataclasses.replace(n.op, **changed) if changed else n.op
        new[n] = node(op, *(new[x] for x in n.inputs))
    inputs = tuple(new[n] for n in graph.inputs)
    return Graph(graph.name, inputs, tuple(new[o] for o in graph.outputs))


def _as(x: Any, dtype: DType) -> Any:
    if isinstance(x, DType):
        return dtype if x.is_float else x
    if isinstance(x, TensorType):
        return TensorType(dtype, x.shape) if x.dtype.is_float else x
    if isinstance(x, Literal):
        return Literal(x.array.astype(dtype.numpy), dtype) if x.dtype.is_float else x
    if isinstance(x, Graph):  # a branch
        return with_floats(x, dtype)
    return x


_EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def reference(
    graph: Graph, args: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> tuple[list[np.ndarray], list[float]]:
    """Outputs in float64, and the error each may have: four times that of the same program
    interpreted in its own precision, and 16 units in the last place of the largest value.

    What order costs in float64 itself is estimated from float32, scaled: there is nothing more
    exact.
    """
    exact = evaluate(with_floats(graph, f64), args, dims)
    own = evaluate(graph, args, dims)
    doubles = any(o.dtype is f64 for o in graph.outputs)
    single = evaluate(with_floats(graph, f32), _narrow(args), dims) if doubles else own
    allowed: list[float] = []
    for o, a, b, c in zip(graph.outputs, exact, own, single, strict=True):
        if not o.dtype.is_float:
            allowed.append(0.0)
            continue
        error = _largest_difference(a, b)
        if o.dtype is f64:
            # Four times: one sample of an error may be small by luck.
            error = max(error, 4 * _largest_difference(a, c) * _EPS["f64"] / _EPS["f32"])
        largest = float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
        allowed.append(4 * error + 16 * _EPS[o.dtype.name] * max(largest, 1e-6))
    return exact, allowed


def _narrow(args: Sequence[np.ndarray]) -> Args:
    return [a.astype(np.float32) if a.dtype.kind == "f" else a for a in args]


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.max(np.abs(a - b)[finite], initial=0.0))


def of_operands(
    graph: Graph, args: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> list[float]:
    """The error of each output from rounding what it is computed from, at its largest: where
    operands cancel, that is more than the output's own size tells. Four units in the last place."""
    wide = with_floats(graph, f64)
    pairs = zip(graph.nodes(), wide.nodes(), strict=True)
    floats = [(a, b) for a, b in pairs if isinstance(a.type, TensorType) and a.dtype.is_float]
    values = evaluate(Graph("all", wide.inputs, tuple(b for _, b in floats)), args, dims)
    size = {
        a: 4 * _EPS[a.dtype.name] * float(np.max(np.abs(v[np.isfinite(v)]), initial=0.0))
        for (a, _), v in zip(floats, values, strict=True)
    }
    return [
        max((size[n] for n in (o, *nodes_below(o)) if n in size), default=0.0)
        if o.dtype.is_float
        else 0.0
        for o in graph.outputs
    ]


def disagreement(
    expected: Sequence[np.ndarray], allowed: Sequence[float], got: Sequence[np.ndarray]
) -> str | None:
    """How the outputs leave what is allowed, or None."""
    for k, (a, tolerance, b) in enumerate(zip(expected, allowed, got, strict=True)):
        if a.shape != b.shape:
            return f"output {k} has shape {b.shape}, not {a.shape}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"output {k} differs in {int(np.sum(a != b))} of {a.size} elements"
            continue
        odd = ~np.isfinite(a)
        if not np.array_equal(a[odd], b[odd].astype(np.float64), equal_nan=True):
            return f"output {k} differs where it is not finite"
        wrong = np.abs(a - b.astype(np.float64))[~odd]
        if wrong.size and not wrong.max() <= tolerance:
            return f"output {k} is off by {wrong.max():.3g}, allowed is {tolerance:.3g}"
    return None


# ---- shrinking


def shrink(
    graph: Graph, args: Args, fails: Callable[[Graph, Args], bool], tries: int = 400
) -> tuple[Graph, Args]:
    """A smaller graph that still fails: fewer outputs, nodes replaced by operands or by inputs."""
    case = Case(graph, (Call(tuple(args)),))
    going = True
    while going:
        going = False
        for candidate in smaller(case):
            tries -= 1
            if tries <= 0:
                break
            if fails(candidate.graph, list(candidate.calls[0].args)):
                case, going = candidate, True
                break
    return case.graph, list(case.calls[0].args)


def smaller(case: Case) -> Iterator[Case]:
    """Simpler cases, those that leave out most first."""
    graph = case.graph
    if len(case.calls) > 1:
        yield from (dataclasses.replace(case, calls=(c,)) for c in case.calls)
        yield from (
            dataclasses.replace(case, calls=case.calls[:k] + case.calls[k + 1 :])
            for k in range(len(case.calls))
        )
    half = len(graph.outputs) // 2
    if half:
        yield _with_outputs(case, graph.outputs[:half])
        yield _with_outputs(case, graph.outputs[half:])
        yield from (_with_outputs(case, (o,)) for o in graph.outputs[:50])
    computed = [n for n in graph.nodes() if n.inputs and isinstance(n.type, TensorType)]
    # An inner value alone is the largest step; of a long chain, parts of it first.
    for n in _spread(computed):
        if n not in graph.outputs:
            yield _with_outputs(case, (n,))
    known = [
        dict(zip(computed, evaluate(_all(graph, computed), c.args, c.dims), strict=True))
        for c in case.calls
    ]
    for n in _spread(computed[::-1]):
        if isinstance(n.op, Item) or n in graph.outputs:
            continue
        cut = input(_unused_label(graph), n.ttype)
        wider = Graph(graph.name, (*graph.inputs, cut), _replaced(graph, n, cut))
        calls = tuple(
            Call((*c.args, values[n]), c.dims) for c, values in zip(case.calls, known, strict=True)
        )
        yield without_unused(Case(wider, calls))
    for n in computed:
        for x in n.inputs:
            if x.type == n.type:
                less = Graph(graph.name, graph.inputs, _replaced(graph, n, x))
                yield without_unused(Case(less, case.calls))


def _with_outputs(case: Case, outputs: tuple[Node, ...]) -> Case:
    return without_unused(Case(Graph(case.graph.name, case.graph.inputs, outputs), case.calls))


def _all(graph: Graph, nodes: Sequence[Node]) -> Graph:
    return Graph("all", graph.inputs, tuple(nodes))


def _spread(nodes: Sequence[Node]) -> Iterator[Node]:
    """A few from everywhere, then all in order."""
    if len(nodes) > 32:
        yield from nodes[len(nodes) // 16 :: len(nodes) // 16]
    yield from nodes


def _unused_label(graph: Graph) -> str:
    taken = {n.op.label for n in graph.inputs if isinstance(n.op, Input)}
    return next(f"c{k}" for k in range(len(taken) + 1) if f"c{k}" not in taken)


def _replaced(graph: Graph, old: Node, new: Node) -> tuple[Node, ...]:
    done: dict[Node, Node] = {old: new}
    for n in graph.nodes():
        if n not in done:
            ins = tuple(done[x] for x in n.inputs)
            done[n] = n if ins == n.inputs else node(n.op, *ins)
    return tuple(done[o] for o in graph.outputs)


def nodes_below(n: Node) -> set[Node]:
    """Every node under n, n apart."""
    seen: set[Node] = set()
    stack = list(n.inputs)
    while stack:
        x = stack.pop()
        if x not in seen:
            seen.add(x)
            stack.extend(x.inputs)
    return seen


def without_unused(case: Case) -> Case:
    """Without inputs that no output needs."""
    graph = case.graph
    used = set(graph.outputs).union(*(nodes_below(o) for o in graph.outputs))
    needed = [k for k, n in enumerate(graph.inputs) if n in used]
    inputs = tuple(graph.inputs[k] for k in needed)
    calls = tuple(Call(tuple(c.args[k] for k in needed), c.dims) for c in case.calls)
    return Case(Graph(graph.name, inputs, graph.outputs), calls)
