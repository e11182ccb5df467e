"""Results whose number of elements only data decides: as many as there may be, and how many there
are. What comes after the last one is not to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, Op, input, item, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, TupleType, b1, f32, f64, i32, i64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.control import while_loop
from tilewright.ops.creation import full, iota, number
from tilewright.ops.cumulative import cumsum
from tilewright.ops.indexing import gather, scatter, take
from tilewright.ops.reductions import all, amin, any, sum
from tilewright.ops.sorting import sort
from tilewright.ops.views import expand, flip, reshape, roll, slice, stack

COLUMNS = 16  # of a matrix whose rows are sorted by one column after the other


@operator
class Nonzero(Op):
    """Where x is not 0, row by row: `bound` places, one column each, and how many there are. Places
    after the last one are 0."""

    bound: Dim

    def infer(self, x: TensorType) -> TupleType:
        return TupleType((TensorType(i64, (x.rank, self.bound)), TensorType(i64, ())))

    def compose(self, x: Node) -> tuple[Node, Node]:
        n = x.ttype.size
        if D.known_eq(n, 0):
            return full((x.rank, self.bound), 0, i64), full((), 0, i64)
        flat = reshape(ew.ne(x, number(0, x.dtype)), (n,))
        there = ew.cast(flat, i64)
        last = number(self.bound, i64)
        count = ew.minimum(sum(there, (0,), False), last)
        rank = ew.sub(cumsum(there, 0), number(1, i64))
        # Places that are not wanted go to one more element, which is cut off.
        at = ew.where(ew.logical_and(flat, ew.lt(rank, last)), rank, last)
        found = scatter(full((self.bound + 1,), 0, i64), at, iota(n), 0, None, "within")
        found = slice(found, 0, 0, self.bound)
        rows = []
        for k, d in enumerate(x.shape):
            stride: Dim = reduce(lambda a, b: a * b, x.shape[k + 1 :], 1)
            place = ew.floordiv(found, number(stride, i64))
            rows.append(ew.mod(place, number(d, i64)) if k else place)
        return (stack(rows, 0) if rows else full((0, self.bound), 0, i64)), count

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(self.bound, int)
        found = np.argwhere(x)[: self.bound]
        places = np.zeros((x.ndim, self.bound), np.int64)
        places[:, : len(found)] = found.T
        return places, np.array(len(found), np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(12), S.integers(3, 4, lo=0, hi=2))
        yield S.case(cls(5), S.integers(3, 4, 2, lo=0, hi=3, dtype=i32))
        yield S.case(cls(9), S.booleans(9))
        yield S.case(cls(14), S.extremes(14))
        yield S.case(cls(3), np.zeros((3,), np.float32))
        yield S.case(cls(0), S.normal(0, 3))
        yield S.case(cls(1), np.array(True))


def nonzero(x: Node, bound: Dim | None = None) -> Node:
    """(places, number): where x is not 0; at most `bound`, by default as many as x has elements."""
    return node(Nonzero(x.ttype.size if bound is None else bound), x)


def _equal(a: Node, b: Node, nan: bool = True) -> Node:
    """Of the same value; NaN equals itself, or nothing."""
    same = ew.eq(a, b)
    if not nan or not a.dtype.is_float:
        return same
    return ew.logical_or(same, ew.logical_and(ew.isnan(a), ew.isnan(b)))


def _row_order(x: Node) -> Node:
    """Where the rows of a matrix come from when they are sorted, column after column."""
    n, m = x.shape
    if isinstance(m, int) and m <= COLUMNS:
        order: Node | None = None
        for k in reversed(range(m)):  # the last column first: sorts keep what is equal in order
            column = reshape(slice(x, 1, k, k + 1), (n,))
            column = column if order is None else take(column, order, 0, "within")
            then = item(sort(column, 0), 1)
            order = then if order is None else take(order, then, 0, "within")
        assert order is not None
        return order
    # Each row has as many before it as there are smaller ones, and equal ones that come first.
    mine, other = reshape(x, (n, 1, m)), reshape(x, (1, n, m))
    column = reshape(iota(m), (1, 1, m))
    apart = ew.where(_equal(mine, other), number(m, i64), column)
    first = amin(apart, (2,), False)  # the first column in which two rows differ
    less = ew.lt(other, mine)
    if x.dtype.is_float:
        less = ew.logical_or(less, ew.logical_and(ew.isnan(mine), ew.logical_not(ew.isnan(other))))
    there = ew.eq(column, reshape(first, (n, n, 1)))
    before = any(ew.logical_and(there, less), (2,), False)
    at = reshape(iota(n), (n, 1))
    tie = ew.logical_and(ew.eq(first, number(m, i64)), ew.lt(reshape(iota(n), (1, n)), at))
    rank = sum(ew.cast(ew.logical_or(before, tie), i64), (1,), False)
    return scatter(full((n,), 0, i64), rank, iota(n), 0, None, "within")


@operator
class Unique(Op):
    """Different rows of a matrix: the place of the first of each, how many there are of each, which
    of them each row is, and their number. They are sorted, or in the order in which they come. NaN
    equals itself where `nan` says so. Places and counts after the last one are 0."""

    ordered: bool
    nan: bool = True

    def infer(self, x: TensorType) -> TupleType:
        require(x.rank == 2, f"unique: {x!r} is not a matrix")
        each = TensorType(i64, x.shape[:1])
        return TupleType((each, each, each, TensorType(i64, ())))

    def compose(self, x: Node) -> tuple[Node, Node, Node, Node]:
        n = x.shape[0]
        none = full((n,), 0, i64)
        if D.known_eq(n, 0) or D.known_eq(x.shape[1], 0):
            some = full((), 0 if D.known_eq(n, 0) else 1, i64)
            counts = ew.where(ew.eq(iota(n), number(0, i64)), number(n, i64), none)
            return none, counts, none, some
        order = _row_order(x)
        rows = take(x, order, 0, "within")
        same = all(_equal(rows, roll(rows, [1], [0]), self.nan), (1,), False)
        fresh = ew.logical_or(ew.eq(iota(n), number(0, i64)), ew.logical_not(same))
        group = ew.sub(cumsum(ew.cast(fresh, i64), 0), number(1, i64))
        count = sum(ew.cast(fresh, i64), (0,), False)
        which = scatter(none, order, group, 0, None, "within")
        if self.ordered:
            # Sorted rows that are equal lie next to each other, the first of them first.
            begins = reshape(item(nonzero(fresh), 0), (n,))
            there = ew.lt(iota(n), count)
            last = ew.eq(iota(n), ew.sub(count, number(1, i64)))
            ends = ew.where(last, number(n, i64), roll(begins, [-1], [0]))
            first = ew.where(there, take(order, begins, 0, "within"), none)
            return first, ew.where(there, ew.sub(ends, begins), none), which, count
        # A group's number is how many places begin one before its own first place.
        begins = scatter(full((n,), False, b1), order, fresh, 0, None, "within")
        number_at = ew.sub(cumsum(ew.cast(begins, i64), 0), number(1, i64))
        first = take(_first(which), which, 0, "within")
        which = take(number_at, first, 0, "within")
        counts = scatter(none, which, full((n,), 1, i64), 0, "add", "within")
        return _first(which), counts, which, count

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        first, counts, which = (np.zeros(len(x), np.int64) for _ in range(3))
        keys = [
            tuple((bool(v != v), (0.0 if self.nan else k) if v != v else float(v)) for v in row)
            for k, row in enumerate(x)
        ]
        known = sorted(set(keys)) if self.ordered else list(dict.fromkeys(keys))
        for k, key in reversed(list(enumerate(keys))):
            g = known.index(key)
            which[k], first[g] = g, k
            counts[g] += 1
        return first, counts, which, np.array(len(known), np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for ordered in (True, False):
            yield S.case(cls(ordered), S.integers(20, 1, lo=0, hi=6, dtype=i32))
            yield S.case(cls(ordered), S.integers(18, 3, lo=0, hi=2, dtype=i32))
            yield S.case(cls(ordered), S.extremes(30, 1))
            yield S.case(cls(ordered), S.extremes(9, 2, dtype=f64), dtype=f64)
            yield S.case(cls(ordered, False), S.extremes(30, 1))
            yield S.case(cls(ordered), S.booleans(5, 2))
            yield S.case(cls(ordered), S.normal(1, 1))
            yield S.case(cls(ordered), S.normal(0, 3))
            yield S.case(cls(ordered), S.normal(3, 0))


def _first(which: Node) -> Node:
    """The first place of each group: of several that are written the last one counts."""
    last, places = flip(which, [0]), flip(iota(which.shape[0]), [0])
    return scatter(full(which.shape, 0, i64), last, places, 0, None, "within")


def unique(x: Node, ordered: bool = True, nan: bool = True) -> Node:
    """(first places, counts, which, number) of the different rows of a matrix."""
    return node(Unique(ordered, nan), x)


@operator
class Suppress(Op):
    """Which boxes are kept. They are sorted, best first, along the last axis, and given by their
    edges; one is kept that is `valid`, overlaps none that was kept before it by more than `limit`
    of their union, and is among the first `most` of them."""

    def infer(self, *types: TensorType) -> TensorType:
        y0, x0, y1, x1, valid, limit, most = types
        require(
            y0.rank > 0 and y0.dtype in (f32, f64) and x0 == y1 == x1 == y0,
            f"suppress: the edges {y0!r}, {x0!r}, {y1!r}, {x1!r} differ, or are not f32 or f64",
        )
        require(valid == TensorType(b1, y0.shape), f"suppress: valid is {valid!r}")
        require(limit == TensorType(y0.dtype, ()), f"suppress: limit is {limit!r}")
        require(most == TensorType(i64, ()), f"suppress: most is {most!r}, not i64[]")
        return valid

    def compose(self, *operands: Node) -> Node:
        """In each round a box that is left removes those after it that it overlaps; the loop ends
        where enough are kept everywhere."""
        *_, valid, _, most = operands
        lead, n, last = valid.shape[:-1], valid.shape[-1], valid.rank - 1
        if D.known_eq(n, 0):
            return valid
        carried = [full((), 0, i64), full(lead, 0, i64), valid]
        own = [input(f"b{k}", x.ttype) for k, x in enumerate((*carried, *operands))]
        at, kept, left, *edges, _, rate, wanted = own
        place = expand(reshape(at, (1,) * valid.rank), (*lead, 1))
        mine = [gather(x, place, last, "within") for x in (*edges, left)]
        overlap = _overlap(mine[:4], edges, rate)
        after = ew.gt(iota(n), at)
        gone = ew.logical_and(ew.logical_and(overlap, after), mine[4])
        one = ew.cast(reshape(mine[4], lead), i64)
        more = ew.logical_and(
            ew.lt(at, number(n, i64)),
            any(ew.lt(kept, wanted), tuple(range(last)), False),
        )
        step = (
            ew.add(at, number(1, i64)),
            ew.add(kept, one),
            ew.logical_and(left, ew.logical_not(gone)),
        )
        done = while_loop(
            Graph("more", tuple(own), (more,)), Graph("round", tuple(own), step), carried, operands
        )
        found = item(done, 2)
        rank = cumsum(ew.cast(found, i64), last)
        return ew.logical_and(found, ew.le(rank, most))

    def reference(self, *args: np.ndarray) -> np.ndarray:
        y0, x0, y1, x1, valid, limit, most = args
        out = np.zeros(y0.shape, bool)
        for r in np.ndindex(y0.shape[:-1]):
            for k in range(y0.shape[-1]):
                free = bool(valid[r][k]) and out[r].sum() < most
                for j in np.flatnonzero(out[r][:k]):
                    high = min(y1[r][k], y1[r][j]) - max(y0[r][k], y0[r][j])
                    wide = min(x1[r][k], x1[r][j]) - max(x0[r][k], x0[r][j])
                    both = max(high, 0) * max(wide, 0)
                    areas = [(y1[r][m] - y0[r][m]) * (x1[r][m] - x0[r][m]) for m in (k, j)]
                    free = free and not (both > 0 and both > limit * (areas[0] + areas[1] - both))
                out[r][k] = free
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, limit, most in (
            ((2, 3, 20), 0.3, 3),
            ((40,), 0.1, 100),
            ((3, 1), 0.5, 0),
            ((2, 0), 0.5, 1),
        ):
            y0, x0 = S.uniform(*shape), S.uniform(*shape, seed=1)
            y1, x1 = y0 + S.uniform(*shape, seed=2), x0 + S.uniform(*shape, seed=3)
            rest = (np.array(limit, np.float32), np.array(most, np.int64))
            yield S.case(cls(), y0, x0, y1, x1, S.booleans(*shape), *rest)


def _overlap(mine: Sequence[Node], others: Sequence[Node], limit: Node) -> Node:
    """Is what two boxes share more than `limit` of their union?"""
    none = number(0, limit.dtype)
    high, wide = (
        ew.sub(ew.minimum(mine[k + 2], others[k + 2]), ew.maximum(mine[k], others[k]))
        for k in range(2)
    )
    both = ew.mul(ew.maximum(high, none), ew.maximum(wide, none))
    union = ew.sub(ew.add(_area(*mine), _area(*others)), both)
    return ew.logical_and(ew.gt(both, none), ew.gt(both, ew.mul(limit, union)))


def _area(y0: Node, x0: Node, y1: Node, x1: Node) -> Node:
    return ew.mul(ew.sub(y1, y0), ew.sub(x1, x0))


def suppress(edges: Sequence[Node], valid: Node, limit: Node, most: Node) -> Node:
    """Which boxes are kept: the edges are (low y, low x, high y, high x), boxes best first."""
    return node(Suppress(), *edges, valid, limit, most)
