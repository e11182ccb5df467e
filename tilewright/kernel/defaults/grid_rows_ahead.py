"""Rows that are only read, the next one on its way while a block works on one.

Blocks that have one row each begin together: all wait for memory, then all compute, and memory
waits for them. Here as many blocks as run at a time walk over the rows. A thread copies its part of
the next row to shared memory in the background before it looks at that of its own: it reads what it
has copied itself, so no barrier is needed.
"""

from __future__ import annotations

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.walk import Walk

AHEAD: int = 0  # rows of a block that are on their way; none: a block has one row
RESIDENT: int = 8  # blocks of a multiprocessor, at most
FEWEST = 2  # rows of a block
THREADS = 64  # of a block, at least
VECTOR = 16  # bytes of a copy
RESERVED = 1024  # bytes of shared memory that every block takes besides its own


def bring(s: Scheduler, rows: list[str]) -> list[str]:
    """Of rows in registers, the stages that copy them to shared memory."""
    grid = s.target.grid
    assert grid is not None
    if not grid.copies_in_background or len(rows) != 1:
        raise Refused("no one row that is copied in the background")
    made: list[str] = []
    for x in rows:
        (source,) = {str(r.source) for r in store_reads(s.store(x))}
        s.do(CacheRead(source, (x,), f"{x}_s"))
        made.append(f"{x}_s")
    return made


def walk_rows(
    s: Scheduler, at: str, rows: list[str], lanes: int, threads: int, together: int
) -> None:
    """Blocks walk over the rows of a loop; `together` of them would share a block."""
    grid, count = s.target.grid, s.loops(at)[0].extent
    assert grid is not None
    b = s.nest.buffer(rows[0])
    elements = D.bounds(b.size)[1]
    size = elements * b.dtype.bytes
    resident = min(RESIDENT, grid.shared // ((AHEAD + 1) * size + RESERVED))
    blocks = resident * grid.multiprocessors
    whole = lanes * b.dtype.bytes == VECTOR and elements % (lanes * threads) == 0
    if not whole or together > 1 or threads < THREADS:
        raise Refused("rows that are no whole vectors of all threads, or short")
    if not isinstance(count, int) or resident < 1 or count < FEWEST * blocks:
        raise Refused(f"{count} rows are few for {blocks} blocks")
    for x in rows:
        s.do(SetScope(x, "shared"))
    s.do(Bind(at, "block.x"))
    s.do(Walk(at, blocks))
    for x in rows:
        s.do(Pipeline(f"{at}.0", x, AHEAD, asynchronous=True))
    s.do(Pragma(f"{at}.1", "resident", resident))
    s.do(Synchronise())
