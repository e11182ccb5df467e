"""Pooling over the last axes, its adaptive form and its gradients, as compositions over windows.

Spatial shapes given to gradients are those of the pooled axes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product as cartesian
from typing import Any

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import Shape, may_equal, product, split_index, static
from tilewright.ir.types import TensorType, TupleType, bf16, f16, f64, i64
from tilewright.ops.elementwise import bitwise_not, cast, div, maximum
from tilewright.ops.samples import case, extremes, integers, normal
from tilewright.ops.windows import (
    window_argmax,
    window_count,
    window_max,
    window_route,
    window_spread,
    window_sum,
)

Ints = tuple[int, ...]


def pooled_size(n: Dim, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> Dim:
    """Number of windows along an axis, as torch counts them."""
    room = n + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil:
        return D.floordiv(room, stride) + 1
    # The last window must start inside the input or the padding before it.
    return D.minimum(D.ceildiv(room, stride) + 1, D.ceildiv(n + padding, stride))


def _check(
    what: str, x: TensorType, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> None:
    n = len(kernel)
    require(
        1 <= n <= x.rank, f"{what}: a kernel of {n} axes does not fit {x!r}", hint="it takes 1 to 3"
    )
    lengths = {len(stride), len(padding), len(dilation)}
    require(lengths == {n}, f"{what}: stride, padding or dilation is not given for {n} axes")
    positive = all(v > 0 for v in (*kernel, *stride, *dilation))
    require(positive, f"{what}: kernel, stride and dilation have to be positive")
    half = all(0 <= 2 * p <= d * (k - 1) + 1 for p, k, d in zip(padding, kernel, dilation))
    require(half, f"{what}: padding {padding} is more than half of the kernel {kernel}")


def _sizes(
    what: str, x: Shape, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
) -> Shape:
    spatial = x[len(x) - len(kernel) :]
    out = tuple(
        pooled_size(n, k, s, p, d, ceil)
        for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation, strict=True)
    )
    require(
        not any(D.known_lt(o, 1) for o in out),
        f"{what}: a kernel {kernel} is larger than the input {list(spatial)} with its padding",
    )
    return out


def _ints(v: Sequence[int] | int, n: int) -> Ints:
    """One setting for every spatial axis, where a single one is given."""
    given = (v,) if isinstance(v, int) else tuple(v)
    return given * n if len(given) == 1 else given


def _indices(codes: Node) -> Node:
    """A NaN's place is coded as minus one minus its index."""
    return maximum(codes, bitwise_not(codes))


@operator
class MaxPool(Op):
    """(maxima, flat spatial indices of the first maximum); NaN wins, the last one."""

    kernel: Ints
    stride: Ints
    padding: Ints
    dilation: Ints
    ceil: bool = False

    def infer(self, x: TensorType) -> TupleType:
        _check("max_pool", x, self.kernel, self.stride, self.padding, self.dilation)
        shape = x.shape[: x.rank - len(self.kernel)] + self._windows(x.shape)
        return TupleType((TensorType(x.dtype, shape), TensorType(i64, shape)))

    def _windows(self, x: Shape) -> Shape:
        return _sizes(
            "max_pool", x, self.kernel, self.stride, self.padding, self.dilation, self.ceil
        )

    def compose(self, x: Node) -> tuple[Node, Node]:
        settings = (self.kernel, self.stride, self.padding, self.dilation, self._windows(x.shape))
        m = window_max(x, *settings)
        return m, _indices(window_argmax(x, m, *settings))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes = static(self._windows(x.shape))
        n = len(sizes)

        def covered(axis: int, o: int) -> list[int]:
            first = o * self.stride[axis] - self.padding[axis]
            last = first + self.kernel[axis] * self.dilation[axis]
            return [
                i for i in range(first, last, self.dilation[axis]) if 0 <= i < x.shape[axis - n]
            ]

        return _numpy_max(x, sizes, covered)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3, 3), (2, 2), (1, 1), (1, 1)), normal(2, 3, 8, 7))
        yield case(cls((2,), (2,), (0,), (1,), True), normal(2, 3, 7))
        yield case(cls((3, 2), (2, 3), (1, 1), (1, 1), True), normal(1, 2, 8, 6), dtype=f64)
        yield case(cls((2, 2), (1, 1), (0, 0), (2, 3)), integers(2, 6, 7, lo=0, hi=4))
        yield case(cls((2, 2, 2), (2, 2, 2), (0, 1, 0), (1, 1, 1)), normal(2, 4, 4, 5), dtype=bf16)
        yield case(cls((3,), (2,), (1,), (1,)), extremes(2, 14))
        yield case(cls((2,), (2,), (0,), (1,)), normal(0, 3, 8))


def max_pool(
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] | int | None = None,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil: bool = False,
) -> Node:
    """(maxima, indices); the kernel has one entry per pooled axis."""
    k = tuple(kernel)
    n = len(k)
    return node(MaxPool(k, _ints(stride or k, n), _ints(padding, n), _ints(dilation, n), ceil), x)


def _numpy_max(
    x: np.ndarray, sizes: Ints, covered: Callable[[int, int], list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Each window walked as torch walks it: a larger value or a NaN replaces what was found."""
    n = len(sizes)
    spatial = x.shape[x.ndim - n :]
    lead = x.shape[: x.ndim - n]
    values = np.zeros(lead + sizes, x.dtype)
    indices = np.zeros(lead + sizes, np.int64)
    for o in cartesian(*map(range, sizes)):
        inputs = list(cartesian(*(covered(k, p) for k, p in enumerate(o))))
        best = x[(..., *inputs[0])]
        index = np.full(lead, int(np.ravel_multi_index(inputs[0], spatial)))
        for i in inputs[1:]:
            v, flat = x[(..., *i)], int(np.ravel_multi_index(i, spatial))
            better = (v > best) | (v != v)
            best, index = np.where(better, v, best), np.where(better, flat, index)
        values[(..., *o)], indices[(..., *o)] = best, index
    return values, indices


@operator
class MaxPoolBackward(Op):
    """Gradients added, in order, at flat indices into `spatial`: of any maximum over windows."""

    spatial: Shape

    def infer(self, grad: TensorType, indices: TensorType) -> TensorType:
        ok = indices.dtype is i64 and indices.shape == grad.shape
        require(
            ok and grad.rank >= len(self.spatial),
            f"max_pool_backward: {grad!r} and indices {indices!r} do not belong together",
        )
        return TensorType(grad.dtype, grad.shape[: grad.rank - len(self.spatial)] + self.spatial)

    def program(self, grad: Tensor, indices: Tensor) -> Tensor:
        n = grad.rank - len(self.spatial)
        shape = grad.shape[:n] + self.spatial
        zeros = E.compute(shape, lambda *_: E.const(0, grad.dtype), grad.dtype)
        last = E.index(product(self.spatial) - 1)

        def where(*i: Dim) -> tuple[Dim, ...]:
            flat = E.fn("max", E.fn("min", indices[i], last), E.const(0, i64))
            return i[:n] + split_index(flat.as_dim(), self.spatial)

        return E.update(zeros, grad.shape, where, lambda *i: grad[i], "add")

    def reference(self, grad: np.ndarray, indices: np.ndarray) -> np.ndarray:
        spatial = static(self.spatial)
        lead = grad.shape[: grad.ndim - len(spatial)]
        out = np.zeros((*lead, int(np.prod(spatial))), grad.dtype)
        for i in np.ndindex(*grad.shape):
            out[(*i[: len(lead)], indices[i])] += grad[i]
        return out.reshape(lead + spatial)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((5, 4)), normal(2, 3, 3, 2), integers(2, 3, 3, 2, lo=0, hi=20))
        yield case(cls((6,)), normal(2, 9), integers(2, 9, lo=0, hi=6), dtype=f64)
        yield case(cls((2, 2, 3)), normal(2, 2, 1, 2), integers(2, 2, 1, 2, lo=0, hi=12))
        yield case(cls((6,)), normal(0, 9), integers(0, 9))


def max_pool_backward(
    grad: Node,
    indices: Node,
    spatial: Sequence[Dim],
    kernel: Sequence[int] | None = None,
    stride: Sequence[int] | int | None = None,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> Node:
    """With the kernel given, a parallel gather; without, additions in order. () is adaptive."""
    if kernel is None:
        return node(MaxPoolBackward(tuple(spatial)), grad, indices)
    k = tuple(kernel)
    n = len(k)
    s, p, d = _ints(stride or k, n), _ints(padding, n), _ints(dilation, n)
    return cast(window_route(grad, indices, k, s, p, d, tuple(spatial)), grad.dtype)


# ---- average


def _want_float(what: str, x: TensorType) -> None:
    require(x.dtype.is_float, f"{what}: {x!r} is not floating point", hint="cast it first")


def _divided(
    total: Node,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    sizes: Shape,
    spatial: Shape,
    include: bool,
    divisor: int | None,
) -> Node:
    """Sums by how many elements they count; a plain number where that is the same everywhere."""
    if divisor is not None:
        return div(total, divisor)
    whole = bool(kernel) and all(
        (include or p == 0) and D.known_le((o - 1) * s + k, n + 2 * p)
        for o, n, k, s, p in zip(sizes, spatial, kernel, stride, padding)
    )
    if whole:
        return div(total, static((product(kernel),))[0])
    count = window_count(kernel, stride, padding, sizes, spatial, include, total.dtype)
    return div(total, count)


@operator
class AvgPool(Op):
    """Window means; padding counts if `count_include_pad`; a `divisor` replaces the counts."""

    kernel: Ints
    stride: Ints
    padding: Ints
    ceil: bool = False
    count_include_pad: bool = True
    divisor: int | None = None

    def infer(self, x: TensorType) -> TensorType:
        _want_float("avg_pool", x)
        _check("avg_pool", x, self.kernel, self.stride, self.padding, self._ones())
        require(self.divisor != 0, "avg_pool: the divisor is zero")
        lead = x.shape[: x.rank - len(self.kernel)]
        return TensorType(x.dtype, lead + self._windows(x.shape))

    def _ones(self) -> Ints:
        return (1,) * len(self.kernel)

    def _windows(self, x: Shape) -> Shape:
        settings = (self.kernel, self.stride, self.padding, self._ones(), self.ceil)
        return _sizes("avg_pool", x, *settings)

    def compose(self, x: Node) -> Node:
        sizes = self._windows(x.shape)
        total = window_sum(x, self.kernel, self.stride, self.padding, self._ones(), sizes)
        spatial = x.shape[x.rank - len(self.kernel) :]
        mean = _divided(
            total,
            self.kernel,
            self.stride,
            self.padding,
            sizes,
            spatial,
            self.count_include_pad,
            self.divisor,
        )
        return cast(mean, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        n = len(self.kernel)
        sizes = static(self._windows(x.shape))
        out = np.zeros(x.shape[: x.ndim - n] + sizes)
        for o, window, count in _numpy_windows(self, x.shape[x.ndim - n :], sizes):
            total = x[(..., *window)].astype(np.float64).sum(axis=tuple(range(-n, 0)))
            out[(..., *o)] = total / count
        return out.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3, 3), (2, 2), (1, 1)), normal(2, 3, 8, 7))
        yield case(cls((2,), (2,), (0,)), normal(2, 3, 8))
        yield case(cls((3, 2), (2, 3), (1, 1), True, True), normal(1, 2, 8, 6), dtype=f64)
        yield case(cls((3, 2), (2, 3), (1, 1), True, False), normal(1, 2, 8, 6))
        yield case(cls((3, 2), (2, 3), (1, 0), False, False, 5), normal(1, 2, 8, 6), dtype=f16)
        yield case(cls((2, 2, 2), (1, 2, 2), (1, 0, 1), True, True), normal(2, 3, 4, 5), dtype=bf16)
        yield case(cls((2,), (2,), (0,)), normal(0, 3, 8))


def _numpy_windows(
    op: AvgPool | AvgPoolBackward, spatial: Sequence[int], sizes: Ints
) -> Iterator[tuple[Ints, list[Any], int]]:
    """(window, the slices it covers, its divisor), as torch's loops have it."""
    for o in cartesian(*map(range, sizes)):
        slices, with_pad, without = [], 1, 1
        for j, k, s, p, n in zip(o, op.kernel, op.stride, op.padding, spatial, strict=True):
            start = j * s - p
            end = min(start + k, n + p)
            with_pad *= end - start
            start, end = max(start, 0), min(end, n)
            without *= end - start
            slices.append(np.s_[start:end])
        yield o, slices, op.divisor or (with_pad if op.count_include_pad else without)


def avg_pool(
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] | int | None = None,
    padding: Sequence[int] | int = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Node:
    k = tuple(kernel)
    s, p = _ints(stride or k, len(k)), _ints(padding, len(k))
    return node(AvgPool(k, s, p, ceil, count_include_pad, divisor), x)


@operator
class AvgPoolBackward(Op):
    """The gradient of avg_pool with respect to an input whose pooled axes are `spatial`."""

    spatial: Shape
    kernel: Ints
    stride: Ints
    padding: Ints
    ceil: bool = False
    count_include_pad: bool = True
    divisor: int | None = None

    def infer(self, grad: TensorType) -> TensorType:
        what = "avg_pool_backward"
        _want_float(what, grad)
        ones = (1,) * len(self.kernel)
        _check(what, grad, self.kernel, self.stride, self.padding, ones)
        settings = (self.kernel, self.stride, self.padding, ones, self.ceil)
        sizes = _sizes(what, self.spatial, *settings)
        lead = grad.shape[: grad.rank - len(self.kernel)]
        same = all(map(may_equal, sizes, grad.shape[len(lead) :]))
        require(
            same, f"{what}: {list(self.spatial)} has {list(sizes)} windows, not those of {grad!r}"
        )
        return TensorType(grad.dtype, lead + self.spatial)

    def compose(self, grad: Node) -> Node:
        sizes = grad.shape[grad.rank - len(self.kernel) :]
        share = _divided(
            cast(grad, grad.dtype.accumulator),
            self.kernel,
            self.stride,
            self.padding,
            sizes,
            self.spatial,
            self.count_include_pad,
            self.divisor,
        )
        ones = (1,) * len(self.kernel)
        back = window_spread(share, self.kernel, self.stride, self.padding, ones, self.spatial)
        return cast(back, grad.dtype)

    def reference(self, grad: np.ndarray) -> np.ndarray:
        n = len(self.kernel)
        spatial, sizes = static(self.spatial), grad.shape[grad.ndim - n :]
        out = np.zeros(grad.shape[: grad.ndim - n] + spatial)
        for o, window, count in _numpy_windows(self, spatial, sizes):
            out[(..., *window)] += (grad[(..., *o)] / count)[(...,) + (None,) * n]
        return out.astype(grad.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((8, 7), (3, 3), (2, 2), (1, 1)), normal(2, 3, 4, 4))
        yield case(cls((8,), (2,), (2,), (0,)), normal(2, 3, 4), dtype=f64)
        yield case(cls((8, 6), (3, 2), (2, 3), (1, 1), True, True), normal(1, 2, 5, 3))
        yield case(cls((8, 6), (3, 2), (2, 3), (1, 1), True, False), normal(1, 2, 5, 3), dtype=f16)
        yield case(cls((8, 6), (3, 2), (2, 3), (1, 0), False, False, 5), normal(1, 2, 4, 2))


def avg_pool_backward(
    grad: Node,
    spatial: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int] | int | None = None,
    padding: Sequence[int] | int = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Node:
    k = tuple(kernel)
    s, p = _ints(stride or k, len(k)), _ints(padding, len(k))
    op = AvgPoolBackward(tuple(spatial), k, s, p, ceil, count_include_pad, divisor)
    return node(op, grad)


# ---- adaptive


def _adaptive_settings(spatial: Shape, size: Shape) -> tuple[Ints, Ints, Ints, Ints]:
    """kernel, stride, padding, dilation: regular ones where every window has one length."""
    if all(
        isinstance(n, int) and isinstance(o, int) and o and n % o == 0
        for n, o in zip(spatial, size)
    ):
        k = tuple(n // o for n, o in zip(static(spatial), static(size)))
        return k, k, (0,) * len(k), (1,) * len(k)
    return (), (), (), ()


def _check_adaptive(what: str, x: TensorType, size: Shape) -> None:
    require(1 <= len(size) <= x.rank, f"{what}: an output size {list(size)} does not fit {x!r}")
    empty = any(D.known_eq(n, 0) for n in x.shape[x.rank - len(size) :])
    require(not empty, f"{what}: a pooled axis of {x!r} is empty")


def _adaptive_range(n: int, size: int, o: int) -> list[int]:
    return list(range(o * n // size, -(-(o + 1) * n // size)))


@operator
class AdaptiveAvgPool(Op):
    """Means of windows that share the axis evenly among `size` outputs."""

    size: Shape

    def infer(self, x: TensorType) -> TensorType:
        _want_float("adaptive_avg_pool", x)
        _check_adaptive("adaptive_avg_pool", x, self.size)
        return TensorType(x.dtype, x.shape[: x.rank - len(self.size)] + self.size)

    def compose(self, x: Node) -> Node:
        spatial = x.shape[x.rank - len(self.size) :]
        k, s, p, d = _adaptive_settings(spatial, self.size)
        total = window_sum(x, k, s, p, d, self.size)
        return cast(_divided(total, k, s, p, self.size, spatial, True, None), x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        size = static(self.size)
        n = len(size)
        spatial = x.shape[x.ndim - n :]
        out = np.zeros(x.shape[: x.ndim - n] + size)
        for o in cartesian(*map(range, size)):
            own = [_adaptive_range(a, b, j) for a, b, j in zip(spatial, size, o)]
            window = tuple(np.s_[r[0] : r[-1] + 1] for r in own)
            out[(..., *o)] = x[(..., *window)].astype(np.float64).mean(axis=tuple(range(-n, 0)))
        return out.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1, 1)), normal(2, 3, 7, 5))
        yield case(cls((3, 4)), normal(2, 3, 7, 5), dtype=f64)
        yield case(cls((3, 2)), normal(2, 6, 8), dtype=bf16)
        yield case(cls((9,)), normal(2, 4))
        yield case(cls((2, 3, 2)), normal(1, 3, 3, 5), dtype=f16)
        yield case(cls((2,)), normal(0, 5))


def adaptive_avg_pool(x: Node, size: Sequence[Dim]) -> Node:
    return node(AdaptiveAvgPool(tuple(size)), x)


@operator
class AdaptiveAvgPoolBackward(Op):
    """The gradient of adaptive_avg_pool with respect to an input of spatial shape `spatial`."""

    spatial: Shape

    def infer(self, grad: TensorType) -> TensorType:
        what = "adaptive_avg_pool_backward"
        _want_float(what, grad)
        _check_adaptive(what, grad, self.spatial)
        return TensorType(grad.dtype, grad.shape[: grad.rank - len(self.spatial)] + self.spatial)

    def compose(self, grad: Node) -> Node:
        size = grad.shape[grad.rank - len(self.spatial) :]
        k, s, p, d = _adaptive_settings(self.spatial, size)
        wide = cast(grad, grad.dtype.accumulator)
        share = _divided(wide, k, s, p, size, self.spatial, True, None)
        return cast(window_spread(share, k, s, p, d, self.spatial), grad.dtype)

    def reference(self, grad: np.ndarray) -> np.ndarray:
        spatial = static(self.spatial)
        n = len(spatial)
        size = grad.shape[grad.ndim - n :]
        out = np.zeros(grad.shape[: grad.ndim - n] + spatial)
        for o in cartesian(*map(range, size)):
            own = [_adaptive_range(a, b, j) for a, b, j in zip(spatial, size, o)]
            for i in cartesian(*own):
                out[(..., *i)] += grad[(..., *o)] / np.prod([len(r) for r in own])
        return out.astype(grad.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((7, 5)), normal(2, 3, 1, 1))
        yield case(cls((7, 5)), normal(2, 3, 3, 4), dtype=f64)
        yield case(cls((6, 8)), normal(2, 3, 2), dtype=f16)
        yield case(cls((4,)), normal(2, 9))


def adaptive_avg_pool_backward(grad: Node, spatial: Sequence[Dim]) -> Node:
    return node(AdaptiveAvgPoolBackward(tuple(spatial)), grad)


@operator
class AdaptiveMaxPool(Op):
    """(maxima, flat spatial indices) of windows that share the axis evenly among `size` outputs."""

    size: Shape

    def infer(self, x: TensorType) -> TupleType:
        _check_adaptive("adaptive_max_pool", x, self.size)
        shape = x.shape[: x.rank - len(self.size)] + self.size
        return TupleType((TensorType(x.dtype, shape), TensorType(i64, shape)))

    def compose(self, x: Node) -> tuple[Node, Node]:
        spatial = x.shape[x.rank - len(self.size) :]
        settings = (*_adaptive_settings(spatial, self.size), self.size)
        m = window_max(x, *settings)
        return m, _indices(window_argmax(x, m, *settings))

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = static(self.size)
        spatial = x.shape[x.ndim - len(size) :]
        return _numpy_max(x, size, lambda k, o: _adaptive_range(spatial[k], size[k], o))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1, 1)), normal(2, 3, 7, 5))
        yield case(cls((3, 4)), normal(2, 3, 7, 5), dtype=f64)
        yield case(cls((3, 2)), normal(2, 6, 8), dtype=bf16)
        yield case(cls((9,)), integers(2, 4))
        yield case(cls((5,)), extremes(2, 14))


def adaptive_max_pool(x: Node, size: Sequence[Dim]) -> Node:
    """(maxima, indices)."""
    return node(AdaptiveMaxPool(tuple(size)), x)
