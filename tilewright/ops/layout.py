"""Layout as operators: strided windows of the flat tensor, and relayout by an index map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor
from tilewright.ir.maps import Map
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import (
    Shape,
    contiguous_strides,
    may_equal,
    split_index,
    static,
    strided_position,
)
from tilewright.ir.types import TensorType
from tilewright.ops.shapes import axis_of


def _check_strided(x: TensorType, shape: Shape, strides: Shape, offset: Dim, what: str) -> None:
    require(
        len(shape) == len(strides),
        f"{what}: shape {list(shape)} and strides {list(strides)} differ in length",
    )
    if any(isinstance(d, int) and d == 0 for d in shape):
        return
    last = strided_position([d - 1 for d in shape], strides, offset)
    bad = D.known_lt(offset, 0) or D.known_le(x.size, last)
    bad = bad or any(D.known_lt(s, 0) for s in strides)
    require(
        not bad,
        f"{what}: shape {list(shape)} with strides {list(strides)} at {offset} leaves the "
        f"{x.size} elements of {x!r}",
    )


@operator
class AsStrided(Op):
    """Element i is the flat, row-major x at offset + i · strides."""

    view: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    shape: Shape
    strides: Shape
    offset: Dim = 0

    def infer(self, x: TensorType) -> TensorType:
        _check_strided(x, self.shape, self.strides, self.offset, "as_strided")
        return TensorType(x.dtype, self.shape)

    def compute(self, x: Tensor) -> Tensor:
        def body(*i: Dim) -> E.Value:
            return x[split_index(strided_position(i, self.strides, self.offset), x.shape)]

        return E.compute(self.shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(static(self.shape), x.dtype)
        (offset,), strides = static((self.offset,)), static(self.strides)
        flat = np.ascontiguousarray(x).reshape(-1)
        for i in np.ndindex(*out.shape):
            out[i] = flat[offset + sum(a * s for a, s in zip(i, strides, strict=True))]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(30, dtype=np.float32).reshape(5, 6)
        yield Sample(cls((3, 4), (6, 1), 7), (x,))
        yield Sample(cls((5,), (7,), 0), (x.astype(np.int32),))
        yield Sample(cls((4, 3), (1, 1), 2), (x.reshape(-1),))
        yield Sample(cls((2, 3), (0, 2), 1), (x.astype(np.float64),))
        yield Sample(cls((), (), 11), (x,))
        yield Sample(cls((0, 2), (3, 1), 0), (x,))


def as_strided(x: Node, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim = 0) -> Node:
    return node(AsStrided(tuple(shape), tuple(strides), offset), x)


def diagonal(x: Node, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """The diagonal of two axes, as the last axis of the result."""
    a, b = axis_of("diagonal", axis1, x.rank), axis_of("diagonal", axis2, x.rank)
    require(
        x.rank >= 2 and a != b,
        f"diagonal: {x.ttype!r} needs two different axes, not {a} and {b}",
    )
    st = contiguous_strides(x.shape)
    rows = D.maximum(0, x.shape[a] + min(offset, 0))
    cols = D.maximum(0, x.shape[b] - max(offset, 0))
    size = D.minimum(rows, cols)
    rest = [k for k in range(x.rank) if k not in (a, b)]
    start = st[b] * max(offset, 0) + st[a] * max(-offset, 0)
    shape = tuple(x.shape[k] for k in rest) + (size,)
    return as_strided(x, shape, tuple(st[k] for k in rest) + (st[a] + st[b],), start)


@operator
class AsStridedScatter(Op):
    """The flat, row-major x with src written at offset + i · strides, in order."""

    strides: Shape
    offset: Dim = 0

    def infer(self, x: TensorType, src: TensorType) -> TensorType:
        require(
            x.dtype == src.dtype, f"as_strided_scatter: {x!r} and {src!r} have different dtypes"
        )
        _check_strided(x, src.shape, self.strides, self.offset, "as_strided_scatter")
        return x

    def program(self, x: Tensor, src: Tensor) -> Tensor:
        return E.update(
            x,
            src.shape,
            lambda *i: split_index(strided_position(i, self.strides, self.offset), x.shape),
            lambda *i: src[i],
        )

    def reference(self, x: np.ndarray, src: np.ndarray) -> np.ndarray:
        flat = np.array(x).reshape(-1)
        (offset,), strides = static((self.offset,)), static(self.strides)
        for i in np.ndindex(*src.shape):
            flat[offset + sum(a * s for a, s in zip(i, strides, strict=True))] = src[i]
        return flat.reshape(x.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(30, dtype=np.float32).reshape(5, 6)
        src = -np.arange(1, 13, dtype=np.float32)
        yield Sample(cls((6, 1), 7), (x, src.reshape(3, 4)))
        yield Sample(cls((1, 1), 0), (x, src.reshape(4, 3)))
        yield Sample(cls((7,), 0), (x.astype(np.int64), src[:5].astype(np.int64)))
        yield Sample(cls((1,), 0), (x, src[:0]))


def as_strided_scatter(x: Node, src: Node, strides: Sequence[Dim], offset: Dim = 0) -> Node:
    return node(AsStridedScatter(tuple(strides), offset), x, src)


@operator
class Relayout(Op):
    """x laid out by a map: blocked, permuted, its last blocks padded with zeros."""

    barrier: ClassVar[bool] = True  # packing pays only once it is stored
    linear: ClassVar[tuple[int, ...]] = (0,)
    map: Map

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, self.map.shape(x.shape))

    def compute(self, x: Tensor) -> Tensor:
        back = self.map.inverse()
        ragged = self.map.padded_axes(x.shape)

        def body(*i: Dim) -> E.Value:
            at = back.apply(i)
            inside = E.all_of(*(E.index(at[k]) < x.shape[k] for k in ragged))
            return E.select(inside, x[at], E.const(0, x.dtype))

        return E.compute(self.map.shape(x.shape), body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(static(self.map.shape(x.shape)), x.dtype)
        for i in np.ndindex(*x.shape):
            out[static(self.map.apply(i))] = x[i]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(1, 71, dtype=np.float32).reshape(7, 10)
        yield Sample(cls(Map.parse("k, j -> j//4, k, j%4")), (x,))
        yield Sample(cls(Map.parse("k, j -> j//5, k, j%5")), (x.astype(np.int32),))
        yield Sample(cls(Map.parse("k, j -> k//4, j//8, (j//2)%4, k%4, j%2")), (x,))
        yield Sample(cls(Map.parse("k, j -> j, k")), (x.astype(np.float64),))
        yield Sample(cls(Map.parse("k, j -> j//4, k, j%4")), (x[:, :0],))


def relayout(x: Node, map: Map | str) -> Node:
    return node(Relayout(Map.parse(map) if isinstance(map, str) else map), x)


@operator
class Unrelayout(Op):
    """The tensor of `shape` that a map laid out: reads the packed one, never its padding."""

    inline = True
    view: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    map: Map
    shape: Shape

    @property
    def unpacks(self) -> Map:
        return self.map

    def infer(self, x: TensorType) -> TensorType:
        want = self.map.shape(self.shape)
        same = x.rank == len(want) and all(map(may_equal, x.shape, want))
        require(
            same,
            f"unrelayout: {list(self.shape)} under {self.map} is packed as {list(want)}, not {x!r}",
        )
        return TensorType(x.dtype, self.shape)

    def compute(self, x: Tensor) -> Tensor:
        return E.compute(self.shape, lambda *i: x[self.map.apply(i)], x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros(static(self.shape), x.dtype)
        for i in np.ndindex(*out.shape):
            out[i] = x[static(self.map.apply(i))]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(84, dtype=np.float32).reshape(3, 7, 4)
        yield Sample(cls(Map.parse("k, j -> j//4, k, j%4"), (7, 10)), (x,))
        yield Sample(cls(Map.parse("k, j -> j//4, k, j%4"), (7, 12)), (x.astype(np.int64),))
        yield Sample(cls(Map.parse("k, j -> j//4, k, j%4"), (0, 12)), (x[:, :0],))


def unrelayout(x: Node, map: Map | str, shape: Sequence[Dim]) -> Node:
    return node(Unrelayout(Map.parse(map) if isinstance(map, str) else map, tuple(shape)), x)
