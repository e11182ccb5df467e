"""An operator of a loop's body for all rounds at once: along a new first axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, node
from tilewright.ops.linear import Matmul
from tilewright.ops.reductions import Reduction
from tilewright.ops.views import Concat, Expand, Flip, Permute, Reshape, Slice


def over_rounds(n: Node, args: Sequence[Node], varying: Sequence[bool], length: Dim) -> Node | None:
    """n with operands for all `length` rounds, or that are the same in all; None where the operator
    has no such form. The first axis of varying operands, and of the result, counts rounds."""
    op = n.op
    if op.elementwise:
        given = [_ranked(x, n.rank) if v else x for x, v in zip(args, varying, strict=True)]
        return node(op, *given)
    if isinstance(op, Matmul):
        return _product(n, args, varying, length)
    if isinstance(op, Concat):
        whole = [
            x if v else ops.expand(ops.unsqueeze(x, 0), (length, *x.shape))
            for x, v in zip(args, varying, strict=True)
        ]
        return ops.concat(whole, op.axis + 1)
    (x,) = args[:1]
    if isinstance(op, Reshape):
        return ops.reshape(x, (length, *op.shape))
    if isinstance(op, Expand):
        return ops.expand(_ranked(x, n.rank), (length, *op.shape))
    if isinstance(op, Permute):
        return ops.permute(x, (0, *(k + 1 for k in op.perm)))
    if isinstance(op, Slice):
        return node(replace(op, axis=op.axis + 1), x)
    if isinstance(op, (Flip, Reduction)):
        return node(replace(op, axes=tuple(k + 1 for k in op.axes)), x)
    return None


def _ranked(x: Node, rank: int) -> Node:
    """With axes of one element after the first, so that slices have this many axes."""
    if x.rank == rank + 1:
        return x
    return ops.reshape(x, (x.shape[0], *(1,) * (rank + 1 - x.rank), *x.shape[1:]))


def _product(n: Node, args: Sequence[Node], varying: Sequence[bool], length: Dim) -> Node:
    a, b = args
    if varying == [True, False] and b.rank == 2:  # all rows of all rounds are those of one matrix
        rows: Dim = 1
        for d in a.shape[:-1]:
            rows = rows * d
        made = ops.matmul(ops.reshape(a, (rows, a.shape[-1])), b)
        return ops.reshape(made, (length, *n.shape))
    if varying == [False, True] and a.rank == 2 and b.rank == 3 and D.known_eq(b.shape[2], 1):
        made = ops.matmul(ops.reshape(b, b.shape[:2]), ops.permute(a, (1, 0)))
        return ops.reshape(made, (length, *n.shape))
    given = [_ranked(x, n.rank) if v else x for x, v in zip(args, varying, strict=True)]
    return ops.matmul(*given)
