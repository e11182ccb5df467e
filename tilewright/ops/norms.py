"""Layer, group, batch and root-mean-square normalisation with gradients, as compositions.

16-bit floats are normalised in float32 and rounded once. Statistics of layer and group norm have
the dtype of x; those of batch norm have the precision of sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DType, TensorType, TupleType, bf16, f16, f64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import full, number
from tilewright.ops.reductions import mean, sum
from tilewright.ops.shapes import count, show_shape, want_kind
from tilewright.ops.views import reshape, slice


def _wide(*xs: Node) -> list[Node]:
    return [ew.cast(x, x.dtype.accumulator) for x in xs]


def _parameter(name: str, what: str, t: TensorType, shape: Sequence[Dim]) -> None:
    want_kind(name, t, "f")
    if t.shape != tuple(shape):
        raise Invalid(f"{name}: the {what} is {t!r}, it should have shape {show_shape(shape)}")


def _statistics(x: Node, axes: Sequence[int], eps: float) -> tuple[Node, Node, Node]:
    """(x - mean, mean, 1/deviation) over `axes`, which are kept with size 1."""
    m = mean(x, axes, True)
    centred = ew.sub(x, m)
    return centred, m, ew.rsqrt(ew.add(mean(ew.square(centred), axes, True), eps))


def _input_gradient(scaled: Node, normal: Node, rstd: Node, axes: Sequence[int]) -> Node:
    """Of x, from the gradient of the normalised value: without its mean and its slope along it."""
    flat = ew.sub(scaled, mean(scaled, axes, True))
    slope = mean(ew.mul(scaled, normal), axes, True)
    return ew.mul(rstd, ew.sub(flat, ew.mul(normal, slope)))


def _numpy_statistics(
    x: np.ndarray, axes: tuple[int, ...], eps: float
) -> tuple[np.ndarray, np.ndarray]:
    m = x.mean(axes, keepdims=True)
    return m, 1 / np.sqrt(x.var(axes, keepdims=True) + eps)


def _numpy_gradient(
    g: np.ndarray, normal: np.ndarray, rstd: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    slope = (g * normal).mean(axes, keepdims=True)
    return rstd * (g - g.mean(axes, keepdims=True) - normal * slope)


# ---- layer norm and root-mean-square norm


def _check_dims(name: str, dims: int, x: TensorType) -> None:
    want_kind(name, x, "f")
    if not 0 < dims <= x.rank:
        raise Invalid(f"{name} over the last {dims} axes of {x!r}", hint=f"1 to {x.rank} axes")


@operator
class LayerNorm(Op):
    """(x - mean) / sqrt(var + eps) over the last `dims` axes, * w + b -> (y, mean, rstd)."""

    dims: int
    eps: float

    def infer(self, x: TensorType, *rest: TensorType) -> TupleType:
        _check_dims("layer_norm", self.dims, x)
        for what, t in zip(("weight", "bias"), rest, strict=False):
            _parameter("layer_norm", what, t, x.shape[-self.dims :])
        stats = TensorType(x.dtype, x.shape[: -self.dims] + (1,) * self.dims)
        return TupleType((x, stats, stats))

    def compose(self, x: Node, *rest: Node) -> tuple[Node, Node, Node]:
        wide, *parameters = _wide(x, *rest)
        axes = tuple(range(x.rank - self.dims, x.rank))
        centred, m, rstd = _statistics(wide, axes, self.eps)
        y = ew.mul(centred, rstd)
        if parameters:
            y = ew.mul(y, ew.cast(parameters[0], y.dtype))
        if len(parameters) > 1:
            y = ew.add(y, ew.cast(parameters[1], y.dtype))
        return ew.cast(y, x.dtype), ew.cast(m, x.dtype), ew.cast(rstd, x.dtype)

    def reference(self, x: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
        axes = tuple(range(x.ndim - self.dims, x.ndim))
        m, rstd = _numpy_statistics(x, axes, self.eps)
        y = (x - m) * rstd
        y = y * rest[0] if rest else y
        return (y + rest[1] if len(rest) > 1 else y), m, rstd

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (None, f64, f16, bf16):
            w, b = S.normal(7, seed=1), S.normal(7, seed=2)
            yield S.case(cls(1, 1e-5), S.normal(4, 7), w, b, dtype=dtype)
            yield S.case(cls(2, 1e-3), S.normal(3, 4, 5), dtype=dtype)
        yield S.case(cls(2, 1e-5), S.normal(2, 3, 5), S.normal(3, 5, seed=1))
        yield S.case(cls(1, 1e-5), S.normal(0, 4))
        yield S.case(cls(1, 1e-5), S.normal(9) * 1000 + 3000)
        yield S.case(cls(1, 1e-5), S.extremes(2, 7))


@operator
class LayerNormBackward(Op):
    """Gradients of x, weight and bias from (grad, x, mean, rstd[, weight])."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    dims: int

    def infer(self, grad: TensorType, x: TensorType, *rest: TensorType) -> TupleType:
        _check_dims("layer_norm_backward", self.dims, x)
        _parameter("layer_norm_backward", "gradient", grad, x.shape)
        shape = x.shape[-self.dims :]
        for t in rest[2:]:
            _parameter("layer_norm_backward", "weight", t, shape)
        parameter = TensorType(rest[2].dtype if len(rest) > 2 else x.dtype, shape)
        return TupleType((x, parameter, parameter))

    def compose(self, grad: Node, x: Node, m: Node, r: Node, *w: Node) -> tuple[Node, Node, Node]:
        g, wide, m, rstd = _wide(grad, x, m, r)
        inner, outer = tuple(range(x.rank - self.dims, x.rank)), tuple(range(x.rank - self.dims))
        normal = ew.mul(ew.sub(wide, m), rstd)
        scaled = ew.mul(g, ew.cast(w[0], g.dtype)) if w else g
        dx = _input_gradient(scaled, normal, rstd, inner)
        dtype = w[0].dtype if w else x.dtype
        dw, db = sum(ew.mul(g, normal), outer), sum(g, outer)
        return ew.cast(dx, x.dtype), ew.cast(dw, dtype), ew.cast(db, dtype)

    def reference(
        self, grad: np.ndarray, x: np.ndarray, m: np.ndarray, rstd: np.ndarray, *w: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        inner = tuple(range(x.ndim - self.dims, x.ndim))
        outer = tuple(range(x.ndim - self.dims))
        normal = (x - m) * rstd
        scaled = grad * w[0] if w else grad
        return (
            _numpy_gradient(scaled, normal, rstd, inner),
            (grad * normal).sum(outer),
            grad.sum(outer),
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, dims in (((4, 7), 1), ((3, 4, 5), 2), ((0, 3), 1), ((6,), 1)):
            x, grad = S.normal(*shape), S.normal(*shape, seed=1)
            axes = tuple(range(len(shape) - dims, len(shape)))
            m, rstd = (a.astype(np.float32) for a in _numpy_statistics(x, axes, 1e-5))
            w = S.normal(*shape[-dims:], seed=2)
            yield S.case(cls(dims), grad, x, m, rstd, w)
            yield S.case(cls(dims), grad, x, m, rstd, dtype=f64)
            yield S.case(cls(dims), grad, x, m, rstd, w, dtype=bf16)


@operator
class RmsNorm(Op):
    """x / sqrt(mean(x²) + eps) over the last `dims` axes, times w."""

    dims: int
    eps: float

    def infer(self, x: TensorType, *w: TensorType) -> TensorType:
        _check_dims("rms_norm", self.dims, x)
        for t in w:
            _parameter("rms_norm", "weight", t, x.shape[-self.dims :])
        return x

    def compose(self, x: Node, *w: Node) -> Node:
        (wide,) = _wide(x)
        axes = tuple(range(x.rank - self.dims, x.rank))
        y = ew.mul(wide, ew.rsqrt(ew.add(mean(ew.square(wide), axes, True), self.eps)))
        if w:
            y = ew.mul(y, ew.cast(w[0], y.dtype))
        return ew.cast(y, x.dtype)

    def reference(self, x: np.ndarray, *w: np.ndarray) -> np.ndarray:
        axes = tuple(range(x.ndim - self.dims, x.ndim))
        y = x / np.sqrt((x * x).mean(axes, keepdims=True) + self.eps)
        return y * w[0] if w else y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (None, f64, f16, bf16):
            yield S.case(cls(1, 1e-6), S.normal(4, 7), S.normal(7, seed=1), dtype=dtype)
            yield S.case(cls(2, 1e-6), S.normal(3, 4, 5), dtype=dtype)
        yield S.case(cls(1, 1e-5), S.normal(0, 4))
        yield S.case(cls(1, 1e-5), S.extremes(2, 7))


# ---- group norm


def _grouped(x: tuple[Dim, ...], groups: int) -> tuple[Dim, ...]:
    """[N, C, …] with the channels split into groups."""
    return (x[0], groups, D.floordiv(x[1], groups), *x[2:])


def _per_channel(w: Node, groups: int, rank: int, dtype: DType) -> Node:
    """A parameter per channel, in a shape that broadcasts with the grouped x."""
    shape = (1, groups, D.floordiv(w.shape[0], groups)) + (1,) * (rank - 2)
    return reshape(ew.cast(w, dtype), shape)


def _check_groups(name: str, groups: int, x: TensorType) -> None:
    want_kind(name, x, "f")
    if x.rank < 2:
        raise Invalid(f"{name}: {x!r} has no channels", hint="x is [batch, channels, …]")
    channels = x.shape[1]
    if groups <= 0 or (isinstance(channels, int) and channels % groups):
        raise Invalid(f"{name}: {channels} channels of {x!r} do not split into {groups} groups")


@operator
class GroupNorm(Op):
    """Each group of channels normalised with its space -> (y, mean, rstd), those of [N, groups]."""

    groups: int
    eps: float

    def infer(self, x: TensorType, *rest: TensorType) -> TupleType:
        _check_groups("group_norm", self.groups, x)
        for what, t in zip(("weight", "bias"), rest, strict=False):
            _parameter("group_norm", what, t, x.shape[1:2])
        stats = TensorType(x.dtype, (x.shape[0], self.groups))
        return TupleType((x, stats, stats))

    def compose(self, x: Node, *rest: Node) -> tuple[Node, Node, Node]:
        (wide,) = _wide(reshape(x, _grouped(x.shape, self.groups)))
        centred, m, rstd = _statistics(wide, tuple(range(2, wide.rank)), self.eps)
        y = ew.mul(centred, rstd)
        if rest:
            y = ew.mul(y, _per_channel(rest[0], self.groups, x.rank, y.dtype))
        if len(rest) > 1:
            y = ew.add(y, _per_channel(rest[1], self.groups, x.rank, y.dtype))
        stats = (x.shape[0], self.groups)
        m, rstd = (ew.cast(reshape(s, stats), x.dtype) for s in (m, rstd))
        return reshape(ew.cast(y, x.dtype), x.shape), m, rstd

    def reference(self, x: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
        grouped = x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])
        m, rstd = _numpy_statistics(grouped, tuple(range(2, grouped.ndim)), self.eps)
        y = ((grouped - m) * rstd).reshape(x.shape)
        channel = (1, -1) + (1,) * (x.ndim - 2)
        y = y * rest[0].reshape(channel) if rest else y
        y = y + rest[1].reshape(channel) if len(rest) > 1 else y
        return y, m.reshape(-1, self.groups), rstd.reshape(-1, self.groups)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (None, f64, f16, bf16):
            w, b = S.normal(6, seed=1), S.normal(6, seed=2)
            yield S.case(cls(3, 1e-5), S.normal(2, 6, 5), w, b, dtype=dtype)
            yield S.case(cls(1, 1e-3), S.normal(2, 4, 3, 3), dtype=dtype)
        yield S.case(cls(4, 1e-5), S.normal(3, 4))
        yield S.case(cls(2, 1e-5), S.normal(0, 4, 2))
        yield S.case(cls(2, 1e-5), S.normal(2, 6, 3), S.normal(6, seed=1))


@operator
class GroupNormBackward(Op):
    """Gradients of x, weight and bias from (grad, x, mean, rstd[, weight])."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    groups: int

    def infer(self, grad: TensorType, x: TensorType, *rest: TensorType) -> TupleType:
        _check_groups("group_norm_backward", self.groups, x)
        _parameter("group_norm_backward", "gradient", grad, x.shape)
        for t in rest[2:]:
            _parameter("group_norm_backward", "weight", t, x.shape[1:2])
        parameter = TensorType(rest[2].dtype if len(rest) > 2 else x.dtype, x.shape[1:2])
        return TupleType((x, parameter, parameter))

    def compose(self, grad: Node, x: Node, m: Node, r: Node, *w: Node) -> tuple[Node, Node, Node]:
        shape = _grouped(x.shape, self.groups)
        g, wide = _wide(reshape(grad, shape), reshape(x, shape))
        one = (x.shape[0], self.groups) + (1,) * (x.rank - 1)
        m, rstd = (ew.cast(reshape(s, one), g.dtype) for s in (m, r))
        normal = ew.mul(ew.sub(wide, m), rstd)
        scaled = ew.mul(g, _per_channel(w[0], self.groups, x.rank, g.dtype)) if w else g
        dx = _input_gradient(scaled, normal, rstd, tuple(range(2, wide.rank)))
        dtype = w[0].dtype if w else x.dtype
        others = (0, *range(3, wide.rank))
        dw, db = sum(ew.mul(g, normal), others), sum(g, others)
        dw, db = (ew.cast(reshape(d, x.shape[1:2]), dtype) for d in (dw, db))
        return reshape(ew.cast(dx, x.dtype), x.shape), dw, db

    def reference(
        self, grad: np.ndarray, x: np.ndarray, m: np.ndarray, rstd: np.ndarray, *w: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        n, c = x.shape[:2]
        channel = (1, -1) + (1,) * (x.ndim - 2)
        rows = (n, self.groups, -1) if x.size else (n, self.groups, c // self.groups)
        normal = ((x.reshape(rows) - m[..., None]) * rstd[..., None]).reshape(x.shape)
        scaled = grad * w[0].reshape(channel) if w else grad
        dx = _numpy_gradient(scaled.reshape(rows), normal.reshape(rows), rstd[..., None], (2,))
        others = (0, *range(2, x.ndim))
        return dx.reshape(x.shape), (grad * normal).sum(others), grad.sum(others)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, groups in (((2, 6, 5), 3), ((2, 4, 3, 3), 2), ((3, 4), 1), ((0, 4), 2)):
            x, grad = S.normal(*shape), S.normal(*shape, seed=1)
            _, m, rstd = GroupNorm(groups, 1e-5).reference(x)
            w = S.normal(shape[1], seed=2)
            yield S.case(cls(groups), grad, x, m, rstd, w)
            yield S.case(cls(groups), grad, x, m, rstd, dtype=f64)
            yield S.case(cls(groups), grad, x, m, rstd, w, dtype=bf16)


# ---- batch norm


def _channels(name: str, x: TensorType, **parameters: TensorType) -> None:
    want_kind(name, x, "f")
    if x.rank < 2:
        raise Invalid(f"{name}: {x!r} has no channels", hint="x is [batch, channels, …]")
    for what, t in parameters.items():
        _parameter(name, what.replace("_", " "), t, x.shape[1:2])


def _beside(x: Node, *parameters: Node) -> list[Node]:
    """Parameters per channel in the shape and precision of the wide x."""
    shape = (x.shape[1],) + (1,) * (x.rank - 2)
    return [reshape(ew.cast(p, x.dtype.accumulator), shape) for p in parameters]


def _all_but_channels(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


@operator
class BatchNorm(Op):
    """At inference: (x - mean) / sqrt(var + eps) * w + b per channel, from given statistics."""

    eps: float

    def infer(
        self, x: TensorType, w: TensorType, b: TensorType, mean: TensorType, var: TensorType
    ) -> TensorType:
        _channels("batch_norm", x, weight=w, bias=b, mean=mean, variance=var)
        return x

    def compose(self, x: Node, w: Node, b: Node, mean: Node, var: Node) -> Node:
        (wide,) = _wide(x)
        w, b, mean, var = _wide(w, b, mean, var)
        # One multiply and add per element; scale and shift are per channel and fold when constant.
        scale = ew.mul(w, ew.rsqrt(ew.add(var, self.eps)))
        shift = ew.sub(b, ew.mul(mean, scale))
        scale, shift = _beside(x, scale, shift)
        return ew.cast(ew.add(ew.mul(wide, scale), shift), x.dtype)

    def reference(
        self, x: np.ndarray, w: np.ndarray, b: np.ndarray, mean: np.ndarray, var: np.ndarray
    ) -> np.ndarray:
        w, b, mean, var = (p.reshape((-1,) + (1,) * (x.ndim - 2)) for p in (w, b, mean, var))
        return (x - mean) / np.sqrt(var + self.eps) * w + b

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (None, f64, f16, bf16):
            for shape in ((2, 3, 5), (4, 3), (2, 3, 4, 4), (0, 3, 2)):
                w, b, mean = (S.normal(3, seed=k) for k in (1, 2, 3))
                var = S.uniform(3, lo=0.2, hi=2)
                yield S.case(cls(1e-5), S.normal(*shape), w, b, mean, var, dtype=dtype)


@operator
class BatchNormTrain(Op):
    """By the batch's own statistics -> (y, mean, rstd, new running mean, new running variance)."""

    eps: float
    momentum: float

    def infer(
        self, x: TensorType, w: TensorType, b: TensorType, rm: TensorType, rv: TensorType
    ) -> TupleType:
        _channels("batch_norm_train", x, weight=w, bias=b, running_mean=rm, running_variance=rv)
        stats = TensorType(x.dtype.accumulator, x.shape[1:2])
        return TupleType((x, stats, stats, rm, rv))

    def compose(self, x: Node, w: Node, b: Node, rm: Node, rv: Node) -> tuple[Node, ...]:
        (wide,) = _wide(x)
        axes = _all_but_channels(x.rank)
        # Statistics are vectors, so that what is derived of them is done along with their sums.
        m = mean(wide, axes, False)
        centred = ew.sub(wide, *_beside(x, m))
        return self._results(x, w, b, rm, rv, m, mean(ew.square(centred), axes, False))

    def in_one_pass(self, x: Node, w: Node, b: Node, rm: Node, rv: Node) -> tuple[Node, ...]:
        """By sums, and by sums of squares of what x differs from its first elements by: those are
        close to the mean, so that little cancels, and x is read once."""
        (wide,) = _wide(x)
        axes = _all_but_channels(x.rank)
        start = x
        for axis in axes:
            start = slice(start, axis, 0, 1)
        (start,) = _wide(start)
        m, squares = mean(wide, axes, False), mean(ew.square(ew.sub(wide, start)), axes, False)
        apart = ew.sub(m, reshape(start, x.shape[1:2]))
        var = ew.maximum(ew.sub(squares, ew.square(apart)), 0.0)
        return self._results(x, w, b, rm, rv, m, var)

    def _results(
        self, x: Node, w: Node, b: Node, rm: Node, rv: Node, m: Node, var: Node
    ) -> tuple[Node, ...]:
        (wide,) = _wide(x)
        rstd = ew.rsqrt(ew.add(var, self.eps))
        average, scale, gain, bias = _beside(x, m, rstd, w, b)
        y = ew.add(ew.mul(ew.mul(ew.sub(wide, average), scale), gain), bias)
        # Running statistics estimate the population: n - 1 in the denominator.
        n = count(x.shape, _all_but_channels(x.rank))
        size = number(n, wide.dtype)
        free = ew.maximum(ew.sub(size, 1.0), 1.0) if not isinstance(n, int) else max(n - 1.0, 1.0)
        spread = ew.div(ew.mul(var, size), free)
        new_rm, new_rv = self._moved(rm, m), self._moved(rv, spread)
        return ew.cast(y, x.dtype), m, rstd, new_rm, new_rv

    def _moved(self, old: Node, new: Node) -> Node:
        (wide,) = _wide(old)
        fresh = ew.mul(ew.cast(new, wide.dtype), self.momentum)
        return ew.cast(ew.add(ew.mul(wide, 1 - self.momentum), fresh), old.dtype)

    def reference(
        self, x: np.ndarray, w: np.ndarray, b: np.ndarray, rm: np.ndarray, rv: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        axes = _all_but_channels(x.ndim)
        shape = (-1,) + (1,) * (x.ndim - 2)
        m, var, n = x.mean(axes), x.var(axes), x.size // x.shape[1]
        rstd = 1 / np.sqrt(var + self.eps)
        y = (x - m.reshape(shape)) * (rstd * w).reshape(shape) + b.reshape(shape)
        new_rm = (1 - self.momentum) * rm + self.momentum * m
        new_rv = (1 - self.momentum) * rv + self.momentum * var * n / max(n - 1, 1)
        return y, m, rstd, new_rm, new_rv

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (None, f64, f16, bf16):
            for shape in ((4, 3, 5), (6, 3), (2, 3, 4, 4), (1, 3)):
                w, b, rm = (S.normal(3, seed=k) for k in (1, 2, 3))
                rv = S.uniform(3, lo=0.2, hi=2)
                yield S.case(cls(1e-5, 0.1), S.normal(*shape), w, b, rm, rv, dtype=dtype)


@operator
class BatchNormBackward(Op):
    """Gradients of x, weight and bias; `train`: the statistics were the batch's own."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    train: bool

    def infer(
        self, grad: TensorType, x: TensorType, w: TensorType, mean: TensorType, rstd: TensorType
    ) -> TupleType:
        _channels("batch_norm_backward", x, weight=w, mean=mean, rstd=rstd)
        _parameter("batch_norm_backward", "gradient", grad, x.shape)
        return TupleType((x, w, w))

    def compose(self, grad: Node, x: Node, w: Node, m: Node, r: Node) -> tuple[Node, ...]:
        g, wide = _wide(grad, x)
        gain, m, rstd = _beside(x, w, m, r)
        axes = _all_but_channels(x.rank)
        normal = ew.mul(ew.sub(wide, m), rstd)
        scaled = ew.mul(g, gain)
        dx = _input_gradient(scaled, normal, rstd, axes) if self.train else ew.mul(scaled, rstd)
        dw, db = sum(ew.mul(g, normal), axes), sum(g, axes)
        return ew.cast(dx, x.dtype), ew.cast(dw, w.dtype), ew.cast(db, w.dtype)

    def reference(
        self, grad: np.ndarray, x: np.ndarray, w: np.ndarray, mean: np.ndarray, rstd: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        axes = _all_but_channels(x.ndim)
        gain, m, r = (p.reshape((-1,) + (1,) * (x.ndim - 2)) for p in (w, mean, rstd))
        normal = (x - m) * r
        dx = _numpy_gradient(grad * gain, normal, r, axes) if self.train else grad * gain * r
        return dx, (grad * normal).sum(axes), grad.sum(axes)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for train in (True, False):
            for dtype in (None, f64, bf16):
                for shape in ((4, 3, 5), (6, 3), (2, 3, 4, 4)):
                    x, grad, w = S.normal(*shape), S.normal(*shape, seed=1), S.normal(3, seed=2)
                    mean, rstd = x.mean(_all_but_channels(x.ndim)), S.uniform(3, lo=0.5, hi=2)
                    yield S.case(cls(train), grad, x, w, mean, rstd, dtype=dtype)


# ---- builders


def _given(x: Node, w: Node | None, b: Node | None, shape: Sequence[Dim]) -> tuple[Node, ...]:
    """The parameters that are there; a bias without a weight gets one of ones."""
    if w is None and b is not None:
        w = full(shape, 1.0, x.dtype)
    return tuple(p for p in (w, b) if p is not None)


def layer_norm(
    x: Node, w: Node | None = None, b: Node | None = None, dims: int = 1, eps: float = 1e-5
) -> Node:
    """(y, mean, rstd); `dims` is the number of trailing axes."""
    return node(LayerNorm(dims, eps), x, *_given(x, w, b, x.shape[x.rank - dims :]))


def layer_norm_backward(
    grad: Node, x: Node, mean: Node, rstd: Node, w: Node | None = None, dims: int = 1
) -> Node:
    """(dx, dw, db)"""
    return node(LayerNormBackward(dims), grad, x, mean, rstd, *_given(x, w, None, ()))


def rms_norm(x: Node, w: Node | None = None, dims: int = 1, eps: float = 1e-6) -> Node:
    return node(RmsNorm(dims, eps), x, *_given(x, w, None, ()))


def group_norm(
    x: Node, w: Node | None = None, b: Node | None = None, groups: int = 1, eps: float = 1e-5
) -> Node:
    """(y, mean, rstd)"""
    return node(GroupNorm(groups, eps), x, *_given(x, w, b, x.shape[1:2]))


def group_norm_backward(
    grad: Node, x: Node, mean: Node, rstd: Node, w: Node | None = None, groups: int = 1
) -> Node:
    """(dx, dw, db)"""
    return node(GroupNormBackward(groups), grad, x, mean, rstd, *_given(x, w, None, ()))


def _affine(x: Node, w: Node | None, b: Node | None) -> tuple[Node, Node]:
    shape = x.shape[1:2]
    dtype = x.dtype
    return w or full(shape, 1.0, dtype), b or full(shape, 0.0, dtype)


def batch_norm(
    x: Node, w: Node | None, b: Node | None, mean: Node, var: Node, eps: float = 1e-5
) -> Node:
    """At inference, from given statistics."""
    return node(BatchNorm(eps), x, *_affine(x, w, b), mean, var)


def batch_norm_train(
    x: Node,
    w: Node | None,
    b: Node | None,
    running_mean: Node,
    running_var: Node,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> Node:
    """(y, mean, rstd, new running mean, new running var)"""
    op = BatchNormTrain(eps, momentum)
    return node(op, x, *_affine(x, w, b), running_mean, running_var)


def batch_norm_backward(
    grad: Node, x: Node, w: Node | None, mean: Node, rstd: Node, train: bool = True
) -> Node:
    """(dx, dw, db)"""
    return node(BatchNormBackward(train), grad, x, _affine(x, w, None)[0], mean, rstd)
