"""Sums and maxima of a few elements that lie apart, on a GPU: pooling, one filter for each channel.

Channels are last, so that a thread has a vector of neighbouring results: it reads the window of
all of them vector by vector, and does what follows to its registers.
"""

from __future__ import annotations

from math import prod

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.defaults.grid_lanes import vector_lanes
from tilewright.kernel.defaults.grid_products import same_places
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

LARGEST = 128  # elements of a window
WRITTEN_OUT = 16  # vectors that are read without a loop
THREADS = 256  # of a block, at most
BESIDE = (4, 2)  # neighbouring windows of a thread, the preferred number first
FEWEST = 4096  # threads: fewer results are summed up in pieces (grid_sums.py)


def schedule_windows(s: Scheduler) -> bool:
    """Takes a group that is one reduction of few elements, and maps of its results."""
    stages = inline_maps(s)
    sums = [x for x in stages if x.is_reduce]
    outs = [x for x in stages if s.group.buffer(x.name).scope == "out"]
    if len(sums) != 1 or len(outs) != 1 or any(x.ordered for x in stages) or sums[0] is outs[0]:
        return False
    c, y = sums[0], outs[0]
    if len(c.axes) < 2 or len(c.axes) != len(y.axes) or not same_places(s, c, [y]):
        return False
    for x in stages:
        if x is not c and x is not y:
            s.do(ComputeInline(x.name))
    window = [p.extent for p in s.path(c.name)[len(c.axes) :]]
    sizes = [d for d in window if isinstance(d, int)]
    if len(sizes) < len(window) or not 1 < prod(sizes) <= LARGEST:
        return False
    last = s.path(y.name)[-1]
    along = s.path(c.name)[len(c.axes) - 1]
    lanes = vector_lanes(s, [c.name, y.name], along.var, last.var)
    if not isinstance(last.extent, int):
        return False
    while lanes > 1 and last.extent % lanes:
        lanes //= 2
    results = prod(d if isinstance(d, int) else FEWEST * lanes for d in s.nest.buffer(c.name).shape)
    if lanes == 1 or results < FEWEST * lanes:
        return False
    s.do(Split(last.name, lanes))
    around = [p.name for p in s.path(y.name)[: len(y.axes) - 1]]
    beside = _beside(s, y)
    inside = [f"{last.name}.1"]
    if beside > 1:
        s.do(Split(around[-1], beside))
        inside.insert(0, f"{around[-1]}.1")
        around[-1] = f"{around[-1]}.0"
        s.do(Reorder((around[-1], f"{last.name}.0", *inside)))
    s.do(ComputeAt(c.name, f"{last.name}.0"))
    reduced = [p.name for p in s.reduced(c.name)]
    own = [p.name for p in s.own(c.name) if p.name not in reduced and p.extent != 1]
    s.do(Reorder((*reduced, *own)))
    firsts = [D.the_sym(d).name for d in s.first_store(c.name).index if D.is_sym(d)]
    for loops in (own, firsts, inside):
        s.do(Vectorize(loops[-1]))
        for loop in loops[:-1]:
            s.do(Unroll(loop))
    left = WRITTEN_OUT
    for loop, size in reversed(list(zip(reduced, sizes, strict=True))):
        if size > left:
            break
        left //= size
        s.do(Unroll(loop))
    _bind(s, y.name, around, f"{last.name}.0")
    s.do(Synchronise())
    return True


def _beside(s: Scheduler, y: Stage) -> int:
    """How many neighbouring windows a thread has: those share filters, or overlap."""
    extent = s.path(y.name)[len(y.axes) - 2].extent
    return next((k for k in BESIDE if _divisor(extent, k) == k), 1)


def _divisor(extent: Dim, most: int) -> int:
    """The largest one up to a number."""
    known = extent if isinstance(extent, int) else 1
    return max(k for k in range(1, most + 1) if known % k == 0)


def _bind(s: Scheduler, y: str, around: list[str], vectors: str) -> None:
    """Vectors of channels and neighbouring windows are threads, all else is blocks."""
    count = s.loops(vectors)[0].extent
    columns = _divisor(count, THREADS)
    if columns != count:
        s.do(Split(vectors, columns))
        around, vectors = [*around, f"{vectors}.0"], f"{vectors}.1"
    elif (rows := _divisor(s.loops(around[-1])[0].extent, THREADS // columns)) > 1:
        s.do(Split(around[-1], rows))
        s.do(Bind(f"{around[-1]}.1", "thread.y"))
        around[-1] = f"{around[-1]}.0"
    s.do(Bind(vectors, "thread.x"))
    flat = around[0]
    for k, loop in enumerate(around[1:]):
        s.do(Fuse(flat, loop, f"{y}.f{k}"))
        flat = f"{y}.f{k}"
    s.do(Bind(flat, "block.x"))
