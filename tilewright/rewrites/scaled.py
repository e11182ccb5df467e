"""Numbers that scale the operands of a product, behind it: `(a c) b` is `(a b) c`. Then operands
that were cast to a wider float and scaled are read as they were before that."""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.node import Node
from tilewright.ir.pattern import Match, Rule, Var, guard, op
from tilewright.rewrites.subject import Maker

ON_REQUEST = True

x, y, c = Var("x"), Var("y"), Var("c")


@guard("c is one number, and products are not rounded to fewer bits than their sum has")
def one_number(m: Match) -> bool:
    wide = m.x.dtype.accumulator is m.x.dtype
    return wide and m.c.rank == 0 and m.x.rank >= 2 and m.y.rank >= 2


def _behind(m: Match) -> Node:
    return ops.mul(ops.matmul(m.x, m.y), m.c)


def _operands(m: Maker) -> tuple[Node, Node, Node]:
    rows, deep, columns = (m.dim(lo=1, hi=5) for _ in range(3))
    return m.tensor("x", (rows, deep)), m.tensor("y", (deep, columns)), m.tensor("c", ())


def _first(m: Maker) -> Node:
    a, b, number = _operands(m)
    return ops.matmul(ops.mul(a, number), b)


def _second(m: Maker) -> Node:
    a, b, number = _operands(m)
    return ops.matmul(a, ops.mul(b, number))


RULES = (
    Rule(
        "scale-of-first-operand",
        op.matmul(op.mul(x, c), y),
        _behind,
        one_number,
        changes="rounding",
        subject=_first,
        dtypes="f",
    ),
    Rule(
        "scale-of-second-operand",
        op.matmul(x, op.mul(y, c)),
        _behind,
        one_number,
        changes="rounding",
        subject=_second,
        dtypes="f",
    ),
)
