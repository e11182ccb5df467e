"""Cumulative operators: each element combines all before it along one axis, as an ordered scan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import Invalid, require
from tilewright.ir import dim as D
from tilewright.ir import expr
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value, fn, select
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import (
    DType,
    TensorType,
    TupleType,
    b1,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i32,
    i64,
    u8,
    u32,
)
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops import views
from tilewright.ops.shapes import axis_of, want_kind


@dataclass(frozen=True)
class _Cumulative(Op):
    """out[k] = step(out[k-1], x[k]) along `axis`, carried at the precision of sums. `doubled`: of
    float32 at that of float64, as errors of all steps before an element add up in it."""

    doubled: ClassVar[bool] = False

    kinds: ClassVar[str] = "fiu"
    axis: int

    @staticmethod
    def step(before: Value, x: Value) -> Value:
        raise NotImplementedError

    def carried(self, dtype: DType) -> DType:
        """What is carried from element to element."""
        return f64 if self.doubled and dtype is f32 else dtype.accumulator

    def infer(self, x: TensorType) -> TensorType:
        want_kind(self.name, x, self.kinds)
        _check_axis(self.name, self.axis, x)
        return x

    def program(self, x: Tensor) -> Tensor:
        work = self.carried(x.dtype)
        wide = _scan(x, self.axis, lambda v: expr.cast(v, work), self.step)
        if work is x.dtype:
            return wide
        return expr.compute(x.shape, lambda *i: wide[i], x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(1), S.normal(4, 7))
        yield S.case(cls(0), S.normal(5, 3), dtype=f64)
        yield S.case(cls(1), S.normal(2, 33, 3), dtype=bf16)
        yield S.case(cls(0), S.normal(20), dtype=f16)
        yield S.case(cls(0), S.normal(0, 3))
        yield S.case(cls(1), S.normal(0, 3))
        yield S.case(cls(0), S.normal(1))
        yield S.case(cls(0), S.normal())
        yield S.case(cls(1), S.extremes(14, 1))
        for d in (i64, i32, i8, u8):
            if d.kind in cls.kinds:
                yield S.case(cls(1), S.integers(3, 9, dtype=d))


def _check_axis(name: str, axis: int, x: TensorType) -> None:
    if not 0 <= axis < max(x.rank, 1):
        raise Invalid(f"{name}: axis {axis} is not an axis of {x!r}")


def _along_rows(x: Tensor, axis: int) -> bool:
    """Elements of a row are lanes, which are combined with each other in several steps; those of
    columns are combined once."""
    return x.rank > 1 and axis == x.rank - 1


def _extremes_so_far(x: Tensor, axis: int, combine: str) -> Tensor:
    """A NaN stays. Along rows of floats the extremes are those of whole numbers in the same order:
    of floats every step also has to look for NaN."""
    if not _along_rows(x, axis) or not x.dtype.is_float or x.dtype.bits > 32:
        return _scan(x, axis, lambda v: v, lambda before, v: fn(combine, before, v))
    top, every = expr.const(1 << 31, u32), expr.const(2**32 - 1, u32)
    turned = expr.const(0 if combine == "max" else 2**32 - 1, u32)

    def key(v: Value) -> Value:
        wide = expr.cast(v, f32)
        bits = fn("bits_of_f32", wide)
        ascending = bits ^ select((bits & top).ne(0), every, top)
        return select(wide.ne(wide), every, ascending ^ turned)

    def number(k: Value) -> Value:
        ascending = k ^ turned
        bits = ascending ^ select((ascending & top).ne(0), top, every)
        return expr.cast(fn("f32_of_bits", bits), x.dtype)

    keys = _scan(x, axis, key, lambda before, k: fn("max", before, k))
    return expr.compute(x.shape, lambda *i: number(keys[i]), x.dtype)


def _scan(x: Tensor, axis: int, lift: Any, step: Any) -> Tensor:
    """A scan along `axis` that starts with the first element itself; a 0-d tensor is its own."""
    if not x.rank:
        return expr.compute((), lambda: lift(x[()]))

    def body(own: Tensor, *i: Dim) -> Value:
        before = i[:axis] + (i[axis] - 1,) + i[axis + 1 :]
        v = lift(x[i])
        return select(expr.index(i[axis]) > 0, step(own[before], v), v)

    dtype = lift(x[(0,) * x.rank]).dtype
    return expr.scan(x.shape, axis, body, dtype)


@operator
class Cumsum(_Cumulative):
    linear: ClassVar[tuple[int, ...]] = (0,)
    doubled: ClassVar[bool] = True

    @staticmethod
    def step(before: Value, x: Value) -> Value:
        return before + x

    def reference(self, x: np.ndarray) -> np.ndarray:
        carried = np.float64 if x.dtype == np.float32 else x.dtype
        return np.cumsum(x, axis=self.axis, dtype=carried).astype(x.dtype).reshape(x.shape)


@operator
class Cumprod(_Cumulative):
    doubled: ClassVar[bool] = True

    @staticmethod
    def step(before: Value, x: Value) -> Value:
        return before * x

    def reference(self, x: np.ndarray) -> np.ndarray:
        carried = np.float64 if x.dtype == np.float32 else x.dtype
        return np.cumprod(x, axis=self.axis, dtype=carried).astype(x.dtype).reshape(x.shape)


@operator
class RunningMax(_Cumulative):
    """The largest element so far; a NaN stays."""

    @staticmethod
    def step(before: Value, x: Value) -> Value:
        return fn("max", before, x)

    def program(self, x: Tensor) -> Tensor:
        return _extremes_so_far(x, self.axis, "max")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.maximum.accumulate(x, axis=self.axis) if x.ndim else x


@operator
class LinearScan(Op):
    """out[k] = out[k-1] * factor[k] + x[k] along an axis."""

    axis: int

    def infer(self, factor: TensorType, x: TensorType) -> TensorType:
        want_kind(self.name, x, "f")
        _check_axis(self.name, self.axis, x)
        require(factor == x, f"{self.name}: factors {factor!r} for elements {x!r}")
        return x

    def program(self, factor: Tensor, x: Tensor) -> Tensor:
        work, axis = x.dtype.accumulator, self.axis
        if not x.rank:
            return expr.compute((), lambda: x[()])

        def body(own: Tensor, *i: Dim) -> Value:
            before, v = i[:axis] + (i[axis] - 1,) + i[axis + 1 :], expr.cast(x[i], work)
            carried = own[before] * expr.cast(factor[i], work) + v
            return select(expr.index(i[axis]) > 0, carried, v)

        wide = expr.scan(x.shape, axis, body, work)
        if work is x.dtype:
            return wide
        return expr.compute(x.shape, lambda *i: wide[i], x.dtype)

    def reference(self, factor: np.ndarray, x: np.ndarray) -> np.ndarray:
        out = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
        for k in range(1, x.shape[self.axis] if x.ndim else 0):
            at = (slice(None),) * self.axis
            out[*at, k] += out[*at, k - 1] * factor[*at, k]
        return out.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for axis, shape in ((1, (4, 7)), (0, (5, 3)), (1, (2, 33, 3)), (0, (0, 3)), (0, (1,))):
            yield S.case(cls(axis), S.uniform(*shape), S.normal(*shape))
        yield S.case(cls(0), S.uniform(20, dtype=f64), S.normal(20, dtype=f64), dtype=f64)
        yield S.case(cls(1), S.uniform(2, 9), S.normal(2, 9), dtype=bf16)


@operator
class Logcumsumexp(Op):
    """log(cumsum(exp(x))), relative to the largest element so far: nothing overflows. Exponentials
    and logarithms are maps, and what is carried takes one product and a sum."""

    axis: int

    def infer(self, x: TensorType) -> TensorType:
        want_kind(self.name, x, "f")
        _check_axis(self.name, self.axis, x)
        return x

    def compose(self, x: Node) -> Node:
        if not x.rank:
            return x
        work = f64 if x.dtype is f32 else x.dtype.accumulator
        wide, most = ew.cast(x, work), ew.cast(running_max(x, self.axis), work)
        before = views.concat(
            [
                views.slice(most, self.axis, 0, D.minimum(x.shape[self.axis], 1)),
                views.slice(most, self.axis, 0, D.maximum(x.shape[self.axis] - 1, 0)),
            ],
            self.axis,
        )
        # Where both are infinite their difference would be NaN.
        relative = lambda a, b: ew.where(ew.eq(a, b), 1.0, ew.exp(ew.sub(a, b)))  # noqa: E731
        total = linear_scan(relative(before, most), relative(wide, most), self.axis)
        return ew.cast(ew.add(most, ew.log(total)), x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64) if x.dtype == np.float32 else x
        with np.errstate(all="ignore"):
            return np.logaddexp.accumulate(wide, axis=self.axis).astype(x.dtype) if x.ndim else x

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(1), S.normal(4, 7))
        yield S.case(cls(0), S.normal(5, 3), dtype=f64)
        yield S.case(cls(1), S.normal(2, 33, 3), dtype=bf16)
        yield S.case(cls(0), S.normal(20), dtype=f16)
        yield S.case(cls(0), S.normal(0, 3))
        yield S.case(cls(1), S.normal(0, 3))
        yield S.case(cls(0), S.normal())
        yield S.case(cls(1), S.extremes(14, 1))
        yield S.case(cls(1), S.uniform(3, 9, lo=-500, hi=500))
        yield S.case(cls(0), np.array([-np.inf, -np.inf, 1, np.inf, 2, np.nan, 3], np.float32))


@dataclass(frozen=True)
class _Extreme(Op):
    """Running extreme and where it is; of equal ones the last. A NaN, once seen, stays."""

    positions: ClassVar[tuple[int, ...]] = (1,)
    axis: int

    combine: ClassVar[str]

    def infer(self, x: TensorType) -> TupleType:
        _check_axis(self.name, self.axis, x)
        return TupleType((x, TensorType(i64, x.shape)))

    def program(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = _extremes_so_far(x, self.axis, self.combine)

        # An element is the extreme so far where it equals it, so that the last such place is a
        # running maximum of places. Along rows places of 32 bits are twice as many lanes.
        few = _along_rows(x, self.axis) and D.bounds(x.shape[self.axis])[1] < 2**31
        work = i32 if few else i64

        def here(*i: Dim) -> Value:
            hit = x[i].eq(values[i]) | x[i].ne(x[i])
            place = expr.cast(expr.index(i[self.axis]) if i else expr.const(0, i64), work)
            return select(hit, place, expr.const(0, work))

        places = expr.compute(x.shape, here, work)
        last = _scan(places, self.axis, lambda v: v, lambda before, v: fn("max", before, v))
        if work is i64:
            return values, last
        return values, expr.compute(x.shape, lambda *i: expr.cast(last[i], i64), i64)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not x.ndim:
            return x, np.zeros((), np.int64)
        rows = np.moveaxis(x, self.axis, -1)
        values, places = np.array(rows), np.zeros(rows.shape, np.int64)
        for at in np.ndindex(rows.shape[:-1]):
            best, where = (rows[at][0], 0) if rows.shape[-1] else (0, 0)
            for k, v in enumerate(rows[at]):
                beats = v >= best if self.combine == "max" else v <= best
                if np.isnan(v) or beats:
                    best, where = v, k
                values[at][k], places[at][k] = best, where
        return np.moveaxis(values, -1, self.axis), np.moveaxis(places, -1, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(1), S.normal(4, 7))
        yield S.case(cls(0), S.normal(5, 3, 2), dtype=bf16)
        yield S.case(cls(1), S.integers(3, 20, lo=0, hi=4))
        yield S.case(cls(0), S.extremes(20))
        yield S.case(cls(1), S.extremes(2, 13, dtype=f64), dtype=f64)
        yield S.case(cls(1), S.extremes(3, 40))
        yield S.case(cls(1), S.normal(2, 70), dtype=f16)
        yield S.case(cls(0), S.normal(0, 2), dtype=f16)
        yield S.case(cls(1), S.normal(0, 2))
        yield S.case(cls(0), S.integers(9, dtype=u8))
        yield S.case(cls(0), S.integers(9, lo=0, hi=2, dtype=b1))
        yield S.case(cls(0), S.normal())


@operator
class Cummax(_Extreme):
    combine: ClassVar[str] = "max"


@operator
class Cummin(_Extreme):
    combine: ClassVar[str] = "min"


def cumsum(x: Node, axis: int) -> Node:
    return node(Cumsum(axis_of("cumsum", axis, x.rank)), x)


def cumprod(x: Node, axis: int) -> Node:
    return node(Cumprod(axis_of("cumprod", axis, x.rank)), x)


def logcumsumexp(x: Node, axis: int) -> Node:
    return node(Logcumsumexp(axis_of("logcumsumexp", axis, x.rank)), x)


def running_max(x: Node, axis: int) -> Node:
    """The largest element so far."""
    return node(RunningMax(axis_of("running_max", axis, x.rank)), x)


def linear_scan(factor: Node, x: Node, axis: int) -> Node:
    """Along an axis, what was there before times a factor, plus x."""
    return node(LinearScan(axis_of("linear_scan", axis, x.rank)), factor, x)


def cummax(x: Node, axis: int) -> Node:
    """(running maximum, its index)"""
    return node(Cummax(axis_of("cummax", axis, x.rank)), x)


def cummin(x: Node, axis: int) -> Node:
    """(running minimum, its index)"""
    return node(Cummin(axis_of("cummin", axis, x.rank)), x)
