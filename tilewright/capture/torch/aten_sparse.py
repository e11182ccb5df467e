"""Products with sparse matrices."""

from __future__ import annotations

from tilewright import ops
from tilewright.capture.torch.checks import OF_SELF
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import aten
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node


@aten("tilewright.sparse_mm.default")
def sparse_mm(c: Context, row: Node, col: Node, values: Node, dense: Node, rows: Dim) -> Node:
    out = ops.sparse_matmul(row, col, values, dense, rows)
    c.checks.indices(col, dense, 0, OF_SELF)
    c.checks.indices(row, out, 0, OF_SELF)
    return cast(out, values.dtype)
