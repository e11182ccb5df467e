"""Matrix multiplication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.base.errors import Invalid, require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, bf16, round_bf16


def broadcast_batch(a: tuple[Dim, ...], b: tuple[Dim, ...], what: str) -> tuple[Dim, ...]:
    """Numpy broadcasting of leading dimensions."""
    n = max(len(a), len(b))
    out: list[Dim] = []
    for x, y in zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True):
        if D.known_eq(x, y) or D.known_eq(y, 1):
            out.append(x)
        elif D.known_eq(x, 1):
            out.append(y)
        elif isinstance(x, int) and isinstance(y, int) or D.known_ne(x, y):
            raise Invalid(f"{what}: batch sizes {list(a)} and {list(b)} do not broadcast")
        else:
            out.append(x if isinstance(x, int) else y)
    return tuple(out)


def _batch_index(shape: tuple[Dim, ...], index: tuple[Dim, ...]) -> tuple[Dim, ...]:
    own = index[len(index) - len(shape) :]
    return tuple(0 if D.known_eq(d, 1) else i for d, i in zip(shape, own, strict=True))


@operator
class Matmul(Op):
    """[…, M, K] times […, K, N]; batch dimensions broadcast; 16-bit floats accumulate in float32."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require(
            a.rank >= 2 and b.rank >= 2,
            f"matmul: {a!r} and {b!r} need at least two axes each",
            hint="reshape a vector to one row or one column",
        )
        require(a.dtype == b.dtype, f"matmul: {a!r} and {b!r} have different dtypes", hint="cast")
        k, l = a.shape[-1], b.shape[-2]
        differ = not D.known_eq(k, l) and (D.known_ne(k, l) or isinstance(k, int) and isinstance(l, int))  # fmt: skip
        require(not differ, f"matmul: {a!r} has {k} columns, {b!r} has {l} rows")
        batch = broadcast_batch(a.shape[:-2], b.shape[:-2], "matmul")
        return TensorType(a.dtype, batch + (a.shape[-2], b.shape[-1]))

    def compute(self, a: Tensor, b: Tensor) -> Tensor:
        batch = broadcast_batch(a.shape[:-2], b.shape[:-2], "matmul")
        wide = a.dtype.accumulator

        def body(*i: Dim) -> E.Value:
            at_a, at_b = _batch_index(a.shape[:-2], i[:-2]), _batch_index(b.shape[:-2], i[:-2])

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
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        yield Sample(cls(), (normal(5, 7), normal(7, 3)))
        yield Sample(cls(), (normal(2, 1, 4, 6), normal(3, 6, 5)))
        yield Sample(cls(), (normal(1, 1), normal(1, 17)))
        yield Sample(cls(), (normal(3, 0), normal(0, 4)))
        yield Sample(cls(), (normal(0, 2, 3), normal(3, 4)))
        yield Sample(cls(), (normal(4, 9).astype(np.float64), normal(9, 2).astype(np.float64)))
        yield Sample(cls(), (normal(4, 33).astype(np.float16), normal(33, 5).astype(np.float16)))
        yield Sample(cls(), (round_bf16(normal(3, 20)), round_bf16(normal(20, 6))), (bf16, bf16))
        ints = rng.integers(-100, 100, (3, 8))
        yield Sample(cls(), (ints, ints.T.copy()))
        yield Sample(cls(), (ints.astype(np.int8), ints.T.astype(np.int8)))
        yield Sample(cls(), (ints > 50, ints.T > 50))


def matmul(a: Node, b: Node) -> Node:
    return node(Matmul(), a, b)
