"""Branches: torch.cond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import b1, i64


@aten("higher_order::cond")
def cond(
    c: Context, pred: Any, then: Any, other: Any, operands: Sequence[Any] = ()
) -> tuple[Node, ...]:
    if not all(isinstance(x, Node) for x in operands):
        raise Untranslated("a branch takes something that is not a tensor")
    sides = [c.subgraph(g, operands, name) for g, name in ((then, "then"), (other, "other"))]
    if not isinstance(pred, Node):
        raise Untranslated("the condition is not a tensor")
    # What a branch checks is one more result of it, and 0 where the other one runs.
    checks = [list(found.items()) for _, found in sides]
    graphs = []
    for k, (graph, _) in enumerate(sides):
        found = [v if j == k else ops.full((), 0, i64) for j in (0, 1) for v, _ in checks[j]]
        graphs.append(replace(graph, outputs=(*graph.outputs, *found)))
    out = parts(ops.cond(ops.reshape(cast(pred, b1), ()), graphs[0], graphs[1], operands))
    count = len(sides[0][0].outputs)
    for v, (_, check) in zip(out[count:], (*checks[0], *checks[1]), strict=True):
        c.checks.add(v, check)
    return out[:count]
