"""What pooling is made of: reductions over windows of the spatial axes, and their gradients.

A window family is regular (kernel, stride, padding, dilation) or, with an empty kernel, adaptive:
output o of O covers the inputs from floor(o*n/O) to ceil((o+1)*n/O). `size` is the number of
windows per axis. Gradients are gathers: an input sums over the windows that reach it, so every
element is independent of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import Shape, linear_index, may_equal, product, static
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, f64, i64
from tilewright.ops.samples import case, extremes, integers, normal
from tilewright.ops.shapes import same_dtype

Ints = tuple[int, ...]
# Of one step along an axis of a reduction: where it reads, and the conditions for that to be real.
Step = Callable[[Dim], tuple[Dim, list[Value]]]


def adaptive_start(o: Dim, n: Dim, size: Dim) -> Dim:
    return D.floordiv(o * n, size)


def adaptive_end(o: Dim, n: Dim, size: Dim) -> Dim:
    return D.ceildiv((o + 1) * n, size)


def _adaptive_steps(o: Dim, n: Dim, size: Dim) -> tuple[Dim, Step]:
    """Window o of an adaptive family of `size` windows over n elements."""
    if isinstance(n, int) and isinstance(size, int):
        longest = max((-(-(k + 1) * n // size) - k * n // size for k in range(size)), default=0)
    else:
        longest = D.ceildiv(n, size) + 1
    if D.known_eq(n, 0) or D.known_eq(size, 0):
        return 0, lambda r: (r, [])
    start, end = adaptive_start(o, n, size), adaptive_end(o, n, size)
    return longest, lambda r: (start + r, [E.index(start + r) < end])


@dataclass(frozen=True)
class Windows(Op):
    """The fields that the operators of this file share."""

    kernel: Ints
    stride: Ints
    padding: Ints
    dilation: Ints
    size: Shape

    @property
    def rank(self) -> int:
        return len(self.size)

    def check(self, what: str, x: TensorType) -> None:
        require(
            x.rank >= self.rank, f"{what}: {x!r} has fewer axes than the {self.rank} of the windows"
        )
        lengths = {len(s) for s in (self.kernel, self.stride, self.padding, self.dilation)}
        want = {self.rank} if self.kernel else {0}
        require(lengths == want, f"{what}: settings for {self.rank} spatial axes differ in length")
        positive = all(v > 0 for v in (*self.kernel, *self.stride, *self.dilation))
        require(positive, f"{what}: kernel, stride and dilation have to be positive")

    def lead(self, shape: Shape) -> Shape:
        return shape[: len(shape) - self.rank]

    def space(self, shape: Shape) -> Shape:
        return shape[len(shape) - self.rank :]

    def inputs_of(self, axis: int, o: Dim, n: Dim) -> tuple[Dim, Step]:
        """The inputs of window o along an axis of n elements."""
        if not self.kernel:
            return _adaptive_steps(o, n, self.size[axis])
        first = o * self.stride[axis] - self.padding[axis]
        d = self.dilation[axis]

        def step(k: Dim) -> tuple[Dim, list[Value]]:
            at = first + k * d
            return at, [E.index(at) >= 0, E.index(at) < n]

        return self.kernel[axis], step

    def windows_of(self, axis: int, i: Dim, n: Dim) -> tuple[Dim, Step]:
        """The windows that input i of n reaches; for adaptive families that is adaptive again."""
        size = self.size[axis]
        if not self.kernel:
            return _adaptive_steps(i, size, n)
        k, s, d = self.kernel[axis], self.stride[axis], self.dilation[axis]
        at = i + self.padding[axis]
        if d == 1:

            def near(r: Dim) -> tuple[Dim, list[Value]]:
                o = D.floordiv(at, s) - r
                reached = E.index(D.mod(at, s) + r * s) < k
                return o, [E.index(o) >= 0, E.index(o) < size, reached]

            return D.ceildiv(k, s), near

        def tap(r: Dim) -> tuple[Dim, list[Value]]:
            off = at - r * d
            o = D.floordiv(off, s)
            hit = E.index(D.mod(off, s)).eq(0)
            return o, [E.index(off) >= 0, hit, E.index(o) < size]

        return k, tap

    def covered(self, spatial: Sequence[int]) -> Iterator[tuple[Ints, list[Ints]]]:
        """For references: every window with the input positions that it covers, in order."""
        ranges = [
            [self._covered(a, o, n) for o in range(m)]
            for a, (n, m) in enumerate(zip(spatial, static(self.size)))
        ]
        for o in cartesian(*(range(m) for m in static(self.size))):
            yield o, list(cartesian(*(ranges[a][j] for a, j in enumerate(o))))

    def _covered(self, axis: int, o: int, n: int) -> list[int]:
        if not self.kernel:
            (size,) = static((self.size[axis],))
            return list(range(o * n // size, -(-(o + 1) * n // size)))
        first = o * self.stride[axis] - self.padding[axis]
        taps = (first + k * self.dilation[axis] for k in range(self.kernel[axis]))
        return [t for t in taps if 0 <= t < n]


def _fold(
    combine: str,
    axes: Sequence[tuple[Dim, Step]],
    inside: Callable[[tuple[Dim, ...], Value], Value],
) -> Value:
    """Reduce over the product of the steps; `inside(position, condition)` is the guarded value."""

    def body(*r: Dim) -> Value:
        steps = [step(k) for k, (_, step) in zip(r, axes, strict=True)]
        real = E.all_of(*(c for _, conditions in steps for c in conditions))
        return inside(tuple(at for at, _ in steps), real)

    return E.reduce(combine, [extent for extent, _ in axes], body)


@operator
class WindowMax(Windows):
    """The maximum of each window; NaN wins."""

    def infer(self, x: TensorType) -> TensorType:
        self.check("window_max", x)
        return TensorType(x.dtype, self.lead(x.shape) + self.size)

    def compute(self, x: Tensor) -> Tensor:
        lowest = E.const(x.dtype.lowest, x.dtype)

        def body(*i: Dim) -> Value:
            lead, o = self.lead(i), self.space(i)
            axes = [self.inputs_of(k, p, self.space(x.shape)[k]) for k, p in enumerate(o)]
            return _fold("max", axes, lambda at, real: E.select(real, x[lead + at], lowest))

        return E.compute(self.lead(x.shape) + self.size, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(static(self.lead(x.shape) + self.size), x.dtype)
        for o, inputs in self.covered(static(self.space(x.shape))):
            out[(..., *o)] = np.max([x[(..., *i)] for i in inputs], axis=0)
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3, 3), (2, 2), (1, 1), (1, 1), (4, 3)), normal(2, 3, 8, 6))
        yield case(cls((2,), (1,), (0,), (3,), (4,)), normal(2, 7), dtype=f16)
        yield case(cls((2, 3), (2, 1), (0, 1), (1, 1), (3, 6)), integers(2, 6, 6))
        yield case(cls((), (), (), (), (3, 4)), normal(2, 7, 5), dtype=f64)
        yield case(cls((2,), (2,), (0,), (1,), (7,)), extremes(2, 14))
        yield case(cls((2,), (2,), (0,), (1,), (3,)), normal(0, 6))


def window_max(
    x: Node, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, size: Shape
) -> Node:
    return node(WindowMax(kernel, stride, padding, dilation, size), x)


@operator
class WindowArgmax(Windows):
    """Codes of where each window's maximum `m` was found: the flat spatial index of the first one,
    or minus one minus the flat index of the last NaN. max(code, ~code) is the index."""

    def infer(self, x: TensorType, m: TensorType) -> TensorType:
        self.check("window_argmax", x)
        same_dtype("window_argmax", x, m)
        require(
            m.shape == self.lead(x.shape) + self.size,
            f"window_argmax: the maxima {m!r} are not those of {x!r}",
        )
        return TensorType(i64, m.shape)

    def compute(self, x: Tensor, m: Tensor) -> Tensor:
        spatial = self.space(x.shape)

        def body(*i: Dim) -> Value:
            lead, o = self.lead(i), self.space(i)

            def code(at: tuple[Dim, ...], real: Value) -> Value:
                v, flat = x[lead + at], E.index(linear_index(at, spatial))
                here = v.eq(m[i])
                if x.dtype.is_float:
                    here, flat = here | v.ne(v), E.select(v.ne(v), -1 - flat, flat)
                # Nested, so that nothing is read where the position is not real.
                none = E.const(i64.highest, i64)
                return E.select(real, E.select(here, flat, none), none)

            axes = [self.inputs_of(k, p, spatial[k]) for k, p in enumerate(o)]
            return _fold("min", axes, code)

        return E.compute(m.shape, body, i64)

    def reference(self, x: np.ndarray, m: np.ndarray) -> np.ndarray:
        spatial = static(self.space(x.shape))
        out = np.full(m.shape, i64.highest, np.int64)
        for o, inputs in self.covered(spatial):
            for i in inputs:
                v, flat = x[(..., *i)], int(np.ravel_multi_index(i, spatial))
                hit = np.where(v == m[(..., *o)], flat, i64.highest)
                hit = np.where(v != v, -1 - flat, hit)
                out[(..., *o)] = np.minimum(out[(..., *o)], hit)
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, x in (
            (cls((3, 3), (2, 2), (1, 1), (1, 1), (4, 3)), normal(2, 3, 8, 6)),
            (cls((3,), (2,), (1,), (1,), (4,)), integers(2, 7, lo=0, hi=3)),
            (cls((), (), (), (), (3, 4)), normal(2, 7, 5)),
            (cls((3,), (2,), (1,), (1,), (7,)), extremes(2, 14)),
        ):
            highest = WindowMax(op.kernel, op.stride, op.padding, op.dilation, op.size)
            yield case(op, x, highest.reference(x))


def window_argmax(
    x: Node, m: Node, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, size: Shape
) -> Node:
    return node(WindowArgmax(kernel, stride, padding, dilation, size), x, m)


@operator
class WindowSum(Windows):
    """The sum of each window, in the dtype in which sums are carried."""

    linear: ClassVar[tuple[int, ...]] = (0,)

    def infer(self, x: TensorType) -> TensorType:
        self.check("window_sum", x)
        return TensorType(x.dtype.accumulator, self.lead(x.shape) + self.size)

    def compute(self, x: Tensor) -> Tensor:
        wide = x.dtype.accumulator
        zero = E.const(0, wide)

        def body(*i: Dim) -> Value:
            lead, o = self.lead(i), self.space(i)
            axes = [self.inputs_of(k, p, self.space(x.shape)[k]) for k, p in enumerate(o)]
            return _fold(
                "add", axes, lambda at, real: E.select(real, E.cast(x[lead + at], wide), zero)
            )

        return E.compute(self.lead(x.shape) + self.size, body, wide)

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = np.float64 if x.dtype.kind == "f" else x.dtype
        out = np.zeros(static(self.lead(x.shape) + self.size), wide)
        for o, inputs in self.covered(static(self.space(x.shape))):
            for i in inputs:
                out[(..., *o)] += x[(..., *i)]
        return out.astype(np.float32 if x.dtype == np.float16 else x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3, 3), (2, 2), (1, 1), (1, 1), (4, 3)), normal(2, 3, 8, 6))
        yield case(cls((3,), (2,), (1,), (2,), (3,)), normal(2, 9), dtype=f16)
        yield case(cls((), (), (), (), (3, 4)), normal(2, 7, 5), dtype=f64)
        yield case(cls((), (), (), (), (9,)), integers(2, 4))
        yield case(
            cls((2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1), (1, 2, 3)),
            normal(2, 2, 3, 4),
            dtype=bf16,
        )


def window_sum(
    x: Node, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, size: Shape
) -> Node:
    return node(WindowSum(kernel, stride, padding, dilation, size), x)


@operator
class WindowCount(Windows):
    """How many elements each window over `spatial` counts: with or without those of the padding."""

    spatial: Shape
    include_pad: bool
    dtype: DType

    def infer(self) -> TensorType:
        self.check("window_count", TensorType(self.dtype, self.spatial))
        return TensorType(self.dtype, self.size)

    def compute(self) -> Tensor:
        def body(*o: Dim) -> Value:
            sides = [self._length(k, p, self.spatial[k]) for k, p in enumerate(o)]
            return E.cast(E.index(product(sides)), self.dtype)

        return E.compute(self.size, body, self.dtype)

    def _length(self, axis: int, o: Dim, n: Dim) -> Dim:
        if not self.kernel:
            size = self.size[axis]
            return adaptive_end(o, n, size) - adaptive_start(o, n, size)
        k, s, p = self.kernel[axis], self.stride[axis], self.padding[axis]
        first = o * s - p
        if self.include_pad:
            return D.minimum(first + k, n + p) - first
        return D.minimum(first + k, n) - D.maximum(first, 0)

    def reference(self) -> np.ndarray:
        spatial = static(self.spatial)
        out = np.zeros(static(self.size))
        edge = self.padding if self.include_pad and self.kernel else (0,) * self.rank
        grown = Windows(
            self.kernel,
            self.stride,
            tuple(p - e for p, e in zip(self.padding, edge)),
            self.dilation,
            self.size,
        )
        for o, inputs in grown.covered([n + 2 * e for n, e in zip(spatial, edge)]):
            out[o] = len(inputs)
        return out.astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3, 2), (2, 2), (1, 1), (1, 1), (4, 4), (6, 6), True, f32))
        yield case(cls((3, 2), (2, 2), (1, 1), (1, 1), (4, 4), (6, 6), False, f64))
        yield case(cls((), (), (), (), (3, 4), (7, 5), False, f32))


def window_count(
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    size: Shape,
    spatial: Shape,
    include_pad: bool,
    dtype: DType,
) -> Node:
    ones = (1,) * len(kernel)
    return node(WindowCount(kernel, stride, padding, ones, size, spatial, include_pad, dtype))


@operator
class WindowSpread(Windows):
    """The gradient of window_sum: each input of `spatial` sums over the windows that reach it."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    spatial: Shape

    def infer(self, grad: TensorType) -> TensorType:
        self.check("window_spread", grad)
        same = all(map(may_equal, self.space(grad.shape), self.size))
        require(same, f"window_spread: {grad!r} does not have {list(self.size)} windows")
        return TensorType(grad.dtype.accumulator, self.lead(grad.shape) + self.spatial)

    def compute(self, grad: Tensor) -> Tensor:
        wide = grad.dtype.accumulator
        zero = E.const(0, wide)

        def body(*i: Dim) -> Value:
            lead, p = self.lead(i), self.space(i)
            axes = [self.windows_of(k, h, self.spatial[k]) for k, h in enumerate(p)]
            return _fold(
                "add", axes, lambda o, real: E.select(real, E.cast(grad[lead + o], wide), zero)
            )

        return E.compute(self.lead(grad.shape) + self.spatial, body, wide)

    def reference(self, grad: np.ndarray) -> np.ndarray:
        out = np.zeros(static(self.lead(grad.shape) + self.spatial))
        for o, inputs in self.covered(static(self.spatial)):
            for i in inputs:
                out[(..., *i)] += grad[(..., *o)]
        return out.astype(np.float32 if grad.dtype == np.float16 else grad.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3, 3), (2, 2), (1, 1), (1, 1), (4, 3), (8, 6)), normal(2, 3, 4, 3))
        yield case(cls((2,), (3,), (0,), (1,), (3,), (9,)), normal(2, 3), dtype=f16)
        yield case(cls((3,), (2,), (2,), (2,), (4,), (8,)), normal(2, 4), dtype=f64)
        yield case(cls((), (), (), (), (3, 4), (7, 5)), normal(2, 3, 4), dtype=f64)


def window_spread(
    grad: Node, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, spatial: Shape
) -> Node:
    size = grad.shape[grad.rank - len(spatial) :]
    return node(WindowSpread(kernel, stride, padding, dilation, size, spatial), grad)


@operator
class WindowRoute(Windows):
    """The gradient of a maximum over windows: each input takes from the windows that chose it."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    spatial: Shape

    def infer(self, grad: TensorType, indices: TensorType) -> TensorType:
        self.check("window_route", grad)
        ok = indices.dtype is i64 and indices.shape == grad.shape
        require(ok, f"window_route: {grad!r} and indices {indices!r} do not belong together")
        return TensorType(grad.dtype.accumulator, self.lead(grad.shape) + self.spatial)

    def compute(self, grad: Tensor, indices: Tensor) -> Tensor:
        wide = grad.dtype.accumulator
        zero = E.const(0, wide)

        def body(*i: Dim) -> Value:
            lead, p = self.lead(i), self.space(i)
            me = E.index(linear_index(p, self.spatial))

            def share(o: tuple[Dim, ...], real: Value) -> Value:
                mine = E.select(indices[lead + o].eq(me), E.cast(grad[lead + o], wide), zero)
                return E.select(real, mine, zero)

            axes = [self.windows_of(k, h, self.spatial[k]) for k, h in enumerate(p)]
            return _fold("add", axes, share)

        return E.compute(self.lead(grad.shape) + self.spatial, body, wide)

    def reference(self, grad: np.ndarray, indices: np.ndarray) -> np.ndarray:
        spatial = static(self.spatial)
        lead = static(self.lead(grad.shape))
        out = np.zeros((*lead, int(np.prod(spatial))))
        for i in np.ndindex(*grad.shape):
            out[(*i[: len(lead)], indices[i])] += grad[i]
        kind = np.float32 if grad.dtype == np.float16 else grad.dtype
        return out.reshape(lead + spatial).astype(kind)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, x in (
            (WindowMax((3, 3), (2, 2), (1, 1), (1, 1), (4, 3)), normal(2, 3, 8, 6)),
            (WindowMax((2,), (1,), (0,), (3,), (4,)), normal(2, 7)),
            (WindowMax((), (), (), (), (3, 4)), normal(2, 7, 5)),
        ):
            w = (op.kernel, op.stride, op.padding, op.dilation, op.size)
            m = op.reference(x)
            codes = WindowArgmax(*w).reference(x, m)
            spatial = static(op.space(x.shape))
            yield case(cls(*w, spatial), normal(*m.shape, seed=1), np.maximum(codes, ~codes))


def window_route(
    grad: Node,
    indices: Node,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    spatial: Shape,
) -> Node:
    size = grad.shape[grad.rank - len(spatial) :]
    return node(WindowRoute(kernel, stride, padding, dilation, size, spatial), grad, indices)
