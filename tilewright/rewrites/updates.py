"""Updates that maps compute.

A scatter of one element into each row of a constant is a choice per element: the constant, or what
is put where the index says. As a map it becomes part of its readers, and the constant is never
stored: gradients of a loss over classes, and one-hot vectors, are such.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.pattern import Guard, Match, Rule, Var, filled_value, make, op
from tilewright.ir.types import i64, u64
from tilewright.ops.creation import iota, number
from tilewright.ops.indexing import Scatter
from tilewright.rewrites.subject import Maker

x, i, y = Var("x"), Var("i"), Var("y")


def _scatter(m: Match) -> Scatter:
    assert isinstance(m.root.op, Scatter)
    return m.root.op


def _one_per_row(m: Match) -> bool:
    """Is the constant covered by rows along the axis, each with one index and one element?"""
    axis = _scatter(m).axis
    rows = (*m.x.shape[:axis], 1, *m.x.shape[axis + 1 :])
    same = (map(D.known_eq, rows, n.shape) for n in (m.i, m.y))
    return filled_value(m.x) is not None and all(all(s) for s in same)


def _chosen(m: Match) -> Node:
    axis, known = _scatter(m).axis, _scatter(m).known
    size = m.x.shape[axis]
    at = ops.cast(m.i, i64)
    if known not in ("within", "proved"):
        at = ops.where(ops.lt(at, number(0, i64)), ops.add(at, number(size, i64)), at)
    if known == "any" or not D.known_lt(0, size):
        at = ops.maximum(ops.minimum(at, number(size - 1, i64)), number(0, i64))
    elif known != "proved":  # as an unsigned number a negative one is large
        at = ops.cast(ops.minimum(ops.cast(at, u64), number(size - 1, u64)), i64)
    shape = (*(1 for _ in range(axis)), size, *(1 for _ in range(axis + 1, m.x.rank)))
    return ops.where(ops.eq(ops.reshape(iota(size), shape), at), m.y, m.x)


def _rows(m: Maker) -> Node:
    before, size, after = m.shape(m.whole(0, 2)), m.dim(1), m.shape(m.whole(0, 1))
    rows = (*before, 1, *after)
    whole = make("full", shape=(*before, size, *after), value=m.rng.choice([0, 1]), dtype=m.dtype)
    at, new = m.tensor("i", rows, i64), m.tensor("y", rows)
    known = m.rng.choice(["any", "within"])
    return make("scatter", whole, at, new, axis=len(before), reduce=None, known=known)


RULES = (
    Rule(
        "scatter-one-per-row",
        op.scatter(x, i, y, reduce=None),
        _chosen,
        Guard("one element for each row of a constant", _one_per_row),
        subject=_rows,
        tested="an ordered update has no normal form",
    ),
)
