"""Frames of a signal put back to where they were cut from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, f64
from tilewright.ops.samples import case, integers, normal


@operator
class OverlapAdd(Op):
    """Frames lie along `axis`, their elements along the last one; frame k begins at element
    k * step of a signal of `length` elements. Every element of the signal is the sum of those of
    the frames that cover it.
    """

    linear: ClassVar[tuple[int, ...]] = (0,)
    axis: int
    length: Dim
    step: int

    def infer(self, x: TensorType) -> TensorType:
        require(
            x.rank >= 2 and 0 <= self.axis < x.rank - 1,
            f"overlap_add: {x!r} has no frames along axis {self.axis}, with elements behind them",
        )
        require(self.step > 0, f"overlap_add: a step of {self.step} elements")
        last = (x.shape[self.axis] - 1) * self.step + x.shape[-1]
        require(
            not D.known_lt(self.length, last),
            f"overlap_add: the last frame of {x!r} ends after {self.length} elements",
        )
        return TensorType(x.dtype, self._shape(x.shape))

    def _shape(self, x: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (*x[: self.axis], self.length, *x[self.axis + 1 : -1])

    def compute(self, x: Tensor) -> Tensor:
        frames, size = x.shape[self.axis], x.shape[-1]
        wide = x.dtype.accumulator

        def body(*i: Dim) -> Value:
            at = i[self.axis]

            def term(k: Dim) -> Value:
                frame = D.floordiv(at, self.step) - k
                inside = D.mod(at, self.step) + k * self.step
                covers = [E.index(frame) >= 0, E.index(frame) < frames, E.index(inside) < size]
                value = x[(*i[: self.axis], frame, *i[self.axis + 1 :], inside)]
                return E.select(E.all_of(*covers), E.cast(value, wide), E.const(0, wide))

            return E.cast(E.reduce("add", (D.ceildiv(size, self.step),), term), x.dtype)

        return E.compute(self._shape(x.shape), body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(x, self.axis, 0)
        out = np.zeros((*static((self.length,)), *moved.shape[1:-1]), np.float64)
        for k, frame in enumerate(moved):
            out[k * self.step : k * self.step + x.shape[-1]] += np.moveaxis(frame, -1, 0)
        return np.ascontiguousarray(np.moveaxis(out, 0, self.axis).astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(1, 32, 4), normal(2, 5, 16))
        yield case(cls(0, 19, 3), normal(4, 2, 8), dtype=f64)
        yield case(cls(1, 12, 5), normal(3, 2, 2, 4))
        yield case(cls(0, 9, 2), integers(3, 5))


def overlap_add(x: Node, axis: int, length: Dim, step: int) -> Node:
    return node(OverlapAdd(axis, length, step), x)
