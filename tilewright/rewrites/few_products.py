"""Products of tiny matrices by hand: all pairs are multiplied, and a few numbers are added up for
each element of very short rows. There are no lanes along such rows, but the additions of the parts
are a map like any other, and fuse with what reads them."""

from __future__ import annotations

from math import prod

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.pattern import Match, Rule, Var, guard, make, op
from tilewright.rewrites.subject import Maker

# Numbers that are added up, and elements behind them.
FEW = 4

x, y = Var("x"), Var("y")


@guard("few numbers are added up for each element of rows that are as short, of operands repeated")
def few(m: Match) -> bool:
    product, axes = m.root.inputs[0], m.op(0).axes
    if len(axes) != 1 or axes[0] == product.rank - 1:
        return False
    short = product.shape[axes[0] :]
    known = [d for d in short if isinstance(d, int)]
    if len(known) < len(short) or not (1 <= known[0] <= FEW and 1 <= prod(known[1:]) <= FEW):
        return False
    return all(v.shape != product.shape for v in (m.x, m.y))


def _added(m: Match) -> Node:
    product, axis = m.root.inputs[0], m.op(0).axes[0]
    behind = product.rank - axis  # axes from there on; operands may have fewer before it

    def part(v: Node, k: int) -> Node:
        at = v.rank - behind
        if at < 0:
            return v
        one = v if v.shape[at] == 1 else ops.slice(v, at, k, k + 1)
        return ops.reshape(one, (*v.shape[:at], *v.shape[at + 1 :]))

    count, wide = product.shape[axis], product.dtype.accumulator
    assert isinstance(count, int)
    total = ops.full((), 0, wide)
    for k in range(count):
        total = ops.add(total, ops.cast(ops.mul(part(m.x, k), part(m.y, k)), wide))
    return ops.reshape(ops.cast(total, product.dtype), m.root.shape)


def _subject(m: Maker) -> Node:
    rows, count, columns = m.dim(lo=1), m.whole(1, FEW), m.whole(2, FEW)
    a, b = m.tensor("x", (rows, count, 1)), m.tensor("y", (count, columns))
    return make("sum", make("mul", a, b), axes=(1,), keepdims=m.coin())


RULES = (
    Rule(
        "products-of-few",
        op.sum(op.mul(x, y)),
        _added,
        few,
        subject=_subject,
        dtypes="fiu",
    ),
)
