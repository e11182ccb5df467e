"""Rows in groups, each multiplied with a matrix of its own: what transformers makes of experts."""

from __future__ import annotations

from tilewright import ops
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import aten
from tilewright.ir.node import Node
from tilewright.ir.types import i64


def _parts(rows: Node, ends: Node) -> Node:
    """Of each row the group that it is in: as many groups end at it or before it. Rows after the
    last group have its number plus one, which is no group's."""
    n, groups = rows.shape[0], ends.shape[0]
    at = ops.reshape(ops.iota(n), (n, 1))
    before = ops.ge(at, ops.reshape(cast(ends, i64), (1, groups)))
    return ops.sum(cast(before, i64), (1,), False)


@aten("transformers.grouped_mm_fallback.default")
def grouped_mm(c: Context, x: Node, weight: Node, offs: Node) -> Node:
    return ops.matmul_by_part(x, weight, _parts(x, offs))


@aten("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_backward(
    c: Context, x: Node, weight: Node, offs: Node, grad: Node
) -> tuple[Node, Node]:
    part = _parts(x, offs)
    groups, rows = weight.shape[0], x.shape[0]
    # Rows of other groups are zeros in a group's product.
    own = ops.eq(ops.reshape(part, (1, 1, rows)), ops.reshape(ops.iota(groups), (groups, 1, 1)))
    columns = ops.reshape(ops.permute(x, (1, 0)), (1, x.shape[1], rows))
    masked = ops.where(own, columns, ops.full((), 0, x.dtype))
    return ops.matmul_by_part(grad, weight, part, True), ops.matmul(masked, grad)
