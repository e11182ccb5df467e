"""Reading and writing where data says: gather, take, advanced indexing and their scatters.

An index is normalised inside the definition: negative ones count from the end, and what is still
out of range is clamped, so that no data can make native code read or write elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import Shape, may_equal
from tilewright.ir.types import TensorType, bf16, f16, f64, i8, i32, i64
from tilewright.ops.samples import booleans, case, integers, normal
from tilewright.ops.shapes import (
    at,
    axis_of,
    broadcast_shapes,
    in_range,
    place_of_index,
    same_dtype,
)


def _want_index(what: str, t: TensorType) -> None:
    require(
        t.dtype in (i64, i32),
        f"{what}: an index is i64 or i32, not {t!r}",
        hint="cast it; a boolean mask becomes indices first",
    )


# What is known of indices into an axis of n elements. Indices outside of that are reported by
# ops/checks.py; which element is read for them does not matter, as long as it is inside.
#   any      nothing
#   wrapped  they are in [-n, n)
#   within   they are in [0, n)
#   sorted   the same, and equal ones mostly follow each other: results do not depend on that
#   proved   they are in [0, n) whatever the data is, so that none has to be kept inside
KNOWN = ("any", "wrapped", "within", "sorted", "proved")


def _want_known(what: str, known: str) -> None:
    require(known in KNOWN, f"{what}: known={known!r} is not one of {', '.join(KNOWN)}")


def _domain(shape: Shape, x: Tensor, axes: Sequence[int]) -> Shape:
    """What to write: nothing where an axis of x turns out to have no elements."""
    some: Dim = 1
    for a in axes:
        some = some * D.minimum(x.shape[a], 1)
    return (shape[0] * some, *shape[1:]) if shape else shape


def _numpy_index(idx: np.ndarray, n: int) -> np.ndarray:
    idx = idx.astype(np.int64)
    return np.clip(np.where(idx < 0, idx + n, idx), 0, max(n - 1, 0))


def _want_nonempty(what: str, x: TensorType, axis: int, idx: TensorType) -> None:
    empty = D.known_eq(x.shape[axis], 0) and D.known_lt(0, idx.size)
    require(not empty, f"{what}: axis {axis} of {x!r} is empty, there is nothing to index")


def _fits_within(idx: TensorType, x: TensorType, but: int) -> bool:
    """Is idx of x's rank and, outside one axis, nowhere longer?"""
    return idx.rank == x.rank and not any(
        D.known_lt(n, m)
        for k, (m, n) in enumerate(zip(idx.shape, x.shape, strict=True))
        if k != but
    )


@operator
class Gather(Op):
    """out[i] = x[i with i[axis] replaced by idx[i]]."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    axis: int
    known: str = "any"

    def infer(self, x: TensorType, idx: TensorType) -> TensorType:
        _want_index("gather", idx)
        _want_known("gather", self.known)
        require(0 <= self.axis < x.rank, f"gather: {x!r} has no axis {self.axis}")
        require(
            _fits_within(idx, x, self.axis),
            f"gather: the index {idx!r} does not fit in {x!r} outside axis {self.axis}",
        )
        _want_nonempty("gather", x, self.axis, idx)
        return TensorType(x.dtype, idx.shape)

    def compute(self, x: Tensor, idx: Tensor) -> Tensor:
        k = self.axis

        def body(*i: Dim) -> Value:
            return x[(*i[:k], in_range(idx[i], x.shape[k], self.known), *i[k + 1 :])]

        return E.compute(idx.shape, body, x.dtype)

    def reference(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        out = np.empty(idx.shape, x.dtype)
        where = _numpy_index(idx, x.shape[self.axis])
        for i in np.ndindex(*idx.shape):
            out[i] = x[i[: self.axis] + (where[i],) + i[self.axis + 1 :]]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = normal(4, 5)
        yield case(cls(0), x, integers(3, 5, lo=0, hi=4))
        yield case(cls(1), x, integers(2, 9, lo=-5, hi=5, dtype=i32), dtype=f64)
        yield case(cls(1), integers(4, 5, dtype=i8), integers(4, 2, lo=0, hi=5))
        yield case(cls(1), x, integers(4, 3, lo=-99, hi=99))
        yield case(cls(0), x, integers(0, 5))
        yield case(cls(2), normal(2, 3, 4), integers(2, 1, 7, lo=0, hi=4), dtype=bf16)
        yield case(cls(0), booleans(6), integers(2, lo=0, hi=6))
        yield case(cls(1, "wrapped"), x, integers(4, 9, lo=-5, hi=5))
        yield case(cls(1, "within"), x, integers(4, 9, lo=0, hi=5, dtype=i32))


def gather(x: Node, idx: Node, axis: int, known: str = "any") -> Node:
    return node(Gather(axis_of("gather", axis, x.rank), known), x, idx)


@operator
class Take(Op):
    """Whole slices of x along an axis, at every element of idx: index_select, embedding."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    axis: int
    known: str = "any"

    def infer(self, x: TensorType, idx: TensorType) -> TensorType:
        _want_index("take", idx)
        _want_known("take", self.known)
        require(0 <= self.axis < x.rank, f"take: {x!r} has no axis {self.axis}")
        _want_nonempty("take", x, self.axis, idx)
        return TensorType(x.dtype, self._shape(x.shape, idx.shape))

    def _shape(self, x: Shape, idx: Shape) -> Shape:
        return x[: self.axis] + idx + x[self.axis + 1 :]

    def compute(self, x: Tensor, idx: Tensor) -> Tensor:
        k, n = self.axis, idx.rank

        def body(*i: Dim) -> Value:
            row = in_range(idx[i[k : k + n]], x.shape[k], self.known)
            return x[(*i[:k], row, *i[k + n :])]

        return E.compute(self._shape(x.shape, idx.shape), body, x.dtype)

    def reference(self, x: np.ndarray, idx: np.ndarray) -> np.ndarray:
        if idx.size == 0:
            return np.zeros(x.shape[: self.axis] + idx.shape + x.shape[self.axis + 1 :], x.dtype)
        return np.take(x, _numpy_index(idx, x.shape[self.axis]), axis=self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(0), normal(7, 3), integers(4, lo=0, hi=7))
        yield case(cls(0), normal(7, 3), integers(2, 5, lo=-7, hi=7, dtype=i32), dtype=f16)
        yield case(cls(1), normal(2, 6, 3), integers(4, lo=-50, hi=50), dtype=f64)
        yield case(cls(1), integers(3, 4), np.array(2, dtype=np.int64))
        yield case(cls(0), normal(7, 3), integers(0))
        yield case(cls(0), normal(0, 3), integers(0))
        yield case(cls(0, "within"), normal(7, 3), integers(4, lo=0, hi=7))
        yield case(cls(0, "within"), normal(0, 3), integers(0))


def take(x: Node, idx: Node, axis: int, known: str = "any") -> Node:
    return node(Take(axis_of("take", axis, x.rank), known), x, idx)


# ---- advanced indexing


def _check_advanced(
    what: str, axes: tuple[int, ...], x: TensorType, idx: Sequence[TensorType]
) -> Shape:
    """The shape of x[idx at axes]."""
    require(axes, f"{what}: no axis is indexed")
    require(
        len(axes) == len(idx), f"{what}: {len(axes)} axes are indexed by {len(idx)} index tensors"
    )
    ordered = list(axes) == sorted(set(axes)) and axes[0] >= 0 and axes[-1] < x.rank
    require(ordered, f"{what}: axes {axes} are not ascending axes of {x!r}")
    for t in idx:
        _want_index(what, t)
    points = broadcast_shapes(*(t.shape for t in idx), what=what)
    for a in axes:
        _want_nonempty(what, x, a, TensorType(i64, points))
    p = place_of_index(axes)
    rest = tuple(d for k, d in enumerate(x.shape) if k not in axes)
    return rest[:p] + points + rest[p:]


def _advanced(
    axes: tuple[int, ...], x: Tensor, idx: Sequence[Tensor], i: Sequence[Dim], known: str
) -> tuple[Dim, ...]:
    """Where in x element i of the indexed result lies."""
    n = max(t.rank for t in idx)
    p = place_of_index(axes)
    point, rest = i[p : p + n], iter((*i[:p], *i[p + n :]))
    rows = {a: in_range(at(t, point), x.shape[a], known) for a, t in zip(axes, idx, strict=True)}
    return tuple(rows[k] if k in rows else next(rest) for k in range(x.rank))


def _numpy_advanced(axes: Sequence[int], x: np.ndarray, idx: Sequence[np.ndarray]) -> np.ndarray:
    """The position in the flat x of every element of the indexed result, by plain loops."""
    idx = np.broadcast_arrays(*(_numpy_index(t, x.shape[a]) for a, t in zip(axes, idx)))
    points = idx[0].shape
    rest = [k for k in range(x.ndim) if k not in axes]
    p = axes[0] if list(axes) == list(range(axes[0], axes[0] + len(axes))) else 0
    outer = tuple(x.shape[k] for k in rest)
    out = np.zeros(outer[:p] + points + outer[p:], dtype=np.int64)
    for i in np.ndindex(*outer):
        for j in np.ndindex(*points):
            full = dict(zip(rest, i, strict=True)) | {a: int(t[j]) for a, t in zip(axes, idx)}
            where = tuple(full[k] for k in range(x.ndim))
            out[i[:p] + j + i[p:]] = np.ravel_multi_index(where, x.shape)
    return out


@operator
class Index(Op):
    """x indexed at `axes` (ascending) by index tensors that broadcast together."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    axes: tuple[int, ...]
    known: str = "any"

    def infer(self, x: TensorType, *idx: TensorType) -> TensorType:
        _want_known("index", self.known)
        return TensorType(x.dtype, _check_advanced("index", self.axes, x, idx))

    def compute(self, x: Tensor, *idx: Tensor) -> Tensor:
        types = [TensorType(t.dtype, t.shape) for t in idx]
        shape = _check_advanced("index", self.axes, TensorType(x.dtype, x.shape), types)
        where = lambda *i: _advanced(self.axes, x, idx, i, self.known)  # noqa: E731
        return E.compute(shape, lambda *i: x[where(*i)], x.dtype)

    def reference(self, x: np.ndarray, *idx: np.ndarray) -> np.ndarray:
        positions = _numpy_advanced(self.axes, x, idx)
        return x.reshape(-1)[positions] if positions.size else np.zeros(positions.shape, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = normal(3, 4, 5)
        yield case(cls((0,)), x, integers(7, lo=-3, hi=3))
        yield case(cls((0, 1)), x, integers(2, 1, lo=0, hi=3), integers(6, lo=0, hi=4))
        yield case(cls((1, 2)), x, integers(2, lo=0, hi=4), integers(3, 2, lo=0, hi=5), dtype=f64)
        yield case(cls((0, 2)), x, integers(6, lo=0, hi=3, dtype=i32), integers(6, lo=-5, hi=5))
        yield case(cls((0, 1, 2)), x, *(integers(4, lo=-9, hi=9, seed=k) for k in range(3)))
        yield case(cls((1,)), integers(2, 3), np.array(-1, dtype=np.int64))
        yield case(cls((1,)), x, integers(0, 2))
        yield case(cls((0,)), normal(0, 3), integers(0))
        yield case(cls((0,), "wrapped"), x, integers(7, lo=-3, hi=3))


def _ordered(
    what: str, x: Node, idx: Sequence[Node], axes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[Node, ...]]:
    """Axes ascending, each with its index tensor."""
    require(len(axes) == len(idx), f"{what}: {len(axes)} axes are indexed by {len(idx)} tensors")
    own = [axis_of(what, a, x.rank) for a in axes]
    order = sorted(range(len(own)), key=own.__getitem__)
    return tuple(own[k] for k in order), tuple(idx[k] for k in order)


def index(x: Node, idx: Sequence[Node], axes: Sequence[int], known: str = "any") -> Node:
    """Adjacent indexed axes are replaced in place; otherwise the index's dims go in front."""
    axes, idx = _ordered("index", x, idx, axes)
    return node(Index(axes, known), x, *idx)


@operator
class IndexPut(Op):
    """x with `values` (broadcast) stored or added at the indexed elements, in row-major order."""

    axes: tuple[int, ...]
    accumulate: bool = False
    known: str = "any"

    def infer(self, x: TensorType, values: TensorType, *idx: TensorType) -> TensorType:
        _want_known("index_put", self.known)
        shape = _check_advanced("index_put", self.axes, x, idx)
        same_dtype("index_put", x, values)
        fits = broadcast_shapes(shape, values.shape, what="index_put")
        require(
            len(fits) == len(shape) and all(map(may_equal, fits, shape)),
            f"index_put: values {values!r} do not broadcast to the indexed shape {list(shape)}",
        )
        return x

    def program(self, x: Tensor, values: Tensor, *idx: Tensor) -> Tensor:
        types = [TensorType(t.dtype, t.shape) for t in idx]
        shape = _check_advanced("index_put", self.axes, TensorType(x.dtype, x.shape), types)
        return E.update(
            x,
            _domain(shape, x, self.axes),
            lambda *i: _advanced(self.axes, x, idx, i, self.known),
            lambda *i: at(values, i),
            "add" if self.accumulate else None,
        )

    def reference(self, x: np.ndarray, values: np.ndarray, *idx: np.ndarray) -> np.ndarray:
        out = np.array(x)
        flat = out.reshape(-1)
        positions = _numpy_advanced(self.axes, x, idx)
        source = np.broadcast_to(values, positions.shape)
        for i in np.ndindex(*positions.shape):
            p = positions[i]
            flat[p] = flat[p] + source[i] if self.accumulate else source[i]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = normal(3, 4, 5)
        rows = integers(6, lo=-3, hi=3)
        yield case(cls((0,), True), x, normal(6, 4, 5, seed=1), rows)
        yield case(cls((0,), False), x, normal(6, 4, 5, seed=1), rows, dtype=f64)
        yield case(cls((0, 1), True), x, normal(5, seed=1), rows, integers(6, lo=0, hi=4))
        yield case(cls((0, 2), False), x, normal(6, 1, seed=1), rows, integers(6, lo=0, hi=5))
        yield case(cls((0,), True), integers(4), integers(9, seed=1), integers(9, lo=0, hi=4))
        few = integers(9, lo=0, hi=4)
        yield case(cls((0,), True), normal(4), normal(9, seed=1), few, dtype=f16)
        yield case(cls((1,), False), x, normal(3, 0, 5), integers(0))
        yield case(cls((0,), False), booleans(5), booleans(2), integers(2, lo=0, hi=5, dtype=i32))
        yield case(cls((0,), False), normal(5), np.array(1.5, np.float32), integers(2, lo=0, hi=5))
        yield case(cls((0,), True, "wrapped"), x, normal(6, 4, 5, seed=1), rows)


def index_put(
    x: Node,
    values: Node,
    idx: Sequence[Node],
    axes: Sequence[int],
    accumulate: bool = False,
    known: str = "any",
) -> Node:
    axes, idx = _ordered("index_put", x, idx, axes)
    return node(IndexPut(axes, accumulate, known), x, values, *idx)


# ---- scatter

REDUCTIONS: tuple[str | None, ...] = (None, "add", "mul", "max", "min")


@operator
class Scatter(Op):
    """x, then in order of i: x[i with i[axis] := idx[i]] takes src[i] or is combined with it."""

    axis: int
    reduce: str | None = None
    known: str = "any"

    @property
    def runs(self) -> bool:
        return self.known == "sorted"

    def infer(self, x: TensorType, idx: TensorType, src: TensorType) -> TensorType:
        _want_index("scatter", idx)
        _want_known("scatter", self.known)
        same_dtype("scatter", x, src)
        require(0 <= self.axis < x.rank, f"scatter: {x!r} has no axis {self.axis}")
        require(
            self.reduce in REDUCTIONS,
            f"scatter: reduce={self.reduce!r} is not one of {', '.join(map(repr, REDUCTIONS))}",
        )
        require(
            _fits_within(idx, x, self.axis) and _fits_within(idx, src, -1),
            f"scatter: the index {idx!r} does not fit in {x!r} and the source {src!r}",
        )
        _want_nonempty("scatter", x, self.axis, idx)
        return x

    def program(self, x: Tensor, idx: Tensor, src: Tensor) -> Tensor:
        k = self.axis

        def where(*i: Dim) -> tuple[Dim, ...]:
            return i[:k] + (in_range(idx[i], x.shape[k], self.known),) + i[k + 1 :]

        domain = _domain(idx.shape, x, (k,))
        return E.update(x, domain, where, lambda *i: src[i], self.reduce)

    def reference(self, x: np.ndarray, idx: np.ndarray, src: np.ndarray) -> np.ndarray:
        out = np.array(x)
        rows = _numpy_index(idx, x.shape[self.axis])
        fold = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
        for i in np.ndindex(*idx.shape):
            p = i[: self.axis] + (rows[i],) + i[self.axis + 1 :]
            out[p] = src[i] if self.reduce is None else fold[self.reduce](out[p], src[i])
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, src = normal(4, 5), normal(6, 5, seed=1)
        idx = integers(6, 5, lo=0, hi=4)
        for how in REDUCTIONS:
            yield case(cls(0, how), x, idx, src)
        yield case(cls(1, "add"), x, integers(3, 4, lo=-5, hi=5, dtype=i32), src, dtype=f64)
        far = integers(4, 2, lo=-40, hi=40)
        yield case(cls(1, None), integers(4, 5), far, integers(4, 3, seed=1))
        yield case(cls(0, "add"), x, idx, src, dtype=bf16)
        yield case(cls(0, "max"), x, integers(0, 5), src)
        yield case(cls(0, None), booleans(6), integers(3, lo=0, hi=6), booleans(3))
        yield case(cls(0, "add", "within"), x, idx, src)
        yield case(cls(0, "max", "sorted"), x, idx, src)


def scatter(
    x: Node,
    idx: Node,
    src: Node,
    axis: int,
    reduce: str | None = None,
    known: str = "any",
) -> Node:
    return node(Scatter(axis_of("scatter", axis, x.rank), reduce, known), x, idx, src)
