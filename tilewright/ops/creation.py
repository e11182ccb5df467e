"""Tensors from nothing: `full` and `iota`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir import expr
from tilewright.ir.dim import Dim, Int
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import operator
from tilewright.ir.types import DType, TensorType, b1, bf16, f16, f32, f64, i32, i64, u8
from tilewright.ops.samples import case
from tilewright.ops.views import reshape


@operator
class Full(Op):
    """A tensor of one value."""

    shape: tuple[Dim, ...]
    value: float | int | bool
    dtype: DType

    def _key(self) -> tuple[Any, ...]:
        # By text: 0.0 equals -0.0 and NaN differs from itself, and both would confuse interning.
        return self.shape, repr(self.value), self.dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Full) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def infer(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    def compute(self) -> Tensor:
        return expr.compute(self.shape, lambda *_: expr.const(self.value, self.dtype))

    def reference(self) -> np.ndarray:
        assert self.infer().is_static
        shape = [d for d in self.shape if isinstance(d, int)]
        return np.full(shape, self.value, self.dtype.numpy)

    @classmethod
    def samples(cls):
        yield case(cls((3, 5), 2.5, f32))
        yield case(cls((), -0.0, f64))
        yield case(cls((0, 4), 1, i64))
        yield case(cls((7,), float("nan"), f16))
        yield case(cls((2, 1, 3), float("-inf"), bf16))
        yield case(cls((5,), True, b1))
        yield case(cls((2,), 255, u8))


@operator
class Iota(Op):
    """start, start + step, start + 2*step, …"""

    size: Dim
    start: float | Dim
    step: float | Dim
    dtype: DType

    def infer(self) -> TensorType:
        return TensorType(self.dtype, (self.size,))

    def compute(self) -> Tensor:
        return expr.compute((self.size,), self._element, self.dtype)

    def _element(self, i: Dim) -> Value:
        start, step = _whole(self.start), _whole(self.step)
        if not isinstance(start, float) and not isinstance(step, float):
            return expr.cast(expr.index(start + i * step), self.dtype)
        wide = expr.cast(expr.index(i), f64)
        return expr.cast(wide * expr.value(step, f64) + expr.value(start, f64), self.dtype)

    def reference(self) -> np.ndarray:
        assert not any(isinstance(d, Int) for d in (self.size, self.start, self.step))
        work = np.float64 if self.dtype.is_float else np.int64
        return (np.arange(self.size, dtype=work) * self.step + self.start).astype(work)  # type: ignore[operator]

    @classmethod
    def samples(cls):
        yield case(cls(7, 0, 1, i64))
        yield case(cls(5, -3, 2, i32))
        yield case(cls(9, 0.25, 0.1, f32))
        yield case(cls(6, 10, -3, f64))
        yield case(cls(11, 0.5, 0.3, bf16))
        yield case(cls(0, 0, 1, f16))
        yield case(cls(4, 1.0, 2.0, f32))


def _whole(x: float | Dim) -> float | Dim:
    """A float that is a whole number as an int, where index arithmetic is exact."""
    return int(x) if isinstance(x, float) and float(x).is_integer() and abs(x) < 2**53 else x


def full(shape: Sequence[Dim], value: float | int | bool, dtype: DType) -> Node:
    """A tensor of `shape` filled with `value`."""
    plain = bool(value) if dtype.is_bool else float(value) if dtype.is_float else int(value)
    return node(Full(tuple(shape), plain, dtype))


def iota(size: Dim, start: float | Dim = 0, step: float | Dim = 1, dtype: DType = i64) -> Node:
    """`start + step * k` for k < size."""
    return node(Iota(D.maximum(size, 0), start, step, dtype))


def number(value: Dim | float, dtype: DType) -> Node:
    """A dim or plain number as a 0-d tensor; a symbolic dim is evaluated when the program runs."""
    if isinstance(value, (int, float)):
        return full((), value, dtype)
    return reshape(iota(1, value, 1, dtype), ())
