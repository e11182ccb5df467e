"""Products of rows with the matrix that data chooses for each of them: experts of a network."""

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
from tilewright.ir.positions import may_equal
from tilewright.ir.types import TensorType, bf16, f64, i32, i64
from tilewright.ops.samples import case, integers, normal
from tilewright.ops.shapes import in_range, same_dtype


@operator
class MatmulByPart(Op):
    """out[s] = a[s] @ b[part[s]], of rows a[S, K], or blocks of rows a[S, R, K], and matrices
    b[G, K, N] (b[G, N, K] where they are `transposed`); zeros in rows of no part, which is a number
    outside [0, G). No copy of a matrix is made for each row; 16-bit floats accumulate in float32.
    """

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    transposed: bool = False

    def infer(self, a: TensorType, b: TensorType, part: TensorType) -> TensorType:
        require(
            a.rank in (2, 3) and b.rank == 3 and part.rank == 1,
            f"matmul_by_part: {a!r}, {b!r} and {part!r} are no rows, matrices and their numbers",
            hint="rows have two axes (blocks of them three), matrices three, and there is one "
            "number for each row or block",
        )
        require(part.dtype in (i64, i32), f"matmul_by_part: parts are i64 or i32, not {part!r}")
        inner = b.shape[2] if self.transposed else b.shape[1]
        require(
            may_equal(a.shape[-1], inner) and may_equal(a.shape[0], part.shape[0]),
            f"matmul_by_part: {a!r} does not fit {b!r} and {part!r}",
            hint="transpose the matrices, or pass transposed=True",
        )
        columns = b.shape[1] if self.transposed else b.shape[2]
        return TensorType(same_dtype("matmul_by_part", a, b), (*a.shape[:-1], columns))

    def compute(self, a: Tensor, b: Tensor, part: Tensor) -> Tensor:
        wide = a.dtype.accumulator
        columns = b.shape[1] if self.transposed else b.shape[2]

        def body(s: Dim, *rest: Dim) -> E.Value:
            *row, n = rest
            g = in_range(part[s], b.shape[0], "any")
            real = E.fn("eq", E.index(g), E.cast(part[s], i64))

            def term(k: Dim) -> E.Value:
                y = b[g, n, k] if self.transposed else b[g, k, n]
                return E.cast(a[(s, *row, k)], wide) * E.cast(y, wide)

            total = E.reduce("add", (a.shape[-1],), term)
            return E.cast(E.select(real, total, E.const(0, wide)), a.dtype)

        return E.compute((*a.shape[:-1], columns), body, a.dtype)

    def reference(self, a: np.ndarray, b: np.ndarray, part: np.ndarray) -> np.ndarray:
        matrices = b.swapaxes(1, 2) if self.transposed else b
        out = np.zeros((*a.shape[:-1], matrices.shape[2]), a.dtype)
        for s, g in enumerate(part):
            if 0 <= g < len(matrices):
                row = a[s].astype(np.float64) @ matrices[g].astype(np.float64)
                out[s] = row.astype(a.dtype)
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(), normal(9, 7), normal(3, 7, 17), integers(9, lo=0, hi=3))
        yield case(cls(True), normal(9, 7), normal(3, 17, 7), integers(9, lo=0, hi=3, dtype=i32))
        yield case(cls(), normal(5, 4), normal(2, 4, 3), integers(5, lo=-2, hi=5), dtype=f64)
        yield case(cls(True), normal(6, 33), normal(2, 5, 33), integers(6, lo=0, hi=2), dtype=bf16)
        yield case(cls(), normal(4, 8, 12), normal(3, 12, 20), integers(4, lo=0, hi=4))
        yield case(cls(True), normal(3, 5, 9), normal(2, 6, 9), integers(3, lo=0, hi=2), dtype=bf16)
        yield case(cls(), normal(0, 4), normal(2, 4, 3), integers(0))
        yield case(cls(), normal(1, 1), normal(1, 1, 1), integers(1, lo=0, hi=1))


def matmul_by_part(a: Node, b: Node, part: Node, transposed: bool = False) -> Node:
    return node(MatmulByPart(transposed), a, b, part)
