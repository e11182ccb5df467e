"""Windows put back: every element is the sum of what all windows have for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
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
from tilewright.ir.types import TensorType, bf16, f16, f64
from tilewright.ops.conv_parts import Ints, want_positive
from tilewright.ops.samples import case, integers, normal


@operator
class Fold(Op):
    """[..., *kernel, *windows] becomes [..., *space]: tap t of window o is added to element
    o * stride + t * dilation - before of an image, where it has one. 16-bit floats are added up
    in float32.
    """

    linear: ClassVar[tuple[int, ...]] = (0,)
    stride: Ints
    dilation: Ints
    before: Ints  # what the windows cover before the first element
    space: tuple[Dim, ...]

    def infer(self, x: TensorType) -> TensorType:
        n = len(self.space)
        require(
            x.rank >= 2 * n and all(len(s) == n for s in (self.stride, self.dilation, self.before)),
            f"fold: {x!r} does not have taps and windows along {n} axes, or its settings differ",
        )
        taps = x.shape[x.rank - 2 * n : x.rank - n]
        require(all(isinstance(t, int) for t in taps), f"fold: {x!r} has taps of unknown number")
        for name, values in (("stride", self.stride), ("dilation", self.dilation)):
            want_positive("fold", name, values)
        return TensorType(x.dtype, (*x.shape[: x.rank - 2 * n], *self.space))

    def _windows_of(
        self, k: int, i: Dim, taps: int, windows: Dim
    ) -> tuple[int, Callable[[Dim], tuple[Dim, Dim, list[Value]]]]:
        """How many windows may have element i of axis k; of each its tap and number, and whether
        there is one."""
        common = gcd(self.stride[k], self.dilation[k])
        step, apart = self.stride[k] // common, self.dilation[k] // common
        at = i + self.before[k]
        place = D.floordiv(at, common)
        # apart * tap is what is left of place: the first such tap, and every step-th after it.
        first = D.mod(place * pow(apart, -1, step), step)

        def nth(r: Dim) -> tuple[Dim, Dim, list[Value]]:
            tap = first + r * step
            window = D.floordiv(place - tap * apart, step)
            inside = [E.index(window) >= 0, E.index(window) < windows]
            if taps % step:
                inside.append(E.index(tap) < taps)
            if common > 1:
                inside.append(E.index(D.mod(at, common)).eq(0))
            return tap, window, inside

        return -(-taps // step), nth

    def compute(self, x: Tensor) -> Tensor:
        n = len(self.space)
        lead = len(x.shape) - 2 * n
        wide = x.dtype.accumulator

        taps = static(x.shape[lead : lead + n])

        def body(*i: Dim) -> Value:
            axes = [
                self._windows_of(k, i[lead + k], taps[k], x.shape[lead + n + k]) for k in range(n)
            ]

            def term(*r: Dim) -> Value:
                found = [nth(j) for j, (_, nth) in zip(r, axes, strict=True)]
                at = (*i[:lead], *(tap for tap, _, _ in found), *(window for _, window, _ in found))
                real = E.all_of(*(c for _, _, conditions in found for c in conditions))
                return E.select(real, E.cast(x[at], wide), E.const(0, wide))

            return E.cast(E.reduce("add", [count for count, _ in axes], term), x.dtype)

        return E.compute((*x.shape[:lead], *self.space), body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        n = len(self.space)
        lead = x.ndim - 2 * n
        space = static(self.space)
        out = np.zeros((*x.shape[:lead], *space), np.float64 if x.dtype.kind == "f" else x.dtype)
        for place in np.ndindex(*x.shape[lead:]):
            at = tuple(
                o * s + t * d - b
                for t, o, s, d, b in zip(
                    place[:n], place[n:], self.stride, self.dilation, self.before
                )
            )
            if all(0 <= a < size for a, size in zip(at, space)):
                out[(..., *at)] += x[(..., *place)]
        return out.astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls((2, 1), (1, 1), (0, 0), (8, 5)), normal(2, 3, 4, 2, 3, 4))
        yield case(cls((2,), (3,), (1,), (9,)), normal(2, 3, 3), dtype=f64)
        yield case(cls((4, 6), (2, 4), (3, 0), (9, 17)), normal(3, 3, 2, 2))
        yield case(cls((3,), (1,), (0,), (12,)), normal(2, 2, 4), dtype=bf16)
        yield case(cls((1,), (2,), (2,), (5,)), normal(5, 3, 5), dtype=f16)
        yield case(cls((1, 1, 2), (1, 2, 1), (1, 0, 0), (2, 4, 4)), integers(2, 2, 2, 3, 2, 2))
        yield case(cls((1,), (1,), (0,), (3,)), normal(2, 0, 3))


def fold(
    x: Node,
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    space: Sequence[Dim],
) -> Node:
    return node(Fold(tuple(stride), tuple(dilation), tuple(before), tuple(space)), x)
