"""Products of narrow numbers, added up in a wider dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, i8, i16, i32, i64, u8
from tilewright.ops.linear import batch_index, product_shape
from tilewright.ops.samples import case, extremes, integers, normal
from tilewright.ops.shapes import broadcast_shapes


@operator
class WideMatmul(Op):
    """[…, M, K] times […, K, N], each element converted to `dtype` where it is read.

    Integers wrap around as those of `dtype` do; the operands may differ in their signs. 16-bit
    floats give the sums that matmul would round: something else can be added to them first.
    """

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    dtype: DType

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        whole = all(d.is_int for d in (a.dtype, b.dtype, self.dtype))
        halves = a.dtype is b.dtype and a.dtype in (f16, bf16) and self.dtype is f32
        require(
            whole or halves,
            f"wide_matmul: {a!r} and {b!r} summed in {self.dtype} are neither integers nor 16-bit "
            "floats summed in f32",
            hint="matmul multiplies other floats",
        )
        return TensorType(self.dtype, product_shape("wide_matmul", a, b))

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2], what="wide_matmul")

        def body(*i: Dim) -> E.Value:
            at_a, at_b = batch_index(a.shape[:-2], i[:-2]), batch_index(b.shape[:-2], i[:-2])

            def term(k: Dim) -> E.Value:
                x = E.cast(a[at_a + (i[-2], k)], self.dtype)
                return x * E.cast(b[at_b + (k, i[-1])], self.dtype)

            return E.reduce("add", (a.shape[-1],), term)

        return E.compute(batch + (a.shape[-2], b.shape[-1]), body, self.dtype)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        wide = self.dtype.numpy
        return np.matmul(a.astype(wide), b.astype(wide)).astype(wide)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for a, b in ((i8, i8), (u8, i8), (i8, u8), (u8, u8)):
            x = integers(5, 12, lo=-128, hi=128, dtype=a)
            yield case(cls(i32), x, integers(12, 7, lo=-128, hi=128, dtype=b, seed=1))
            yield case(cls(i32), extremes(3, 35, dtype=a), extremes(35, 4, dtype=b))
        yield case(cls(i32), integers(2, 1, 4, 6, dtype=i16), integers(3, 6, 5, dtype=i8, seed=1))
        yield case(cls(i64), integers(3, 9, dtype=i32), integers(9, 2, dtype=i8, seed=1))
        yield case(cls(i32), integers(3, 0, dtype=i8), integers(0, 4, dtype=i8, seed=1))
        for half in (f16, bf16):
            yield case(cls(f32), normal(4, 33), normal(33, 5, seed=1), dtype=half)
        yield case(cls(f32), normal(2, 1, 3, 8), normal(3, 8, 4, seed=1), dtype=bf16)


def wide_matmul(a: Node, b: Node, dtype: DType = i32) -> Node:
    return node(WideMatmul(dtype), a, b)
