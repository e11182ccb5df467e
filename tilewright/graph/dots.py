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
from tilewright.graph.classify import Contraction, contraction, facts
from tilewright.graph.pack import PackOperands, rebuild_knowing
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.positions import linear_index
from tilewright.ir.register_tile import BYTES, Exact, exact_products
from tilewright.ir.types import i32
from tilewright.ops.elementwise import Cast, add, cast, mul, sub
from tilewright.ops.layout import relayout
from tilewright.ops.linear import Matmul
from tilewright.ops.reductions import sum as total
from tilewright.ops.views import pad
from tilewright.ops.wide_matmul import WideMatmul, wide_matmul

# Zeros beyond this part of a sum cost more than smaller instructions.
MOST_PADDING = 0.25


@dataclass(frozen=True)
class DotProducts(Pass, needs=("Decompose",), regions=True):
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
        """The product with operands as an instruction takes them; itself where there is none."""
        c = contraction(n) if isinstance(n.op, (Matmul, WideMatmul)) else None
        if c is None or c.right != 1:
            return n
        a, b = n.inputs
        deep, known = a.shape[-1], b in constant
        if not isinstance(deep, int) or deep == 0 or not self.pack.packs(n, c, known):
            return n
        if not known and n.dtype.is_float:
            return n  # attention's: the casts between its products would prevent their fusion
        exact = self._exact(n, c, known, deep)
        if exact is None:
            return n
        more = -deep % exact.product.depth
        right = _padded(b, b.rank - 2, more)
        out = node(n.op, _stored(_padded(_as(a, exact), a.rank - 1, more)), right)
        if not exact.shift:
            return n if out.inputs == n.inputs else out
        columns = total(cast(b, n.dtype), (b.rank - 2,), True)
        return sub(out, mul(columns, exact.shift))

    def _exact(self, n: Node, c: Contraction, known: bool, deep: int) -> Exact | None:
        """The instruction that is best for a product, and what its left operand becomes."""
        dtypes = (n.inputs[0].dtype, n.inputs[1].dtype, n.dtype.accumulator)
        for exact in exact_products(self.pack.target, dtypes):
            p = exact.product
            if p.tile is not None and -deep % p.depth > MOST_PADDING * deep:
                continue
            if p in self.pack.products(n, c, known, exact.left):
                return exact
        return None


def _as(x: Node, exact: Exact) -> Node:
    """The left operand of a product as its instruction takes it."""
    narrow = cast(x, exact.left)
    return add(narrow, exact.shift) if exact.shift else narrow


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
        return x.inputs[0] if x.inputs[0].dtype in BYTES else None
    if not x.op.view or len(x.inputs) != 1:
        return None
    inner = _uncast(x.inputs[0])
    return None if inner is None else node(x.op, inner)
