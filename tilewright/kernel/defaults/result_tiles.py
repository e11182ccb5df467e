"""Tiles of results with whatever they need inside: neighbours along one axis are lanes, along
another they are rows in registers.

    for i.0: for j.0:                       # shared by threads
      for r: for i.1 in 4: lane j.1: t[i.1,j.1] += …
      for i.1 in 4: lane j.1: y[i,j] = … t[i.1,j.1]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.graph.classify import guess
from tilewright.kernel.defaults.scheduler import Scheduler, work_per_point
from tilewright.kernel.defaults.tiles import lanes_of_tile, reorder, unroll_reduction
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Rows of a tile, and vectors of a row.
ROWS, VECTORS = 4, 2


def tile_results(
    s: Scheduler, inner: Sequence[Stage], host: Stage, col: int, row: int | None
) -> None:
    """Lanes along one axis of the host, rows along another or none, by their places. Raises what
    refuses."""
    names = [p.name for p in s.path(host.name)]
    lanes = s.target.lanes(max(32, s.nest.buffer(host.name).dtype.bits))
    extents = [guess(p.extent) for p in s.path(host.name)]
    c, r = names[col], None if row is None else names[row]
    tails = [f"{c}.0"]
    work = sum(_work(s, st.name) for st in (*inner, host))
    # What is left of a row of any length is part of one vector, and so in a register too.
    known = all(isinstance(p.extent, int) for p in s.loops(c))
    s.do(Split(c, lanes * VECTORS if known and extents[col] > lanes else lanes))
    if r is not None and row is not None:
        s.do(Split(r, min(ROWS, extents[row])))
        tails.insert(0, f"{r}.0")
    rest = [x for x in names if x not in (c, r)]
    around = [*rest, *tails]
    inside = [f"{c}.1"] if r is None else [f"{r}.1", f"{c}.1"]
    now = [p.name for p in s.path(host.name)]
    if now != [*around, *inside]:
        s.do(Reorder((*around, *inside)))
    for st in reversed(inner):
        s.do(ComputeAt(st.name, around[-1]))
    for loop in tails:
        # How many rows are left over the call says: code for each number has them in registers.
        rows = loop != f"{c}.0" and not all(isinstance(p.extent, int) for p in s.loops(loop))
        if not (rows and s.attempt(Peel(loop, cases=True))):
            s.attempt(Peel(loop))
    for st in inner:
        _fill(s, st, col, row, lanes)
    if r is not None:
        s.attempt(Unroll(f"{r}.1"))
    lanes_of_tile(s, f"{c}.1", lanes)
    share(s, host.name, around, work)


def _work(s: Scheduler, stage: str) -> int:
    """Simple operations of all of a stage, about."""
    return work_per_point(s, stage) * prod(guess(p.extent) for p in s.path(stage))


def _fill(s: Scheduler, st: Stage, col: int, row: int | None, lanes: int) -> None:
    """What a tile needs of one stage: its results in registers, lanes along the same axis."""
    data, red = s.axes(st.name)
    if not data:
        return
    names = [p.name for p in data]
    along = f"{st.name}.i{col}" if f"{st.name}.i{col}" in names else names[-1]
    rows = [x for x in names if row is not None and x == f"{st.name}.i{row}" and x != along]
    reduced = [p.name for p in red]
    if red:
        s.attempt(SetScope(st.name, "register"))
    others = [x for x in names if x not in (along, *rows)]
    reorder(s, (*others, *reduced, *rows, along))
    for x in rows:
        s.attempt(Unroll(x))
    lanes_of_tile(s, along, lanes)
    for x in (*rows, along):
        init = x.replace(f"{st.name}.", f"{st.name}.init.", 1)
        if s.loops(init):
            if x == along:
                lanes_of_tile(s, init, lanes)
            else:
                s.attempt(Unroll(init))
    if red:
        unroll_reduction(s, reduced)


def share(s: Scheduler, host: str, around: Sequence[str], work: int) -> None:
    """Threads share the loops around the tiles, as many of them as are one inside the other; `work`
    is that of all tiles, in simple operations."""
    top = around[0]
    for k, x in enumerate(around[1:]):
        into = f"{host}.q{k}"
        if not s.attempt(Fuse(top, x, into)):
            break
        top = into
    s.parallel(top, work // max([1, *(guess(x.extent) for x in s.loops(top))]))
