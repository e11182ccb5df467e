"""Matrix multiplication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import may_equal
from tilewright.ir.types import TensorType, bf16, f16, f64, i8
from tilewright.ops.samples import booleans, case, integers, normal
from tilewright.ops.shapes import broadcast_shapes, same_dtype


def batch_index(shape: tuple[Dim, ...], index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The index of an operand's batch axes in that of the result's."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if D.known_eq(d, 1) else i for d, i in zip(shape, own, strict=True))


def product_shape(what: str, a: TensorType, b: TensorType) -> tuple[Dim, ...]:
    """Of […, M, K] times […, K, N]."""
    require(
        a.rank >= 2 and b.rank >= 2,
        f"{what}: {a!r} and {b!r} need at least two axes each",
        hint="reshape a vector to one row or one column",
    )
    columns, rows = a.shape[-1], b.shape[-2]
    require(
        may_equal(columns, rows),
        f"{what}: {a!r} has {columns} columns, {b!r} has {rows} rows",
        hint="transpose one of them",
    )
    return broadcast_shapes(a.shape[:-2], b.shape[:-2], what=what) + (a.shape[-2], b.shape[-1])


@operator
class Matmul(Op):
    """[…, M, K] times […, K, N]; batch dims broadcast; 16-bit floats accumulate in float32."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        shape = product_shape("matmul", a, b)
        return TensorType(same_dtype("matmul", a, b), shape)

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2], what="matmul")
        wide = a.dtype.accumulator

        def body(*i: Dim) -> E.Value:
            at_a, at_b = batch_index(a.shape[:-2], i[:-2]), batch_index(b.shape[:-2], i[:-2])

            def term(k: Dim) -> E.Value:
                x = E.cast(a[at_a + (i[-2], k)], wide)
                return x * E.cast(b[at_b + (k, i[-1])], wide)

            return E.cast(E.reduce("add", (a.shape[-1],), term), a.dtype)

        return E.compute(batch + (a.shape[-2], b.shape[-1]), body, a.dtype)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype == bool:
            return np.matmul(a.astype(np.int64), b.astype(np.int64)) > 0
        wide = np.float64 if a.dtype.kind == "f" else a.dtype
        return np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(), normal(5, 7), normal(7, 3))
        yield case(cls(), normal(2, 1, 4, 6), normal(3, 6, 5))
        yield case(cls(), normal(1, 1), normal(1, 17))
        yield case(cls(), normal(3, 0), normal(0, 4))
        yield case(cls(), normal(0, 2, 3), normal(3, 4))
        yield case(cls(), normal(4, 9), normal(9, 2), dtype=f64)
        yield case(cls(), normal(4, 33), normal(33, 5), dtype=f16)
        yield case(cls(), normal(3, 20), normal(20, 6), dtype=bf16)
        yield case(cls(), integers(3, 8), integers(8, 2))
        yield case(cls(), integers(3, 8, lo=-99, dtype=i8), integers(8, 2, hi=99, dtype=i8))
        yield case(cls(), booleans(3, 8), booleans(8, 3))


def matmul(a: Node, b: Node) -> Node:
    return node(Matmul(), a, b)
