"""Maps that cut rows into panels, as packing the right operand of a product does.

    for k.0: for panel: for k.1 in 4: lane j: y[panel,k,j] = x[k,12*panel+j]

Panels outside would read rows far apart, a part of a line each; rows outside would write far apart.
So a few rows go through all panels together. The last panel, which a condition ends, is by itself.
"""

from __future__ import annotations

from math import prod

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.register_tile import LINE
from tilewright.kernel.defaults.interleave import read_step, split_whole
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads, work_per_point
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

# Rows that go through all panels together. On an Arm processor, 2048 rows of 4096 numbers took 20
# times as long one panel after the other, 7 times one row after the other, 4 times by 16.
ROWS = 4
# Where a panel has whole lines of each row, none is read twice, and so many bytes of a panel in one
# piece are written faster: 1576 rows of 1536 numbers that are in no cache took a quarter less time
# (x86, 2 threads, panels of 16 columns).
PIECE = 1024
MOST_ROWS = 16
PIECES = 4  # for each thread at the least
MOST_LANES = 64


def schedule_panels(s: Scheduler, host: str) -> bool:
    """False, and no step, where the stage does anything else."""
    path, store = s.path(host), s.store(host)
    reads = store_reads(store)
    if len(path) < 3 or len(reads) != 1 or not isinstance(reads[0].source, str):
        return False
    *outer, along = path
    width = along.extent
    steps = {x.name: read_step(s, reads[0], x) for x in path}
    written = linear_index(s.nest.buffer(store.buffer), store.index)
    adjacent = steps[along.name] == 1 and D.coefficient(written, along.var) == 1
    if not isinstance(width, int) or not 1 < width <= MOST_LANES or not adjacent:
        return False
    panels = [x for x in outer if steps[x.name] == width]
    rows = [x for x in outer if _is_row(x, steps[x.name], width)]
    if len(panels) != 1 or not rows:
        return False
    rest = [x for x in outer if x not in (panels[0], rows[-1])]
    return _schedule(s, host, rest, rows[-1], panels[0], along)


def _is_row(x: Loop, step: D.Dim | None, width: int) -> bool:
    longer = step is not None and (not isinstance(step, int) or step > width)
    return longer and x.extent != 1


def _schedule(
    s: Scheduler, host: str, rest: list[Loop], row: Loop, panel: Loop, along: Loop
) -> bool:
    before = s.nest, list(s.trace)
    (read,), lanes = store_reads(s.store(host)), s.target.lanes(32)
    around = [*(x.name for x in rest), f"{row.name}.0"]
    rows = _rows_of_a_piece(s, read, prod(guess(x.extent) for x in (*rest, row)), along)
    work = work_per_point(s, host) * rows * prod(guess(x.extent) for x in (panel, along))
    s.do(Split(row.name, rows))
    if not s.attempt(Reorder((*around, panel.name, f"{row.name}.1", along.name))):
        s.nest, s.trace[:] = before
        return False
    if not (isinstance(row.extent, int) and row.extent % rows == 0):
        s.attempt(Peel(f"{row.name}.0"))
    split_whole(s, read, [panel], along)
    if isinstance(along.extent, int) and along.extent > lanes and along.extent % lanes == 0:
        s.do(Split(along.name, lanes))
        s.attempt(Unroll(f"{along.name}.0"))
        s.attempt(Vectorize(f"{along.name}.1"))
    else:
        s.attempt(Vectorize(along.name))
    s.parallel(around[0], work * prod(guess(x.extent) for x in rest[1:]))
    return True


def _rows_of_a_piece(s: Scheduler, read: Load, every: int, along: Loop) -> int:
    """How many rows, of every one, go through all panels together."""
    size, rows = guess(along.extent) * read.dtype.bytes, ROWS
    if size % LINE == 0:
        while 2 * rows <= MOST_ROWS and 2 * rows * size <= PIECE:
            rows *= 2
        while rows > ROWS and every < PIECES * s.target.cores * rows:
            rows //= 2
    return rows
