"""Views and other movers: every output element is one input element, or a fill value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import Shape, may_equal, product, reshape_index, static
from tilewright.ir.types import TensorType, bf16, round_bf16
from tilewright.ops.shapes import axis_of


def _check_axis(axis: int, x: TensorType, what: str) -> None:
    require(0 <= axis < x.rank, f"{what}: axis {axis} is not one of the {x.rank} axes of {x!r}")


@operator
class Reshape(Op):
    """The same elements in row-major order under another shape."""

    view: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        n = product(self.shape)
        require(
            may_equal(n, x.size),
            f"reshape: {x!r} has {x.size} elements, shape {list(self.shape)} has {n}",
        )
        return TensorType(x.dtype, self.shape)

    def compute(self, x: Tensor) -> Tensor:
        return E.compute(self.shape, lambda *i: x[reshape_index(i, self.shape, x.shape)], x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.reshape(x, static(self.shape))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(60, dtype=np.float32)
        yield Sample(cls((4, 15)), (x.reshape(3, 4, 5),))
        yield Sample(cls((3, 2, 2, 5)), (x.reshape(3, 4, 5),))
        yield Sample(cls((10, 6)), (x.reshape(4, 15).astype(np.float64),))
        yield Sample(cls((1, 1)), (np.array(7, dtype=np.int64),))
        yield Sample(cls(()), (np.array([[True]]),))
        yield Sample(cls((0, 7)), (np.zeros((3, 0, 2), dtype=np.float16),))
        yield Sample(cls((60, 1)), (round_bf16(x),), (bf16,))


def reshape(x: Node, shape: Sequence[Dim]) -> Node:
    """One -1 in the shape stands for what is left."""
    dims = list(shape)
    open_axes = [k for k, d in enumerate(dims) if isinstance(d, int) and d == -1]
    require(len(open_axes) <= 1, f"reshape: shape {dims} has more than one -1")
    if open_axes:
        rest = product([d for d in dims if not (isinstance(d, int) and d == -1)])
        require(
            not (isinstance(rest, int) and rest == 0),
            f"reshape: -1 in shape {dims} is not determined for an empty tensor",
            hint="give every size",
        )
        dims[open_axes[0]] = D.floordiv(x.ttype.size, rest)
    return x if tuple(dims) == x.shape else node(Reshape(tuple(dims)), x)


def unsqueeze(x: Node, axis: int) -> Node:
    k = axis_of("unsqueeze", axis, x.rank + 1)
    return reshape(x, x.shape[:k] + (1,) + x.shape[k:])


def squeeze(x: Node, axes: Sequence[int]) -> Node:
    """Without the given axes, each of size 1."""
    drop = {axis_of("squeeze", a, x.rank) for a in axes}
    for a in drop:
        require(may_equal(x.shape[a], 1), f"squeeze: axis {a} of {x.ttype!r} is not of size 1")
    return reshape(x, tuple(d for k, d in enumerate(x.shape) if k not in drop))


# ---- permute, expand, slice, flip


@operator
class Permute(Op):
    """Axis k of the result is axis perm[k] of x."""

    view: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        require(
            sorted(self.perm) == list(range(x.rank)),
            f"permute: {self.perm} is not an order of the {x.rank} axes of {x!r}",
        )
        return TensorType(x.dtype, tuple(x.shape[p] for p in self.perm))

    def compute(self, x: Tensor) -> Tensor:
        inverse = [self.perm.index(k) for k in range(x.rank)]
        shape = tuple(x.shape[p] for p in self.perm)
        return E.compute(shape, lambda *i: x[tuple(i[k] for k in inverse)], x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.transpose(x, self.perm)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample(cls((1, 0)), (np.arange(15, dtype=np.float32).reshape(3, 5),))
        yield Sample(cls((2, 0, 3, 1)), (np.arange(48, dtype=np.int32).reshape(2, 3, 4, 2),))
        yield Sample(cls((1, 0)), (np.zeros((0, 3), dtype=np.float64),))
        yield Sample(cls(()), (np.array(2.5, dtype=np.float16),))


def permute(x: Node, perm: Sequence[int]) -> Node:
    order = tuple(axis_of("permute", p, x.rank) for p in perm)
    return x if order == tuple(range(x.rank)) else node(Permute(order), x)


def transpose(x: Node, a: int, b: int) -> Node:
    a, b = axis_of("transpose", a, x.rank), axis_of("transpose", b, x.rank)
    perm = list(range(x.rank))
    if perm:
        perm[a], perm[b] = perm[b], perm[a]
    return permute(x, perm)


@operator
class Expand(Op):
    """Axes of size 1, and missing leading axes, repeated to `shape`."""

    view: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    shape: Shape

    def infer(self, x: TensorType) -> TensorType:
        require(
            x.rank <= len(self.shape),
            f"expand: {x!r} has more axes than the shape {list(self.shape)}",
        )
        for d, n in zip(x.shape, self.shape[len(self.shape) - x.rank :], strict=True):
            require(
                D.known_eq(d, 1) or may_equal(d, n),
                f"expand: an axis of size {d} of {x!r} cannot become {n}",
                hint="only axes of size 1 are repeated",
            )
        return TensorType(x.dtype, self.shape)

    def compute(self, x: Tensor) -> Tensor:
        skip = len(self.shape) - x.rank

        def body(*i: Dim) -> E.Value:
            own = zip(x.shape, i[skip:], strict=True)
            return x[tuple(0 if D.known_eq(d, 1) else j for d, j in own)]

        return E.compute(self.shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, static(self.shape))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(3, dtype=np.float32)
        yield Sample(cls((4, 3)), (x,))
        yield Sample(cls((2, 3, 5)), (x.reshape(3, 1).astype(np.int64),))
        yield Sample(cls((2, 0)), (np.ones((1, 1), dtype=np.float64),))
        yield Sample(cls((2, 3)), (np.array(True),))


def expand(x: Node, shape: Sequence[Dim]) -> Node:
    """-1 keeps the size of an axis, as in torch."""
    dims = list(shape)
    skip = len(dims) - x.rank
    for k in range(max(skip, 0), len(dims)):
        d = dims[k]
        if isinstance(d, int) and d == -1:
            dims[k] = x.shape[k - skip]
    return x if tuple(dims) == x.shape else node(Expand(tuple(dims)), x)


@operator
class Slice(Op):
    """x[start:stop:step] along one axis; the bounds are in range, the step is positive."""

    view: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    axis: int
    start: Dim
    stop: Dim
    step: int = 1

    def infer(self, x: TensorType) -> TensorType:
        _check_axis(self.axis, x, "slice")
        require(self.step > 0, f"slice: step {self.step} is not positive", hint="use flip first")
        n = x.shape[self.axis]
        order = ((0, self.start), (self.start, self.stop), (self.stop, n))
        bad = any(D.known_lt(b, a) for a, b in order)
        require(not bad, f"slice: {self.start}:{self.stop} is not within axis {self.axis} of {x!r}")
        size = D.ceildiv(self.stop - self.start, self.step)
        return TensorType(x.dtype, x.shape[: self.axis] + (size,) + x.shape[self.axis + 1 :])

    def compute(self, x: Tensor) -> Tensor:
        k = self.axis
        size = D.ceildiv(self.stop - self.start, self.step)
        shape = x.shape[:k] + (size,) + x.shape[k + 1 :]
        return E.compute(
            shape, lambda *i: x[i[:k] + (self.start + i[k] * self.step,) + i[k + 1 :]], x.dtype
        )

    def reference(self, x: np.ndarray) -> np.ndarray:
        start, stop = static((self.start, self.stop))
        return np.take(x, np.arange(start, stop, self.step), axis=self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(42, dtype=np.float32).reshape(6, 7)
        yield Sample(cls(1, 2, 6, 1), (x,))
        yield Sample(cls(0, 1, 6, 2), (x.astype(np.int16),))
        yield Sample(cls(1, 0, 7, 3), (x.astype(np.float64),))
        yield Sample(cls(1, 4, 4, 1), (x,))


def slice(x: Node, axis: int, start: Dim = 0, stop: Dim | None = None, step: int = 1) -> Node:
    """Static bounds are clamped as Python clamps them; symbolic ones must already be in range."""
    k = axis_of("slice", axis, x.rank)
    require(x.rank > 0, "slice: a tensor without axes has nothing to slice")
    n = x.shape[k]
    stop = n if stop is None else stop
    start, stop = _clamp_bound(start, n), _clamp_bound(stop, n)
    if isinstance(start, int) and isinstance(stop, int):
        stop = max(start, stop)
    if D.known_eq(start, 0) and D.known_eq(stop, n) and step == 1:
        return x
    return node(Slice(k, start, stop, step), x)


def _clamp_bound(b: Dim, n: Dim) -> Dim:
    if isinstance(b, int) and b < 0:
        b = b + n
    if isinstance(b, int):
        b = max(b, 0)
        # beyond a symbolic size: huge bounds mean "to the end"
        return min(b, n) if isinstance(n, int) else n if b >= D.bounds(n)[1] else b
    return b


def split(x: Node, sizes: Sequence[Dim], axis: int) -> tuple[Node, ...]:
    """Consecutive pieces of the given sizes."""
    out: list[Node] = []
    at: Dim = 0
    for s in sizes:
        out.append(slice(x, axis, at, at + s))
        at = at + s
    return tuple(out)


@operator
class Flip(Op):
    """The given axes reversed."""

    view: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        for a in self.axes:
            _check_axis(a, x, "flip")
        require(
            len(set(self.axes)) == len(self.axes), f"flip: an axis appears twice in {self.axes}"
        )
        return x

    def compute(self, x: Tensor) -> Tensor:
        def body(*i: Dim) -> E.Value:
            return x[tuple(x.shape[k] - 1 - j if k in self.axes else j for k, j in enumerate(i))]

        return E.compute(x.shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.flip(x, self.axes)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(15, dtype=np.float32).reshape(3, 5)
        yield Sample(cls((1,)), (x,))
        yield Sample(cls((0, 1)), (x.astype(np.int8),))
        yield Sample(cls((0,)), (np.zeros((0, 2), dtype=np.float64),))


def flip(x: Node, axes: Sequence[int]) -> Node:
    order = tuple(sorted(axis_of("flip", a, x.rank) for a in axes))
    return node(Flip(order), x) if order and x.rank else x


# ---- concat, pad, roll, slice_scatter


@operator
class Concat(Op):
    """The operands one after the other along an axis."""

    axis: int

    def infer(self, *xs: TensorType) -> TensorType:
        require(xs, "concat: there is nothing to concatenate")
        first = xs[0]
        _check_axis(self.axis, first, "concat")
        for x in xs[1:]:
            require(x.dtype == first.dtype, f"concat: {first!r} and {x!r} have different dtypes")
            same = x.rank == first.rank and all(
                k == self.axis or may_equal(a, b)
                for k, (a, b) in enumerate(zip(x.shape, first.shape, strict=True))
            )
            require(same, f"concat: {first!r} and {x!r} differ outside axis {self.axis}")
        total: Dim = 0
        for x in xs:
            total = total + x.shape[self.axis]
        k = self.axis
        return TensorType(first.dtype, first.shape[:k] + (total,) + first.shape[k + 1 :])

    def compute(self, *xs: Tensor) -> Tensor:
        k = self.axis
        ends: list[Dim] = []
        total: Dim = 0
        for x in xs:
            total = total + x.shape[k]
            ends.append(total)
        starts = [0, *ends[:-1]]
        filled = [j for j, x in enumerate(xs) if not D.known_eq(x.shape[k], 0)] or [0]

        def body(*i: Dim) -> E.Value:
            def part(j: int) -> E.Value:
                return xs[j][i[:k] + (i[k] - starts[j],) + i[k + 1 :]]

            out = part(filled[-1])
            for j in reversed(filled[:-1]):
                out = E.select(E.index(i[k]) < ends[j], part(j), out)
            return out

        return E.compute(xs[0].shape[:k] + (total,) + xs[0].shape[k + 1 :], body, xs[0].dtype)

    def reference(self, *xs: np.ndarray) -> np.ndarray:
        return np.concatenate(xs, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        yield Sample(cls(0), (x, -x[:1], x[:2] * 2))
        yield Sample(cls(1), (x.astype(np.int32), x[:, :3].astype(np.int32)))
        yield Sample(cls(1), (x[:, :0], x, x[:, :0]))
        yield Sample(cls(0), (x > 4, x < 4))
        yield Sample(cls(0), (x,))
        yield Sample(cls(0), (x[:0], x[:0]))


def concat(xs: Sequence[Node], axis: int) -> Node:
    require(xs, "concat: there is nothing to concatenate")
    k = axis_of("concat", axis, xs[0].rank)
    return xs[0] if len(xs) == 1 else node(Concat(k), *xs)


def stack(xs: Sequence[Node], axis: int) -> Node:
    """The operands along a new axis."""
    return concat([unsqueeze(x, axis) for x in xs], axis_of("stack", axis, xs[0].rank + 1))


@operator
class Pad(Op):
    """Each axis k grows by lo[k] and hi[k] fill values; negative amounts crop."""

    lo: Shape
    hi: Shape
    value: float | int | bool = 0

    def _key(self) -> tuple[Any, ...]:
        # By text: 0.0 equals -0.0 and NaN differs from itself, and both would confuse interning.
        return self.lo, self.hi, repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pad) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def infer(self, x: TensorType) -> TensorType:
        require(
            len(self.lo) == len(self.hi) == x.rank,
            f"pad: {x!r} needs {x.rank} amounts before and after, got {self.lo} and {self.hi}",
        )
        shape = self._shape(x.shape)
        require(
            not any(D.known_lt(d, 0) for d in shape),
            f"pad: cropping {x!r} by {self.lo} and {self.hi} leaves a negative size",
        )
        return TensorType(x.dtype, shape)

    def _shape(self, shape: Shape) -> Shape:
        return tuple(a + d + b for a, d, b in zip(self.lo, shape, self.hi, strict=True))

    def compute(self, x: Tensor) -> Tensor:
        def body(*i: Dim) -> E.Value:
            source = tuple(j - a for j, a in zip(i, self.lo, strict=True))
            inside = [
                c
                for s, d in zip(source, x.shape, strict=True)
                for c in (E.index(s) >= 0, E.index(s) < d)
            ]
            return E.select(E.all_of(*inside), x[source], E.const(self.value, x.dtype))

        return E.compute(self._shape(x.shape), body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.full(static(self._shape(x.shape)), self.value, x.dtype)
        lo = static(self.lo)
        for i in np.ndindex(*x.shape):
            at = tuple(a + j for a, j in zip(lo, i, strict=True))
            if all(0 <= p < n for p, n in zip(at, out.shape, strict=True)):
                out[at] = x[i]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(1, 16, dtype=np.float32).reshape(3, 5)
        yield Sample(cls((1, 2), (0, 3), 0.0), (x,))
        yield Sample(cls((0, -1), (2, -2), -1.5), (x.astype(np.float64),))
        yield Sample(cls((-1, 4), (1, -6), 9), (x.astype(np.int64),))
        yield Sample(cls((2, 1), (0, 0), float("-inf")), (np.zeros((0, 2), dtype=np.float32),))
        yield Sample(cls((0, 0), (0, -5), 0), (x,))
        yield Sample(cls((), (), 0), (np.array(3, dtype=np.int8),))
        yield Sample(cls((1, 0), (0, 1), True), (x > 7,))


def pad(x: Node, lo: Sequence[Dim], hi: Sequence[Dim], value: float | int | bool = 0) -> Node:
    if all(D.known_eq(p, 0) for p in (*lo, *hi)) and len(lo) == len(hi) == x.rank:
        return x
    return node(Pad(tuple(lo), tuple(hi), value), x)


@operator
class Roll(Op):
    """Elements moved by `shifts` along `axes`, wrapping around."""

    view: ClassVar[bool] = True
    linear: ClassVar[tuple[int, ...]] = (0,)
    shifts: Shape
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        require(
            len(self.shifts) == len(self.axes),
            f"roll: {len(self.shifts)} shifts for {len(self.axes)} axes",
        )
        for a in self.axes:
            _check_axis(a, x, "roll")
        return x

    def compute(self, x: Tensor) -> Tensor:
        def body(*i: Dim) -> E.Value:
            at = list(i)
            for s, a in zip(self.shifts, self.axes, strict=True):
                n = x.shape[a]
                if isinstance(n, int) and n == 0:
                    continue
                back = (-s) % n if isinstance(s, int) and isinstance(n, int) else -s
                at[a] = D.mod(at[a] + back, n)
            return x[tuple(at)]

        return E.compute(x.shape, body, x.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        out = np.array(x)
        for i in np.ndindex(*x.shape):
            to = list(i)
            for s, a in zip(static(self.shifts), self.axes, strict=True):
                to[a] = (to[a] + s) % x.shape[a]
            out[tuple(to)] = x[i]
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(15, dtype=np.float32).reshape(3, 5)
        yield Sample(cls((2,), (1,)), (x,))
        yield Sample(cls((-1, 7), (0, 1)), (x.astype(np.int32),))
        yield Sample(cls((1, 1), (1, 1)), (x.astype(np.float64),))
        yield Sample(cls((3,), (0,)), (x[:0],))


def roll(x: Node, shifts: Sequence[Dim], axes: Sequence[int]) -> Node:
    """Without axes the flattened tensor is rolled, as in torch."""
    if not axes:
        require(len(shifts) == 1, "roll: without axes there is exactly one shift")
        return reshape(roll(reshape(x, (x.ttype.size,)), shifts, (0,)), x.shape)
    return node(Roll(tuple(shifts), tuple(axis_of("roll", a, x.rank) for a in axes)), x)


@operator
class SliceScatter(Op):
    """x with x[start:stop:step] along one axis replaced by src."""

    axis: int
    start: Dim
    stop: Dim
    step: int = 1

    def infer(self, x: TensorType, src: TensorType) -> TensorType:
        require(x.dtype == src.dtype, f"slice_scatter: {x!r} and {src!r} have different dtypes")
        want = Slice(self.axis, self.start, self.stop, self.step).infer(x)
        same = src.rank == want.rank and all(map(may_equal, src.shape, want.shape))
        require(same, f"slice_scatter: the slice is {want!r}, the source is {src!r}")
        return x

    def compute(self, x: Tensor, src: Tensor) -> Tensor:
        k = self.axis
        if any(D.known_eq(d, 0) for d in src.shape):
            return E.compute(x.shape, lambda *i: x[i], x.dtype)

        def body(*i: Dim) -> E.Value:
            off = i[k] - self.start
            inside = E.all_of(
                E.index(off) >= 0,
                E.index(i[k]) < self.stop,
                E.index(D.mod(off, self.step)).eq(0),
            )
            return E.select(inside, src[i[:k] + (D.floordiv(off, self.step),) + i[k + 1 :]], x[i])

        return E.compute(x.shape, body, x.dtype)

    def reference(self, x: np.ndarray, src: np.ndarray) -> np.ndarray:
        out = np.moveaxis(np.array(x), self.axis, 0)
        start, stop = static((self.start, self.stop))
        out[start : stop : self.step] = np.moveaxis(src, self.axis, 0)
        return np.moveaxis(out, 0, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.arange(42, dtype=np.float32).reshape(6, 7)
        yield Sample(cls(1, 2, 6, 1), (x, -x[:, :4]))
        yield Sample(cls(0, 1, 6, 2), (x.astype(np.int32), -x[:3].astype(np.int32)))
        yield Sample(cls(1, 0, 7, 3), (x.astype(np.float16), -x[:, :3].astype(np.float16)))
        yield Sample(cls(0, 0, 6, 1), (x, -x))
        yield Sample(cls(0, 2, 2, 1), (x, x[:0]))


def slice_scatter(
    x: Node, src: Node, axis: int, start: Dim = 0, stop: Dim | None = None, step: int = 1
) -> Node:
    k = axis_of("slice_scatter", axis, x.rank)
    n = x.shape[k]
    start, stop = _clamp_bound(start, n), _clamp_bound(n if stop is None else stop, n)
    if isinstance(start, int) and isinstance(stop, int):
        stop = max(start, stop)
    return node(SliceScatter(k, start, stop, step), x, src)
