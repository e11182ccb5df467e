"""Maps that interleave a few rows element by element, as packing in groups does.

Lanes run along the rows, which are read in whole vectors; along the result they would gather.
"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load
from tilewright.kernel.defaults.scheduler import Scheduler, store_reads, work_per_point
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

ROWS = 4
MOST_LANES = 64


def schedule_interleaved(s: Scheduler, host: str) -> bool:
    """False where the stage writes anything else."""
    path, reads = s.path(host), store_reads(s.store(host))
    if len(path) < 3 or len(reads) != 1 or not isinstance(reads[0].source, str):
        return False
    *outer, along, rows = path
    step = {x.name: read_step(s, reads[0], x) for x in path}
    few = isinstance(rows.extent, int) and 1 < rows.extent <= ROWS
    wide = isinstance(along.extent, int) and 1 < along.extent <= MOST_LANES
    if not few or not wide or step[along.name] != 1 or step[rows.name] in (None, 0, 1):
        return False
    longest = {name: D.bounds(d)[1] for name, d in step.items() if d is not None}
    if any(x.name not in longest for x in outer):
        return False
    # What is read stays in the cache for all that is written of it: the longest steps outside.
    outer.sort(key=lambda x: -longest[x.name])
    names = [x.name for x in outer]
    if not s.attempt(Reorder((*names, rows.name, along.name))):
        return False
    work = work_per_point(s, host)
    for x in outer[1:]:
        work *= x.extent if isinstance(x.extent, int) else 64
    split_whole(s, reads[0], outer[1:], along)
    s.attempt(Unroll(rows.name))
    s.attempt(Vectorize(along.name))
    s.parallel(names[0], work)
    return True


def read_step(s: Scheduler, x: Load, loop: Loop) -> Dim | None:
    return D.coefficient(linear_index(s.nest.buffer(str(x.source)), x.index), loop.var)


def split_whole(s: Scheduler, x: Load, outer: list[Loop], along: Loop) -> None:
    """Vectors that end inside the rows are apart from the last one, which needs a condition."""
    shape = s.nest.buffer(str(x.source)).shape
    for i, size in zip(x.index, shape, strict=True):
        for tiles in outer:
            if D.coefficient(i, along.var) != 1 or D.coefficient(i, tiles.var) != along.extent:
                continue
            full = D.floordiv(size, along.extent)
            if not isinstance(full, int) or not isinstance(tiles.extent, int):
                continue
            if full == 1 and tiles.extent == 2:
                s.attempt(Unroll(tiles.name))
            elif 0 < full < tiles.extent:
                s.do(Split(tiles.name, full))
                s.attempt(Peel(f"{tiles.name}.0"))
