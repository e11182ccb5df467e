"""Windows of images as the rows of a matrix: with them a convolution is a matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import product, split_index, static
from tilewright.ir.types import TensorType, bf16
from tilewright.ops.conv_parts import Ints, want_positive
from tilewright.ops.samples import case, integers, normal


@operator
class Patches(Op):
    """A row for each window of images with channels last: [N, *space, C] becomes [N * windows,
    columns], the columns being taps of the window and channels, then zeros.

    Elements outside of the image are zeros. Kernels read through it, it is never stored.
    """

    linear: ClassVar[tuple[int, ...]] = (0,)
    inline: ClassVar[bool] = True
    windows: Ints  # along each axis of the image
    kernel: Ints
    stride: Ints
    dilation: Ints
    before: Ints  # zeros before the first element; elements that are left out, where negative
    columns: int

    def infer(self, x: TensorType) -> TensorType:
        settings = (self.windows, self.kernel, self.stride, self.dilation, self.before)
        require(
            x.rank >= 3 and all(len(s) == x.rank - 2 for s in settings),
            f"patches: {settings} do not fit the spatial axes of {x!r}",
        )
        for name, values in (("kernel", self.kernel), ("stride", self.stride)):
            want_positive("patches", name, values)
        want_positive("patches", "dilation", self.dilation)
        channels = x.shape[-1]
        require(
            isinstance(channels, int) and prod(self.kernel) * channels <= self.columns,
            f"patches: {self.columns} columns are too few for windows of {x!r}",
        )
        return TensorType(x.dtype, (x.shape[0] * product(self.windows), self.columns))

    def compute(self, x: Tensor) -> Tensor:
        channels, taps = x.shape[-1], product(self.kernel)

        def body(row: Dim, column: Dim) -> Value:
            image, *window = split_index(row, (x.shape[0], *self.windows))
            tap = D.floordiv(column, channels)
            inside: list[Value] = []
            if not D.known_eq(taps * channels, self.columns):
                inside.append(E.index(tap) < taps)
            at: list[Dim] = []
            for k, t in enumerate(split_index(tap, self.kernel)):
                i = window[k] * self.stride[k] + t * self.dilation[k] - self.before[k]
                at.append(i)
                if self.before[k] > 0:
                    inside.append(E.index(i) >= 0)
                if not D.known_lt(self._last(k), x.shape[k + 1]):
                    inside.append(E.index(i) < x.shape[k + 1])
            value = x[(image, *at, D.mod(column, channels))]
            if not inside:
                return value
            return E.select(E.all_of(*inside), value, E.const(0, x.dtype))

        rows = x.shape[0] * product(self.windows)
        return E.compute((rows, self.columns), body, x.dtype)

    def _last(self, k: int) -> int:
        """The last element of an axis that a window reads."""
        return (
            (self.windows[k] - 1) * self.stride[k]
            + (self.kernel[k] - 1) * self.dilation[k]
            - self.before[k]
        )

    def reference(self, x: np.ndarray) -> np.ndarray:
        channels = x.shape[-1]
        out = np.zeros((x.shape[0], *self.windows, self.columns), x.dtype)
        for w in np.ndindex(*self.windows):
            for number, t in enumerate(np.ndindex(*self.kernel)):
                at = tuple(
                    i * s + j * d - b
                    for i, s, j, d, b in zip(w, self.stride, t, self.dilation, self.before)
                )
                if all(0 <= a < n for a, n in zip(at, x.shape[1:-1])):
                    columns = slice(number * channels, (number + 1) * channels)
                    out[(slice(None), *w, columns)] = x[(slice(None), *at)]
        return out.reshape(-1, self.columns)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((5, 4), (3, 3), (1, 1), (1, 1), (1, 1), 18), normal(2, 5, 4, 2))
        yield case(cls((3, 2), (3, 2), (2, 3), (1, 1), (1, 0), 32), normal(1, 6, 5, 4), dtype=bf16)
        yield case(cls((4,), (3,), (1,), (2,), (0,), 16), integers(3, 8, 5))
        yield case(cls((3, 3), (1, 1), (2, 2), (1, 1), (0, 0), 3), normal(2, 6, 5, 3))
        yield case(cls((2, 3), (1, 1), (1, 1), (1, 1), (-1, 1), 8), normal(1, 4, 2, 3))
        yield case(
            cls((2, 2, 1), (2, 1, 3), (1, 1, 1), (1, 1, 1), (0, 0, 1), 6), normal(1, 3, 2, 1, 1)
        )


def patches(
    x: Node,
    windows: Sequence[Dim],
    kernel: Sequence[Dim],
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    columns: int,
) -> Node:
    op = Patches(
        static(windows), static(kernel), tuple(stride), tuple(dilation), tuple(before), columns
    )
    return node(op, x)
