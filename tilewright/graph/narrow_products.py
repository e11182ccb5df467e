"""Matrix products of 16-bit floats that were widened before them: for instructions that widen what
they multiply."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Node, node, rebuild
from tilewright.ir.passes import Pass
from tilewright.ir.types import DType, bf16, f16, f32
from tilewright.ops.elementwise import Cast, cast
from tilewright.ops.linear import Matmul
from tilewright.ops.views import Pad
from tilewright.ops.wide_matmul import wide_matmul

HALVES = (f16, bf16)


@dataclass(frozen=True)
class NarrowProducts(
    Pass, needs=("Decompose",), after=("KeyBlocks", "GridKeyBlocks"), rounds=True, regions=True
):
    """A float32 product of 16-bit operands reads them as they are. The weights of attention, which
    are at most 1, are rounded to the dtype of the values that they weigh, as torch's own kernels
    do."""

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            if not isinstance(n.op, Matmul) or n.dtype is not f32:
                return n
            a, b = (_uncast(x) for x in n.inputs)
            if b is not None and a is None and _is_weight(n.inputs[0]):
                a = cast(n.inputs[0], b.dtype)
            if a is None or b is None or a.dtype is not b.dtype:
                return n
            log.add("pack", f"{n!r} reads its operands as {a.dtype}", detail=True)
            return wide_matmul(a, b, f32)

        return rebuild(program, change)


def _uncast(x: Node, dtypes: tuple[DType, ...] = HALVES) -> Node | None:
    """What was cast to x, perhaps seen through views."""
    if isinstance(x.op, Cast):
        return x.inputs[0] if x.inputs[0].dtype in dtypes else None
    zeros = isinstance(x.op, Pad) and x.op.value == 0
    if not (x.op.view or zeros) or len(x.inputs) != 1:
        return None
    inner = _uncast(x.inputs[0], dtypes)
    return None if inner is None else node(x.op, inner)


def _is_weight(x: Node) -> bool:
    """Is it e to the power of something, less the largest of it: a softmax before its division?"""
    return x.op.name == "exp" and x.inputs[0].op.name == "sub"
