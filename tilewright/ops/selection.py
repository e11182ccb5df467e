"""The element of each row that has a given rank, without sorting the row.

Its order is an unsigned number. Bits of that are found one by one, the highest first: a bit is set
where no more elements than the rank says come before the number with it. So each bit is one count
of a row. Of equal elements the positions are found in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tilewright.ir import expr
from tilewright.ir.expr import Tensor
from tilewright.ir.node import Graph, Node, Op, constant, input, item, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DTYPES, DType, TensorType, f64, i8, i32, i64, u8
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.control import scan
from tilewright.ops.creation import full, iota
from tilewright.ops.reductions import sum
from tilewright.ops.references import ordered_bits
from tilewright.ops.shapes import order_of

# Shorter rows are sorted as soon as their bits are counted.
SHORTEST = 64


@operator
class OrderKey(Op):
    """An unsigned number for each element that is larger for what comes later in ascending order.
    NaN comes last, and both zeros are equal."""

    exact: ClassVar[bool] = True  # the reference depends on the dtype

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(_unsigned(x.dtype), x.shape)

    def compute(self, x: Tensor) -> Tensor:
        made = _unsigned(x.dtype)
        return expr.compute(x.shape, lambda *i: order_of(x[i], False), made)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return ordered_bits(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(), S.extremes(3, 14))
        yield S.case(cls(), S.extremes(14, dtype=f64), dtype=f64)
        for d in (i64, i32, i8, u8):
            yield S.case(cls(), S.integers(3, 9, dtype=d))


def order_key(x: Node) -> Node:
    return node(OrderKey(), x)


def _unsigned(d: DType) -> DType:
    return DTYPES[f"u{8 if d.is_bool else d.bits}"]


def ranked_positions(x: Node, rank: Node) -> Node:
    """Of the rows of a matrix: where the element is that `rank` others come before, i64[rows, 1],
    as the rank is. Equal elements are in the order of their positions."""
    n = x.shape[1]
    assert isinstance(n, int)
    key = order_key(x)
    count = i64 if key.dtype.bits == 64 else i32
    rank = ew.cast(rank, count)
    found = _ranked(key, rank, key.dtype.bits)
    left = ew.sub(rank, _before(key, found, count))
    # Positions of those that are equal; others come last.
    last = full((), n, count)
    place = ew.where(ew.eq(key, found), ew.cast(iota(n), count), last)
    return ew.cast(_ranked(place, left, n.bit_length()), i64)


def _ranked(x: Node, rank: Node, bits: int) -> Node:
    """The element of each row that `rank` others come before, of numbers with so many bits."""
    rows = x.shape[0]
    found, bit = (input(k, TensorType(x.dtype, s)) for k, s in (("found", (rows, 1)), ("bit", ())))
    data, wanted = input("x", x.ttype), input("rank", rank.ttype)
    more = ew.bitwise_or(found, bit)
    fits = ew.le(_before(data, more, rank.dtype), wanted)
    body = Graph("bit", (found, bit, data, wanted), (ew.where(fits, more, found),))
    each = np.array([1 << k for k in reversed(range(bits))], np.uint64)
    every = constant(each.astype(x.dtype.numpy), x.dtype)
    return item(scan(body, [full((rows, 1), 0, x.dtype)], [every], [x, rank]), 0)


def _before(x: Node, other: Node, dtype: DType) -> Node:
    """How many elements of a row come before a number."""
    return sum(ew.cast(ew.lt(x, other), dtype), (1,), True)
