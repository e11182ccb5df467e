"""Reading and writing at indices that are data."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.capture.to_onnx.writer import Out, Writer, writes
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import b1, i64
from tilewright.ops.indexing import Gather, Index, IndexPut, Scatter, Take
from tilewright.ops.shapes import broadcast_shapes, place_of_index


def _inside(w: Writer, index: Out, size: Dim, known: str) -> Out:
    """Indices in the range that ONNX takes; others are clamped, as here."""
    if known != "any":
        return index
    i = w.cast(index, i64)
    n = w.scalar(size)
    below = w.op("Less", i, w.number(0, i64), dtype=b1)
    i = w.op("Where", below, w.op("Add", i, n), i, dtype=i64)
    last = w.scalar(size - 1)
    return w.op("Max", w.op("Min", i, last), w.number(0, i64))


def _fitted(w: Writer, x: Out, shape: Sequence[Dim], to: Sequence[Dim], but: int) -> Out:
    """The beginning of x along all axes but one, where an index is smaller than it."""
    for k, (d, wanted) in enumerate(zip(shape, to)):
        if k != but and not D.known_eq(d, wanted):
            x = w.sliced(x, k, 0, wanted)
    return x


@writes("take")
def take(w: Writer, n: Node, x: Out, index: Out) -> Out:
    op = n.op
    assert isinstance(op, Take)
    at = _inside(w, index, n.inputs[0].shape[op.axis], op.known)
    return w.op("Gather", x, at, axis=op.axis)


@writes("gather")
def gather(w: Writer, n: Node, x: Out, index: Out) -> Out:
    op = n.op
    assert isinstance(op, Gather)
    own = n.inputs[0].shape
    at = _inside(w, index, own[op.axis], op.known)
    x = _fitted(w, x, own, n.inputs[1].shape, op.axis)
    return w.op("GatherElements", x, at, axis=op.axis)


@writes("scatter")
def scatter(w: Writer, n: Node, x: Out, index: Out, source: Out) -> Out:
    op = n.op
    assert isinstance(op, Scatter)
    at = _inside(w, index, n.shape[op.axis], op.known)
    source = _fitted(w, source, n.inputs[2].shape, n.inputs[1].shape, -1)
    how = op.reduce or "none"
    return w.op("ScatterElements", x, at, source, axis=op.axis, reduction=how)


def _points(
    w: Writer, n: Node, axes: Sequence[int], x: Node, parts: Sequence[Node], xs: Sequence[Out]
) -> tuple[Out, tuple[Dim, ...], list[int]]:
    """Indices as rows of coordinates, the shape of one column, and the order of the axes of x that
    has the indexed ones first."""
    assert isinstance(n.op, Index | IndexPut)
    known = n.op.known
    shape = broadcast_shapes(*(p.shape for p in parts))
    columns = []
    for a, p, i in zip(axes, parts, xs):
        at = w.cast(_inside(w, i, x.shape[a], known), i64)
        if p.shape != shape:
            at = w.op("Expand", at, w.dims(shape))
        columns.append(w.op("Unsqueeze", at, w.ints([len(shape)])))
    rows = columns[0] if len(columns) == 1 else w.op("Concat", *columns, axis=len(shape))
    return rows, shape, [*axes, *(k for k in range(x.rank) if k not in axes)]


def _moved(w: Writer, x: Out, order: Sequence[int]) -> Out:
    same = list(order) == list(range(len(order)))
    return x if same else w.op("Transpose", x, perm=list(order))


@writes("index")
def index(w: Writer, n: Node, x: Out, *indices: Out) -> Out:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, Index)
    rows, shape, order = _points(w, n, op.axes, own, n.inputs[1:], indices)
    found = w.op("GatherND", _moved(w, x, order), rows)
    return _moved(w, found, _back(op.axes, len(shape), own.rank))


def _back(axes: Sequence[int], points: int, rank: int) -> list[int]:
    """The axes of (points, rest of x) as they stand in the result."""
    p = place_of_index(axes)
    rest = list(range(points, points + rank - len(axes)))
    return [*rest[:p], *range(points), *rest[p:]]


@writes("index_put")
def index_put(w: Writer, n: Node, x: Out, values: Out, *indices: Out) -> Out:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, IndexPut)
    rows, shape, order = _points(w, n, op.axes, own, n.inputs[2:], indices)
    p = place_of_index(op.axes)
    rest = [d for k, d in enumerate(own.shape) if k not in op.axes]
    spread = w.op("Expand", values, w.dims([*rest[:p], *shape, *rest[p:]]))
    back = _back(op.axes, len(shape), own.rank)
    front = [back.index(k) for k in range(len(back))]
    how = "add" if op.accumulate else "none"
    put = w.op("ScatterND", _moved(w, x, order), rows, _moved(w, spread, front), reduction=how)
    return _moved(w, put, [order.index(k) for k in range(own.rank)])
