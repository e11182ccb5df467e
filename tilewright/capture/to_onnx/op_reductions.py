"""Reductions, softmax, cumulative sums, sorting."""

from __future__ import annotations

from tilewright.capture.to_onnx.writer import Out, Writer, writes
from tilewright.ir.node import Node
from tilewright.ir.types import b1, i32, i64
from tilewright.ops.cumulative import Cumprod, Cumsum
from tilewright.ops.reductions import Argmax, Argmin, Reduction
from tilewright.ops.softmax import LogSoftmax, Softmax
from tilewright.ops.sorting import Sort, Topk

_KINDS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
}


def _reduced(w: Writer, kind: str, n: Node, x: Out) -> Out:
    op = n.op
    assert isinstance(op, Reduction)
    if not op.axes:
        return w.op("Identity", x)
    return w.op(kind, x, w.ints(op.axes), keepdims=int(op.keepdims))


@writes(*_KINDS)
def reduction(w: Writer, n: Node, x: Out) -> Out:
    if x.dtype.is_bool and n.op.name in ("sum", "prod"):
        found = _reduced(w, "ReduceMax" if n.op.name == "sum" else "ReduceMin", n, w.cast(x, i32))
        return w.cast(found, b1)
    return _reduced(w, _KINDS[n.op.name], n, x)


@writes("any", "all")
def any_of(w: Writer, n: Node, x: Out) -> Out:
    flags = w.cast(w.cast(x, b1), i32)
    return w.cast(_reduced(w, "ReduceMax" if n.op.name == "any" else "ReduceMin", n, flags), b1)


@writes("argmax", "argmin")
def argmax(w: Writer, n: Node, x: Out) -> Out:
    op = n.op
    assert isinstance(op, Argmax | Argmin)
    axis, keep = op.axis, op.keepdims
    if not n.inputs[0].rank:
        return w.number(0, i64)
    kind = "ArgMax" if op.name == "argmax" else "ArgMin"
    return w.op(kind, x, dtype=i64, axis=axis, keepdims=int(keep))


@writes("softmax", "log_softmax")
def softmax(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Softmax | LogSoftmax)
    if not n.rank:
        w.refuse("of a tensor without axes")
    return w.op("Softmax" if n.op.name == "softmax" else "LogSoftmax", x, axis=n.op.axis)


@writes("cumsum")
def cumsum(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Cumsum)
    if not n.rank:
        return w.op("Identity", x)
    return w.op("CumSum", x, w.number(n.op.axis, i64))


@writes("cumprod", since=26)
def cumprod(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Cumprod)
    if not n.rank:
        return w.op("Identity", x)
    return w.op("CumProd", x, w.number(n.op.axis, i64))


def _sorted(w: Writer, x: Out, count: int, axis: int, largest: bool) -> tuple[Out, Out]:
    settings = {"axis": axis, "largest": int(largest), "sorted": 1}
    values, places = w.op_many("TopK", x, w.ints([count]), dtypes=[x.dtype, i64], **settings)
    return values, places


@writes("sort")
def sort(w: Writer, n: Node, x: Out) -> tuple[Out, Out]:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, Sort)
    if not own.rank:
        return w.op("Identity", x), w.number(0, i64)
    size = own.shape[op.axis]
    assert isinstance(size, int)
    return _sorted(w, x, size, op.axis, op.descending)


@writes("topk")
def topk(w: Writer, n: Node, x: Out) -> tuple[Out, Out]:
    op = n.op
    assert isinstance(op, Topk)
    if not n.inputs[0].rank:
        return w.op("Identity", x), w.number(0, i64)
    return _sorted(w, x, op.k, op.axis, op.largest)
