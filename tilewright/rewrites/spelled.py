"""Operators that a program spells out, by their names: rules for the operator then hold for them.

What the operator is composed of is what was there, so nothing changes where no other rule applies.
A pass that has rules for an operator applies these first.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.pattern import Match, Rule, Var, guard, op
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

x = Var("x")
_weights = op.exp(op.sub(x, op.amax(x)))


@guard(
    "maximum and sum are over one axis, which stays with size 1, and nothing is rounded on the way"
)
def over_one_axis(m: Match) -> bool:
    (top, total), wide = (m.nodes[k] for k in (3, 4)), m.x.dtype.accumulator
    kept = top.shape == total.shape and top.rank == m.x.rank
    return kept and m.op(3).axes == m.op(4).axes and len(m.op(3).axes) == 1 and m.x.dtype is wide


def _softmax(m: Match) -> Node:
    return ops.softmax(m.x, m.op(3).axes[0])


def _subject(m: Maker) -> Node:
    y = m.tensor("x", m.shape(m.whole(1, 3)))
    wide = ops.cast(y, y.dtype.accumulator)
    axes = (m.whole(0, y.rank - 1),)
    e = ops.exp(ops.sub(wide, ops.amax(wide, axes, True)))
    return ops.div(e, ops.sum(e, axes, True))


RULES = (
    Rule(
        "softmax-spelled-out",
        op.div(_weights, op.sum(_weights)),
        _softmax,
        over_one_axis,
        subject=_subject,
        dtypes="f",
    ),
)
