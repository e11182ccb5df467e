"""Sorting, stable: short runs by counting, then a merge sort whose passes are scans.

A merge only says which element comes to each position; values and places follow by gathers. NaN
counts as larger than every number, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir import expr
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value, fn, select
from tilewright.ir.node import Node, Op, item, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, TupleType, bf16, f16, f64, i8, i32, i64, u8
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import full
from tilewright.ops.indexing import gather
from tilewright.ops.reductions import amax, argmax, sum
from tilewright.ops.shapes import axis_of, reduced_shape
from tilewright.ops.views import reshape, slice

# Runs of this many elements are sorted by counting: every element against every other, no search.
RUN = 16


def _check(name: str, axis: int, x: TensorType) -> None:
    if not 0 <= axis < max(x.rank, 1):
        raise Invalid(f"{name}: axis {axis} is not an axis of {x!r}")
    if x.rank and not isinstance(x.shape[axis], int):
        raise Unsupported(
            f"{name} along axis {axis} of {x!r}: its size is not known when compiling",
            hint="make this dimension static (dynamic=False, or mark_static)",
        )


class _Line:
    """One axis of a tensor: positions along it, everything else passed through."""

    def __init__(self, x: Tensor, axis: int) -> None:
        size = x.shape[axis]
        assert isinstance(size, int)
        self.shape, self.axis, self.size = x.shape, axis, size

    def compute(self, body: Callable[[tuple[Dim, ...], Dim], Any], name: str) -> Tensor:
        return expr.compute(self.shape, lambda *i: body(i, i[self.axis]), name=name)

    def read(self, x: Tensor, i: tuple[Dim, ...], at: Dim | Value) -> Value:
        """x at position `at` of the line through i; a position from data is clamped into range."""
        if isinstance(at, Value):
            at = fn("min", fn("max", at, 0), self.size - 1).as_dim()
        return x[i[: self.axis] + (at,) + i[self.axis + 1 :]]


def _before(a: Value, b: Value, descending: bool) -> Value:
    """Must a come before b, in strict order?"""
    if descending:
        a, b = b, a
    less = a < b
    if a.dtype.is_float:
        less = less | (b.ne(b) & a.eq(a))
    return less


def _runs(x: Tensor, line: _Line, descending: bool) -> Tensor:
    """Which element comes to each position when every run of RUN elements is sorted by itself."""
    width = min(RUN, line.size)

    def rank(i: tuple[Dim, ...], p: Dim) -> Value:
        """How many elements of its run go before the element at p."""
        start = D.floordiv(p, width) * width
        mine = line.read(x, i, p)

        def ahead(r: Dim) -> Value:
            q = start + r
            inside = expr.index(q) < line.size
            other = line.read(x, i, D.minimum(q, line.size - 1))
            tie = (expr.index(q) < expr.index(p)) & ~_before(mine, other, descending)
            return expr.cast(inside & (_before(other, mine, descending) | tie), i64)

        return expr.reduce("add", (width,), ahead)

    ranks = line.compute(rank, "rank")

    def chosen(i: tuple[Dim, ...], p: Dim) -> Value:
        start = D.floordiv(p, width) * width

        def hit(r: Dim) -> Value:
            q = start + r
            here = line.read(ranks, i, D.minimum(q, line.size - 1)).eq(expr.index(p - start))
            return select(here & (expr.index(q) < line.size), expr.index(q), expr.const(0, i64))

        return expr.reduce("add", (width,), hit)

    return line.compute(chosen, "run")


def _merge(x: Tensor, line: _Line, width: int, descending: bool) -> Callable[..., Value]:
    """The place each position takes its element from when sorted runs of `width` merge in pairs.

    A scan per pair walks its two runs: taken[b, k] of the first k elements come from the left run.
    Pairs are independent of each other; within one, each step looks at two elements.
    """
    n, axis = line.size, line.axis
    pair = 2 * width
    blocks = -(-n // pair)

    def step(own: Tensor, *i: Dim) -> Value:
        block, k = i[axis], i[axis + 1]
        rest = i[:axis] + (0,) + i[axis + 2 :]
        start = block * pair
        middle = D.minimum(start + width, n)
        end = D.minimum(start + pair, n)
        before = own[i[: axis + 1] + (k - 1,) + i[axis + 2 :]]
        left, right = before + expr.index(start), expr.index(middle + k - 1) - before
        ours, theirs = line.read(x, rest, left), line.read(x, rest, right)
        # The left run goes first among equals, and alone when the right one is used up.
        first = ~_before(theirs, ours, descending) | (right >= expr.index(end))
        from_left = (left < expr.index(middle)) & first
        one, none = expr.const(1, i64), expr.const(0, i64)
        return select(expr.index(k) > 0, before + select(from_left, one, none), none)

    shape = line.shape[:axis] + (blocks, pair + 1) + line.shape[axis + 1 :]
    taken = expr.scan(shape, axis + 1, step, i64, "taken")

    def source(i: tuple[Dim, ...], p: Dim) -> Value:
        block, k = D.floordiv(p, pair), D.mod(p, pair)
        start = block * pair
        middle = D.minimum(start + width, n)
        now = taken[i[:axis] + (block, k) + i[axis + 1 :]]
        then = taken[i[:axis] + (block, k + 1) + i[axis + 1 :]]
        return select(then > now, now + expr.index(start), expr.index(middle + k) - now)

    return source


@operator
class Sort(Op):
    """Values in order, and where each came from. Equal elements keep their order."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    axis: int
    descending: bool

    def infer(self, x: TensorType) -> TupleType:
        _check(self.name, self.axis, x)
        return TupleType((x, TensorType(i64, x.shape)))

    def program(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not x.rank:  # one element, as torch has it
            return expr.compute((), lambda: x[()]), expr.compute((), lambda: expr.const(0, i64))
        line = _Line(x, self.axis)
        if line.size == 0:
            return line.compute(lambda i, p: x[i], "v"), line.compute(
                lambda i, p: expr.index(p), "p"
            )

        def follow(t: Tensor, source: Callable[..., Value], name: str) -> Tensor:
            return line.compute(lambda i, p: line.read(t, i, source(i, p)), name)

        places = _runs(x, line, self.descending)
        values = follow(x, lambda i, p: places[i], "values")
        width = RUN
        while width < line.size:
            source = _merge(values, line, width, self.descending)
            values, places = follow(values, source, "values"), follow(places, source, "places")
            width *= 2
        return values, places

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        if self.descending:
            back = np.argsort(np.flip(x, self.axis), axis=self.axis, kind="stable")
            order = x.shape[self.axis] - 1 - np.flip(back, self.axis)
        else:
            order = np.argsort(x, axis=self.axis, kind="stable")
        return np.take_along_axis(x, order, self.axis), order.astype(np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for descending in (False, True):
            for n in (1, 2, 7, 16, 17, 33, 100):
                yield S.case(cls(1, descending), S.normal(3, n))
            yield S.case(cls(0, descending), S.integers(50, 2, lo=0, hi=5))
            yield S.case(cls(1, descending), S.extremes(2, 40))
            yield S.case(cls(0, descending), S.extremes(14, dtype=f64), dtype=f64)
            yield S.case(cls(1, descending), S.normal(2, 20, 3), dtype=bf16)
            yield S.case(cls(0, descending), S.normal(21), dtype=f16)
            yield S.case(cls(0, descending), S.booleans(20))
            yield S.case(cls(0, descending), S.normal())
        yield S.case(cls(0, False), S.extremes(19, dtype=i8))
        yield S.case(cls(0, True), S.integers(18, lo=0, hi=255, dtype=u8))
        yield S.case(cls(0, False), S.integers(18, dtype=i32))
        yield S.case(cls(1, False), S.normal(2, 0))
        yield S.case(cls(1, True), S.normal(0, 3))


@operator
class Topk(Op):
    """The k largest (or smallest), in order, and where they are."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    k: int
    axis: int
    largest: bool

    def infer(self, x: TensorType) -> TupleType:
        _check(self.name, self.axis, x)
        n = x.shape[self.axis] if x.rank else 1
        if not isinstance(n, int) or not (0 if x.rank else 1) <= self.k <= n:
            raise Invalid(f"topk: k={self.k} of axis {self.axis} of {x!r}", hint=f"0 <= k <= {n}")
        shape = x.shape[: self.axis] + (self.k,) + x.shape[self.axis + 1 :] if x.rank else ()
        return TupleType((TensorType(x.dtype, shape), TensorType(i64, shape)))

    def compose(self, x: Node) -> tuple[Node, Node]:
        if not x.rank:
            return x, full((), 0, i64)
        # Not for the smallest: argmin takes NaN for the smallest, sorting for the largest.
        if self.k == 1 and self.largest:
            return amax(x, (self.axis,), True), argmax(x, self.axis, True)
        ordered = sort(x, self.axis, self.largest)
        values, places = item(ordered, 0), item(ordered, 1)
        return slice(values, self.axis, 0, self.k), slice(places, self.axis, 0, self.k)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        values, places = Sort(self.axis, self.largest).reference(x)
        first = range(self.k)
        return values.take(first, self.axis), places.take(first, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for largest in (True, False):
            yield S.case(cls(3, 1, largest), S.normal(4, 20))
            yield S.case(cls(1, 0, largest), S.normal(9, 3), dtype=bf16)
            yield S.case(cls(1, 1, largest), S.extremes(2, 14))
            yield S.case(cls(2, 1, largest), S.integers(3, 5, 2))
            yield S.case(cls(0, 0, largest), S.normal(4))
            yield S.case(cls(2, 1, largest), S.normal(0, 3), dtype=f16)
            yield S.case(cls(1, 0, largest), S.normal())


def _median(x: Node, axis: int, keepdims: bool, ignore_nan: bool) -> tuple[Node, Node]:
    if not x.rank:
        return x, full((), 0, i64)
    n = x.shape[axis]
    assert isinstance(n, int)
    ordered = sort(x, axis)
    values, places = item(ordered, 0), item(ordered, 1)
    if x.dtype.is_float:
        # Sorting leaves the NaNs, in their order, at the end.
        nans = sum(ew.cast(ew.isnan(x), i64), (axis,), True)
        if ignore_nan:
            at = ew.maximum(ew.sar(ew.sub(n - 1, nans), 1), 0)
        else:
            at = ew.where(ew.eq(nans, 0), (n - 1) // 2, ew.sub(n, nans))
        pair = gather(values, at, axis), gather(places, at, axis)
    else:
        at = (n - 1) // 2
        pair = slice(values, axis, at, at + 1), slice(places, axis, at, at + 1)
    shape = reduced_shape(x.shape, (axis,), keepdims)
    return reshape(pair[0], shape), reshape(pair[1], shape)


def _median_type(name: str, axis: int, keepdims: bool, x: TensorType) -> TupleType:
    _check(name, axis, x)
    if x.rank and x.shape[axis] == 0:
        raise Invalid(f"{name}: axis {axis} of {x!r} is empty: it has no middle")
    shape = reduced_shape(x.shape, (axis,), keepdims) if x.rank else ()
    return TupleType((TensorType(x.dtype, shape), TensorType(i64, shape)))


def _median_reference(
    x: np.ndarray, axis: int, keepdims: bool, ignore_nan: bool
) -> tuple[np.ndarray, np.ndarray]:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    rows = np.moveaxis(x, axis, -1)
    values, places = np.zeros(rows.shape[:-1], x.dtype), np.zeros(rows.shape[:-1], np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at]
        nan = [k for k, v in enumerate(row.tolist()) if v != v]
        good = sorted((v, k) for k, v in enumerate(row.tolist()) if v == v)
        place = good[(len(good) - 1) // 2][1] if good and (ignore_nan or not nan) else nan[0]
        values[at], places[at] = row[place], place
    if keepdims:
        values, places = np.expand_dims(values, axis), np.expand_dims(places, axis)
    return values, places


def _median_samples(cls: Any) -> Iterator[Sample]:
    yield S.case(cls(1, False), S.normal(4, 7))
    yield S.case(cls(0, True), S.normal(20, 3), dtype=bf16)
    yield S.case(cls(1, False), S.extremes(3, 5))
    yield S.case(cls(0, False), S.extremes(6, 5, dtype=f64), dtype=f64)
    yield S.case(cls(0, False), np.full((4,), np.nan, np.float32))
    yield S.case(cls(1, True), S.integers(3, 8))
    yield S.case(cls(0, False), S.integers(17, dtype=u8))
    yield S.case(cls(0, False), S.normal(1), dtype=f16)
    yield S.case(cls(1, False), S.normal(0, 3))
    yield S.case(cls(0, False), S.normal())


@operator
class Median(Op):
    """The lower median and its index; NaN, and the first one's index, where the row has one."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> TupleType:
        return _median_type(self.name, self.axis, self.keepdims, x)

    def compose(self, x: Node) -> tuple[Node, Node]:
        return _median(x, self.axis, self.keepdims, ignore_nan=False)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _median_reference(x, self.axis, self.keepdims, ignore_nan=False)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _median_samples(cls)


@operator
class Nanmedian(Op):
    """The lower median of what is not NaN."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> TupleType:
        return _median_type(self.name, self.axis, self.keepdims, x)

    def compose(self, x: Node) -> tuple[Node, Node]:
        return _median(x, self.axis, self.keepdims, ignore_nan=True)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _median_reference(x, self.axis, self.keepdims, ignore_nan=True)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _median_samples(cls)


def sort(x: Node, axis: int = -1, descending: bool = False) -> Node:
    """(values, indices), stable."""
    return node(Sort(axis_of("sort", axis, x.rank), descending), x)


def topk(x: Node, k: int, axis: int = -1, largest: bool = True) -> Node:
    """(values, indices) of the k largest or smallest, in order."""
    return node(Topk(k, axis_of("topk", axis, x.rank), largest), x)


def median(x: Node, axis: int = -1, keepdims: bool = False) -> Node:
    """(values, indices); of an even number the lower of the two in the middle."""
    return node(Median(axis_of("median", axis, x.rank), keepdims), x)


def nanmedian(x: Node, axis: int = -1, keepdims: bool = False) -> Node:
    """(values, indices) of the median of what is not NaN."""
    return node(Nanmedian(axis_of("nanmedian", axis, x.rank), keepdims), x)
