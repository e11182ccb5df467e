"""Products of batches keep the axes of their batch.

Frontends flatten all batch axes into one for a batched product and restore them right after. What
comes between two such products (a mask, a softmax) has the axes, so the products should too.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.pattern import Guard, Match, Rule, Var, make, op
from tilewright.ir.positions import product
from tilewright.rewrites.subject import Maker

x, y = Var("x"), Var("y")


def _only_batches(m: Match) -> bool:
    """Are the axes of both operands but the last two flattened into one, and the same?"""
    a, b = m.x.shape, m.y.shape
    return (
        m.root.rank == 3
        and len(a) == len(b) > 3
        and all(map(D.known_eq, a[:-2], b[:-2]))
        and D.known_eq(product(a[:-2]), m.root.shape[0])
        and all(map(D.known_eq, (*a[-2:-1], *b[-1:]), m.root.shape[1:]))
        and D.known_eq(a[-1], b[-2])
    )


def _with_axes(m: Match) -> Node:
    return ops.reshape(ops.matmul(m.x, m.y), m.root.shape)


def _flattened(m: Maker) -> Node:
    batch = m.shape(m.whole(2, 3))
    i, j, k = m.dim(), m.dim(), m.dim()
    flat = product(batch)
    a = make("reshape", m.tensor("x", (*batch, i, k)), shape=(flat, i, k))
    b = make("reshape", m.tensor("y", (*batch, k, j)), shape=(flat, k, j))
    return make("matmul", a, b)


RULES = (
    Rule(
        "matmul-of-batches",
        op.matmul(op.reshape(x), op.reshape(y)),
        _with_axes,
        Guard("only batch axes are flattened", _only_batches),
        subject=_flattened,
    ),
)
