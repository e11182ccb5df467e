"""Preconditions as values: operators that say whether every element of an operand is valid.

A check is one integer: 0 where all is well. Being a value like any other it is fused, folded,
shared and left out like any other; the caller of the program tests it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, i32, i64, u8, u64
from tilewright.ops import elementwise as ew
from tilewright.ops.creation import full, number
from tilewright.ops.samples import case, integers, normal

_LOWEST = -(1 << 63)


@operator
class Worst(Op):
    """The largest of all elements plus `shift`, taken as unsigned; of none the smallest.

    Unsigned order is that of signed numbers whose highest bit is flipped: so is the result's.
    """

    shift: Dim

    def infer(self, idx: TensorType) -> TensorType:
        require(idx.dtype.is_int, f"worst: an index is an integer, not {idx!r}")
        return TensorType(i64, ())

    def compute(self, idx: Tensor) -> Tensor:
        def element(*r: Dim) -> Value:
            i = E.cast(idx[r], i64)
            return E.cast(i if self.shift == 0 else i + E.index(self.shift), u64)

        def body() -> Value:
            largest = E.reduce("max", idx.shape, element) if idx.rank else element()
            return E.fn("xor", E.cast(largest, i64), E.const(_LOWEST, i64))

        return E.compute((), body, i64)

    def reference(self, idx: np.ndarray) -> np.ndarray:
        assert isinstance(self.shift, int)
        unsigned = [(int(i) + self.shift) % (1 << 64) for i in idx.reshape(-1)]
        return np.array(max(unsigned, default=0) + _LOWEST, np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(0), integers(4, 9, lo=0, hi=50))
        yield case(cls(0), integers(300, lo=-2, hi=50, dtype=i32))
        yield case(cls(7), integers(41, lo=-9, hi=7))
        yield case(cls(7), np.array([_LOWEST, -1 - _LOWEST], np.int64))
        yield case(cls(3), np.array(-4, np.int64))
        yield case(cls(3), integers(0, 2))
        yield case(cls(0), integers(70000, lo=0, hi=9, dtype=u8))


def worst(idx: Node, shift: Dim) -> Node:
    return node(Worst(shift), idx)


@operator
class AnyZero(Op):
    """1 where some element is 0, otherwise 0."""

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(i64, ())

    def compute(self, x: Tensor) -> Tensor:
        def element(*r: Dim) -> Value:
            return x[r].eq(E.const(0, x.dtype))

        body = lambda: E.reduce("or", x.shape, element) if x.rank else element()  # noqa: E731
        return E.compute((), body, i64)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.array(int((x == 0).any()), np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(), integers(4, 9, lo=1, hi=50))
        yield case(cls(), integers(300, lo=-1, hi=50, dtype=i32))
        yield case(cls(), np.array(0, np.int8))
        yield case(cls(), integers(0, 2))
        yield case(cls(), normal(5))


@operator
class IndexCheck(Op):
    """0 where every index is in [0, size), or in [-size, size) where they `wrap`; otherwise one of
    those outside: i + 1 for i >= 0, i for i < 0.
    """

    size: Dim
    wrap: bool

    def infer(self, idx: TensorType) -> TensorType:
        require(idx.dtype.is_int, f"index_check: an index is an integer, not {idx!r}")
        return TensorType(i64, ())

    def compose(self, idx: Node) -> Node:
        """One reduction: moved up by `size` and taken as unsigned, indices outside are large."""
        lowest, zero, one = (full((), v, i64) for v in (_LOWEST, 0, 1))
        size = number(self.size, i64)
        start, limit = (size, ew.add(size, size)) if self.wrap else (zero, size)
        largest = worst(idx, self.size if self.wrap else 0)
        found = ew.sub(ew.bitwise_xor(largest, lowest), start)
        bad = ew.ge(largest, ew.bitwise_xor(limit, lowest))
        bad = ew.logical_and(bad, ew.gt(number(idx.ttype.size, i64), zero))
        outside = ew.where(ew.ge(found, zero), ew.add(found, one), found)
        return ew.where(bad, outside, zero)

    def reference(self, idx: np.ndarray) -> np.ndarray:
        assert isinstance(self.size, int)
        flat = [int(i) for i in idx.reshape(-1)]
        outside = [i for i in flat if not (-self.size if self.wrap else 0) <= i < self.size]
        # Negative ones count as the largest, those nearest to 0 as the largest of them; moving
        # indices up by the size may bring some past 0.
        shift = self.size if self.wrap else 0
        worst = max(outside, key=lambda i: (i + shift) % (1 << 64), default=None)
        return np.array(0 if worst is None else worst + 1 if worst >= 0 else worst, np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for wrap in (False, True):
            yield case(cls(5, wrap), integers(40, lo=0, hi=5))
            yield case(cls(5, wrap), integers(6, 7, lo=-5, hi=5))
            yield case(cls(5, wrap), integers(300, lo=-5, hi=6, dtype=i32))
            yield case(cls(5, wrap), integers(33, lo=-90, hi=5))
            yield case(cls(0, wrap), integers(0))
            yield case(cls(0, wrap), np.array(0, np.int64))
            yield case(cls(7, wrap), np.array([_LOWEST, 3, 7], np.int64))


@operator
class Told(Op):
    """The same integer, for the caller of the program: a GPU writes it to memory of the host, and
    only where it is not 0, so that it stays there until the host looks."""

    told: ClassVar[bool] = True

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype is i64 and x.rank == 0, f"told: one integer of 64 bits, not {x!r}")
        return x

    def compute(self, x: Tensor) -> Tensor:
        return E.compute((), lambda: x[()], i64)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.copy()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(), np.array(-3, np.int64))
        yield case(cls(), np.array(0, np.int64))


def told(x: Node) -> Node:
    """The same integer, for the caller."""
    return node(Told(), x)


def any_zero(x: Node) -> Node:
    """One integer: 1 where some element is 0."""
    return node(AnyZero(), x)


def index_check(idx: Node, size: Dim, wrap: bool) -> Node:
    """One integer: 0 where every index is within the size, otherwise one that is not."""
    return node(IndexCheck(size, wrap), idx)
