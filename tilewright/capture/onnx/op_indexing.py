"""Gathering and scattering by indices that are data."""

from __future__ import annotations

from functools import reduce

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, static, translation
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import i32, i64


def _index(i: Node) -> Node:
    return i if i.dtype in (i32, i64) else ops.cast(i, i64)


def _count(dims: tuple[Dim, ...]) -> Dim:
    return reduce(lambda a, b: a * b, dims, 1)


@translation("Gather")
def gather(c: Context, x: Node, i: Node) -> Node:
    axis = axis_in(c, c.get("axis", 0), x.rank)
    known = c.within(_index(i), x.shape[axis])
    taken = ops.take(x, ops.reshape(_index(i), (_count(i.shape),)), axis, known)
    return ops.reshape(taken, (*x.shape[:axis], *i.shape, *x.shape[axis + 1 :]))


@translation("GatherElements")
def gather_elements(c: Context, x: Node, i: Node) -> Node:
    axis = axis_in(c, c.get("axis", 0), x.rank)
    return ops.gather(x, _index(i), axis, c.within(_index(i), x.shape[axis]))


def _columns(i: Node) -> list[Node]:
    """The last axis apart: one index each."""
    (count,) = static(i.shape[-1:], "the last axis of indices")
    parts = ops.split(_index(i), [1] * count, i.rank - 1)
    return [ops.reshape(p, i.shape[:-1]) for p in parts]


@translation("GatherND")
def gather_nd(c: Context, x: Node, i: Node) -> Node:
    batch = c.get("batch_dims", 0)
    columns = _columns(i)
    for column, size in zip(columns, x.shape[batch:]):
        c.within(column, size)
    lead: list[Node] = []
    for k in range(batch):
        place: list[Dim] = [1] * (i.rank - 1)
        place[k] = x.shape[k]
        lead.append(ops.expand(ops.reshape(ops.iota(x.shape[k]), place), i.shape[:-1]))
    whole = [ops.cast(v, i64) for v in (*lead, *columns)]
    return ops.index(x, whole, list(range(len(whole))), "wrapped")


_REDUCTIONS = {"none": None, "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _reduction(c: Context) -> str | None:
    how = c.get("reduction", "none")
    if how not in _REDUCTIONS:
        c.refuse(f"reduction={how!r} is not known")
    return _REDUCTIONS[how]


@translation("ScatterElements", "Scatter")
def scatter_elements(c: Context, x: Node, i: Node, updates: Node) -> Node:
    axis = axis_in(c, c.get("axis", 0), x.rank)
    known = c.within(_index(i), x.shape[axis])
    return ops.scatter(x, _index(i), updates, axis, _reduction(c), known)


@translation("ScatterND")
def scatter_nd(c: Context, x: Node, i: Node, updates: Node) -> Node:
    """Rows are the indexed axes as one, at the flat places of the indices."""
    how = _reduction(c)
    columns = _columns(i)
    depth = len(columns)
    for column, size in zip(columns, x.shape):
        c.within(column, size)
    if how in (None, "add"):
        return ops.index_put(x, updates, columns, list(range(depth)), how == "add")
    flat = ops.number(0, i64)
    for column, d in zip(columns, x.shape):
        n = ops.number(d, i64)
        at = ops.cast(column, i64)
        at = ops.where(ops.lt(at, ops.number(0, i64)), ops.add(at, n), at)
        flat = ops.add(ops.mul(flat, n), at)
    rows, row = _count(x.shape[:depth]), _count(x.shape[depth:])
    many = _count(i.shape[:-1])
    places = ops.expand(ops.reshape(flat, (many, 1)), (many, row))
    put = ops.scatter(
        ops.reshape(x, (rows, row)), places, ops.reshape(updates, (many, row)), 0, how
    )
    return ops.reshape(put, x.shape)


@translation("TensorScatter")
def tensor_scatter(c: Context, past: Node, update: Node, start: Node | None = None) -> Node:
    """New rows of a cache, from one place of each batch on; around its end where it is a ring."""
    axis = axis_in(c, c.get("axis", -2), past.rank)
    n = ops.number(past.shape[axis], i64)
    line = [update.shape[axis] if k == axis else 1 for k in range(past.rank)]
    at = ops.reshape(ops.iota(update.shape[axis]), line)
    if start is not None:
        first = ops.reshape(ops.cast(start, i64), (start.shape[0], *[1] * (past.rank - 1)))
        at = ops.add(at, first)
    if c.get("mode", "linear") == "circular":
        at = ops.mod(at, n)
    return ops.scatter(past, ops.expand(at, update.shape), update, axis)
