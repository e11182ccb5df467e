"""Convolutions of one to three spatial axes, their transposes and their gradients.

Everything reduces to two contractions without a condition in their bodies, `conv_valid` and
`conv_weight_valid`: padding, zero insertion and flipped weights are movers in front of them.
x is [N, C, *spatial], w is [O, C/groups, *kernel], for a transposed one [C, O/groups, *kernel].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from tilewright.ir.positions import Shape, may_equal, static
from tilewright.ir.types import DType, TensorType, bf16, f16, f64
from tilewright.ops.samples import case, integers, normal
from tilewright.ops.shapes import same_dtype
from tilewright.ops.views import flip, pad, permute, reshape, slice

Ints = tuple[int, ...]


def _check(
    what: str, x: TensorType, w: TensorType, groups: int, channel: int, *settings: Sequence[Dim]
) -> None:
    """Ranks, attribute lengths, dtype; `channel` is the axis of w that x's channels meet."""
    same_dtype(what, x, w)
    n = x.rank - 2
    require(
        1 <= n <= 3 and w.rank == x.rank,
        f"{what}: {x!r} and weight {w!r} need 3 to 5 axes, batch and channels first",
        hint="reshape an unbatched input to a batch of one",
    )
    for s in settings:
        require(
            len(s) == n, f"{what}: {tuple(s)} has {len(s)} entries for {n} spatial axes of {x!r}"
        )
    c, own = x.shape[1], w.shape[channel]
    want = own * groups if channel == 1 else own
    require(
        groups > 0 and may_equal(c, want) and D.known_eq(D.mod(w.shape[0], groups), 0),
        f"{what}: {c} channels of {x!r} do not fit weight {w!r} in {groups} groups",
    )


def _positive(what: str, name: str, values: Sequence[int]) -> None:
    require(all(v > 0 for v in values), f"{what}: {name} {tuple(values)} has to be positive")


def valid_size(size: Dim, kernel: Dim, stride: int, dilation: int) -> Dim:
    """Number of windows that lie wholly inside."""
    return D.floordiv(size - dilation * (kernel - 1) - 1, stride) + 1


def _summed(dtype: DType, wide: bool) -> DType:
    return dtype.accumulator if wide else dtype


def _wide(x: Tensor, at: tuple[Dim, ...]) -> Value:
    return E.cast(x[at], x.dtype.accumulator)


@operator
class ConvValid(Op):
    """The convolution of an input that needs no padding: one add-reduction of a product."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    stride: Ints
    dilation: Ints
    groups: int
    wide: bool = False  # the sums of 16-bit floats stay in float32

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        _check("conv", x, w, self.groups, 1, self.stride, self.dilation)
        _positive("conv", "stride", self.stride)
        _positive("conv", "dilation", self.dilation)
        sizes = self._sizes(x.shape, w.shape)
        require(
            not any(D.known_lt(s, 1) for s in sizes),
            f"conv: the kernel of {w!r} with dilation {self.dilation} is larger than {x!r}",
            hint="pad the input, or use a smaller kernel",
        )
        return TensorType(_summed(x.dtype, self.wide), (x.shape[0], w.shape[0]) + sizes)

    def _sizes(self, x: Shape, w: Shape) -> Shape:
        return tuple(map(valid_size, x[2:], w[2:], self.stride, self.dilation))

    def compute(self, x: Tensor, w: Tensor) -> Tensor:
        shape = (x.shape[0], w.shape[0]) + self._sizes(x.shape, w.shape)
        per_group, dtype = w.shape[1], _summed(x.dtype, self.wide)

        def body(n: Dim, o: Dim, *p: Dim) -> Value:
            first = _group(o, w.shape[0], self.groups) * per_group

            def term(c: Dim, *k: Dim) -> Value:
                at = tuple(
                    i * s + j * d
                    for i, s, j, d in zip(p, self.stride, k, self.dilation, strict=True)
                )
                return _wide(x, (n, first + c) + at) * _wide(w, (o, c) + k)

            return E.cast(E.reduce("add", w.shape[1:], term), dtype)

        return E.compute(shape, body, dtype)

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        zeros = (0,) * len(self.stride)
        return _numpy_conv(x, w, self.stride, zeros, self.dilation, self.groups)

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


def _group(channel: Dim, channels: Dim, groups: int) -> Dim:
    """The group of a channel, as an index function."""
    if groups == 1 or D.known_eq(channels, 0):
        return 0
    return D.floordiv(channel, D.floordiv(channels, groups))


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
            first = _group(o, grad.shape[1], self.groups) * per_group

            def term(n: Dim, *p: Dim) -> Value:
                at = tuple(
                    i * s + j * d
                    for i, s, j, d in zip(p, self.stride, k, self.dilation, strict=True)
                )
                return _wide(grad, (n, o) + p) * _wide(x, (n, first + c) + at)

            extents = (grad.shape[0],) + grad.shape[2:]
            return E.cast(E.reduce("add", extents, term), x.dtype)

        return E.compute((grad.shape[1], per_group) + self.kernel, body, x.dtype)

    def reference(self, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        shape = (grad.shape[1], x.shape[1] // self.groups) + static(self.kernel)
        zeros = (0,) * len(self.stride)
        return _numpy_weight(grad, x, shape, self.stride, zeros, self.dilation, self.groups)

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
class ZeroInsert(Op):
    """step - 1 zeros between neighbours of every spatial axis (those after the first two)."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    steps: Ints

    def infer(self, x: TensorType) -> TensorType:
        require(
            x.rank == len(self.steps) + 2,
            f"zero_insert: {self.steps} does not fit the spatial axes of {x!r}",
        )
        _positive("zero_insert", "step", self.steps)
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


def _swap_weight(w: Node, groups: int) -> Node:
    """[C, O/g, *kernel] of a transposed one as [O, C/g, *kernel] of a plain one, flipped."""
    channels, per_group, *kernel = w.shape
    n = len(kernel)
    inner = D.floordiv(channels, groups)
    w = reshape(w, (groups, inner, per_group, *kernel))
    w = permute(w, (0, 2, 1, *range(3, 3 + n)))
    return flip(reshape(w, (per_group * groups, inner, *kernel)), range(2, 2 + n))


def _pad_space(x: Node, lo: Sequence[Dim], hi: Sequence[Dim]) -> Node:
    return pad(x, (0, 0, *lo), (0, 0, *hi), 0)


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
            _check("conv", x, w, self.groups, 1, *settings)
            spatial = tuple(d + 2 * p for d, p in zip(x.shape[2:], self.padding, strict=True))
            padded = TensorType(x.dtype, x.shape[:2] + spatial)
            return ConvValid(self.stride, self.dilation, self.groups, self.wide).infer(padded, w)
        _check("transposed conv", x, w, self.groups, 0, *settings, self.output_padding)
        _positive("transposed conv", "stride", self.stride)
        _positive("transposed conv", "dilation", self.dilation)
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
        dtype = _summed(x.dtype, self.wide)
        return TensorType(dtype, (x.shape[0], w.shape[1] * self.groups) + sizes)

    def compose(self, x: Node, w: Node) -> Node:
        if not self.transposed:
            x = _pad_space(x, self.padding, self.padding)
            return conv_valid(x, w, self.stride, self.dilation, self.groups, self.wide)
        lo = [d * (k - 1) - p for k, d, p in zip(w.shape[2:], self.dilation, self.padding)]
        hi = [a + extra for a, extra in zip(lo, self.output_padding, strict=True)]
        x = _pad_space(zero_insert(x, self.stride), lo, hi)
        ones = (1,) * len(self.stride)
        swapped = _swap_weight(w, self.groups)
        return conv_valid(x, swapped, ones, self.dilation, self.groups, self.wide)

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if not self.transposed:
            return _numpy_conv(x, w, self.stride, self.padding, self.dilation, self.groups)
        shape = self.infer(TensorType(f64, x.shape), TensorType(f64, w.shape)).shape
        return _numpy_spread(
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
    extra = _spread(output_padding, n) if transposed else ()
    settings = (_ints(stride, n), _ints(padding, n), _ints(dilation, n))
    return node(Conv(*settings, groups, transposed, extra, wide), x, w)


def _spread(v: Sequence[Dim] | Dim, n: int) -> Shape:
    """One setting for every spatial axis, where a single one is given."""
    given = tuple(v) if isinstance(v, Sequence) else (v,)
    return given * n if len(given) == 1 else given


def _ints(v: Sequence[int] | int, n: int) -> Ints:
    return static(_spread(v, n))


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
        _check(what, grad, w, self.groups, channel, self.stride, self.padding, self.dilation)
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
            return _numpy_spread(grad, w, shape, *settings)
        full = _numpy_conv(grad, w, *settings)
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
    s, p, d = _ints(stride, n), _ints(padding, n), _ints(dilation, n)
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
        _check(what, outer, w, self.groups, 1, self.stride, self.padding, self.dilation)
        same_dtype(what, grad, x)
        require(
            inner.rank == w.rank and may_equal(inner.shape[1], w.shape[0]),
            f"{what}: {grad!r} and {x!r} have no weight of shape {list(self.weight_shape)}",
        )
        return w

    def compose(self, grad: Node, x: Node) -> Node:
        inner, outer = (x, grad) if self.transposed else (grad, x)
        outer = _pad_space(outer, self.padding, self.padding)
        return conv_weight_valid(
            inner, outer, self.stride, self.dilation, self.groups, self.weight_shape[2:]
        )

    def reference(self, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        inner, outer = (x, grad) if self.transposed else (grad, x)
        shape = static(self.weight_shape)
        return _numpy_weight(
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
    s, p, d = _ints(stride, n), _ints(padding, n), _ints(dilation, n)
    return node(ConvBackwardWeight(s, p, d, groups, transposed, tuple(weight_shape)), grad, x)


# ---- references: loops over windows, in float64


def _steps(
    inner: Ints, outer: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """(position, kernel tap, place in the outer tensor) for every pair that meets real data."""
    for p in cartesian(*map(range, inner)):
        for k in cartesian(*map(range, kernel)):
            at = tuple(
                i * s + j * d - pad
                for i, s, j, d, pad in zip(p, stride, k, dilation, padding, strict=True)
            )
            if all(0 <= a < n for a, n in zip(at, outer, strict=True)):
                yield p, k, at


def _per_group(a: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """The channel axis split into (group, channel within it), in a dtype that does not overflow."""
    shape = a.shape[:axis] + (groups, a.shape[axis] // groups) + a.shape[axis + 1 :]
    return a.astype(np.float64 if a.dtype.kind == "f" else a.dtype).reshape(shape)


def _numpy_conv(
    x: np.ndarray, w: np.ndarray, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> np.ndarray:
    sizes = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    )
    xs, ws = _per_group(x, groups, 1), _per_group(w, groups, 0)
    out = np.zeros((x.shape[0], groups, w.shape[0] // groups, *sizes), xs.dtype)
    for p, k, at in _steps(sizes, x.shape[2:], w.shape[2:], stride, padding, dilation):
        out[(..., *p)] += np.einsum("ngc,goc->ngo", xs[(..., *at)], ws[(..., *k)])
    return out.reshape(x.shape[0], w.shape[0], *sizes).astype(x.dtype)


def _numpy_spread(
    x: np.ndarray,
    w: np.ndarray,
    shape: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> np.ndarray:
    """Each element of x adds its multiple of the kernel to the output."""
    xs, ws = _per_group(x, groups, 1), _per_group(w, groups, 0)
    out = np.zeros((shape[0], groups, shape[1] // groups, *shape[2:]), xs.dtype)
    for p, k, at in _steps(x.shape[2:], shape[2:], w.shape[2:], stride, padding, dilation):
        out[(..., *at)] += np.einsum("ngc,gco->ngo", xs[(..., *p)], ws[(..., *k)])
    return out.reshape(shape).astype(x.dtype)


def _numpy_weight(
    inner: np.ndarray,
    outer: np.ndarray,
    shape: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> np.ndarray:
    xs, gs = _per_group(outer, groups, 1), _per_group(inner, groups, 1)
    out = np.zeros((groups, shape[0] // groups, *shape[1:]), xs.dtype)
    for p, k, at in _steps(inner.shape[2:], outer.shape[2:], shape[2:], stride, padding, dilation):
        out[(..., *k)] += np.einsum("ngo,ngc->goc", gs[(..., *p)], xs[(..., *at)])
    return out.reshape(shape).astype(outer.dtype)
