"""Products of narrow integers, made to fit the dot products of a target.

An instruction adds up groups of products of the dtypes that it is for. Other ones are brought to
it, exactly: a cast before a product belongs to the product's read; bytes of the other sign are
shifted by 128, which the sums of the other operand's columns take back (of weights they are
computed once); bytes are widened where only 16 bits are multiplied; sums of no whole number of
groups get zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.classify import contraction, facts
from tilewright.graph.pack import PackOperands, rebuild_knowing
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.positions import linear_index
from tilewright.ir.types import DType, i8, i16, i32, u8
from tilewright.ops.elementwise import Cast, add, cast, mul, sub
from tilewright.ops.layout import relayout
from tilewright.ops.linear import Matmul
from tilewright.ops.reductions import sum as total
from tilewright.ops.views import pad
from tilewright.ops.wide_matmul import WideMatmul, wide_matmul

NARROW = (i8, u8)
SHIFT = 128
# Zeros beyond this part of a sum cost more than smaller instructions.
MOST_PADDING = 0.25


@dataclass(frozen=True)
class DotProducts(Pass, needs=("Decompose",)):
    """Rewrite products of bytes, and pad those of halves, for the target's instructions."""

    pack: PackOperands = of_target(PackOperands(), PackOperands.of)

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node, constant: set[Node]) -> Node:
            out = self.suited(_narrow_product(n), constant)
            if out is not n:
                log.add("pack", f"{n!r} as dot products of {out!r}", detail=True)
            return out

        return rebuild_knowing(program, change)

    def suited(self, n: Node, constant: set[Node]) -> Node:
        """The product with operands as an instruction wants them; itself where none does."""
        c = contraction(n) if isinstance(n.op, (Matmul, WideMatmul)) else None
        if c is None or c.right != 1:
            return n
        a, b = n.inputs
        deep, known = a.shape[-1], b in constant
        if not isinstance(deep, int) or deep == 0 or not self.pack.packs(n, c, known):
            return n
        if not known and n.dtype.is_float:
            return n  # attention's: what stands between its products would keep them apart
        left = a.dtype
        by = self.pack.tile_depth(n, c)
        if not by or -deep % by > MOST_PADDING * deep:
            found = self._left_dtype(n)
            by = 0 if found is None else self.pack.dot_group(n, c, known, found)
            if found is None or not by:
                return n
            left = found
        right = _padded(b, b.rank - 2, -deep % by)
        out = node(n.op, _stored(_padded(_as(a, left), a.rank - 1, -deep % by)), right)
        if left.kind == a.dtype.kind or left.bytes > a.dtype.bytes:
            return n if out.inputs == n.inputs else out
        columns = total(cast(b, n.dtype), (b.rank - 2,), True)
        return sub(out, mul(columns, SHIFT if left is u8 else -SHIFT))

    def _left_dtype(self, n: Node) -> DType | None:
        """What the left operand has to be for an instruction: itself, of the other sign, wider."""
        a, b = (x.dtype for x in n.inputs)
        choices = [a, u8 if a is i8 else i8, i16] if a in NARROW else [a]
        sums = n.dtype.accumulator
        return next((d for d in choices if f"{d}*{b}>{sums}" in self.pack.dots), None)


def _as(x: Node, dtype: DType) -> Node:
    """Bytes of the other sign are shifted so that all of them stay in range."""
    if dtype.bytes > x.dtype.bytes or dtype is x.dtype:
        return cast(x, dtype)
    return add(cast(x, dtype), SHIFT if dtype is u8 else -SHIFT)


def _padded(x: Node, axis: int, more: int) -> Node:
    none = (0,) * x.rank
    return pad(x, none, tuple(more if k == axis else 0 for k in range(x.rank)))


def _stored(x: Node) -> Node:
    """Rows whose groups lie one after the other, as instructions read them."""
    y = x
    while facts(y).kind == "view":
        f = facts(y)
        at = linear_index(f.accesses[0].index, f.inputs[0].shape)
        if not f.reshape and D.coefficient(at, f.outputs[0].axes[-1]) != 1:
            names = ", ".join(f"i{k}" for k in range(x.rank))
            return relayout(x, f"{names} -> {names}")
        y = y.inputs[0]
    return x


def _narrow_product(n: Node) -> Node:
    """A product of bytes that are cast before it, as one that casts what it reads."""
    if not isinstance(n.op, Matmul) or n.dtype is not i32:
        return n
    found = [_uncast(x) for x in n.inputs]
    narrow = [x for x in found if x is not None]
    return wide_matmul(narrow[0], narrow[1], i32) if len(narrow) == 2 else n


def _uncast(x: Node) -> Node | None:
    """The bytes that were cast to x, perhaps seen through views."""
    if isinstance(x.op, Cast):
        return x.inputs[0] if x.inputs[0].dtype in NARROW else None
    if not x.op.view or len(x.inputs) != 1:
        return None
    inner = _uncast(x.inputs[0])
    return None if inner is None else node(x.op, inner)
