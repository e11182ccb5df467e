"""The bits of a tensor in another dtype of the same width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import expr
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DTYPES, DType, TensorType, f16, f32, f64, i16, i32, i64, u8
from tilewright.ops import samples as S


@operator
class BitCast(Op):
    """What lies in memory, read as another dtype."""

    elementwise: ClassVar[bool] = True
    exact: ClassVar[bool] = True  # the reference depends on the dtype
    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        require(
            x.dtype.bits == self.dtype.bits,
            f"bit_cast: {x.dtype} has {x.dtype.bits} bits, and {self.dtype} {self.dtype.bits}",
        )
        return TensorType(self.dtype, x.shape)

    def compute(self, x: Tensor) -> Tensor:
        return expr.compute(x.shape, lambda *i: self._bits(x[i]), self.dtype)

    def _bits(self, x: Value) -> Value:
        bits = expr.fn(f"bits_of_{x.dtype}", x) if x.dtype.is_float else x
        if self.dtype.is_float:
            return expr.fn(f"{self.dtype}_of_bits", expr.cast(bits, DTYPES[f"u{self.dtype.bits}"]))
        return expr.cast(bits, self.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        # Floats of 16 bits may come as their value in more.
        own = np.dtype(f"{x.dtype.kind}{self.dtype.bytes}") if x.dtype.kind == "f" else x.dtype
        return x.astype(own).view(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for a, b in ((f32, i32), (f64, i64), (f16, i16)):
            yield S.case(cls(a), S.integers(3, 5, dtype=b), dtype=b)
            yield S.case(cls(b), S.uniform(3, 5).astype(a.numpy), dtype=a)
            yield S.case(cls(b), S.extremes(9, dtype=a), dtype=a)
        yield S.case(cls(f32), S.integers(0, 4, dtype=i32), dtype=i32)
        yield S.case(cls(u8), S.booleans(7))


def bit_cast(x: Node, dtype: DType) -> Node:
    """The bits of `x` as a dtype of the same width; the node itself where it has it."""
    return x if x.dtype is dtype else node(BitCast(dtype), x)
