"""The gradients of convolutions, with respect to their input and their weight.

The one to the input is a convolution, transposed or not; the one to the weight is a contraction
over batch and space, `conv_weight_valid`, after padding.
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
from tilewright.ir.positions import Shape, may_equal, static
from tilewright.ir.types import TensorType, f64
from tilewright.ops.conv_parts import (
    Ints,
    check_conv,
    group_of,
    numpy_conv,
    numpy_spread,
    numpy_weight,
    pad_space,
    per_axis_ints,
    wide_value,
)
from tilewright.ops.convolution import Conv
from tilewright.ops.samples import case, normal
from tilewright.ops.shapes import same_dtype
from tilewright.ops.views import slice


@operator
class ConvWeightValid(Op):
    """The weight gradient of conv_valid: a contraction over batch and space."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    stride: Ints
    dilation: Ints
    groups: int
    kernel: Shape

    def infer(self, grad: TensorType, x: TensorType) -> TensorType:
        what = "conv_weight_valid"
        same_dtype(what, grad, x)
        ok = x.rank == grad.rank == len(self.kernel) + 2
        require(ok, f"{what}: {grad!r}, {x!r} and kernel {self.kernel} differ in rank")
        require(
            may_equal(grad.shape[0], x.shape[0]),
            f"{what}: {grad!r} and {x!r} have different batch sizes",
        )
        reach = [
            (p - 1) * s + (k - 1) * d
            for p, s, k, d in zip(grad.shape[2:], self.stride, self.kernel, self.dilation)
        ]
        fits = not any(D.known_le(n, r) for n, r in zip(x.shape[2:], reach))
        require(fits, f"{what}: windows of {self.kernel} at each of {grad!r} leave {x!r}")
        per_group = D.floordiv(x.shape[1], self.groups)
        return TensorType(x.dtype, (grad.shape[1], per_group) + self.kernel)

    def compute(self, grad: Tensor, x: Tensor) -> Tensor:
        per_group = D.floordiv(x.shape[1], self.groups)

        def body(o: Dim, c: Dim, *k: Dim) -> Value:
            first = group_of(o, grad.shape[1], self.groups) * per_group

            def term(n: Dim, *p: Dim) -> Value:
                at = tuple(
                    i * s + j * d
                    for i, s, j, d in zip(p, self.stride, k, self.dilation, strict=True)
                )
                return wide_value(grad, (n, o) + p) * wide_value(x, (n, first + c) + at)

            extents = (grad.shape[0],) + grad.shape[2:]
            return E.cast(E.reduce("add", extents, term), x.dtype)

        return E.compute((grad.shape[1], per_group) + self.kernel, body, x.dtype)

    def reference(self, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        shape = (grad.shape[1], x.shape[1] // self.groups) + static(self.kernel)
        zeros = (0,) * len(self.stride)
        return numpy_weight(grad, x, shape, self.stride, zeros, self.dilation, self.groups)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1,), (1,), 1, (3,)), normal(2, 4, 7), normal(2, 3, 9))
        yield case(cls((2, 1), (1, 2), 1, (3, 2)), normal(1, 3, 3, 6), normal(1, 2, 8, 8))
        yield case(cls((1, 1), (1, 1), 3, (2, 3)), normal(2, 6, 4, 2), normal(2, 6, 5, 4))
        yield case(cls((1,), (1,), 1, (2,)), normal(0, 4, 7), normal(0, 3, 8), dtype=f64)


def conv_weight_valid(
    grad: Node, x: Node, stride: Ints, dilation: Ints, groups: int, kernel: Shape
) -> Node:
    return node(ConvWeightValid(stride, dilation, groups, kernel), grad, x)


@operator
class ConvBackwardInput(Op):
    """The gradient of conv with respect to its input, which had `input_shape`."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    transposed: bool
    input_shape: Shape

    def infer(self, grad: TensorType, w: TensorType) -> TensorType:
        what = "conv_backward_input"
        channel = 1 if self.transposed else 0
        check_conv(what, grad, w, self.groups, channel, self.stride, self.padding, self.dilation)
        channels = w.shape[0] if self.transposed else w.shape[1] * self.groups
        same = len(self.input_shape) == grad.rank and may_equal(self.input_shape[1], channels)
        require(same, f"{what}: weight {w!r} has no input of shape {list(self.input_shape)}")
        return TensorType(grad.dtype, self.input_shape)

    def compose(self, grad: Node, w: Node) -> Node:
        plain = Conv(self.stride, self.padding, self.dilation, self.groups)
        if self.transposed:
            x = node(plain, grad, w)
            for k in range(2, x.rank):  # output padding may have made room for one more window
                x = slice(x, k, 0, self.input_shape[k])
            return x
        extra = tuple(  # rows at the end that no window reached
            n - ((g - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, g, k, s, p, d in zip(
                self.input_shape[2:],
                grad.shape[2:],
                w.shape[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )
        back = Conv(self.stride, self.padding, self.dilation, self.groups, True, extra)
        return node(back, grad, w)

    def reference(self, grad: np.ndarray, w: np.ndarray) -> np.ndarray:
        settings = (self.stride, self.padding, self.dilation, self.groups)
        shape = static(self.input_shape)
        if not self.transposed:
            return numpy_spread(grad, w, shape, *settings)
        full = numpy_conv(grad, w, *settings)
        return full[tuple(np.s_[:n] for n in shape)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1,), (1,), (1,), 1, False, (2, 3, 8)), normal(2, 4, 8), normal(4, 3, 3))
        yield case(
            cls((2, 3), (1, 0), (1, 2), 2, False, (2, 4, 8, 10)),
            normal(2, 6, 4, 2),
            normal(6, 2, 3, 3),
        )
        yield case(cls((2,), (1,), (1,), 1, True, (2, 3, 5)), normal(2, 4, 10), normal(3, 4, 3))
        yield case(
            cls((1,), (0,), (2,), 1, True, (1, 2, 4)), normal(1, 3, 9), normal(2, 3, 3), dtype=f64
        )
        yield case(cls((3,), (0,), (1,), 1, False, (0, 3, 8)), normal(0, 4, 2), normal(4, 3, 3))


def conv_backward_input(
    grad: Node,
    w: Node,
    input_shape: Sequence[Dim],
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Node:
    n = grad.rank - 2
    s, p, d = per_axis_ints(stride, n), per_axis_ints(padding, n), per_axis_ints(dilation, n)
    return node(ConvBackwardInput(s, p, d, groups, transposed, tuple(input_shape)), grad, w)


@operator
class ConvBackwardWeight(Op):
    """The gradient of conv with respect to its weight, which had `weight_shape`."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    transposed: bool
    weight_shape: Shape

    def infer(self, grad: TensorType, x: TensorType) -> TensorType:
        what = "conv_backward_weight"
        inner, outer = (x, grad) if self.transposed else (grad, x)
        w = TensorType(x.dtype, self.weight_shape)
        check_conv(what, outer, w, self.groups, 1, self.stride, self.padding, self.dilation)
        same_dtype(what, grad, x)
        require(
            inner.rank == w.rank and may_equal(inner.shape[1], w.shape[0]),
            f"{what}: {grad!r} and {x!r} have no weight of shape {list(self.weight_shape)}",
        )
        return w

    def compose(self, grad: Node, x: Node) -> Node:
        inner, outer = (x, grad) if self.transposed else (grad, x)
        outer = pad_space(outer, self.padding, self.padding)
        return conv_weight_valid(
            inner, outer, self.stride, self.dilation, self.groups, self.weight_shape[2:]
        )

    def reference(self, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        inner, outer = (x, grad) if self.transposed else (grad, x)
        shape = static(self.weight_shape)
        return numpy_weight(
            inner, outer, shape, self.stride, self.padding, self.dilation, self.groups
        )

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((1,), (1,), (1,), 1, False, (4, 3, 3)), normal(2, 4, 8), normal(2, 3, 8))
        yield case(
            cls((2, 3), (1, 0), (1, 2), 2, False, (6, 2, 3, 3)),
            normal(2, 6, 4, 2),
            normal(2, 4, 8, 10),
        )
        yield case(cls((2,), (1,), (1,), 1, True, (3, 4, 3)), normal(2, 4, 10), normal(2, 3, 5))
        yield case(
            cls((1,), (0,), (1,), 1, False, (4, 3, 3)), normal(0, 4, 6), normal(0, 3, 8), dtype=f64
        )


def conv_backward_weight(
    grad: Node,
    x: Node,
    weight_shape: Sequence[Dim],
    stride: Sequence[int] | int = 1,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Node:
    n = grad.rank - 2
    s, p, d = per_axis_ints(stride, n), per_axis_ints(padding, n), per_axis_ints(dilation, n)
    return node(ConvBackwardWeight(s, p, d, groups, transposed, tuple(weight_shape)), grad, x)
