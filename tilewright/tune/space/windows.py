"""Reductions over windows whose columns neighbouring windows share: a sum or the largest number of
squares of an image.

    for row:
      for place: w[place] += x[…,place]             # down the window, lanes along the image
      for col: t[col] += w[2*col+s]                 # across it, out of what is there already
      for col: y[row,col] = … t[col]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir.target import Target
from tilewright.kernel.defaults.result_tiles import VECTORS, share
from tilewright.kernel.defaults.rows import SHORT
from tilewright.kernel.defaults.scheduler import Applied, Scheduler
from tilewright.kernel.defaults.tiles import lanes_of_tile, reorder
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Loop
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.slide import Slide
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.tune.space.tiling import begun, loops_of_first


def shared_windows(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Down the windows first, then across, in lanes along the last axis of the results."""
    s, inner, host = begun(group, target, applied)
    if host is None or len(inner) != 1 or not inner[0].is_reduce:
        return
    reduced = s.reduced(inner[0].name)
    if len(reduced) < 2 or prod(guess(p.extent) for p in reduced) > SHORT:
        return
    for over in reduced:
        s, inner, host = begun(group, target, applied)
        assert host is not None
        try:
            _schedule(s, inner[0], host, over)
        except Refused:
            continue
        yield tuple(s.trace)


def _schedule(s: Scheduler, st: Stage, host: Stage, over: Loop) -> None:
    path = s.path(host.name)
    work = prod(guess(p.extent) for p in (*path, *s.reduced(st.name)))
    *around, last = (p.name for p in path)
    col, lanes = len(path) - 1, s.target.lanes(max(32, s.nest.buffer(st.name).dtype.bits))
    down, sums = f"{st.name}w", f"{st.name}c"
    s.do(RFactor(st.name, (over.name,), down))
    s.do(Slide(down, col, len(s.nest.buffer(down).shape) - 1))
    s.do(CacheWrite(down, sums))  # sums are in registers until they are complete
    s.do(Split(last, VECTORS * lanes))
    s.do(ComputeAt(st.name, f"{last}.0"))
    s.do(ComputeAt(down, around[-1] if around else f"{last}.0"))
    s.do(Split(f"{down}.i{col}", VECTORS * lanes))
    s.do(ComputeAt(sums, f"{down}.i{col}.0"))
    for loop in (f"{last}.0", f"{down}.i{col}.0"):
        s.attempt(Peel(loop))
    for stage in (sums, st.name):
        s.do(SetScope(stage, "register"))
        data, red = ([p.name for p in x] for x in s.axes(stage))
        reorder(s, (*red, data[-1]))
        for loop in (data[-1], loops_of_first(s, stage)[-1].name):
            lanes_of_tile(s, loop, lanes)
        for x in reversed(red):
            s.attempt(Unroll(x))
    for loop in (f"{down}.i{col}.1", f"{last}.1"):
        lanes_of_tile(s, loop, lanes)
    share(s, host.name, [*around, f"{last}.0"], work)
