"""Winograd's convolution of 3x3 windows: tiles of m x m results from (m+2) x (m+2) products.

Images have channels last. An input tile is transformed to (m+2)² points, and so is a weight, once;
products of points are matrix products over channels, one per point; and results are transformed
back:

    points, weights = winograd_input(x), winograd_weight(w)
    winograd_output(winograd_products(points, weights)) = convolution of x with w

The gradient of the weight is the same, transposed: products over all tiles of the image's points
and those of the result's gradient, transformed to the taps of a window:

    points, changes = winograd_input(x), winograd_gradient(dy)
    winograd_taps(winograd_products(transpose(changes), points)) = gradient of w

The points of F(4,3) are 0, ±11/16, ±3/2 and infinity: their powers are exact in binary and stay
near one, which makes the error about a third of that of the usual 0, ±1, ±2 (measured in the
tests). What is left of it is mostly that of the sums over channels, for products of points are
larger than the results that are made of them: those sums are taken in chains, then added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DType, TensorType, f64
from tilewright.ops.samples import case, normal

TAPS = 3
# The finite points besides 0, each with its negative.
POINTS = {2: (Fraction(1),), 4: (Fraction(11, 16), Fraction(3, 2))}
Matrix = tuple[tuple[Fraction, ...], ...]


@cache
def matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """(back, weight, there): results from points, a weight to points, an input tile to points."""
    require(m in POINTS, f"winograd: tiles of {m} results are not known, {tuple(POINTS)} are")
    points = [Fraction(0), *(s * p for p in POINTS[m] for s in (1, -1))]

    def polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
        """Coefficients of the product of (x - root), the constant first."""
        c = [Fraction(1)]
        for root in roots:
            c = [a - root * b for a, b in zip([Fraction(0), *c], [*c, Fraction(0)], strict=True)]
        return c

    def apart(p: Fraction) -> list[Fraction]:
        return [q for q in points if q != p]

    zero = Fraction(0)
    # The last column is the point at infinity.
    back = [[*(p**i for p in points), Fraction(i == m - 1)] for i in range(m)]
    there = [[*polynomial(apart(p)), zero] for p in points] + [polynomial(points)]
    weight = []
    for p in points:
        scale = Fraction(1)
        for q in apart(p):
            scale *= p - q
        weight.append([p**i / scale for i in range(TAPS)])
    weight.append([zero] * (TAPS - 1) + [Fraction(1)])
    return _frozen(back), _frozen(weight), _frozen(there)


def _frozen(rows: list[list[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


def _array(x: Matrix) -> np.ndarray:
    return np.array([[float(c) for c in row] for row in x])


def _sum(row: Sequence[Fraction], terms: Callable[[int], Value], dtype: DType) -> Value | None:
    """The combination of terms, without those whose coefficient is zero."""
    total: Value | None = None
    for k, c in enumerate(row):
        if c:
            x = terms(k) if c == 1 else terms(k) * E.const(float(c), dtype)
            total = x if total is None else total + x
    return total


def _split_sum(row: Sequence[Fraction], terms: Callable[[int], Value], dtype: DType) -> Value:
    """The combination as a part of even terms and one of odd terms, which start with a positive
    coefficient: points p and -p then share both parts."""
    even = _sum([c if k % 2 == 0 else Fraction(0) for k, c in enumerate(row)], terms, dtype)
    odd_row = [c if k % 2 else Fraction(0) for k, c in enumerate(row)]
    first = next((c for c in odd_row if c), Fraction(1))
    odd = _sum([c if first > 0 else -c for c in odd_row], terms, dtype)
    if even is None or odd is None:
        found = even if even is not None else odd
        assert found is not None
        return found if even is not None or first > 0 else -found
    return even + odd if first > 0 else even - odd


def _back_sum(row: Sequence[Fraction], terms: Callable[[int], Value], dtype: DType) -> Value:
    """The combination with the points p and -p added or subtracted first: all rows share that."""
    total = _sum([row[0]], terms, dtype)
    for k in range(1, len(row) - 1, 2):
        both = terms(k) + terms(k + 1) if row[k] == row[k + 1] else terms(k) - terms(k + 1)
        x = both if row[k] == 1 else both * E.const(float(row[k]), dtype)
        total = x if total is None else total + x
    if row[-1]:
        total = terms(len(row) - 1) if total is None else total + terms(len(row) - 1)
    assert total is not None
    return total


def _cases(at: Dim, rows: int, value: Callable[[int], Value]) -> Value:
    """value(k) where the index is k: a schedule that unrolls the axis leaves one of them."""
    out = value(rows - 1)
    for k in range(rows - 2, -1, -1):
        out = E.select(E.index(at).eq(k), value(k), out)
    return out


def _tile(what: str, size: int) -> int:
    require(size in POINTS, f"{what}: tiles of {size} results are not known, {tuple(POINTS)} are")
    return size + TAPS - 1


@operator
class WinogradInput(Op):
    """Tiles of an image [N,H,W,C] at the points: [t,t,N,rows of tiles,columns of tiles,C]."""

    size: int

    def infer(self, x: TensorType) -> TensorType:
        t = _tile("winograd_input", self.size)
        require(x.rank == 4, f"winograd_input: {x!r} is no batch of images")
        counts = [D.floordiv(d - (TAPS - 1), self.size) for d in x.shape[1:3]]
        require(
            all(D.known_eq(c * self.size + TAPS - 1, d) for c, d in zip(counts, x.shape[1:3])),
            f"winograd_input: {x!r} is not made of whole tiles of {self.size}",
            hint="pad it with zeros at the end",
        )
        return TensorType(x.dtype, (t, t, x.shape[0], *counts, x.shape[3]))

    def compute(self, x: Tensor) -> Tensor:
        _, _, there = matrices(self.size)
        t, m = self.size + TAPS - 1, self.size

        def body(a: Dim, b: Dim, n: Dim, p: Dim, q: Dim, c: Dim) -> Value:
            def column(j: int) -> Value:
                def term(i: int) -> Value:
                    return x[n, p * m + i, q * m + j, c]

                return _cases(a, t, lambda k: _split_sum(there[k], term, x.dtype))

            columns = [column(j) for j in range(t)]
            return _cases(b, t, lambda k: _split_sum(there[k], columns.__getitem__, x.dtype))

        return E.compute(self.infer(TensorType(x.dtype, x.shape)).shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        there = _array(matrices(self.size)[2])
        t, m = self.size + TAPS - 1, self.size
        windows = np.lib.stride_tricks.sliding_window_view(x, (t, t), (1, 2))[:, ::m, ::m]
        out = np.einsum("ai,npqcij,bj->abnpqc", there, windows.astype(np.float64), there)
        return np.ascontiguousarray(out.astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(2), normal(2, 6, 4, 3))
        yield case(cls(4), normal(1, 6, 10, 4))
        yield case(cls(4), normal(1, 14, 6, 2), dtype=f64)


@operator
class WinogradWeight(Op):
    """A weight [O,C,3,3] at the points, [t,t,O,C]; it is transformed in double precision."""

    size: int

    def infer(self, w: TensorType) -> TensorType:
        t = _tile("winograd_weight", self.size)
        require(
            w.rank == 4 and w.shape[2:] == (TAPS, TAPS),
            f"winograd_weight: {w!r} is no weight of 3x3 windows",
        )
        return TensorType(w.dtype, (t, t, w.shape[0], w.shape[1]))

    def compute(self, w: Tensor) -> Tensor:
        _, weight, _ = matrices(self.size)
        t = self.size + TAPS - 1

        def combined(row: Sequence[Fraction], terms: Callable[[int], Value]) -> Value:
            found = _sum(row, terms, f64)
            assert found is not None
            return found

        def body(a: Dim, b: Dim, o: Dim, c: Dim) -> Value:
            def column(j: int) -> Value:
                def term(i: int) -> Value:
                    return E.cast(w[o, c, i, j], f64)

                return _cases(a, t, lambda k: combined(weight[k], term))

            columns = [column(j) for j in range(TAPS)]
            return _cases(b, t, lambda k: combined(weight[k], columns.__getitem__))

        return E.compute((t, t, w.shape[0], w.shape[1]), body, w.dtype)

    def reference(self, w: np.ndarray) -> np.ndarray:
        weight = _array(matrices(self.size)[1])
        out = np.einsum("ai,ocij,bj->aboc", weight, w.astype(np.float64), weight)
        return np.ascontiguousarray(out.astype(w.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(2), normal(4, 3, 3, 3))
        yield case(cls(4), normal(2, 5, 3, 3))


@operator
class WinogradProducts(Op):
    """Tiles at the points, [points,tiles,C], times weights at the points, [points,C,O]: a product
    of matrices at each point, whose sums are taken in chains. Points and tiles may be several axes
    each; the weights say how many of them are points."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    longest: int  # terms of a chain

    @property
    def chain(self) -> int:
        return self.longest

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        points = w.rank - 2
        same = x.rank > points + 1 > 1 and x.dtype is w.dtype
        same = same and all(map(D.known_eq, x.shape[:points], w.shape[:points]))
        require(
            same and D.known_eq(x.shape[-1], w.shape[-2]),
            f"winograd_products: {x!r} and {w!r} are no matrices at points",
        )
        return TensorType(x.dtype, (*x.shape[:-1], w.shape[-1]))

    def compute(self, x: Tensor, w: Tensor) -> Tensor:
        points = w.rank - 2

        def body(*i: Dim) -> Value:
            def term(c: Dim) -> Value:
                return x[(*i[:-1], c)] * w[(*i[:points], c, i[-1])]

            return E.reduce("add", (x.shape[-1],), term)

        return E.compute((*x.shape[:-1], w.shape[-1]), body, x.dtype)

    def reference(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        points = w.shape[:-2]
        tiles = x.astype(np.float64).reshape(*points, -1, x.shape[-1])
        return np.matmul(tiles, w).reshape(*x.shape[:-1], w.shape[-1]).astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(16), normal(4, 13, 32), normal(4, 32, 16))
        yield case(cls(3), normal(2, 5, 6), normal(2, 6, 3))
        yield case(cls(8), normal(4, 4, 2, 3, 5, 16), normal(4, 4, 16, 8))


@operator
class WinogradOutput(Op):
    """Points [t,t,N,rows of tiles,columns of tiles,O] as the image [N,height,width,O]."""

    size: int
    height: Dim
    width: Dim

    def infer(self, x: TensorType) -> TensorType:
        t = _tile("winograd_output", self.size)
        require(x.rank == 6 and x.shape[:2] == (t, t), f"winograd_output: {x!r} has no {t}² points")
        for count, d in zip(x.shape[3:5], (self.height, self.width), strict=True):
            require(
                D.known_eq(count, D.ceildiv(d, self.size)),
                f"winograd_output: {count} tiles of {self.size} do not make {d} pixels",
            )
        return TensorType(x.dtype, (x.shape[2], self.height, self.width, x.shape[5]))

    def compute(self, x: Tensor) -> Tensor:
        back, _, _ = matrices(self.size)
        t, m = self.size + TAPS - 1, self.size

        def body(n: Dim, p: Dim, q: Dim, o: Dim) -> Value:
            def column(b: int) -> Value:
                def term(a: int) -> Value:
                    return x[a, b, n, D.floordiv(p, m), D.floordiv(q, m), o]

                return _cases(D.mod(p, m), m, lambda k: _back_sum(back[k], term, x.dtype))

            columns = [column(b) for b in range(t)]
            row = _cases(D.mod(q, m), m, lambda k: _back_sum(back[k], columns.__getitem__, x.dtype))
            return row

        shape = (x.shape[2], self.height, self.width, x.shape[5])
        return E.compute(shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        back = _array(matrices(self.size)[0])
        y = np.einsum("ia,abnpqo,jb->npiqjo", back, x.astype(np.float64), back)
        n, p, i, q, j, o = y.shape
        whole = y.reshape(n, p * i, q * j, o)[:, : self.height, : self.width]
        return np.ascontiguousarray(whole.astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(2, 4, 3), normal(4, 4, 1, 2, 2, 3))
        yield case(cls(4, 8, 6), normal(6, 6, 2, 2, 2, 5))


@operator
class WinogradGradient(Op):
    """Tiles of a result's gradient [N,H,W,O] at the points: [t,t,N,rows of tiles,columns of
    tiles,O]."""

    size: int

    def infer(self, x: TensorType) -> TensorType:
        t = _tile("winograd_gradient", self.size)
        require(x.rank == 4, f"winograd_gradient: {x!r} is no batch of images")
        counts = [D.floordiv(d, self.size) for d in x.shape[1:3]]
        require(
            all(D.known_eq(c * self.size, d) for c, d in zip(counts, x.shape[1:3])),
            f"winograd_gradient: {x!r} is not made of whole tiles of {self.size}",
            hint="pad it with zeros at the end",
        )
        return TensorType(x.dtype, (t, t, x.shape[0], *counts, x.shape[3]))

    def compute(self, x: Tensor) -> Tensor:
        back, _, _ = matrices(self.size)
        t, m = self.size + TAPS - 1, self.size
        rows = list(zip(*back, strict=True))  # one for each point

        def body(a: Dim, b: Dim, n: Dim, p: Dim, q: Dim, o: Dim) -> Value:
            def column(j: int) -> Value:
                def term(i: int) -> Value:
                    return x[n, p * m + i, q * m + j, o]

                return _cases(a, t, lambda k: _split_sum(rows[k], term, x.dtype))

            columns = [column(j) for j in range(m)]
            return _cases(b, t, lambda k: _split_sum(rows[k], columns.__getitem__, x.dtype))

        return E.compute(self.infer(TensorType(x.dtype, x.shape)).shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        back, m = _array(matrices(self.size)[0]), self.size
        n, h, w, o = x.shape
        tiles = x.astype(np.float64).reshape(n, h // m, m, w // m, m, o)
        out = np.einsum("ia,npiqjo,jb->abnpqo", back, tiles, back)
        return np.ascontiguousarray(out.astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(2), normal(2, 4, 2, 3))
        yield case(cls(4), normal(1, 4, 8, 4))
        yield case(cls(4), normal(1, 12, 4, 2), dtype=f64)


@operator
class WinogradSums(Op):
    """Products of a gradient's tiles at the points with an image's, added up over all tiles, in
    chains: [t,t,N,rows,columns,O] and [t,t,N,rows,columns,C] give [t,t,O,C], and as matrices
    [points,tiles,O] and [points,tiles,C] give [points,O,C]."""

    linear: ClassVar[tuple[int, ...]] = (0, 1)
    makes_operands: ClassVar[bool] = True
    longest: int  # terms of a chain

    @property
    def chain(self) -> int:
        return self.longest

    def infer(self, dy: TensorType, x: TensorType) -> TensorType:
        same = dy.rank == x.rank and x.rank in (3, 6) and dy.dtype is x.dtype
        require(
            same and all(map(D.known_eq, dy.shape[:-1], x.shape[:-1])),
            f"winograd_sums: {dy!r} and {x!r} are not the same tiles at points",
        )
        return TensorType(x.dtype, (*x.shape[: x.rank // 3], dy.shape[-1], x.shape[-1]))

    def compute(self, dy: Tensor, x: Tensor) -> Tensor:
        points = len(x.shape) // 3

        def body(*i: Dim) -> Value:
            *at, o, c = i

            def term(*tile: Dim) -> Value:
                return dy[(*at, *tile, o)] * x[(*at, *tile, c)]

            return E.reduce("add", x.shape[points:-1], term)

        return E.compute((*x.shape[:points], dy.shape[-1], x.shape[-1]), body, x.dtype)

    def reference(self, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        points = x.shape[: x.ndim // 3]
        a, b = (y.astype(np.float64).reshape(*points, -1, y.shape[-1]) for y in (dy, x))
        return np.matmul(a.swapaxes(-1, -2), b).astype(x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(4), normal(4, 4, 2, 3, 2, 5), normal(4, 4, 2, 3, 2, 17))
        yield case(cls(8), normal(3, 11, 5), normal(3, 11, 17))


@operator
class WinogradTaps(Op):
    """Sums at the points, [t,t,O,C], as the gradient of a weight [O,C,3,3]."""

    size: int

    def infer(self, x: TensorType) -> TensorType:
        t = _tile("winograd_taps", self.size)
        require(x.rank == 4 and x.shape[:2] == (t, t), f"winograd_taps: {x!r} has no {t}² points")
        return TensorType(x.dtype, (*x.shape[2:], TAPS, TAPS))

    def compute(self, x: Tensor) -> Tensor:
        _, weight, _ = matrices(self.size)
        t = self.size + TAPS - 1
        rows = list(zip(*weight, strict=True))  # one for each tap

        def body(o: Dim, c: Dim, i: Dim, j: Dim) -> Value:
            def column(b: int) -> Value:
                def term(a: int) -> Value:
                    return x[a, b, o, c]

                return _cases(i, TAPS, lambda k: _back_sum(rows[k], term, x.dtype))

            columns = [column(b) for b in range(t)]
            return _cases(j, TAPS, lambda k: _back_sum(rows[k], columns.__getitem__, x.dtype))

        return E.compute((*x.shape[2:], TAPS, TAPS), body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        weight = _array(matrices(self.size)[1])
        out = np.einsum("ai,aboc,bj->ocij", weight, x.astype(np.float64), weight)
        return np.ascontiguousarray(out.astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(2), normal(4, 4, 3, 5))
        yield case(cls(4), normal(6, 6, 2, 17))


def winograd_input(x: Node, size: int) -> Node:
    return node(WinogradInput(size), x)


def winograd_weight(w: Node, size: int) -> Node:
    return node(WinogradWeight(size), w)


def winograd_products(x: Node, w: Node, longest: int) -> Node:
    return node(WinogradProducts(longest), x, w)


def winograd_output(x: Node, size: int, height: Dim, width: Dim) -> Node:
    return node(WinogradOutput(size, height, width), x)


def winograd_gradient(x: Node, size: int) -> Node:
    return node(WinogradGradient(size), x)


def winograd_sums(dy: Node, x: Node, longest: int) -> Node:
    return node(WinogradSums(longest), dy, x)


def winograd_taps(x: Node, size: int) -> Node:
    return node(WinogradTaps(size), x)
