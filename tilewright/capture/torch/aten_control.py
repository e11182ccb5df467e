"""Branches: torch.cond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import b1


@aten("higher_order::cond")
def cond(
    c: Context, pred: Any, then: Any, other: Any, operands: Sequence[Any] = ()
) -> tuple[Node, ...]:
    if not all(isinstance(x, Node) for x in operands):
        raise Untranslated("a branch takes something that is not a tensor")
    branches = [c.subgraph(g, operands, name) for g, name in ((then, "then"), (other, "other"))]
    if not isinstance(pred, Node):
        raise Untranslated("the condition is not a tensor")
    out = ops.cond(ops.reshape(cast(pred, b1), ()), branches[0], branches[1], operands)
    return parts(out)
