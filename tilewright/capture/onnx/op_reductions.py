"""Reductions over axes, cumulative ones, sorting."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, static, translation
from tilewright.ir import dim as D
from tilewright.ir.node import Node, item
from tilewright.ir.types import f32, i64
from tilewright.ops.shapes import reduced_shape

Reduce = Callable[[Node, tuple[int, ...], bool], Node]
Map = Callable[[Node], Node]


def _same(x: Node) -> Node:
    return x


def _extreme(build: Reduce, of_bool: Reduce, lowest: bool) -> Reduce:
    """The largest or smallest; of nothing, the number that changes no other."""

    def reduce(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
        if x.dtype.is_bool:
            return of_bool(x, axes, keepdims)
        if any(D.known_eq(x.shape[a], 0) for a in axes):
            neutral = x.dtype.lowest if lowest else x.dtype.highest
            return ops.full(reduced_shape(x.shape, axes, keepdims), neutral, x.dtype)
        return build(x, axes, keepdims)

    return reduce


def _log_sum_exp(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    if any(D.known_eq(x.shape[a], 0) for a in axes):
        return ops.full(reduced_shape(x.shape, axes, keepdims), float("-inf"), x.dtype)
    return ops.logsumexp(x, axes, keepdims)


_REDUCE: dict[str, tuple[Reduce, Map, Map]] = {
    "ReduceSum": (ops.sum, _same, _same),
    "ReduceMean": (ops.mean, _same, _same),
    "ReduceMax": (_extreme(ops.amax, ops.any, True), _same, _same),
    "ReduceMin": (_extreme(ops.amin, ops.all, False), _same, _same),
    "ReduceProd": (ops.prod, _same, _same),
    "ReduceL1": (ops.sum, ops.abs, _same),
    "ReduceL2": (ops.sum, ops.square, ops.sqrt),
    "ReduceSumSquare": (ops.sum, ops.square, _same),
    "ReduceLogSum": (ops.sum, _same, ops.log),
    "ReduceLogSumExp": (_log_sum_exp, _same, _same),
}
_OF_FLOATS = ("ReduceMean", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")


def _reduction(name: str) -> Callable[..., Node]:
    build, before, after = _REDUCE[name]

    def translate(c: Context, x: Node, axes: Node | None = None) -> Node:
        given = c.setting("axes", axes)
        work = ops.cast(x, f32) if name in _OF_FLOATS and not x.dtype.is_float else x
        work = before(work)
        if given or not c.get("noop_with_empty_axes", 0):
            over = tuple(sorted(axis_in(c, a, x.rank) for a in given or range(x.rank)))
            work = build(work, over, bool(c.get("keepdims", 1))) if x.rank else work
        return ops.cast(after(work), x.dtype)

    return translate


for _name in _REDUCE:
    translation(_name)(_reduction(_name))


def _arg(build: Callable[..., Node]) -> Callable[[Context, Node], Node]:
    def translate(c: Context, x: Node) -> Node:
        axis, keep = axis_in(c, c.get("axis", 0), x.rank), bool(c.get("keepdims", 1))
        if not c.get("select_last_index", 0):
            return build(x, axis, keep)
        last = ops.number(x.shape[axis] - 1, i64)
        return ops.sub(last, build(ops.flip(x, [axis]), axis, keep))

    return translate


translation("ArgMax")(_arg(ops.argmax))
translation("ArgMin")(_arg(ops.argmin))


def _cumulative(build: Callable[[Node, int], Node], neutral: int) -> Callable[..., Node]:
    def translate(c: Context, x: Node, axis: Node) -> Node:
        k = axis_in(c, c.one(axis), x.rank)
        line = ops.flip(x, [k]) if c.get("reverse", 0) else x
        if c.get("exclusive", 0):
            before = [int(a == k) for a in range(x.rank)]
            line = ops.pad(line, before, [0] * x.rank, neutral)
            line = ops.slice(line, k, 0, x.shape[k])
        made = ops.cast(build(line, k), x.dtype)
        return ops.flip(made, [k]) if c.get("reverse", 0) else made

    return translate


translation("CumSum")(_cumulative(ops.cumsum, 0))
translation("CumProd")(_cumulative(ops.cumprod, 1))


@translation("TopK")
def top_k(c: Context, x: Node, count: Node | None = None) -> tuple[Node, Node]:
    axis = axis_in(c, c.get("axis", -1), x.rank)
    k = c.get("k", 0) if count is None else c.one(count)
    static(x.shape[axis : axis + 1], "TopK")
    pair = ops.topk(x, k, axis, bool(c.get("largest", 1)))
    return item(pair, 0), item(pair, 1)


@translation("Hardmax", since=13)
def hardmax(c: Context, x: Node) -> Node:
    axis = axis_in(c, c.get("axis", -1), x.rank)
    size = x.shape[axis]
    place = [size if a == axis else 1 for a in range(x.rank)]
    hot = ops.eq(ops.argmax(x, axis, True), ops.reshape(ops.iota(size), place))
    return ops.cast(hot, x.dtype)


def _rows(build: Callable[[Node, int], Node]) -> Callable[[Context, Node], Node]:
    """Before opset 13 the axes from one on were taken as a single one."""

    def translate(c: Context, x: Node) -> Node:
        axis = axis_in(c, c.get("axis", 1), x.rank)
        rows = ops.reshape(x, (*x.shape[:axis], -1)) if axis < x.rank else ops.unsqueeze(x, axis)
        return ops.reshape(build(rows, axis), x.shape)

    return translate


def _along(build: Callable[[Node, int], Node]) -> Callable[[Context, Node], Node]:
    return lambda c, x: build(x, axis_in(c, c.get("axis", -1), x.rank))


translation("Softmax", since=13)(_along(ops.softmax))
translation("LogSoftmax", since=13)(_along(ops.log_softmax))
translation("Softmax")(_rows(ops.softmax))
translation("LogSoftmax")(_rows(ops.log_softmax))


@translation("Hardmax")
def hardmax_rows(c: Context, x: Node) -> Node:
    def build(rows: Node, axis: int) -> Node:
        hot = ops.eq(ops.argmax(rows, axis, True), ops.iota(rows.shape[axis]))
        return ops.cast(hot, rows.dtype)

    return _rows(build)(c, x)
