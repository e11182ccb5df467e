"""Softmax, its logarithm, and their gradients, as compositions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, bf16, f16, f64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.reductions import amax, sum
from tilewright.ops.shapes import axis_of, same_dtype, want_kind
from tilewright.ops.views import reshape


def _check(name: str, axis: int, *types: TensorType) -> TensorType:
    same_dtype(name, *types)
    for t in types:
        want_kind(name, t, "f")
        if t.shape != types[0].shape:
            raise Invalid(f"{name}: {t!r} should have the shape of {types[0]!r}")
    if not 0 <= axis < types[0].rank:
        raise Invalid(f"{name}: axis {axis} is not an axis of {types[0]!r}")
    return types[0]


@dataclass(frozen=True)
class _Softmax(Op):
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        return _check(self.name, self.axis, x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(1), S.normal(4, 7))
        yield S.case(cls(0), S.normal(5, 3), dtype=f64)
        yield S.case(cls(1), S.normal(2, 33, 3), dtype=bf16)
        yield S.case(cls(2), S.normal(2, 3, 9), dtype=f16)
        yield S.case(cls(0), S.normal(1))
        yield S.case(cls(1), S.normal(0, 3))
        yield S.case(cls(1), S.normal(3, 0))
        yield S.case(cls(1), S.uniform(3, 8, lo=-500, hi=500))
        yield S.case(cls(1), S.extremes(14, 2))
        yield S.case(cls(1), np.array([[-np.inf, 1.0, 2.0], [-np.inf] * 3], np.float32))


@operator
class Softmax(_Softmax):
    """exp(x) over its sum; the maximum is subtracted first, so that nothing overflows."""

    def compose(self, x: Node) -> Node:
        wide = ew.cast(x, x.dtype.accumulator)
        e = ew.exp(ew.sub(wide, amax(wide, (self.axis,), True)))
        return ew.cast(ew.div(e, sum(e, (self.axis,), True)), x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        e = np.exp(x - np.max(x, self.axis, keepdims=True, initial=-np.inf))
        return e / e.sum(self.axis, keepdims=True)


@operator
class LogSoftmax(_Softmax):
    """The logarithm of softmax, without dividing."""

    def compose(self, x: Node) -> Node:
        wide = ew.cast(x, x.dtype.accumulator)
        centred = ew.sub(wide, amax(wide, (self.axis,), True))
        total = sum(ew.exp(centred), (self.axis,), True)
        return ew.cast(ew.sub(centred, ew.log(total)), x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        centred = x - np.max(x, self.axis, keepdims=True, initial=-np.inf)
        return centred - np.log(np.exp(centred).sum(self.axis, keepdims=True))


@dataclass(frozen=True)
class _Backward(Op):
    """A gradient from the gradient of the result and the result itself."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    axis: int

    def infer(self, grad: TensorType, out: TensorType) -> TensorType:
        return _check(self.name, self.axis, grad, out)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # Any positive row that adds up to one is a softmax.
        for shape, axis in (((4, 7), 1), ((6, 3), 0), ((2, 5, 3), 1), ((0, 3), 1), ((1,), 0)):
            out = np.exp(S.normal(*shape, seed=1))
            out = (out / out.sum(axis, keepdims=True)).astype(np.float32)
            out = np.log(out) if cls.name.startswith("log") else out
            for dtype in (None, f64, f16, bf16):
                yield S.case(cls(axis), S.normal(*shape), out, dtype=dtype)


@operator
class SoftmaxBackward(_Backward):
    """The gradient of softmax from (grad, result)."""

    def compose(self, grad: Node, out: Node) -> Node:
        g, y = (ew.cast(n, n.dtype.accumulator) for n in (grad, out))
        product = ew.mul(g, y)
        inner = sum(product, (self.axis,), True)
        return ew.cast(ew.sub(product, ew.mul(y, inner)), grad.dtype)

    def reference(self, grad: np.ndarray, out: np.ndarray) -> np.ndarray:
        return out * (grad - (grad * out).sum(self.axis, keepdims=True))


@operator
class LogSoftmaxBackward(_Backward):
    """The gradient of log_softmax from (grad, result)."""

    def compose(self, grad: Node, out: Node) -> Node:
        g, y = (ew.cast(n, n.dtype.accumulator) for n in (grad, out))
        total = sum(g, (self.axis,), True)
        return ew.cast(ew.sub(g, ew.mul(ew.exp(y), total)), grad.dtype)

    def reference(self, grad: np.ndarray, out: np.ndarray) -> np.ndarray:
        return grad - np.exp(out) * grad.sum(self.axis, keepdims=True)


def _along(op: type[Op], axis: int, *xs: Node) -> Node:
    """A 0-d tensor is a line of one element."""
    x = xs[0]
    at = axis_of(op.name, axis, x.rank)
    if x.rank:
        return node(op(at), *xs)  # type: ignore[call-arg]
    return reshape(node(op(at), *(reshape(n, (1,)) for n in xs)), ())  # type: ignore[call-arg]


def softmax(x: Node, axis: int = -1) -> Node:
    return _along(Softmax, axis, x)


def log_softmax(x: Node, axis: int = -1) -> Node:
    return _along(LogSoftmax, axis, x)


def softmax_backward(grad: Node, out: Node, axis: int = -1) -> Node:
    """The gradient of x, where `out` is softmax(x)."""
    return _along(SoftmaxBackward, axis, grad, out)


def log_softmax_backward(grad: Node, out: Node, axis: int = -1) -> Node:
    """The gradient of x, where `out` is log_softmax(x)."""
    return _along(LogSoftmaxBackward, axis, grad, out)
