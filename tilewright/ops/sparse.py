"""Products with a matrix of which only some elements are stored."""

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
from tilewright.ir.types import TensorType, bf16, f64, i32, i64
from tilewright.ops.samples import case, integers, normal
from tilewright.ops.shapes import in_range, same_dtype


@operator
class SparseMatmul(Op):
    """out[row[p]] += values[p] * dense[col[p]], for each stored element p in order: the product of
    a matrix of `rows` rows, whose elements stand in rows row[p] and columns col[p] and are zero
    elsewhere, with a dense one. 16-bit floats give sums in float32, which nobody rounded yet."""

    linear: ClassVar[tuple[int, ...]] = (2, 3)
    rows: Dim

    def infer(
        self, row: TensorType, col: TensorType, values: TensorType, dense: TensorType
    ) -> TensorType:
        stored = (row, col, values)
        require(
            all(x.rank == 1 for x in stored) and dense.rank == 2,
            f"sparse_matmul: {row!r}, {col!r} and {values!r} are no rows, columns and values of "
            f"elements, or {dense!r} is no matrix",
            hint="the first three have one axis, the number of stored elements; the last has two",
        )
        require(
            may_equal(row.shape[0], col.shape[0]) and may_equal(row.shape[0], values.shape[0]),
            f"sparse_matmul: {row!r}, {col!r} and {values!r} differ in the number of elements",
        )
        for x in (row, col):
            require(x.dtype in (i64, i32), f"sparse_matmul: places are i64 or i32, not {x!r}")
        dtype = same_dtype("sparse_matmul", values, dense)
        require(dtype.is_float, f"sparse_matmul: elements are floats, not {dtype}")
        return TensorType(dtype.accumulator, (self.rows, dense.shape[1]))

    def program(self, row: Tensor, col: Tensor, values: Tensor, dense: Tensor) -> Tensor:
        wide, columns = values.dtype.accumulator, dense.shape[1]
        zeros = E.compute((self.rows, columns), lambda *_: E.const(0, wide), wide)

        def place(p: Dim, n: Dim) -> tuple[Dim, Dim]:
            return in_range(row[p], self.rows, "any"), n

        def term(p: Dim, n: Dim) -> E.Value:
            x = dense[in_range(col[p], dense.shape[0], "any"), n]
            return E.cast(values[p], wide) * E.cast(x, wide)

        # Nothing where there is no row to add to, or none to read.
        some = D.minimum(self.rows, 1) * D.minimum(dense.shape[0], 1)
        return E.update(zeros, (row.shape[0] * some, columns), place, term, "add")

    def reference(
        self, row: np.ndarray, col: np.ndarray, values: np.ndarray, dense: np.ndarray
    ) -> np.ndarray:
        assert isinstance(self.rows, int)
        out = np.zeros((self.rows, dense.shape[1]), np.float64)
        for r, c, v in zip(row, col, values, strict=True):
            out[r] += np.float64(v) * dense[c].astype(np.float64)
        wide = values.dtype if values.dtype.itemsize > 2 else np.dtype(np.float32)
        return out.astype(wide)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def places(count: int, rows: int, cols: int, dtype=i64) -> tuple:
            row = integers(count, lo=0, hi=rows, dtype=dtype)
            return row, integers(count, lo=0, hi=cols, dtype=dtype, seed=1)

        yield case(cls(9), *places(20, 9, 7), normal(20), normal(7, 37))
        yield case(cls(5), *places(12, 5, 8, i32), normal(12), normal(8, 3))
        yield case(cls(4), *places(6, 4, 3), normal(6), normal(3, 16), dtype=f64)
        yield case(cls(4), *places(40, 4, 9), normal(40), normal(9, 17), dtype=bf16)
        yield case(cls(3), *places(0, 3, 2), normal(0), normal(2, 5))
        yield case(cls(1), *places(1, 1, 1), normal(1), normal(1, 1))


def sparse_matmul(row: Node, col: Node, values: Node, dense: Node, rows: Dim) -> Node:
    return node(SparseMatmul(rows), row, col, values, dense)
