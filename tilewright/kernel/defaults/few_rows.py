"""Products of few rows with matrices that lie in memory as they came: one query and its keys.

Nothing is read twice, so time is that of reading the matrix once, from its first row to its last.
All columns are summed at once, in registers over a block of rows and then in the cache. Where there
are fewer products than threads have work for, threads share the rows of a matrix too.
"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.axis import first_name, moved
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
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Rows of sums whose registers leave room for at least two vectors of columns each.
MOST_ROWS = 4
# Bytes of the sums of one row: these stay in the first cache, as does a block of the matrix.
MOST_BYTES = 2048
# Lanes of the maps that begin and end the sums.
LANES = 16
# Bytes of a matrix that are worth a thread's while: memory brings them in about ten microseconds.
SHARE = 64 * 1024


def few_rows(s: Scheduler, t: Tile) -> bool:
    """Is it a batch of such products, with enough work for the threads?"""
    rows, columns = (s.loops(t.names[k])[0].extent for k in (t.row, t.col))
    if not (t.plain and isinstance(rows, int) and isinstance(columns, int)) or t.group:
        return False
    if rows > MOST_ROWS or columns % t.lanes or columns * 4 > MOST_BYTES:
        return False
    return _enough(s, t) or _piece(s, t) is not None


def _batch(s: Scheduler, t: Tile) -> Dim:
    batch: Dim = 1
    for k, x in enumerate(t.names):
        if k not in (t.row, t.col):
            batch = batch * s.loops(x)[0].extent
    return batch


def _enough(s: Scheduler, t: Tile) -> bool:
    """Are there enough products for the threads?"""
    return D.bounds(_batch(s, t))[0] >= 2 * s.target.cores


def _piece(s: Scheduler, t: Tile) -> int | None:
    """Steps of the sum that a thread takes at a time, all pieces alike, where there are too few
    products for the threads. None: they are not worth it, or of unknown number."""
    red, batch = s.reduced(t.acc), _batch(s, t)
    steps, columns = red[0].extent, s.loops(t.names[t.col])[0].extent
    if len(red) != 1 or s.group.precision == "strict" or not isinstance(batch, int):
        return None
    if not isinstance(steps, int) or not isinstance(columns, int):
        return None
    wanted = -(-4 * s.target.cores // batch)
    least = max(SHORT_CHAIN + 1, SHARE // (columns * 4))
    fits = [n for n in range(2, wanted + 1) if steps % n == 0 and steps // n >= least]
    return steps // fits[-1] if fits else None


def schedule_few_rows(s: Scheduler, t: Tile, matrix: str) -> bool:
    """`matrix` is the operand with the columns. False where the sum is short or of unknown length,
    and no block of it stays in the cache."""
    a, m, n = t.acc, t.names[t.row], t.names[t.col]
    rows, columns = s.loops(m)[0].extent, s.loops(n)[0].extent
    assert isinstance(rows, int) and isinstance(columns, int)
    nest, trace = s.nest, list(s.trace)
    shared = None if _enough(s, t) else _shared_sums(s, t)
    sums = a if shared is None else shared[0]
    blocks, around = partial_sums(s, sums, SHORT_CHAIN)
    if blocks is None or not around:
        s.nest, s.trace = nest, trace
        return False
    rest = [x for x in t.names if x not in (m, n)]
    reorder(s, (*rest, m, n))
    if rest:
        s.do(ComputeAt(a, rest[-1]))
    row, col = f"{sums}.{t.axes[t.row]}", f"{sums}.{t.axes[t.col]}"
    if shared is not None:
        _ended(s, t)
        rest = [*(moved(f"{a}.{t.axes[t.names.index(x)]}", sums) for x in rest), shared[1]]
        reorder(s, (*rest, row, col))
        s.do(InitAt(sums, rest[-1]))
    width = columns_across(columns, t.lanes, s.target.vector_registers // (2 * rows))
    s.do(Split(col, width))
    reorder(s, (*around, f"{col}.0", row, f"{col}.1"))
    s.do(ComputeAt(blocks, f"{col}.0"))
    s.do(SetScope(blocks, "register"))
    _fill(s, t, blocks)
    for x in (row, first_name(sums, t.row), m):
        s.attempt(Unroll(x))
    lanes_of_tile(s, f"{col}.1", t.lanes)
    vector_loop(s, first_name(sums, t.col), LANES)
    vector_loop(s, n, LANES)
    if width < columns:
        # The next block arrives in one stream, however the columns of this one are cut.
        inside = [q.name for q in s.path(blocks) if q.kind == "serial"]
        s.prefetch(matrix, around[-1], inside[-1])
    top = rest[0]
    for k, x in enumerate(rest[1:]):
        into = f"{t.host if shared is None else sums}.q{k}"
        if not s.attempt(Fuse(top, x, into)):
            break
        top = into
    s.attempt(Parallel(top))
    return True


def _shared_sums(s: Scheduler, t: Tile) -> tuple[str, str] | None:
    """A stage for the sums of pieces, and its loop over these; they are added up at the end."""
    piece = _piece(s, t)
    if piece is None:
        return None
    (red,) = s.reduced(t.acc)
    s.do(Split(red.name, piece))
    sums = f"{t.acc}s"
    s.do(RFactor(t.acc, (f"{red.name}.0",), sums))
    last = len(s.nest.buffer(sums).shape) - 1
    s.do(Permute(sums, (last, *range(last))))  # the sums of a piece are adjacent
    return sums, moved(f"{red.name}.0", sums)


def _ended(s: Scheduler, t: Tile) -> None:
    """The sums of the pieces added up, right where they are read."""
    a = t.acc
    row, col = f"{a}.{t.axes[t.row]}", f"{a}.{t.axes[t.col]}"
    reorder(s, (*(q.name for q in s.reduced(a)), row, col))
    for x in (col, first_name(a, t.col)):
        vector_loop(s, x, LANES)


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
