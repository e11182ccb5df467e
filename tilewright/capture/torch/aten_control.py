"""Control flow: torch.cond, while_loop, scan, map and associative_scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Int
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.slots import Check
from tilewright.ir.types import TensorType, b1, i64

Told = dict[Node, Check]


def _want_tensors(what: str, values: Sequence[Any]) -> list[Node]:
    if not all(isinstance(x, Node) for x in values):
        raise Untranslated(f"{what} takes something that is not a tensor")
    return list(values)


def _captured(what: str, values: Sequence[Any]) -> list[Node]:
    """The tensors among operands that stay the same; sizes are known to the graphs inside."""
    if not all(isinstance(x, (Node, int, Int)) for x in values):
        raise Untranslated(f"{what} takes something that is no tensor and no size")
    return [x for x in values if isinstance(x, Node)]


@aten("higher_order::cond")
def cond(
    c: Context, pred: Any, then: Any, other: Any, operands: Sequence[Any] = ()
) -> tuple[Node, ...]:
    given = _captured("a branch", operands)
    sides = [c.subgraph(g, operands, name) for g, name in ((then, "then"), (other, "other"))]
    if not isinstance(pred, Node):
        raise Untranslated("the condition is not a tensor")
    # What a branch checks is one more result of it, and 0 where the other one runs.
    checks = [list(found.items()) for _, found in sides]
    graphs = []
    for k, (graph, _) in enumerate(sides):
        found = [v if j == k else ops.full((), 0, i64) for j in (0, 1) for v, _ in checks[j]]
        graphs.append(replace(graph, outputs=(*graph.outputs, *found)))
    out = parts(ops.cond(ops.reshape(cast(pred, b1), ()), graphs[0], graphs[1], given))
    count = len(sides[0][0].outputs)
    for v, (_, check) in zip(out[count:], (*checks[0], *checks[1]), strict=True):
        c.checks.add(v, check)
    return out[:count]


def _told(graph: Graph, carried: int, checks: Told) -> tuple[Graph, list[Node]]:
    """A loop's body that carries what it checks behind its first values, and their first values:
    the first that is not 0 stays."""
    seen = [input(f"told{k}", TensorType(i64, ())) for k in range(len(checks))]
    zero = ops.full((), 0, i64)
    kept = [ops.where(ops.ne(a, zero), a, v) for a, v in zip(seen, checks, strict=True)]
    inputs = (*graph.inputs[:carried], *seen, *graph.inputs[carried:])
    outputs = (*graph.outputs[:carried], *kept, *graph.outputs[carried:])
    return replace(graph, inputs=inputs, outputs=outputs), [zero] * len(seen)


def _results(c: Context, out: Sequence[Node], carried: int, checks: Told) -> tuple[Node, ...]:
    """The results of such a loop; what it checked is checked after it."""
    last = carried + len(checks)
    for v, check in zip(out[carried:last], checks.values(), strict=True):
        c.checks.add(v, check)
    return (*out[:carried], *out[last:])


@aten("higher_order::while_loop")
def while_loop(
    c: Context, condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> tuple[Node, ...]:
    first = _want_tensors("a loop", carried)
    captured = _captured("a loop", additional)
    operands = (*first, *additional)
    more, asked = c.subgraph(condition, operands, "condition")
    if asked:
        raise Untranslated("the condition of a loop has something to check")
    graph, checks = c.subgraph(body, operands, "body")
    (flag,) = more.outputs
    told, zeros = _told(graph, len(first), checks)
    flags = (ops.reshape(cast(flag, b1), ()),)
    more = Graph("condition", told.inputs, flags, more.places)  # both number inputs in this order
    n = ops.while_loop(more, told, [*first, *zeros], captured)
    return _results(c, parts(n), len(first), checks)


@aten("higher_order::scan")
def scan(
    c: Context, combine: Any, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any] = ()
) -> tuple[Node, ...]:
    first, sliced = _want_tensors("a scan", init), _want_tensors("a scan", xs)
    captured = _captured("a scan", additional)
    slices = [TensorType(x.dtype, x.shape[1:]) for x in sliced]
    graph, checks = c.subgraph(combine, (*first, *slices, *additional), "body")
    told, zeros = _told(graph, len(first), checks)
    n = ops.scan(told, [*first, *zeros], sliced, captured)
    return _results(c, parts(n), len(first), checks)


@aten("higher_order::map_impl")
def map_each(c: Context, f: Any, xs: Sequence[Any], rest: Sequence[Any] = ()) -> tuple[Node, ...]:
    return scan(c, f, (), xs, rest)


@aten("higher_order::associative_scan")
def associative_scan(
    c: Context, combine: Any, xs: Sequence[Any], additional: Sequence[Any] = ()
) -> tuple[Node, ...]:
    """One after the other: the first slice, then what each makes of the result before it."""
    sliced = _want_tensors("a scan", xs)
    captured = _captured("a scan", additional)
    slices = [TensorType(x.dtype, x.shape[1:]) for x in sliced]
    graph, checks = c.subgraph(combine, (*slices, *slices, *additional), "body")
    told, zeros = _told(replace(graph, outputs=graph.outputs * 2), len(sliced), checks)
    first = [ops.slice(x, 0, 0, 1) for x in sliced]
    rest = [ops.slice(x, 0, 1, x.shape[0]) for x in sliced]
    begin = [ops.reshape(x, t.shape) for x, t in zip(first, slices, strict=True)]
    out = parts(ops.scan(told, [*begin, *zeros], rest, captured))
    found = _results(c, out, len(sliced), checks)[len(sliced) :]
    return tuple(ops.concat([a, b], 0) for a, b in zip(first, found, strict=True))
