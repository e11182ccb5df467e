"""Factorisations and solves of small matrices, written out step by step.

Larger matrices stay with torch: beyond a few rows a library's blocked algorithm is the better one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import ops
from tilewright.capture.torch.context import Context
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import i32, i64

LARGEST = 8


def _sizes(x: Node) -> tuple[int, int]:
    m, n = x.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int):
        raise Untranslated("the size of the matrix is not known")
    if max(m, n) > LARGEST:
        raise Untranslated(f"matrices of {m} by {n} have no native form")
    return m, n


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    return ops.slice(x, x.rank + axis, start, stop, 1)


def _element(x: Node, i: int, j: int) -> Node:
    """One element of every matrix, with both axes kept."""
    return _cut(_cut(x, -2, i, i + 1), -1, j, j + 1)


def _places(n: int) -> tuple[Node, Node]:
    return ops.reshape(ops.iota(n), (n, 1)), ops.iota(n)


def _number(value: float, like: Node) -> Node:
    return ops.full((), value, like.dtype)


class _Factored:
    """A = P L U with partial pivoting, both triangles in one matrix."""

    def __init__(self, a: Node) -> None:
        m, n = _sizes(a)
        batch = a.shape[:-2]
        rows, columns = ops.reshape(ops.iota(m), (m, 1)), ops.iota(n)
        order = ops.expand(ops.iota(m), (*batch, m))
        self.pivots: list[Node] = []
        self.swapped: list[Node] = []
        for k in range(min(m, n)):
            size = ops.abs(ops.reshape(_cut(_cut(a, -1, k, k + 1), -2, k, m), (*batch, m - k)))
            best = ops.add(ops.argmax(size, len(batch), False), ops.full((), k, i64))
            self.pivots.append(best)
            self.swapped.append(ops.ne(best, ops.full((), k, i64)))
            picked = _swap(best, k, m)
            order = ops.gather(order, picked, len(batch))
            wide = ops.expand(ops.reshape(picked, (*batch, m, 1)), (*batch, m, n))
            a = ops.gather(a, wide, len(batch))
            pivot, column = _element(a, k, k), _cut(a, -1, k, k + 1)
            # A column of zeros has no pivot and stays as it is.
            dead = ops.eq(pivot, _number(0, a))
            factor = ops.div(column, ops.where(dead, _number(1, a), pivot))
            below = ops.gt(rows, ops.full((), k, i64))
            rest = ops.sub(a, ops.mul(factor, _cut(a, -2, k, k + 1)))
            right = ops.logical_and(below, ops.gt(columns, ops.full((), k, i64)))
            first = ops.logical_and(below, ops.eq(columns, ops.full((), k, i64)))
            a = ops.where(right, rest, ops.where(first, factor, a))
        self.lu, self.order, self.batch = a, order, batch
        self.m, self.n = m, n

    def diagonal(self) -> Node:
        return ops.diagonal(self.lu, 0, self.lu.rank - 2, self.lu.rank - 1)

    def pivot_numbers(self) -> Node:
        """As LAPACK counts them: from one."""
        if not self.pivots:
            return ops.full((*self.batch, 0), 0, i32)
        return ops.cast(ops.add(ops.stack(self.pivots, len(self.batch)), ops.full((), 1, i64)), i32)

    def info(self) -> Node:
        """The number of the first zero on the diagonal, counted from one; 0 where there is none."""
        return _first_true(ops.eq(self.diagonal(), _number(0, self.lu)))

    def sign(self) -> Node:
        out = ops.full(self.batch, 1, self.lu.dtype)
        for s in self.swapped:
            out = ops.where(s, ops.neg(out), out)
        return out

    def solve(self, b: Node) -> Node:
        return _solve_factored(self.lu, self.order, b)


def _swap(best: Node, k: int, m: int) -> Node:
    """Row numbers with k and best exchanged."""
    rows, here = ops.iota(m), ops.full((), k, i64)
    there = ops.reshape(best, (*best.shape, 1))
    return ops.where(ops.eq(rows, here), there, ops.where(ops.eq(rows, there), here, rows))


def _first_true(flags: Node) -> Node:
    axis = flags.rank - 1
    n = flags.shape[axis]
    if n == 0:
        return ops.full(flags.shape[:-1], 0, i32)
    place = ops.where(flags, ops.add(ops.iota(n), ops.full((), 1, i64)), ops.full((), n + 1, i64))
    first = ops.amin(place, (axis,), False)
    none = ops.gt(first, ops.full((), n, i64))
    return ops.cast(ops.where(none, ops.full((), 0, i64), first), i32)


def _solve_factored(lu: Node, order: Node, b: Node) -> Node:
    batch = _batch(lu.shape[:-2], b.shape[:-2])
    n, columns = b.shape[-2], b.shape[-1]
    b = ops.expand(b, (*batch, n, columns))
    wide = ops.expand(ops.reshape(order, (*order.shape, 1)), (*batch, n, columns))
    y = _triangular(lu, ops.gather(b, wide, len(batch)), upper=False, unit=True)
    return _triangular(lu, y, upper=True, unit=False)


def _batch(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    padded = (*(1,) * (len(longer) - len(shorter)), *shorter)
    return tuple(y if x == 1 else x for x, y in zip(longer, padded, strict=True))


def _triangular(a: Node, b: Node, upper: bool, unit: bool) -> Node:
    """X of A X = B, row by row."""
    n, _ = _sizes(a)
    b = ops.expand(b, (*_batch(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]))
    solved: dict[int, Node] = {}
    if n == 0:
        return b
    for i in reversed(range(n)) if upper else range(n):
        x = _cut(b, -2, i, i + 1)
        known = range(i + 1, n) if upper else range(i)
        if known:
            left = _cut(_cut(a, -2, i, i + 1), -1, known[0], known[-1] + 1)
            right = ops.concat([solved[j] for j in known], x.rank - 2)
            x = ops.sub(x, ops.matmul(left, right))
        solved[i] = x if unit else ops.div(x, _element(a, i, i))
    return ops.concat([solved[i] for i in range(n)], solved[0].rank - 2)


def _transposed(x: Node) -> Node:
    return ops.transpose(x, -2, -1)


def _identity(n: int, like: Node) -> Node:
    rows, columns = _places(n)
    return ops.cast(ops.eq(rows, columns), like.dtype)


def _lower(x: Node, unit: bool) -> Node:
    rows, columns = ops.reshape(ops.iota(x.shape[-2]), (x.shape[-2], 1)), ops.iota(x.shape[-1])
    kept = ops.gt(rows, columns) if unit else ops.ge(rows, columns)
    out = ops.where(kept, x, _number(0, x))
    return ops.where(ops.eq(rows, columns), _number(1, x), out) if unit else out


def _upper(x: Node) -> Node:
    rows, columns = ops.reshape(ops.iota(x.shape[-2]), (x.shape[-2], 1)), ops.iota(x.shape[-1])
    return ops.where(ops.le(rows, columns), x, _number(0, x))


# ---- LU and what follows from it


@aten("linalg_lu_factor_ex.default")
def lu_factor(
    c: Context, a: Node, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Node, Node, Node]:
    _require_pivot(pivot)
    f = _Factored(a)
    return f.lu, f.pivot_numbers(), f.info()


def _require_pivot(pivot: bool) -> None:
    if not pivot:
        raise Untranslated("factorising without pivoting has no native form")


def _unpacked(lu: Node, order: Node) -> tuple[Node, Node, Node]:
    m, n = _sizes(lu)
    k = min(m, n)
    rows = ops.reshape(ops.iota(m), (m, 1))
    p = ops.eq(ops.reshape(order, (*order.shape[:-1], 1, m)), rows)
    return ops.cast(p, lu.dtype), _lower(_cut(lu, -1, 0, k), True), _upper(_cut(lu, -2, 0, k))


@aten("linalg_lu.default")
def lu(c: Context, a: Node, *, pivot: bool = True) -> tuple[Node, Node, Node]:
    _require_pivot(pivot)
    f = _Factored(a)
    return _unpacked(f.lu, f.order)


def _order(pivots: Node, m: int) -> Node:
    """The order of rows after LAPACK's exchanges."""
    *batch, count = pivots.shape
    if not isinstance(count, int):
        raise Untranslated("the number of pivots is not known")
    order = ops.expand(ops.iota(m), (*batch, m))
    for k in range(count):
        best = ops.reshape(ops.cast(_cut(pivots, -1, k, k + 1), i64), batch)
        picked = _swap(ops.sub(best, ops.full((), 1, i64)), k, m)
        order = ops.gather(order, picked, len(batch))
    return order


@aten("lu_unpack.default")
def lu_unpack(
    c: Context, data: Node, pivots: Node, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Node, Node, Node]:
    if not (unpack_data and unpack_pivots):
        raise Untranslated("unpacking in part has no native form")
    return _unpacked(data, _order(pivots, _sizes(data)[0]))


@aten("linalg_lu_solve.default")
def lu_solve(
    c: Context, data: Node, pivots: Node, b: Node, *, left: bool = True, adjoint: bool = False
) -> Node:
    if not left or adjoint:
        raise Untranslated("solving from the right or for the adjoint has no native form")
    return _solve_factored(data, _order(pivots, _sizes(data)[0]), b)


@aten("linalg_inv_ex.default")
def inv(c: Context, a: Node, *, check_errors: bool = False) -> tuple[Node, Node]:
    f = _Factored(a)
    return f.solve(_identity(f.n, a)), f.info()


@aten("_linalg_solve_ex.default")
def solve(
    c: Context, a: Node, b: Node, *, left: bool = True, check_errors: bool = False
) -> tuple[Node, Node, Node, Node]:
    vector = b.rank == 1 or (b.rank == a.rank - 1 and b.shape == a.shape[:-1])
    if not left:
        raise Untranslated("solving from the right has no native form")
    f = _Factored(a)
    x = f.solve(ops.reshape(b, (*b.shape, 1)) if vector else b)
    return ops.reshape(x, c.out(0).shape), f.lu, f.pivot_numbers(), f.info()


@aten("_linalg_det.default")
def det(c: Context, a: Node) -> tuple[Node, Node, Node]:
    f = _Factored(a)
    d = f.diagonal()
    return ops.mul(f.sign(), ops.prod(d, (d.rank - 1,), False)), f.lu, f.pivot_numbers()


@aten("_linalg_slogdet.default")
def slogdet(c: Context, a: Node) -> tuple[Node, Node, Node, Node]:
    f = _Factored(a)
    d = f.diagonal()
    axis = (d.rank - 1,)
    sign = ops.mul(f.sign(), ops.prod(ops.sign(d), axis, False))
    return sign, ops.sum(ops.log(ops.abs(d)), axis, False), f.lu, f.pivot_numbers()


# ---- triangles


@aten("linalg_solve_triangular.default")
def solve_triangular(
    c: Context, a: Node, b: Node, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    if left:
        return _triangular(a, b, upper, unitriangular)
    return _transposed(_triangular(_transposed(a), _transposed(b), not upper, unitriangular))


@aten("triangular_solve.default")
def triangular_solve(
    c: Context,
    b: Node,
    a: Node,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Node, Node]:
    used = _transposed(a) if transpose else a
    x = _triangular(used, b, upper != transpose, unitriangular)
    return x, ops.expand(a, c.out(1).shape)


# ---- Cholesky


def _cholesky(a: Node) -> tuple[Node, Node]:
    """(L, info): column by column; info is the number of the first minor that is not positive."""
    n, _ = _sizes(a)
    if n == 0:
        return a, ops.full(a.shape[:-2], 0, i32)
    columns: list[Node] = []
    bad: list[Node] = []
    for j in range(n):
        rest = _cut(_cut(a, -1, j, j + 1), -2, j, n)
        if columns:
            done = ops.concat(columns, a.rank - 1)
            here = _transposed(_cut(done, -2, j, j + 1))
            rest = ops.sub(rest, ops.matmul(_cut(done, -2, j, n), here))
        head = _cut(rest, -2, 0, 1)
        bad.append(ops.reshape(ops.logical_not(ops.gt(head, _number(0, a))), a.shape[:-2]))
        column = ops.div(rest, ops.sqrt(head))
        columns.append(ops.pad(column, (*(0,) * (a.rank - 2), j, 0), (0,) * a.rank, 0.0))
    return ops.concat(columns, a.rank - 1), _first_true(ops.stack(bad, a.rank - 2))


@aten("linalg_cholesky_ex.default")
def cholesky_ex(
    c: Context, a: Node, *, upper: bool = False, check_errors: bool = False
) -> tuple[Node, Node]:
    low, info = _cholesky(_transposed(a) if upper else a)
    return (_transposed(low) if upper else low), info


@aten("cholesky.default")
def cholesky(c: Context, a: Node, upper: bool = False) -> Node:
    low, info = cholesky_ex(c, a, upper=upper)
    c.check_errors(info, "cholesky", a.rank == 2)
    return low


@aten("cholesky_solve.default")
def cholesky_solve(c: Context, b: Node, factor: Node, upper: bool = False) -> Node:
    low = _transposed(factor) if upper else factor
    y = _triangular(low, b, upper=False, unit=False)
    return _triangular(_transposed(low), y, upper=True, unit=False)


@aten("cholesky_inverse.default")
def cholesky_inverse(c: Context, factor: Node, upper: bool = False) -> Node:
    return cholesky_solve(c, _identity(_sizes(factor)[0], factor), factor, upper)
