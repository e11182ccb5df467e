"""Updates that maps compute.

A scatter of one element into each row of a constant is a choice per element: the constant, or what
is put where the index says. As a map it becomes part of its readers, and the constant is never
stored: gradients of a loss over classes, and one-hot vectors, are such. A row of zeros and that one
element adds up to it; of a difference that is gathered, only the gathered elements are computed.
"""

from __future__ import annotations

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.pattern import Guard, Match, Rule, Var, filled_value, make, op
from tilewright.ir.types import i64
from tilewright.ops.creation import Iota, iota, number
from tilewright.ops.indexing import Gather, Scatter
from tilewright.ops.reductions import Reduction
from tilewright.ops.shapes import compared_as
from tilewright.ops.views import Reshape
from tilewright.rewrites.subject import Maker

x, i, y, k = Var("x"), Var("i"), Var("y"), Var("k")


def _scatter(m: Match) -> Scatter:
    assert isinstance(m.root.op, Scatter)
    return m.root.op


def _one_per_row(m: Match) -> bool:
    """Is the constant covered by rows along the axis, each with one index and one element?"""
    axis = _scatter(m).axis
    rows = (*m.x.shape[:axis], 1, *m.x.shape[axis + 1 :])
    same = (map(D.known_eq, rows, n.shape) for n in (m.i, m.y))
    return filled_value(m.x) is not None and all(all(s) for s in same)


def is_at(x: Node, axis: int, i: Node, known: str) -> Node:
    """Of the elements of x along an axis, which is the one that an index of a row names?"""
    size = x.shape[axis]
    at = ops.cast(i, i64)
    if known not in ("within", "sorted", "proved"):
        at = ops.where(ops.lt(at, number(0, i64)), ops.add(at, number(size, i64)), at)
    if known == "any" or not D.known_lt(0, size):
        at = ops.maximum(ops.minimum(at, number(size - 1, i64)), number(0, i64))
    elif known != "proved":  # as an unsigned number a negative one is large
        kind = compared_as(size)
        at = ops.cast(ops.minimum(ops.cast(at, kind), number(size - 1, kind)), i64)
    shape = (*(1 for _ in range(axis)), size, *(1 for _ in range(axis + 1, x.rank)))
    return ops.eq(ops.reshape(iota(size), shape), at)


def _chosen(m: Match) -> Node:
    marked = is_at(m.x, _scatter(m).axis, m.i, _scatter(m).known)
    return ops.where(marked, m.y, m.x)


def _rows(m: Maker) -> Node:
    before, size, after = m.shape(m.whole(0, 2)), m.dim(1), m.shape(m.whole(0, 1))
    rows = (*before, 1, *after)
    whole = make("full", shape=(*before, size, *after), value=m.rng.choice([0, 1]), dtype=m.dtype)
    at, new = m.tensor("i", rows, i64), m.tensor("y", rows)
    known = m.rng.choice(["any", "within"])
    return make("scatter", whole, at, new, axis=len(before), reduce=None, known=known)


def _positions(n: Node, axis: int) -> Iota | None:
    """What counts the positions of an axis, where n does and is the same along all others."""
    while isinstance(n.op, Reshape):
        units = all(D.known_eq(d, 1) for j, d in enumerate(n.shape) if j != axis)
        n = n.inputs[0]
        if not units:
            return None
        axis = 0 if n.rank == 1 else axis
    return n.op if isinstance(n.op, Iota) and n.op.step == 1 and n.op.start == 0 else None


def _one_of_a_row(m: Match) -> bool:
    """Is one axis added up, along which the one element and its position are the same?"""
    assert isinstance(m.root.op, Reduction)
    whole = m.root.inputs[0]
    if len(m.root.op.axes) != 1:
        return False
    (axis,) = m.root.op.axes
    same = (m.k, m.i, m.y)
    if any(n.rank != whole.rank for n in same) or filled_value(m.x) != 0:
        return False
    unit = D.known_eq(m.i.shape[axis], 1) and D.known_eq(m.y.shape[axis], 1)
    covers = D.known_eq(m.k.shape[axis], whole.shape[axis])
    return unit and covers and _positions(m.k, axis) is not None and m.i.dtype is i64


def _the_one(m: Match) -> Node:
    assert isinstance(m.root.op, Reduction)
    whole, (axis,) = m.root.inputs[0], m.root.op.axes
    there = ops.logical_and(
        ops.ge(m.i, number(0, i64)), ops.lt(m.i, number(whole.shape[axis], i64))
    )
    rows = (*whole.shape[:axis], 1, *whole.shape[axis + 1 :])
    zero = number(0, m.root.dtype)
    found = ops.expand(ops.where(there, ops.add(m.y, zero), zero), rows)  # of -0.0 a sum makes 0.0
    return ops.reshape(found, m.root.shape)


def _gather(m: Match) -> Gather:
    assert isinstance(m.root.op, Gather)
    return m.root.op


def _same_along(m: Match) -> bool:
    """Is what is subtracted the same along the axis, and is the index for all of its rows?"""
    axis, x = _gather(m).axis, m.root.inputs[0]
    if m.y.rank != x.rank or m.x.rank != x.rank or not D.known_eq(m.y.shape[axis], 1):
        return False
    rows = zip(m.x.shape, m.i.shape, x.shape)
    return all(
        k == axis or (D.known_eq(a, b) and D.known_eq(a, c)) for k, (a, b, c) in enumerate(rows)
    )


def _of_gathered(m: Match) -> Node:
    g = _gather(m)
    return ops.sub(make("gather", m.x, m.i, axis=g.axis, known=g.known), m.y)


def _less(m: Maker) -> Node:
    before, size, after = m.shape(m.whole(0, 2)), m.dim(1), m.shape(m.whole(0, 1))
    axis = len(before)
    less = ops.sub(m.tensor("x", (*before, size, *after)), m.tensor("y", (*before, 1, *after)))
    at = m.tensor("i", (*before, m.dim(1), *after), i64)
    return make("gather", less, at, axis=axis, known=m.rng.choice(["any", "within"]))


def _marked(m: Maker) -> Node:
    before, size, after = m.shape(m.whole(0, 2)), m.dim(1), m.shape(m.whole(0, 1))
    rows, axis = (*before, 1, *after), len(before)
    counted = ops.reshape(iota(size), (*(1 for _ in before), size, *(1 for _ in after)))
    whole = make("full", shape=(*before, size, *after), value=0, dtype=m.dtype)
    marked = ops.eq(counted, m.tensor("i", rows, i64))
    chosen = ops.where(marked, m.tensor("y", rows), m.rng.choice([whole, number(0, m.dtype)]))
    return make("sum", chosen, axes=(axis,), keepdims=m.rng.choice([True, False]))


RULES = (
    Rule(
        "scatter-one-per-row",
        op.scatter(x, i, y, reduce=None),
        _chosen,
        Guard("one element for each row of a constant", _one_per_row),
        subject=_rows,
        tested="an ordered update has no normal form",
    ),
    Rule(
        "sum-one-per-row",
        op.sum(op.where(op.eq(k, i), y, x)),
        _the_one,
        Guard("zeros but for one element of a row", _one_of_a_row),
        subject=_marked,
        tested="which term of the sum it is, data says: the normal form has no such sums",
        dtypes="f",
    ),
    Rule(
        "gather-of-difference",
        op.gather(op.sub(x, y), i),
        _of_gathered,
        Guard("the same is subtracted along the axis", _same_along),
        subject=_less,
        dtypes="f",
    ),
)
