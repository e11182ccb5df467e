"""Products of matrices in groups of rows, columns or terms, whose sizes are data: experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tilewright import ops
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import f32, i64

# Rows of one block: each group has a block that is not full.
LEAST = 16
MOST_ROWS = 64  # more make no product of rows faster
MOST_TERMS = 512  # each block's sum is as large as the result


def _number(k: Dim) -> Node:
    return ops.number(k, i64)


def _parts(rows: Dim, ends: Node) -> Node:
    """Of each row the group that it is in: as many groups end at it or before it. Rows after the
    last group have its number plus one, which is no group's."""
    at = ops.reshape(ops.iota(rows), (rows, 1))
    before = ops.ge(at, ops.reshape(ends, (1, ends.shape[0])))
    return ops.sum(cast(before, i64), (1,), False)


@dataclass(frozen=True)
class _Blocks:
    """Rows of groups in blocks of equal size, none with rows of two groups. How many blocks there
    may be does not depend on data; those after the last one that is needed are of no group."""

    size: int
    groups: Dim
    part: Node  # [blocks]: the group of each
    rows: Node  # [blocks, size]: which row stands where; any, beyond the end of a group
    real: Node  # [blocks, size]: whether one does
    own: Node  # [rows]: the group of each row
    place: Node  # [rows]: where it stands among those of all blocks

    @property
    def count(self) -> Dim:
        return self.part.shape[0]

    def of(self, x: Node) -> Node:
        """Rows of x[rows, columns] as blocks."""
        flat = ops.reshape(self.rows, (self.count * self.size,))
        return ops.reshape(ops.take(x, flat, 0), (self.count, self.size, x.shape[1]))

    def masked(self, x: Node) -> Node:
        """The same, with zeros where no row stands."""
        shown = ops.reshape(self.real, (self.count, self.size, 1))
        return ops.where(shown, self.of(x), ops.full((), 0, x.dtype))

    def back(self, y: Node) -> Node:
        """Rows again, of blocks of them; zeros in those of no group."""
        columns = y.shape[2]
        found = ops.take(ops.reshape(y, (self.count * self.size, columns)), self.place, 0)
        inside = ops.reshape(ops.lt(self.own, _number(self.groups)), (self.own.shape[0], 1))
        return ops.where(inside, found, ops.full((), 0, y.dtype))


def _blocks(rows: Dim, ends: Node, most: int, of_each: int) -> _Blocks:
    """In blocks of `most` rows, or fewer where groups would have less than `of_each` of them."""
    groups = ends.shape[0]
    size = most
    if isinstance(rows, int) and isinstance(groups, int):
        while size > LEAST and of_each * size * groups > rows:
            size //= 2
    count = rows // size + groups
    zero = _number(0)
    starts = ops.concat([ops.full((1,), 0, i64), ops.slice(ends, 0, 0, groups - 1)], 0)
    lengths = ops.maximum(ops.sub(ends, starts), zero)
    full = ops.floordiv(ops.add(lengths, _number(size - 1)), _number(size))
    until = ops.cumsum(full, 0)
    first = ops.sub(until, full)  # the first block of each group
    part = _parts(count, until)

    def at(table: Node, which: Node) -> Node:
        return ops.take(table, which, 0)  # of no group: what the last one has

    within = ops.mul(ops.sub(ops.iota(count), at(first, part)), _number(size))
    begin = ops.reshape(ops.add(at(starts, part), within), (count, 1))
    row = ops.add(begin, ops.reshape(ops.iota(size), (1, size)))
    end = ops.reshape(at(ends, part), (count, 1))
    known = ops.reshape(ops.lt(part, _number(groups)), (count, 1))
    real = ops.logical_and(ops.lt(row, end), known)
    own = _parts(rows, ends)
    place = ops.add(
        ops.mul(at(first, own), _number(size)), ops.sub(ops.iota(rows), at(starts, own))
    )
    return _Blocks(size, groups, part, row, real, own, place)


def _few(rows: Dim, ends: Node) -> bool:
    """Are there so few rows that blocks of them would be mostly empty?"""
    groups = ends.shape[0]
    return isinstance(rows, int) and isinstance(groups, int) and rows < LEAST * groups


def _of_rows(x: Node, matrices: Node, ends: Node, transposed: bool = False) -> Node:
    """x[s] @ matrices[g], for each row in group g."""
    rows = x.shape[0]
    if _few(rows, ends):
        return ops.matmul_by_part(x, matrices, _parts(rows, ends), transposed)
    blocks = _blocks(rows, ends, MOST_ROWS, 4)
    return blocks.back(ops.matmul_by_part(blocks.of(x), matrices, blocks.part, transposed))


def _of_terms(x: Node, y: Node, ends: Node) -> Node:
    """Of each group the sum of x[s]ᵀ y[s] over its rows: [groups, columns of x, columns of y]."""
    rows, groups = x.shape[0], ends.shape[0]
    if _few(rows, ends):
        part = _parts(rows, ends)
        each = ops.reshape(ops.iota(groups), (groups, 1, 1))
        own = ops.eq(ops.reshape(part, (1, 1, rows)), each)
        columns = ops.reshape(ops.permute(x, (1, 0)), (1, x.shape[1], rows))
        return ops.matmul(ops.where(own, columns, ops.full((), 0, x.dtype)), y)
    blocks = _blocks(rows, ends, MOST_TERMS, 1)
    columns, wide = _turned(blocks.masked(x)), x.dtype.accumulator
    if wide is x.dtype:
        products = ops.matmul(columns, blocks.of(y))
    else:  # sums of blocks are rounded once, when they are added up
        products = ops.matmul(cast(columns, wide), cast(blocks.of(y), wide))
    start = ops.full((groups, *products.shape[1:]), 0, products.dtype)
    index = ops.expand(ops.reshape(blocks.part, (blocks.count, 1, 1)), products.shape)
    return cast(ops.scatter(start, index, products, 0, "add"), x.dtype)


def _turned(x: Node) -> Node:
    return ops.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def grouped(a: Node, b: Node, offs: Node | None) -> Node:
    """The product of a and b, each a matrix or one for each group. A matrix has the rows (of a),
    the columns (of b) or the terms of the sum (where both are matrices) of all groups one after the
    other, and group g ends where offs[g] says."""
    if offs is None:
        return ops.matmul(a, b)
    ends = cast(offs, i64)
    if a.rank == 2 and b.rank == 3:
        return _of_rows(a, b, ends)
    if a.rank == 3 and b.rank == 2:
        return _turned(_of_rows(_turned(b), a, ends, transposed=True))
    return _of_terms(_turned(a), b, ends)


@aten("_grouped_mm.default")
def grouped_mm(
    c: Context,
    a: Node,
    b: Node,
    offs: Node | None = None,
    bias: Node | None = None,
    out_dtype: torch.dtype | None = None,
) -> Node:
    if bias is not None:
        raise Untranslated("torch has no grouped products with a bias on processors")
    return cast(grouped(a, b, offs), c.out().dtype)


@aten("_scaled_grouped_mm.default")
def scaled_grouped_mm(
    c: Context,
    a: Node,
    b: Node,
    scale_a: Node,
    scale_b: Node,
    offs: Node | None = None,
    bias: Node | None = None,
    scale_result: Node | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Node:
    """Of floats of 8 bits, with a factor for each row of a and each column of b."""
    if bias is not None or scale_result is not None or f32 is not scale_a.dtype:
        raise Untranslated("factors of blocks, of the result and biases have no native form")
    out = grouped(cast(a, f32), cast(b, f32), offs)
    if offs is not None and a.rank == b.rank == 2:  # those of all groups one after the other
        groups = offs.shape[0]
        rows = ops.reshape(scale_a, (groups, a.shape[0], 1))
        columns = ops.reshape(scale_b, (groups, 1, b.shape[1]))
    elif offs is None:
        rows = ops.reshape(scale_a, (*scale_a.shape, 1))
        columns = ops.reshape(scale_b, (scale_b.shape[0], 1, scale_b.shape[1]))
    elif a.rank == 2:
        part = _parts(a.shape[0], cast(offs, i64))
        rows, columns = ops.reshape(scale_a, (a.shape[0], 1)), ops.take(scale_b, part, 0)
    else:
        part = _parts(b.shape[1], cast(offs, i64))
        rows = ops.permute(ops.take(scale_a, part, 0), (1, 0))
        columns = ops.reshape(scale_b, (1, b.shape[1]))
    return cast(ops.mul(ops.mul(out, rows), columns), c.out().dtype)


@aten("tilewright.grouped_mm.default")
def own_grouped_mm(c: Context, a: Node, b: Node, offs: Node | None = None) -> Node:
    return grouped(a, b, offs)


@aten("transformers.grouped_mm_fallback.default")
def experts(c: Context, x: Node, weight: Node, offs: Node) -> Node:
    return _of_rows(x, weight, cast(offs, i64))


@aten("transformers.grouped_mm_fallback_backward.default")
def experts_backward(
    c: Context, x: Node, weight: Node, offs: Node, grad: Node
) -> tuple[Node, Node]:
    ends = cast(offs, i64)
    return _of_rows(grad, weight, ends, transposed=True), _of_terms(x, grad, ends)
