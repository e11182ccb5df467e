"""Few long sums of a GPU whose neighbouring results read neighbours in memory, and maps of them, in
one launch: the weighted values of a few rows of attention, for one.

A warp has as many results as a vector has lanes, or a whole block where those are few. Its threads
share the steps of the sum, and then combine what they have.
"""

from __future__ import annotations

from math import prod

from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_lanes import vector_lanes
from tilewright.kernel.defaults.grid_products import same_places
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

WARPS = 4  # of a block
THREADS = 256  # of a block that has one vector of results
BESIDE = 8  # vectors of a thread that are on their way at a time
RESIDENT = 4  # blocks of so many warps on a multiprocessor: there are registers for these
SHORTEST, LONGEST = 128, 2048  # steps of a sum: threads have work, and one warp is done soon


def schedule_few_sums(s: Scheduler) -> bool:
    """Takes a group that is one sum, with fewer results than threads of the GPU, and maps of it.
    Longer sums are taken in pieces, by several blocks (grid_sums.py)."""
    assert s.target.grid is not None
    kept = inline_maps(s)
    sums = [x for x in kept if x.is_reduce]
    outs = [x for x in kept if s.group.buffer(x.name).scope == "out"]
    if len(sums) != 1 or len(outs) != 1 or len(kept) != 2 or any(x.ordered for x in kept):
        return False
    c, host = sums[0], outs[0].name
    sizes = [p.extent for p in s.path(c.name)]
    if len(c.raxes) != 1 or len(sizes) < 2 or not same_places(s, c, outs):
        return False
    known = [d for d in sizes if isinstance(d, int)]
    if len(known) != len(sizes):
        return False
    *results, depth = known
    warp, threads = s.target.grid.warp, s.target.grid.multiprocessors * s.target.grid.threads
    if prod(results) > threads or not SHORTEST <= depth <= LONGEST or depth % warp:
        return False
    *_, column, deep = s.path(c.name)
    last = s.path(host)[-1]
    lanes = vector_lanes(s, [c.name, host], column.var, last.var)
    if lanes == 1 or results[-1] % lanes:
        return False
    s.do(Split(last.name, lanes))
    vectors, once = f"{last.name}.0.0", f"{last.name}.0.1"
    s.do(Split(f"{last.name}.0", 1))  # one thread of the warp stores the results
    s.do(ComputeAt(c.name, vectors))
    at, *others = [p.name for p in s.path(host)[:-2]]
    for k, inner in enumerate(others):
        s.do(Fuse(at, inner, f"{host}.w{k}"))
        at = f"{host}.w{k}"
    *_, column, deep = s.path(c.name)
    share = _share(depth, prod(results) // lanes, warp, s.target.grid.multiprocessors)
    s.do(Split(deep.name, share))
    own, part = f"{deep.name}.1", f"{c.name}p"
    s.do(RFactor(c.name, (own,), part))
    lane, turns, mine = (moved(x, part) for x in (column.name, f"{deep.name}.0", own))
    s.do(Reorder((turns, mine, lane)))
    count = depth // share
    beside = next(k for k in (BESIDE, 4, 2, 1) if count % k == 0)
    if count > beside > 1:
        s.do(Split(turns, beside))
        turns = f"{turns}.1"
    if beside > 1:
        s.do(Unroll(turns))
    width = len(s.nest.buffer(part).shape) - 1
    s.do(Bind(f"{part}.init.i{width}", "thread.x"))
    s.do(Bind(mine, "thread.x"))
    s.do(Vectorize(lane))
    s.do(Reorder((column.name, own)))
    s.do(Unroll(column.name))
    for first in (f"{part}.init.i{width - 1}", moved(column.name, f"{c.name}.init")):
        s.do(Unroll(first))  # constant indices, so that all of them are registers
    s.do(Bind(own, "thread.x"))
    s.do(Bind(once, "thread.x"))
    s.do(Vectorize(f"{last.name}.1"))
    most = WARPS if share == warp else 1
    warps = next(k for k in (most, 2, 1) if prod(results) // lanes % k == 0)
    s.do(Split(at, warps))
    s.do(Bind(f"{at}.0", "block.x"))
    s.do(Bind(f"{at}.1", "thread.y"))
    resident = max(1, RESIDENT * WARPS * warp // (share * warps))
    s.do(Pragma(f"{at}.0", "resident", resident if share > warp else RESIDENT))
    s.do(Synchronise())
    return True


def _share(depth: int, vectors: int, warp: int, multiprocessors: int) -> int:
    """Threads that share a sum: a warp, or a block where warps would leave most multiprocessors
    idle while each waits for its vectors several times."""
    share = warp
    if vectors <= multiprocessors:
        while share < THREADS and depth % (2 * share) == 0 and depth > share * BESIDE:
            share *= 2
    return share
