"""Long sums of all rows of a matrix, column by column: statistics of channels, gradients of biases.
Several that go through the same rows share the loops.

Threads share pieces of the rows, so that each reads memory as it lies, and what several sums read
arrives once. Some rows at a time are added to a line of results, which stays in the first cache:

    parallel o in pieces:
      p[o,:] = 0, q[o,:] = 0
      for k.0: for c.0:
        for k.1 in 8: lane c.1 in 16:        # written out
          p[o,c] += x[k,c]
          q[o,c] += x[k,c]*y[k,c]
    for c: s[c] += p[o,c]
    for c: t[c] += q[o,c]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.defaults.cascades import CHAIN, fuse_reduced
from tilewright.kernel.defaults.scheduler import (
    Scheduler,
    contiguous,
    cost,
    lanes_and_rest,
    vector_loop,
    work_per_point,
)
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

BESIDE = (8, 7, 6, 5, 4)  # rows that are added at a time, the preferred number first
LEAST = 1 << 16  # numbers: fewer come from a cache, where columns are as good as rows


@dataclass(frozen=True)
class _Rows:
    count: int
    piece: int  # of them
    beside: int
    columns: int


def sum_pieces(s: Scheduler, inner: list[Stage]) -> bool:
    """Partial results of pieces of the rows, which are left to be summed up. False, and no step,
    where the sums are not of this kind."""
    sums = [x.name for x in inner]
    if s.choices.lanes is not None:
        return False
    before = s.nest, list(s.trace)
    try:
        _pieces(s, sums)
    except Refused:
        s.nest, s.trace[:] = before
        return False
    return True


def _pieces(s: Scheduler, sums: list[str]) -> None:
    walks: dict[str, str] = {}
    rows: set[_Rows] = set()
    for x in sums:
        walk, found = _rows(s, x)
        walks[x] = walk
        rows.add(found)
    if len(rows) > 1:
        raise Refused(f"{', '.join(sums)} go through different rows")
    (r,) = rows
    bits = max(s.nest.buffer(x).dtype.bits for x in sums)
    lanes = s.target.lanes(max(32, bits))
    if r.columns < lanes or (r.columns == lanes and len(sums) == 1):
        raise Refused("columns are one vector, and lie as rows do")
    work = sum(work_per_point(s, x) for x in sums) * r.piece * r.columns
    parts = [_part(s, x, walks[x], r, lanes) for x in sums]
    first, *others = parts
    deepest = s.path(first)[-1].name
    for x in others:
        s.do(ComputeWith(x, deepest))
    top, *_, vectors, beside, lane = [p.name for p in s.path(first)]
    for x in parts:
        s.do(InitAt(x, top))
    if r.columns % lanes:
        s.do(Peel(vectors))
    lanes_and_rest(s, lane)
    if not any(cost(s.store(x).value) for x in parts):
        s.attempt(Unroll(beside))
    for x in parts:
        vector_loop(s, D.the_sym(s.first_store(x).index[-1]).name, lanes)
    s.parallel(top, work)


def _rows(s: Scheduler, stage: str) -> tuple[str, _Rows]:
    """The loop over the rows, and what there is of them."""
    data, red = s.axes(stage)
    own = [p for p in data if p.extent != 1]
    if len(own) != 1 or own[0] is not data[-1] or not red:
        raise Refused(f"{stage} has no columns")
    if not contiguous(s, s.store(stage), own[0].var):
        raise Refused(f"columns of {stage} do not lie next to each other")
    walk, *others = reversed(fuse_reduced(s, stage, red))
    count, columns = s.loops(walk)[0].extent, own[0].extent
    if others or not isinstance(count, int) or not isinstance(columns, int):
        raise Refused(f"rows of {stage} are no single walk of known length")
    if count * columns < LEAST:
        raise Refused(f"{stage} is short")
    return walk, _Rows(count, *_piece(count), columns)


def _piece(rows: int) -> tuple[int, int]:
    """How many rows a piece has, and how many are added at a time: all pieces are alike, if there
    are such numbers. Long chains are as long in a piece as among pieces."""
    chain = max(CHAIN, isqrt(rows))
    found = [
        (abs(p - chain), p, k)
        for k in BESIDE
        for p in range(k, min(2 * chain, rows // 2) + 1, k)
        if rows % p == 0 and 4 * p >= chain
    ]
    if not found:
        return min(chain, -(-rows // 2)), 1
    _, piece, beside = min(found, key=lambda x: (x[0], -x[2]))
    return piece, beside


def _part(s: Scheduler, stage: str, walk: str, r: _Rows, lanes: int) -> str:
    part = f"{stage}b"
    s.do(Split(walk, r.piece))
    s.do(RFactor(stage, (f"{walk}.0",), part))
    rank = len(s.nest.buffer(part).shape)
    s.do(Permute(part, (rank - 1, *range(rank - 1))))
    own = [p.name for p in s.path(part)]
    piece, row = own[-2:]
    *ones, column = own[:-2]
    s.do(Split(row, r.beside))
    s.do(Split(column, lanes))
    s.do(Reorder((piece, *ones, f"{row}.0", f"{column}.0", f"{row}.1", f"{column}.1")))
    return part
