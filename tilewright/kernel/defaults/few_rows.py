"""Products of few rows with matrices that lie in memory as they came: one query and its keys.

Nothing is read twice, so time is that of reading the matrix once, from its first row to its last.
All columns are summed at once, in registers over a block of rows and then in the cache.
"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.defaults.scheduler import Scheduler, vector_loop
from tilewright.kernel.defaults.tiles import (
    SHORT_CHAIN,
    Tile,
    axis_of,
    columns_across,
    lanes_of_tile,
    partial_sums,
    reorder,
    unroll_reduction,
)
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Rows of sums whose registers leave room for at least two vectors of columns each.
MOST_ROWS = 4
# Bytes of the sums of one row: these stay in the first cache, as does a block of the matrix.
MOST_BYTES = 2048
# Lanes of the maps that begin and end the sums.
LANES = 16


def few_rows(s: Scheduler, t: Tile) -> bool:
    """Is it a batch of such products, with enough of them for the threads?"""
    rows, columns = (s.loops(t.names[k])[0].extent for k in (t.row, t.col))
    if not (t.plain and isinstance(rows, int) and isinstance(columns, int)) or t.group:
        return False
    if rows > MOST_ROWS or columns % t.lanes or columns * 4 > MOST_BYTES:
        return False
    batch: Dim = 1
    for k, x in enumerate(t.names):
        if k not in (t.row, t.col):
            batch = batch * s.loops(x)[0].extent
    return D.bounds(batch)[0] >= 2 * s.target.cores


def schedule_few_rows(s: Scheduler, t: Tile, matrix: str) -> bool:
    """`matrix` is the operand with the columns. False where the sum is short or of unknown length,
    and no block of it stays in the cache."""
    a, m, n = t.acc, t.names[t.row], t.names[t.col]
    rows, columns = s.loops(m)[0].extent, s.loops(n)[0].extent
    assert isinstance(rows, int) and isinstance(columns, int)
    nest, trace = s.nest, list(s.trace)
    blocks, around = partial_sums(s, a, SHORT_CHAIN)
    if blocks is None or not around:
        s.nest, s.trace = nest, trace
        return False
    rest = [x for x in t.names if x not in (m, n)]
    reorder(s, (*rest, m, n))
    s.do(ComputeAt(a, rest[-1]))
    row, col = f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"
    width = columns_across(columns, t.lanes, s.target.vector_registers // (2 * rows))
    s.do(Split(col, width))
    reorder(s, (*around, f"{col}.0", row, f"{col}.1"))
    s.do(ComputeAt(blocks, f"{col}.0"))
    s.do(SetScope(blocks, "register"))
    _fill(s, t, blocks)
    for x in (row, f"{a}.init.{t.axes[t.row]}", m):
        s.attempt(Unroll(x))
    lanes_of_tile(s, f"{col}.1", t.lanes)
    vector_loop(s, f"{a}.init.{t.axes[t.col]}", LANES)
    vector_loop(s, n, LANES)
    if width < columns:
        # The next block arrives in one stream, however the columns of this one are cut.
        inside = [q.name for q in s.path(blocks) if q.kind == "serial"]
        s.attempt(Prefetch(matrix, around[-1], 1, inside[-1]))
    top = rest[0]
    for k, x in enumerate(rest[1:]):
        into = f"{t.host}.q{k}"
        if not s.attempt(Fuse(top, x, into)):
            break
        top = into
    s.attempt(Parallel(top))
    return True


def _fill(s: Scheduler, t: Tile, blocks: str) -> None:
    """The sums of a block: rows and columns in registers, then one row of the matrix after the
    other."""
    row, col = f"{blocks}.{t.axes[t.row]}", f"{blocks}.{t.axes[t.col]}"
    first = [f"{blocks}.init.i{axis_of(s, blocks, x)}" for x in (row, col)]
    last = len(s.nest.buffer(blocks).shape) - 1
    at = axis_of(s, blocks, col)
    if at is not None and at != last:
        s.do(Permute(blocks, (*(k for k in range(last + 1) if k != at), at)))
    red = [q.name for q in s.reduced(blocks)]
    reorder(s, (*red, row, col))
    for r, c in ((row, col), first):
        if s.loops(r):
            s.attempt(Unroll(r))
        lanes_of_tile(s, c, t.lanes)
    unroll_reduction(s, red)
