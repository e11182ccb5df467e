"""Softmax with one division per row: its numbers are multiplied by the reciprocal of their sum.

The greatest of a row contributes exp(0) to the sum, which is therefore at least 1, or no number:
the reciprocal neither overflows nor loses digits.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.pattern import Guard, Match, Rule, Var, op
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

x = Var("x")
_weights = op.exp(op.sub(x, op.amax(x)))

same_axes = Guard(
    "the maximum and the sum are over the same axes",
    lambda m: m.op(3).axes == m.op(4).axes and m.nodes[3].shape == m.nodes[4].shape,
)


def _by_reciprocal(m: Match) -> Node:
    weights, total = m.root.inputs
    return ops.mul(weights, ops.div(1.0, total))


def _subject(m: Maker) -> Node:
    y = m.tensor("x", m.shape(m.whole(1, 3)))
    axes = (m.whole(0, y.rank - 1),)
    e = ops.exp(ops.sub(y, ops.amax(y, axes, True)))
    return ops.div(e, ops.sum(e, axes, True))


RULES = (
    Rule(
        "softmax-by-reciprocal",
        op.div(_weights, op.sum(_weights)),
        _by_reciprocal,
        same_axes,
        subject=_subject,
        dtypes="f",
        changes="rounding",
    ),
)
