"""Convolutions of one to three spatial axes and their transposes.

Everything reduces to a contraction without a condition in its body, `conv_valid`: padding, zero
insertion and flipped weights are movers in front of it. The gradients are in conv_gradients.py.
x is [N, C, *spatial], w is [O, C/groups, *kernel], for a transposed one [C, O/groups, *kernel].
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
from tilewright.ir.positions import Shape, static
from tilewright.ir.types import TensorType, bf16, f16, f64
from tilewright.ops.conv_parts import (
    Ints,
    check_conv,
    group_of,
    numpy_conv,
    numpy_spread,
    pad_space,
    per_axis,
    per_axis_ints,
    summed_dtype,
    want_positive,
    wide_value,
)
from tilewright.ops.samples import case, integers, normal
from tilewright.ops.views import flip, permute, reshape


def valid_size(size: Dim, kernel: Dim, stride: int, dilation: int) -> Dim:
    """Number of windows that lie wholly inside."""
    return D.floordiv(size - dilation * (kernel - 1) - 1, stride) + 1


@operator
class ConvValid(Op):
    """The convolution of an input that needs no padding: one add-reduction of a product."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    stride: Ints
    dilation: Ints
    groups: int
    wide: bool = False  # the sums of 16-bit floats stay in float32

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        check_conv("conv", x, w, self.groups, 1, self.stride, self.dilation)
        want_positive("conv", "stride", self.stride)
        want_positive("conv", "dilation", self.dilation)
        sizes = self._sizes(x.shape, w.shape)
        require(
            not any(D.known_lt(s, 1) for s in sizes),
            f"conv: the kernel of {w!r} with dilation {self.dilation} is larger than {x!r}",
            hint="pad the input, or use a smaller kernel",
        )
        return TensorType(summed_dtype(x.dtype, self.wide), (x.shape[0], w.shape[0]) + sizes)

    def _sizes(self, x: Shape, w: Shape) -> Shape:
        return tuple(map(valid_size, x[2:], w[2:], self.stride, self.dilation))

    def compute(self, x: Tensor, w: Tensor) -> Tensor:
        shape = (x.shape[0], w.shape[0]) + self._sizes(x.shape, w.shape)
        per_group, dtype = w.shape[1], summed_dtype(x.dtype, self.wide)

        def body(n: Dim, o: Dim, *p: Dim) -> Value:
            first = group_of(o, w.shape[0], self.groups) * per_group

            def term(c: Dim, *k: Dim) -> Value:
                at = tuple(
                    i * s + j * d
                    for i, s, j, d in zip(p, self.stride, k, self.dilation, strict=True)
                )
                return wide_value(x, (n, first + c) + at) * wide_value(w, (o, c) + k)

            return E.cast(E.reduce("add", w.shape[1:], term), dtype)

        return E.compute(shape, body, dtype)

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        zeros = (0,) * len(self.stride)
        return numpy_conv(x, w, self.stride, zeros, self.dilation, self.groups)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1,), (1,), 1), normal(2, 3, 9), normal(4, 3, 3))
        yield case(cls((2, 1), (1, 2), 1), normal(1, 2, 7, 8), normal(3, 2, 3, 2))
        yield case(cls((1, 1), (1, 1), 3), normal(2, 6, 5, 4), normal(6, 2, 2, 3), dtype=f64)
        yield case(cls((1, 1, 2), (1, 1, 1), 1), normal(1, 2, 3, 4, 5), normal(2, 2, 2, 2, 2))
        yield case(cls((2, 2), (1, 1), 4), normal(1, 4, 6, 6), normal(4, 1, 3, 3), dtype=bf16)
        yield case(cls((1,), (1,), 1), integers(1, 2, 6), integers(2, 2, 3))
        yield case(cls((1, 1), (1, 1), 1), normal(0, 2, 4, 4), normal(3, 2, 2, 2))


def conv_valid(
    x: Node, w: Node, stride: Ints, dilation: Ints, groups: int, wide: bool = False
) -> Node:
    return node(ConvValid(stride, dilation, groups, wide), x, w)


@operator
class ZeroInsert(Op):
    """step - 1 zeros between neighbours of every spatial axis (those after the first two)."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    steps: Ints

    def infer(self, x: TensorType) -> TensorType:
        require(
            x.rank == len(self.steps) + 2,
            f"zero_insert: {self.steps} does not fit the spatial axes of {x!r}",
        )
        want_positive("zero_insert", "step", self.steps)
        return TensorType(x.dtype, self._shape(x.shape))

    def _shape(self, x: Shape) -> Shape:
        grown = (
            0 if D.known_eq(d, 0) else (d - 1) * s + 1
            for d, s in zip(x[2:], self.steps, strict=True)
        )
        return x[:2] + tuple(grown)

    def compute(self, x: Tensor) -> Tensor:
        def body(n: Dim, c: Dim, *p: Dim) -> Value:
            pairs = list(zip(p, self.steps, strict=True))
            on = E.all_of(*(E.index(D.mod(i, s)).eq(0) for i, s in pairs))
            source = x[(n, c) + tuple(D.floordiv(i, s) for i, s in pairs)]
            return E.select(on, source, E.const(0, x.dtype))

        return E.compute(self._shape(x.shape), body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(static(self._shape(x.shape)), x.dtype)
        steps = (1, 1) + self.steps
        for i in np.ndindex(*x.shape):
            out[tuple(a * s for a, s in zip(i, steps))] = x[i]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((3,)), normal(2, 2, 4))
        yield case(cls((2, 1)), normal(1, 2, 3, 4), dtype=f16)
        yield case(cls((2, 2)), integers(1, 1, 1, 3))
        yield case(cls((2,)), normal(2, 2, 0))


def zero_insert(x: Node, steps: Ints) -> Node:
    return x if all(s == 1 for s in steps) else node(ZeroInsert(steps), x)


def swap_weight(w: Node, groups: int) -> Node:
    """[C, O/g, *kernel] of a transposed one as [O, C/g, *kernel] of a plain one, flipped."""
    channels, per_group, *kernel = w.shape
    n = len(kernel)
    if groups == 1 and all(D.known_eq(k, 1) for k in kernel):  # a matrix
        turned = permute(reshape(w, (channels, per_group)), (1, 0))
        return reshape(turned, (per_group, channels, *kernel))
    if groups == 1:
        return flip(permute(w, (1, 0, *range(2, 2 + n))), range(2, 2 + n))
    inner = D.floordiv(channels, groups)
    w = reshape(w, (groups, inner, per_group, *kernel))
    w = permute(w, (0, 2, 1, *range(3, 3 + n)))
    return flip(reshape(w, (per_group * groups, inner, *kernel)), range(2, 2 + n))


@operator
class Conv(Op):
    """torch's convolution without bias: strided, padded, dilated, grouped, or transposed."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int = 1
    transposed: bool = False
    output_padding: Shape = ()
    wide: bool = False  # the sums of 16-bit floats stay in float32

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        settings = (self.stride, self.padding, self.dilation)
        if not self.transposed:
            check_conv("conv", x, w, self.groups, 1, *settings)
            spatial = tuple(d + 2 * p for d, p in zip(x.shape[2:], self.padding, strict=True))
            padded = TensorType(x.dtype, x.shape[:2] + spatial)
            return ConvValid(self.stride, self.dilation, self.groups, self.wide).infer(padded, w)
        check_conv("transposed conv", x, w, self.groups, 0, *settings, self.output_padding)
        want_positive("transposed conv", "stride", self.stride)
        want_positive("transposed conv", "dilation", self.dilation)
        sizes = tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
            for n, k, s, p, d, extra in zip(
                x.shape[2:],
                w.shape[2:],
                self.stride,
                self.padding,
                self.dilation,
                self.output_padding,
                strict=True,
            )
        )
        require(
            not any(D.known_lt(s, 1) for s in sizes),
            f"transposed conv: {x!r} with weight {w!r} and padding {self.padding} leaves nothing",
        )
        dtype = summed_dtype(x.dtype, self.wide)
        return TensorType(dtype, (x.shape[0], w.shape[1] * self.groups) + sizes)

    def compose(self, x: Node, w: Node) -> Node:
        if not self.transposed:
            x = pad_space(x, self.padding, self.padding)
            return conv_valid(x, w, self.stride, self.dilation, self.groups, self.wide)
        lo = [d * (k - 1) - p for k, d, p in zip(w.shape[2:], self.dilation, self.padding)]
        hi = [a + extra for a, extra in zip(lo, self.output_padding, strict=True)]
        ones = (1,) * len(self.stride)
        swapped = swap_weight(w, self.groups)
        if all(D.known_eq(k, 1) for k in w.shape[2:]):  # zeros stay zeros: they come afterwards
            y = conv_valid(x, swapped, ones, self.dilation, self.groups, self.wide)
            return pad_space(zero_insert(y, self.stride), lo, hi)
        x = pad_space(zero_insert(x, self.stride), lo, hi)
        return conv_valid(x, swapped, ones, self.dilation, self.groups, self.wide)

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if not self.transposed:
            return numpy_conv(x, w, self.stride, self.padding, self.dilation, self.groups)
        shape = self.infer(TensorType(f64, x.shape), TensorType(f64, w.shape)).shape
        return numpy_spread(
            x, w, static(shape), self.stride, self.padding, self.dilation, self.groups
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1,), (1,), (1,)), normal(2, 3, 8), normal(4, 3, 3))
        yield case(cls((2, 2), (3, 3), (1, 1)), normal(1, 3, 11, 9), normal(2, 3, 7, 7))
        yield case(cls((1, 2), (2, 0), (2, 1), 2), normal(2, 4, 6, 5), normal(6, 2, 3, 2))
        yield case(
            cls((1, 1), (1, 1), (1, 1), 4), normal(1, 4, 5, 5), normal(4, 1, 3, 3), dtype=f16
        )
        yield case(
            cls((2, 1, 1), (1, 0, 1), (1, 1, 1)), normal(1, 2, 4, 3, 5), normal(2, 2, 3, 2, 3)
        )
        yield case(cls((1, 1), (0, 0), (1, 1)), normal(2, 5, 3, 3), normal(7, 5, 1, 1), dtype=bf16)
        for half in (f16, bf16):
            op = cls((1,), (1,), (1,), 1, False, (), True)
            yield case(op, normal(2, 3, 8), normal(4, 3, 3), dtype=half)
        yield case(cls((2,), (1,), (1,)), integers(2, 2, 7), integers(3, 2, 3))
        yield case(cls((1,), (1,), (1,)), normal(0, 3, 8), normal(4, 3, 3))
        yield case(cls((2,), (1,), (1,), 1, True, (1,)), normal(2, 3, 5), normal(3, 4, 3))
        yield case(
            cls((2, 3), (0, 1), (1, 2), 2, True, (0, 2)), normal(1, 4, 3, 4), normal(4, 3, 3, 2)
        )
        yield case(
            cls((2, 3), (0, 1), (1, 1), 1, True, (1, 0)), normal(1, 2, 3, 3), normal(2, 3, 1, 1)
        )
        yield case(
            cls((1, 1), (3, 0), (1, 1), 1, True, (0, 0)),
            normal(1, 2, 6, 4),
            normal(2, 2, 3, 3),
            dtype=f64,
        )
        yield case(
            cls((2, 1, 1), (1, 0, 0), (1, 1, 1), 1, True, (1, 0, 0)),
            normal(1, 2, 2, 3, 2),
            normal(2, 1, 3, 2, 2),
        )


def conv(
    x: Node,
    w: Node,
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: Sequence[Dim] | Dim = 0,
    wide: bool = False,
) -> Node:
    """With `wide`, sums of 16-bit floats are left in float32."""
    n = x.rank - 2
    extra = per_axis(output_padding, n) if transposed else ()
    settings = (per_axis_ints(stride, n), per_axis_ints(padding, n), per_axis_ints(dilation, n))
    return node(Conv(*settings, groups, transposed, extra, wide), x, w)
