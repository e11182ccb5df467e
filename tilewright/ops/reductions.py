"""Reductions over axes: primitive ones (one `reduce` each) and those composed of them.

16-bit floats are summed in float32: the builders put the casts around `sum` and `prod`, where they
fuse with the neighbours. A reduction over nothing gives its identity: 0, 1, -inf, inf, False, True.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, b1, bf16, f16, f32, f64, i8, i32, i64, u8
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import iota, number
from tilewright.ops.shapes import axes_of, axis_of, count, reduced_shape, want_kind
from tilewright.ops.views import reshape, slice

Axes = Sequence[int] | int | None


def _check_axes(name: str, axes: Sequence[int], x: TensorType) -> None:
    if list(axes) != sorted(set(axes) & set(range(x.rank))):
        raise Invalid(f"{name}: axes {tuple(axes)} are not sorted axes of {x!r}")


@dataclass(frozen=True)
class Reduction(Op):
    """What every reduction over `axes` shares."""

    kinds: ClassVar[str] = "fiub"
    to_bool: ClassVar[bool] = False
    axes: tuple[int, ...]
    keepdims: bool

    def infer(self, x: TensorType) -> TensorType:
        want_kind(self.name, x, self.kinds)
        _check_axes(self.name, self.axes, x)
        shape = reduced_shape(x.shape, self.axes, self.keepdims)
        return TensorType(b1 if self.to_bool else x.dtype, shape)

    @classmethod
    def _make(cls, *attributes: Any) -> Op:
        return cls(*attributes)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for axes, shape in (((1,), (4, 7)), ((0,), (5, 3)), ((0, 2), (3, 4, 5)), ((0, 1), (1, 1))):
            yield S.case(cls._make(axes, False), S.normal(*shape))
            yield S.case(cls._make(axes, True), S.normal(*shape), dtype=f64)
        yield S.case(cls._make((), False), S.normal())
        yield S.case(cls._make((), True), S.normal(3))
        yield S.case(cls._make((1,), False), S.normal(0, 4))
        yield S.case(cls._make((0,), False), S.normal(300))
        yield S.case(cls._make((1,), False), S.normal(2, 33), dtype=bf16)
        yield S.case(cls._make((0,), True), S.normal(33, 2), dtype=f16)
        yield S.case(cls._make((1,), False), S.extremes(14, 1))
        for d in (i64, i32, i8, u8, b1):
            if d.kind in cls.kinds:
                yield S.case(cls._make((1,), False), S.integers(3, 5, dtype=d))
                yield S.case(cls._make((0, 1), True), S.integers(3, 5, dtype=d))


@dataclass(frozen=True)
class _Primitive(Reduction):
    """out[i] = reduce(combine, r) element(x[i, r])."""

    combine: ClassVar[str]
    fold: ClassVar[Callable[..., Any]]

    def compute(self, x: Tensor) -> Tensor:
        dtype = b1 if self.to_bool else x.dtype
        work = dtype.accumulator if self.combine in ("add", "mul") else dtype
        shape = reduced_shape(x.shape, self.axes, self.keepdims)
        extents = [x.shape[a] for a in self.axes]

        def element(outer: tuple[Dim, ...], inner: tuple[Dim, ...]) -> Value:
            rest, along = iter(outer), iter(inner)
            index: list[Dim] = []
            for k in range(x.rank):
                if k in self.axes:
                    index.append(next(along))
                    if self.keepdims:
                        next(rest)
                else:
                    index.append(next(rest))
            return expr.cast(x[tuple(index)], work)

        def body(*outer: Dim) -> Value:
            if not extents:
                return element(outer, ())
            return expr.reduce(self.combine, extents, lambda *inner: element(outer, inner))

        return expr.compute(shape, body, dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(type(self).fold(x, axis=self.axes, keepdims=self.keepdims))


def _fold(f: Callable[..., Any]) -> Any:
    return staticmethod(f)


def _bounded(f: Callable[..., Any], end: str) -> Callable[..., Any]:
    """np.max and np.min with a value for empty axes."""

    def fold(x: np.ndarray, axis: tuple[int, ...], keepdims: bool) -> Any:
        known = {np.dtype(d.numpy): d for d in (f64, f32, f16, i64, i32, i8, u8, b1)}
        return f(x, axis=axis, keepdims=keepdims, initial=getattr(known[x.dtype], end))

    return fold


@operator
class Sum(_Primitive):
    combine: ClassVar[str] = "add"
    kinds: ClassVar[str] = "fiu"
    linear: ClassVar[tuple[int, ...]] = (0,)
    fold: ClassVar[Callable[..., Any]] = _fold(
        lambda x, **kw: np.sum(x, dtype=x.dtype, **kw)  # numpy would widen small integers
    )


@operator
class Prod(_Primitive):
    combine: ClassVar[str] = "mul"
    kinds: ClassVar[str] = "fiu"
    fold: ClassVar[Callable[..., Any]] = _fold(lambda x, **kw: np.prod(x, dtype=x.dtype, **kw))


@operator
class Amax(_Primitive):
    """The largest; NaN wins."""

    combine: ClassVar[str] = "max"
    fold: ClassVar[Callable[..., Any]] = _fold(_bounded(np.max, "lowest"))


@operator
class Amin(_Primitive):
    """The smallest; NaN wins."""

    combine: ClassVar[str] = "min"
    fold: ClassVar[Callable[..., Any]] = _fold(_bounded(np.min, "highest"))


@operator
class AnyOf(_Primitive):
    name: ClassVar[str] = "any"
    combine: ClassVar[str] = "or"
    to_bool: ClassVar[bool] = True
    fold: ClassVar[Callable[..., Any]] = _fold(np.any)


@operator
class AllOf(_Primitive):
    name: ClassVar[str] = "all"
    combine: ClassVar[str] = "and"
    to_bool: ClassVar[bool] = True
    fold: ClassVar[Callable[..., Any]] = _fold(np.all)


# ---- compositions


@operator
class Mean(Reduction):
    """The sum over the number of elements."""

    kinds: ClassVar[str] = "f"
    linear: ClassVar[tuple[int, ...]] = (0,)

    def compose(self, x: Node) -> Node:
        wide = ew.cast(x, x.dtype.accumulator)
        total = sum(wide, self.axes, self.keepdims)
        mean = ew.div(total, number(count(x.shape, self.axes), wide.dtype))
        return ew.cast(mean, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.mean(x, axis=self.axes, keepdims=self.keepdims))


def _first_element(x: Node, axes: Sequence[int]) -> Node | None:
    """The first one along some axes, which stay; None where there may be none."""
    if not D.known_le(1, count(x.shape, axes)):
        return None
    for k in axes:
        x = slice(x, k, 0, 1)
    return x


@operator
class Var(Reduction):
    """Mean squared distance from the mean, over count - correction.

    Distances are from the first element, before they are from the mean: where all elements are
    large and lie close together, the mean of these would be rounded by more than they differ.
    """

    kinds: ClassVar[str] = "f"
    correction: float = 1.0

    def compose(self, x: Node) -> Node:
        wide = ew.cast(x, x.dtype.accumulator)
        first = _first_element(wide, self.axes)
        if first is not None:
            wide = ew.sub(wide, first)
        away = ew.square(ew.sub(wide, mean(wide, self.axes, True)))
        total = sum(away, self.axes, self.keepdims)
        n = count(x.shape, self.axes)
        if isinstance(n, int):
            free = number(max(n - self.correction, 0.0), wide.dtype)
        else:
            free = ew.maximum(ew.sub(number(n, wide.dtype), self.correction), 0.0)
        return ew.cast(ew.div(total, free), x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.var(x, axis=self.axes, keepdims=self.keepdims, ddof=self.correction))

    @classmethod
    def _make(cls, *attributes: Any) -> Op:
        axes, keepdims = attributes
        return cls(axes, keepdims, correction=1.0 if axes else 0.0)


@operator
class Norm(Reduction):
    """The p-norm: 0 counts what is not zero, inf and -inf are the extreme magnitudes."""

    kinds: ClassVar[str] = "f"
    p: float = 2.0

    def compose(self, x: Node) -> Node:
        wide = ew.cast(x, x.dtype.accumulator)
        at = (self.axes, self.keepdims)
        size = ew.abs(wide)
        if self.p == math.inf:
            out = amax(size, *at)
        elif self.p == -math.inf:
            out = amin(size, *at)
        elif self.p == 0:
            out = sum(ew.cast(ew.ne(wide, 0.0), wide.dtype), *at)
        elif self.p == 1:
            out = sum(size, *at)
        elif self.p == 2:
            out = ew.sqrt(sum(ew.square(wide), *at))
        else:
            out = ew.pow(sum(ew.pow(size, self.p), *at), 1 / self.p)
        return ew.cast(out, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        kw: dict[str, Any] = {"axis": self.axes, "keepdims": self.keepdims}
        size = np.abs(x)
        if math.isinf(self.p):
            f, end = (np.max, "lowest") if self.p > 0 else (np.min, "highest")
            return np.asarray(_bounded(f, end)(size, **kw))
        if self.p == 0:
            return np.asarray(np.count_nonzero(x, **kw)).astype(x.dtype)
        return np.asarray(np.sum(size**self.p, **kw) ** (1 / self.p))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for p in (0.0, 1.0, 2.0, 3.0, 0.5, math.inf):
            yield S.case(cls((1,), False, p), S.normal(4, 7))
            yield S.case(cls((0, 2), True, p), S.normal(3, 4, 5), dtype=bf16)
            yield S.case(cls((), False, p), S.normal())
            yield S.case(cls((1,), False, p), S.normal(0, 3), dtype=f16)
        yield S.case(cls((0,), False, -math.inf), S.normal(6, 2), dtype=f64)
        yield S.case(cls((0,), False, 1.0), S.extremes(2, 14))


@operator
class Logsumexp(Reduction):
    """log(sum(exp(x))) without overflow."""

    kinds: ClassVar[str] = "f"

    def compose(self, x: Node) -> Node:
        wide = ew.cast(x, x.dtype.accumulator)
        top = amax(wide, self.axes, True)
        # Of an infinite maximum nothing may be subtracted: inf - inf would be NaN.
        shift = ew.where(ew.isinf(top), 0.0, top)
        total = ew.log(sum(ew.exp(ew.sub(wide, shift)), self.axes, self.keepdims))
        shape = reduced_shape(x.shape, self.axes, self.keepdims)
        return ew.cast(ew.add(total, reshape(shift, shape)), x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        top = np.max(x, axis=self.axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isinf(top), 0, top)
        total = np.log(np.sum(np.exp(x - top), axis=self.axes, keepdims=True)) + top
        return total if self.keepdims else np.squeeze(total, self.axes)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield S.case(cls((1,), False), S.uniform(3, 5, lo=-1000, hi=1000))
        yield S.case(cls((1,), True), np.full((2, 3), -np.inf, np.float32))


@dataclass(frozen=True)
class _Arg(Op):
    """Where the first extreme element is; a NaN is more extreme than any number."""

    positions: ClassVar[tuple[int, ...]] = (0,)
    axis: int
    keepdims: bool

    def infer(self, x: TensorType) -> TensorType:
        _check_axes(self.name, (self.axis,), x)
        if x.shape[self.axis] == 0:
            raise Invalid(f"{self.name}: axis {self.axis} of {x!r} is empty: no element is extreme")
        return TensorType(i64, reduced_shape(x.shape, (self.axis,), self.keepdims))

    def _compose(self, x: Node, extreme: Node) -> Node:
        hit = ew.eq(x, extreme)
        if x.dtype.is_float:
            hit = ew.logical_or(hit, ew.isnan(x))
        n = x.shape[self.axis]
        place = iota(n, dtype=i64)
        place = reshape(place, (n,) + (1,) * (x.rank - 1 - self.axis))
        return amin(ew.where(hit, place, int(i64.highest)), (self.axis,), self.keepdims)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(1, False), S.normal(4, 7))
        yield S.case(cls(0, True), S.normal(9, 3), dtype=bf16)
        yield S.case(cls(1, False), S.integers(3, 20, 2, lo=0, hi=3))
        yield S.case(cls(0, False), S.integers(3, 0, dtype=i32))
        yield S.case(cls(1, True), S.extremes(5, 3))
        yield S.case(cls(0, False), S.extremes(14, dtype=f64), dtype=f64)
        yield S.case(cls(0, False), S.booleans(9))
        yield S.case(cls(0, False), S.integers(11, dtype=u8))
        yield S.case(cls(0, False), S.normal(1), dtype=f16)


@operator
class Argmax(_Arg):
    """The position of the first largest element; a NaN is the largest."""

    def compose(self, x: Node) -> Node:
        return self._compose(x, amax(x, (self.axis,), True))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(x, axis=self.axis, keepdims=self.keepdims))


@operator
class Argmin(_Arg):
    """The position of the first smallest element; a NaN is the smallest."""

    def compose(self, x: Node) -> Node:
        return self._compose(x, amin(x, (self.axis,), True))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmin(x, axis=self.axis, keepdims=self.keepdims))


# ---- builders


def _over(name: str, x: Node, axes: Axes) -> tuple[int, ...]:
    return axes_of(name, axes, x.rank)


def _summed(op: type[Op], x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """Casts of 16-bit floats stand outside, where they fuse with the neighbours."""
    wide = node(op(axes, keepdims), ew.cast(x, x.dtype.accumulator))  # type: ignore[call-arg]
    return ew.cast(wide, x.dtype)


def sum(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return _summed(Sum, x, _over("sum", x, axes), keepdims)


def prod(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return _summed(Prod, x, _over("prod", x, axes), keepdims)


def amax(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(Amax(_over("amax", x, axes), keepdims), x)


def amin(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(Amin(_over("amin", x, axes), keepdims), x)


def any(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(AnyOf(_over("any", x, axes), keepdims), x)


def all(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(AllOf(_over("all", x, axes), keepdims), x)


def mean(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(Mean(_over("mean", x, axes), keepdims), x)


def var(x: Node, axes: Axes = None, correction: float = 1, keepdims: bool = False) -> Node:
    return node(Var(_over("var", x, axes), keepdims, float(correction)), x)


def norm(x: Node, p: float = 2, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(Norm(_over("norm", x, axes), keepdims, float(p)), x)


def logsumexp(x: Node, axes: Axes = None, keepdims: bool = False) -> Node:
    return node(Logsumexp(_over("logsumexp", x, axes), keepdims), x)


def argmax(x: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """Index of the first largest element; over the flattened tensor where axis is None."""
    return _arg("argmax", Argmax, x, axis, keepdims)


def argmin(x: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """Index of the first smallest element; over the flattened tensor where axis is None."""
    return _arg("argmin", Argmin, x, axis, keepdims)


def _arg(name: str, op: type[_Arg], x: Node, axis: int | None, keepdims: bool) -> Node:
    if axis is None or x.rank == 0:
        flat = node(op(0, False), reshape(x, (x.ttype.size,)))  # type: ignore[call-arg]
        return reshape(flat, (1,) * x.rank if keepdims else ())
    return node(op(axis_of(name, axis, x.rank), keepdims), x)  # type: ignore[call-arg]
