"""Resizing of the last axes: nearest neighbours and linear interpolation, with gradients.

`scales` are torch's scale factors, one per axis, or None where the ratio of the sizes counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product as cartesian
from math import frexp
from typing import ClassVar

import numpy as np

from tilewright.base.errors import Unsupported, require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, constant, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import Shape, static
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, f64, i64
from tilewright.ops.creation import iota, number
from tilewright.ops.elementwise import add, cast, div, gt, maximum, minimum, mul, sub, where
from tilewright.ops.indexing import take
from tilewright.ops.linear import matmul
from tilewright.ops.samples import case, integers, normal
from tilewright.ops.views import permute, reshape
from tilewright.ops.windows import window_sum

Scales = tuple[float | None, ...]
FEW = 10  # products, that are summed one by one; more of them are a product of matrices


def _check(what: str, x: TensorType, size: Shape, scales: Scales) -> TensorType:
    n = len(size)
    require(1 <= n <= min(3, x.rank), f"{what}: an output size {list(size)} does not fit {x!r}")
    require(len(scales) == n, f"{what}: {len(scales)} scales for {n} axes")
    require(all(s is None or s > 0 for s in scales), f"{what}: scales {scales} must be positive")
    bad = any(
        D.known_eq(d, 0) and not D.known_eq(o, 0) for d, o in zip(x.shape[x.rank - n :], size)
    )
    require(not bad, f"{what}: an axis of {x!r} is empty and cannot grow to {list(size)}")
    return TensorType(x.dtype, x.shape[: x.rank - n] + size)


# ---- nearest


def _nearest_table(n: int, size: int, scale: float | None, exact: bool) -> np.ndarray:
    """Source of every output as eager computes it: in float32, rounded down."""
    ratio = np.float32(1.0 / scale) if scale else np.float32(n) / np.float32(max(size, 1))
    half = np.float32(0.5 if exact else 0.0)
    at = np.floor((np.arange(size, dtype=np.float32) + half) * ratio)
    return np.minimum(at.astype(np.int64), max(n - 1, 0))


def _ratios(n: Dim, size: Dim, scale: float | None) -> Iterator[tuple[Dim, Dim]]:
    """Candidates (p, q) for which output o may be input o*p//q."""
    yield n, size
    if scale:
        f = Fraction(1.0 / scale).limit_denominator(1024)
        yield f.numerator, f.denominator


def _nearest_source(o: Dim, n: Dim, size: Dim, scale: float | None, exact: bool) -> Dim:
    """An index function wherever one gives what float32 arithmetic gives, else that arithmetic."""
    twice, once = (2, 1) if exact else (1, 0)
    if not (isinstance(n, int) and isinstance(size, int)):
        *_, (p, q) = _ratios(n, size, scale)
        if scale and frexp(scale)[0] == 0.5:  # that arithmetic is exact
            return D.minimum(D.floordiv((twice * o + once) * p, twice * q), n - 1)
        wide = [E.cast(E.index(x), f32) for x in (n, D.maximum(size, 1))]
        by = E.const(float(np.float32(1.0 / scale)), f32) if scale else E.fn("div", *wide)
        real = E.fn("mul", E.cast(E.index(o), f32) + (0.5 if exact else 0.0), by)
        last = E.index(D.maximum(n - 1, 0))
        return E.fn("min", E.cast(E.fn("floor", real), i64), last).as_dim()
    if size == 0:
        return 0
    table = _nearest_table(n, size, scale, exact)
    numbers = np.arange(size, dtype=np.int64)
    for p, q in _ratios(n, size, scale):
        p, q = static((p, q))
        found = (twice * numbers + once) * p // (twice * q)
        if np.array_equal(np.minimum(found, n - 1), table):
            at = D.floordiv((twice * o + once) * p, twice * q)
            return at if found.max() < n else D.minimum(at, n - 1)
    ratio = float(np.float32(1.0 / scale if scale else n / size))
    real = E.fn("mul", E.cast(E.index(o), f32) + (0.5 if exact else 0.0), ratio)
    return E.fn("min", E.cast(E.fn("floor", real), i64), E.const(n - 1, i64)).as_dim()


@operator
class UpsampleNearest(Op):
    """Each output takes the nearest input: floor(o*ratio), or floor((o+1/2)*ratio) if exact."""

    view: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    size: Shape
    scales: Scales
    exact: bool = False

    def infer(self, x: TensorType) -> TensorType:
        return _check("upsample_nearest", x, self.size, self.scales)

    def compute(self, x: Tensor) -> Tensor:
        n = x.rank - len(self.size)

        def body(*i: Dim) -> Value:
            at = tuple(
                _nearest_source(o, d, size, scale, self.exact)
                for o, d, size, scale in zip(i[n:], x.shape[n:], self.size, self.scales)
            )
            return x[i[:n] + at]

        return E.compute(x.shape[:n] + self.size, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        size = static(self.size)
        n = x.ndim - len(size)
        out = np.zeros(x.shape[:n] + size, x.dtype)
        for o in cartesian(*map(range, size)):
            at = []
            for j, d, m, s in zip(o, x.shape[n:], size, self.scales):
                ratio = np.float32(1 / s) if s else np.float32(d) / np.float32(m)
                at.append(min(int(np.float32(j + 0.5 * self.exact) * ratio), d - 1))
            out[(..., *o)] = x[(..., *at)]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((8,), (None,)), normal(2, 3, 4))
        yield case(cls((7, 3), (None, None)), normal(2, 4, 5), dtype=f64)
        yield case(cls((7, 7), (1.5, 1.5)), normal(2, 5, 5), dtype=bf16)
        yield case(cls((7, 10), (None, 2.0), True), integers(2, 5, 5))
        yield case(cls((147,), (None,)), normal(1, 3))
        yield case(cls((5,), (2.7,)), normal(1, 2))
        yield case(cls((2, 3, 4), (None,) * 3), normal(1, 1, 2, 2), dtype=f16)
        yield case(cls((8,), (None,)), normal(0, 4))


def _scales(scales: Sequence[float | None] | None, n: int) -> Scales:
    return tuple(scales) if scales is not None else (None,) * n


def upsample_nearest(
    x: Node,
    size: Sequence[Dim],
    scales: Sequence[float | None] | None = None,
    exact: bool = False,
) -> Node:
    return node(UpsampleNearest(tuple(size), _scales(scales, len(size)), exact), x)


def _static_axes(what: str, *shapes: Shape) -> list[tuple[int, ...]]:
    for s in shapes:
        if not all(isinstance(d, int) for d in s):
            raise Unsupported(
                f"{what}: the sizes {list(s)} are not known when compiling",
                hint="compile for these sizes: interpolation weights are constants",
            )
    return [static(s) for s in shapes]


def _through(y: Node, axis: int, matrix: np.ndarray) -> Node:
    """Axis `axis` of y, multiplied from the left of a constant matrix."""
    if y.rank == 1:
        return reshape(_through(reshape(y, (1, *y.shape)), 1, matrix), (matrix.shape[1],))
    order = [k for k in range(y.rank) if k != axis] + [axis]
    out = matmul(permute(y, order), constant(matrix, y.dtype))
    return permute(out, [order.index(k) for k in range(y.rank)])


def _taken(y: Node, axis: int, matrix: np.ndarray) -> Node | None:
    """The same as a sum of few products, where every column of the matrix has few numbers other
    than 0, all near each other; None where one has more."""
    first = np.argmax(matrix != 0, 0)
    count = np.maximum((matrix != 0).cumsum(0).argmax(0) + 1 - first, 1) if matrix.size else first
    if not 0 < count.max(initial=0) <= FEW:
        return None
    total = None
    for k in range(count.max()):
        # Where a column has fewer numbers the last is read again, and counts for nothing.
        at = first + np.minimum(k, count - 1)
        weights = np.where(k < count, np.take_along_axis(matrix, at[None], 0)[0], 0)
        along = (matrix.shape[1],) + (1,) * (y.rank - axis - 1)
        rows = take(y, constant(at.astype(np.int64), i64), axis, "proved")
        part = mul(rows, constant(weights.astype(matrix.dtype).reshape(along), y.dtype))
        total = part if total is None else add(total, part)
    return total


@operator
class UpsampleNearestBackward(Op):
    """The gradient of upsample_nearest: each input of `spatial` sums what was taken from it."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    spatial: Shape
    scales: Scales
    exact: bool = False

    def infer(self, grad: TensorType) -> TensorType:
        return _check("upsample_nearest_backward", grad, self.spatial, self.scales)

    def compose(self, grad: Node) -> Node:
        first = grad.rank - len(self.spatial)
        spatial, size = _static_axes("upsample_nearest_backward", self.spatial, grad.shape[first:])
        tables = [
            _nearest_table(n, m, s, self.exact) for n, m, s in zip(spatial, size, self.scales)
        ]
        whole = tuple(m // n if n else 0 for n, m in zip(spatial, size))
        y = grad
        if all(k and np.array_equal(t, np.arange(t.size) // k) for k, t in zip(whole, tables)):
            zeros, ones = (0,) * len(whole), (1,) * len(whole)
            y = window_sum(y, whole, whole, zeros, ones, spatial)
        else:
            y = cast(y, grad.dtype.accumulator)
            for k, (n, t) in enumerate(zip(spatial, tables)):
                matrix = (t[:, None] == np.arange(n)[None, :]).astype(y.dtype.numpy)
                y = _taken(y, first + k, matrix) or _through(y, first + k, matrix)
        return cast(y, grad.dtype)

    def reference(self, grad: np.ndarray) -> np.ndarray:
        spatial = static(self.spatial)
        first = grad.ndim - len(spatial)
        source = np.arange(int(np.prod(spatial))).reshape(spatial)
        size = grad.shape[first:]
        chosen = UpsampleNearest(size, self.scales, self.exact).reference(source)
        out = np.zeros((*grad.shape[:first], source.size))
        for o in np.ndindex(*size):
            out[..., chosen[o]] += grad[(..., *o)]
        return out.reshape(grad.shape[:first] + spatial).astype(grad.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((4, 3), (None, None)), normal(2, 8, 9))
        yield case(cls((4, 5), (None, None)), normal(2, 7, 3), dtype=f64)
        yield case(cls((5,), (1.5,)), normal(7), dtype=f16)
        yield case(cls((5,), (None,), True), normal(2, 3, 7))


def upsample_nearest_backward(
    grad: Node,
    spatial: Sequence[Dim],
    scales: Sequence[float | None] | None = None,
    exact: bool = False,
) -> Node:
    op = UpsampleNearestBackward(tuple(spatial), _scales(scales, len(spatial)), exact)
    return node(op, grad)


# ---- linear


def _linear_table(
    n: int, size: int, scale: float | None, align_corners: bool, dtype: DType
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lower neighbour, upper neighbour, weight of the upper) of every output."""
    o = np.arange(size).astype(dtype.numpy)
    kind = dtype.numpy.type
    if align_corners:
        real = o * (kind(n - 1) / kind(size - 1) if size > 1 else kind(0))
    else:
        ratio = kind(1.0 / scale) if scale else kind(n) / kind(max(size, 1))
        real = np.maximum((o + kind(0.5)) * ratio - kind(0.5), kind(0))
    lower = np.minimum(real.astype(np.int64), max(n - 1, 0))
    upper = np.minimum(lower + 1, max(n - 1, 0))
    return lower, upper, np.clip(real - lower, 0, 1).astype(dtype.numpy)


def _linear_sources(
    n: Dim, size: Dim, scale: float | None, align_corners: bool, dtype: DType
) -> Node:
    """Where in the input every output is, for sizes that only the call knows: as in the table."""
    o = iota(size, 0, 1, dtype)
    half, zero = number(0.5, dtype), number(0, dtype)
    if align_corners:
        steps = number(D.maximum(size - 1, 1), dtype)
        whole = div(number(n - 1, dtype), steps)
        return mul(o, where(gt(number(size, i64), number(1, i64)), whole, zero))
    if scale:
        ratio = number(float(dtype.numpy.type(1.0 / scale)), dtype)
    else:
        ratio = div(number(n, dtype), number(D.maximum(size, 1), dtype))
    return maximum(sub(mul(add(o, half), ratio), half), zero)


def _numpy_weight(
    op: UpsampleLinear | UpsampleLinearBackward, axis: int, o: int, n: int, size: int, i: int
) -> float:
    """How much input i counts for output o: a hat around the real-valued source."""
    scale = op.scales[axis]
    if op.align_corners:
        real = o * (n - 1) / (size - 1) if size > 1 else 0.0
    else:
        real = max((o + 0.5) * (1 / scale if scale else n / size) - 0.5, 0.0)
    return max(0.0, 1.0 - abs(min(real, n - 1) - i))


@operator
class UpsampleLinear(Op):
    """Linear, bilinear or trilinear interpolation, one axis after the other."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    size: Shape
    align_corners: bool
    scales: Scales

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype.is_float, f"upsample_linear: {x!r} is not floating point", hint="cast it")
        return _check("upsample_linear", x, self.size, self.scales)

    def compose(self, x: Node) -> Node:
        first = x.rank - len(self.size)
        wide = x.dtype.accumulator
        y = cast(x, wide)
        for k in reversed(range(len(self.size))):
            n, m, axis = x.shape[first + k], self.size[k], first + k
            lower, upper, far, near = self._places(n, m, self.scales[k], wide)
            along = (m,) + (1,) * (x.rank - axis - 1)
            low, high = (take(y, at, axis, "proved") for at in (lower, upper))
            far, near = (reshape(w, along) for w in (far, near))
            y = add(mul(low, far), mul(high, near))
        return cast(y, x.dtype)

    def _places(
        self, n: Dim, size: Dim, scale: float | None, dtype: DType
    ) -> tuple[Node, Node, Node, Node]:
        """(lower neighbour, upper neighbour, their weights) of every output: constants, where the
        sizes are."""
        if isinstance(n, int) and isinstance(size, int):
            lower, upper, w = _linear_table(n, size, scale, self.align_corners, dtype)
            far, near = (constant(x, dtype) for x in (1 - w, w))
            return constant(lower, i64), constant(upper, i64), far, near
        real = _linear_sources(n, size, scale, self.align_corners, dtype)
        zero, one = number(0, i64), number(1, i64)
        last = maximum(number(n - 1, i64), zero)
        lower = minimum(cast(real, i64), last)
        upper = minimum(add(lower, one), last)
        w = minimum(maximum(sub(real, cast(lower, dtype)), number(0, dtype)), number(1, dtype))
        return lower, upper, sub(number(1, dtype), w), w

    def reference(self, x: np.ndarray) -> np.ndarray:
        size = static(self.size)
        first = x.ndim - len(size)
        out = x.astype(np.float64)
        for k, m in enumerate(size):
            n = x.shape[first + k]
            w = [[_numpy_weight(self, k, o, n, m, i) for i in range(n)] for o in range(m)]
            moved = np.moveaxis(out, first + k, -1) @ np.array(w).reshape(m, n).T
            out = np.moveaxis(moved, -1, first + k)
        return out.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((8,), False, (None,)), normal(2, 3, 4))
        yield case(cls((8,), True, (None,)), normal(2, 3, 4), dtype=f64)
        yield case(cls((7, 3), False, (None, None)), normal(2, 4, 5))
        yield case(cls((7, 3), True, (None, None)), normal(2, 4, 5), dtype=f16)
        yield case(cls((7, 1), False, (1.5, None)), normal(2, 5, 3), dtype=bf16)
        yield case(cls((1, 4), True, (None, None)), normal(2, 5, 1))
        yield case(cls((3, 4, 5), False, (None,) * 3), normal(1, 2, 3, 2))
        yield case(cls((8,), False, (None,)), normal(0, 4))


def upsample_linear(
    x: Node,
    size: Sequence[Dim],
    align_corners: bool,
    scales: Sequence[float | None] | None = None,
) -> Node:
    return node(UpsampleLinear(tuple(size), align_corners, _scales(scales, len(size))), x)


@operator
class UpsampleLinearBackward(Op):
    """The gradient of upsample_linear with respect to an input of spatial shape `spatial`."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    spatial: Shape
    align_corners: bool
    scales: Scales

    def infer(self, grad: TensorType) -> TensorType:
        what = "upsample_linear_backward"
        require(grad.dtype.is_float, f"{what}: {grad!r} is not floating point", hint="cast it")
        return _check(what, grad, self.spatial, self.scales)

    def compose(self, grad: Node) -> Node:
        first = grad.rank - len(self.spatial)
        spatial, size = _static_axes("upsample_linear_backward", self.spatial, grad.shape[first:])
        wide = grad.dtype.accumulator
        y = cast(grad, wide)
        for k, (n, m) in enumerate(zip(spatial, size)):
            lower, upper, w = _linear_table(n, m, self.scales[k], self.align_corners, wide)
            matrix = np.zeros((m, n), wide.numpy)
            np.add.at(matrix, (np.arange(m), lower), 1 - w)
            np.add.at(matrix, (np.arange(m), upper), w)
            y = _taken(y, first + k, matrix) or _through(y, first + k, matrix)
        return cast(y, grad.dtype)

    def reference(self, grad: np.ndarray) -> np.ndarray:
        spatial = static(self.spatial)
        first = grad.ndim - len(spatial)
        out = grad.astype(np.float64)
        for k, n in enumerate(spatial):
            m = grad.shape[first + k]
            w = [[_numpy_weight(self, k, o, n, m, i) for i in range(n)] for o in range(m)]
            moved = np.moveaxis(out, first + k, -1) @ np.array(w).reshape(m, n)
            out = np.moveaxis(moved, -1, first + k)
        return out.astype(grad.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((4,), False, (None,)), normal(2, 3, 8))
        yield case(cls((4, 5), True, (None, None)), normal(2, 7, 3), dtype=f64)
        yield case(cls((5, 3), False, (1.5, None)), normal(2, 7, 1))
        yield case(cls((3,), False, (None,)), normal(6), dtype=f16)


def upsample_linear_backward(
    grad: Node,
    spatial: Sequence[Dim],
    align_corners: bool,
    scales: Sequence[float | None] | None = None,
) -> Node:
    own = _scales(scales, len(spatial))
    return node(UpsampleLinearBackward(tuple(spatial), align_corners, own), grad)
