"""Sorting, stable: words of order and position (ops/words.py) say where elements come from, and
values follow by gathers. NaN counts as larger than every number, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import Invalid, Unsupported, require
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, Op, item, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import Shape
from tilewright.ir.types import TensorType, TupleType, bf16, f16, f64, i8, i32, i64, u8
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import full
from tilewright.ops.indexing import gather
from tilewright.ops.reductions import amax, argmax, sum
from tilewright.ops.selection import SHORTEST, ranked_positions
from tilewright.ops.shapes import axis_of, reduced_shape
from tilewright.ops.views import reshape, slice, transpose
from tilewright.ops.words import POSITION, first_words, sort_words, sorted_words, word_positions


def _check(name: str, axis: int, x: TensorType) -> None:
    if not 0 <= axis < max(x.rank, 1):
        raise Invalid(f"{name}: axis {axis} is not an axis of {x!r}")


def _check_size(name: str, axis: int, x: TensorType) -> None:
    _check(name, axis, x)
    if x.rank and not isinstance(x.shape[axis], int):
        raise Unsupported(
            f"{name} along axis {axis} of {x!r}: its size is not known when compiling",
            hint="make this dimension static (dynamic=False, or mark_static)",
        )


def _rows(x: Node, axis: int) -> Node:
    """A matrix whose rows are the lines of x along an axis."""
    last = x.rank - 1
    turned = x if axis == last else transpose(x, axis, last)
    count: Dim = 1
    for d in turned.shape[:-1]:
        count = count * d
    return reshape(turned, (count, x.shape[axis]))


def _lines(rows: Node, axis: int, shape: Shape) -> Node:
    """Rows of a matrix as the lines of a tensor of this shape along an axis: the way back."""
    last = len(shape) - 1
    turned = list(shape)
    turned[axis], turned[last] = turned[last], turned[axis]
    found = reshape(rows, tuple(turned))
    return found if axis == last else transpose(found, axis, last)


@operator
class SortedPlaces(Op):
    """Where the elements of each row of a matrix come from when it is sorted. Equal elements keep
    their order."""

    positions: ClassVar[tuple[int, ...]] = (0,)
    axis: ClassVar[int] = 1
    descending: bool

    def infer(self, x: TensorType) -> TensorType:
        require(x.rank == 2, f"{self.name}: {x!r} is not a matrix")
        return TensorType(i64, x.shape)

    def compose(self, x: Node) -> Node:
        return word_positions(sorted_words(x, self.descending))

    def reference(self, x: np.ndarray) -> np.ndarray:
        if self.descending:
            back = np.argsort(x[:, ::-1], axis=1, kind="stable")
            return (x.shape[1] - 1 - back[:, ::-1]).astype(np.int64)
        return np.argsort(x, axis=1, kind="stable").astype(np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for descending in (False, True):
            yield S.case(cls(descending), S.extremes(2, 40))
            yield S.case(cls(descending), S.integers(3, 20, lo=0, hi=5, dtype=i32))
            yield S.case(cls(descending), S.normal(3, 0))
            yield S.case(cls(descending), S.normal(0, 3))


def sorted_places(x: Node, descending: bool) -> Node:
    """Where the elements of each row of a matrix come from when it is sorted."""
    return node(SortedPlaces(descending), x)


@operator
class Sort(Op):
    """Values in order, and where each came from. Equal elements keep their order."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    axis: int
    descending: bool

    def infer(self, x: TensorType) -> TupleType:
        _check(self.name, self.axis, x)
        return TupleType((x, TensorType(i64, x.shape)))

    def compose(self, x: Node) -> tuple[Node, Node]:
        if not x.rank or D.known_eq(x.ttype.size, 0):  # one element, as torch has it, or none
            return x, full(x.shape, 0, i64)
        places = _lines(sorted_places(_rows(x, self.axis), self.descending), self.axis, x.shape)
        return gather(x, places, self.axis, "within"), places

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
            for n in (1, 2, 7, 64):
                yield S.case(cls(1, descending), S.normal(3, n))
            yield S.case(cls(0, descending), S.integers(50, 2, lo=0, hi=5, dtype=i32))
            yield S.case(cls(1, descending), S.extremes(2, 40))
            yield S.case(cls(1, descending), S.normal(2, 20, 3), dtype=bf16)
            yield S.case(cls(0, descending), S.normal(21), dtype=f16)
            yield S.case(cls(0, descending), S.booleans(20))
            yield S.case(cls(0, descending), S.normal())
        yield S.case(cls(1, True), S.normal(2, 65))
        yield S.case(cls(0, True), S.extremes(14, dtype=f64), dtype=f64)
        yield S.case(cls(0, False), S.integers(12, 2))
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
        _check_size(self.name, self.axis, x)
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
        if x.dtype.bits <= POSITION and not D.known_eq(x.ttype.size, 0):
            words = sort_words(_rows(x, self.axis), self.largest)
            words = first_words(words, self.k, x.dtype.bits)
            shape = x.shape[: self.axis] + (self.k,) + x.shape[self.axis + 1 :]
            places = _lines(word_positions(words), self.axis, shape)
            return gather(x, places, self.axis, "within"), places
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
            yield S.case(cls(2, 1, largest), S.integers(3, 5, 2, dtype=i32))
            yield S.case(cls(0, 0, largest), S.normal(4))
            yield S.case(cls(2, 1, largest), S.normal(0, 3), dtype=f16)
            yield S.case(cls(1, 0, largest), S.normal())
            yield S.case(cls(2, 1, largest), S.integers(2, 100, lo=0, hi=9, dtype=i32))
        yield S.case(cls(5, 1, True), S.normal(1, 20), dtype=f64)


def _median(x: Node, axis: int, keepdims: bool, ignore_nan: bool) -> tuple[Node, Node]:
    if not x.rank:
        return x, full((), 0, i64)
    n = x.shape[axis]
    assert isinstance(n, int)
    if n >= SHORTEST and not x.dtype.is_bool:
        return _by_rank(x, axis, keepdims, _middle(x, axis, n, ignore_nan))
    ordered = sort(x, axis)
    values, places = item(ordered, 0), item(ordered, 1)
    middle = _middle(x, axis, n, ignore_nan)
    if isinstance(middle, Node):
        pair = gather(values, middle, axis), gather(places, middle, axis)
    else:
        pair = tuple(slice(v, axis, middle, middle + 1) for v in (values, places))
    shape = reduced_shape(x.shape, (axis,), keepdims)
    return reshape(pair[0], shape), reshape(pair[1], shape)


def _middle(x: Node, axis: int, n: int, ignore_nan: bool) -> Node | int:
    """How many elements come before the median, NaN last."""
    if not x.dtype.is_float:
        return (n - 1) // 2
    nans = sum(ew.cast(ew.isnan(x), i64), (axis,), True)
    if ignore_nan:
        return ew.maximum(ew.sar(ew.sub(n - 1, nans), 1), 0)
    return ew.where(ew.eq(nans, 0), (n - 1) // 2, ew.sub(n, nans))


def _by_rank(x: Node, axis: int, keepdims: bool, rank: Node | int) -> tuple[Node, Node]:
    """The elements, and their positions, that as many others of their lines come before."""
    rows = _rows(x, axis)
    one = (rows.shape[0], 1)
    if isinstance(rank, Node):
        rank = _rows(rank, axis)
    else:
        rank = full(one, rank, i64)
    at = ranked_positions(rows, rank)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    place = _lines(at, axis, shape)
    value = _lines(gather(rows, at, 1, "within"), axis, shape)
    kept = reduced_shape(x.shape, (axis,), keepdims)
    return reshape(value, kept), reshape(place, kept)


@operator
class Kth(Op):
    """The element, and its index, that `rank` others of its line come before, NaN last."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    rank: int
    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> TupleType:
        _check_size(self.name, self.axis, x)
        n = x.shape[self.axis] if x.rank else 1
        if not isinstance(n, int) or not 0 <= self.rank < n:
            raise Invalid(f"{self.name}: axis {self.axis} of {x!r} has no element {self.rank}")
        shape = reduced_shape(x.shape, (self.axis,), self.keepdims) if x.rank else ()
        return TupleType((TensorType(x.dtype, shape), TensorType(i64, shape)))

    def compose(self, x: Node) -> tuple[Node, Node]:
        if not x.rank:
            return x, full((), 0, i64)
        n = x.shape[self.axis]
        if isinstance(n, int) and n >= SHORTEST and not x.dtype.is_bool:
            return _by_rank(x, self.axis, self.keepdims, self.rank)
        ordered = sort(x, self.axis)
        shape = reduced_shape(x.shape, (self.axis,), self.keepdims)
        pair = (slice(item(ordered, k), self.axis, self.rank, self.rank + 1) for k in range(2))
        value, place = (reshape(v, shape) for v in pair)
        return value, place

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        places = np.argsort(x, self.axis, kind="stable")
        place = np.take(places, [self.rank], self.axis)
        value = np.take_along_axis(x, place, self.axis)
        if not self.keepdims:
            value, place = np.squeeze(value, self.axis), np.squeeze(place, self.axis)
        return value, place.astype(np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(2, 1, False), S.normal(4, 7))
        yield S.case(cls(70, 0, True), S.normal(90, 3), dtype=f64)
        yield S.case(cls(0, 1, False), S.integers(3, 80, lo=0, hi=5, dtype=i32))
        yield S.case(cls(63, 1, False), S.extremes(2, 70))
        yield S.case(cls(5, 0, False), S.integers(64, dtype=u8))
        yield S.case(cls(0, 0, False), S.normal())


def _median_type(name: str, axis: int, keepdims: bool, x: TensorType) -> TupleType:
    _check_size(name, axis, x)
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
    yield S.case(cls(0, False), np.full((4,), np.nan, np.float32))
    yield S.case(cls(1, True), S.integers(3, 8, dtype=i32))
    yield S.case(cls(0, False), S.integers(17, dtype=u8))
    yield S.case(cls(0, False), S.normal(1), dtype=f16)
    yield S.case(cls(1, False), S.normal(0, 3))
    yield S.case(cls(1, True), S.extremes(3, 70))
    yield S.case(cls(0, False), S.normal(65, 3), dtype=bf16)
    yield S.case(cls(1, False), S.integers(3, 80, lo=-3, hi=3, dtype=i8))
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


def kth(x: Node, rank: int, axis: int = -1, keepdims: bool = False) -> Node:
    """(values, indices) of the element that `rank` others come before."""
    return node(Kth(rank, axis_of("kth", axis, x.rank), keepdims), x)


def median(x: Node, axis: int = -1, keepdims: bool = False) -> Node:
    """(values, indices); of an even number the lower of the two in the middle."""
    return node(Median(axis_of("median", axis, x.rank), keepdims), x)


def nanmedian(x: Node, axis: int = -1, keepdims: bool = False) -> Node:
    """(values, indices) of the median of what is not NaN."""
    return node(Nanmedian(axis_of("nanmedian", axis, x.rank), keepdims), x)
