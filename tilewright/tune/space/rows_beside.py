"""Reductions along rows, several rows at a time: sums of one row wait for each other, those of
different rows do not.

    for i.0:
      for r.0: unroll i.1 in 4: lane r.1: p[i.1,r.1] += x[i,r]
      for i.1 in 4: t[i.1] += p[i.1,:]
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir.target import Target
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.result_tiles import ROWS, share
from tilewright.kernel.defaults.rows import inner_lanes
from tilewright.kernel.defaults.scheduler import Applied, Scheduler, contiguous, work_per_point
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Loop
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.tune.space.tiling import begun, loops_of_first


def rows_beside(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Where each reduction of a group is along one axis that lies next to each other, and longer
    than a vector."""
    s, inner, host = begun(group, target, applied)
    sums = [st for st in inner if st.is_reduce]
    if host is None or not sums or any(_along(s, st) is None for st in sums):
        return
    try:
        _schedule(s, inner, sums, host.name)
    except Refused:
        return
    yield tuple(s.trace)


def _along(s: Scheduler, st: Stage) -> Loop | None:
    red = [p for p in s.reduced(st.name) if p.extent != 1]
    lanes = s.target.lanes(32)
    if len(red) != 1 or guess(red[0].extent) <= lanes:
        return None
    return red[0] if contiguous(s, s.store(st.name), red[0].var) else None


def _schedule(s: Scheduler, inner: list[Stage], sums: list[Stage], host: str) -> None:
    path = s.path(host)
    work = sum(work_per_point(s, st.name) * _points(s, st.name) for st in sums)
    # The rows are the last axis that all stages have: what is along others is inside a row.
    shared = [p for p in path if all(_has(s, st.name, p) for st in sums)]
    if not shared:
        raise Refused(f"{host} has no rows that all sums have")
    rows = shared[-1]
    around = [p.name for p in path[: path.index(rows)]]
    s.do(Split(rows.name, ROWS))
    for st in reversed(inner):
        s.do(ComputeAt(st.name, f"{rows.name}.0"))
    parts = {st.name: _in_parts(s, st.name) for st in sums}
    s.attempt(Peel(f"{rows.name}.0"))
    for st in inner:
        if st.name in parts:
            _write_out(s, st.name, *parts[st.name])
        else:
            inner_lanes(s, st.name)
    inner_lanes(s, host)
    share(s, host, [*around, f"{rows.name}.0"], work)


def _points(s: Scheduler, stage: str) -> int:
    return prod(guess(p.extent) for p in s.path(stage))


def _has(s: Scheduler, stage: str, p: Loop) -> bool:
    data, _ = s.axes(stage)
    return any(q.axis.name == p.axis.name and q.extent == p.extent != 1 for q in data)


def _in_parts(s: Scheduler, stage: str) -> tuple[str, str]:
    """Partial results of a vector for each row; its loops along the rows and what is reduced."""
    data, red = s.axes(stage)
    row = next(p.name for p in data if p.extent != 1)
    loop = next(p.name for p in red if p.extent != 1)
    part = f"{stage}p"
    s.do(Split(loop, s.target.lanes(32)))
    s.do(RFactor(stage, (f"{loop}.1",), part))
    vectors = moved(loop, part)
    s.do(Reorder((f"{vectors}.0", moved(row, part), f"{vectors}.1")))
    return row, loop


def _write_out(s: Scheduler, stage: str, row: str, loop: str) -> None:
    part = f"{stage}p"
    vectors = moved(loop, part)
    s.attempt(Peel(f"{vectors}.0"))
    s.do(SetScope(part, "register"))
    for x in (moved(row, part), row):
        s.do(Unroll(x))
    for x in (f"{vectors}.1", f"{loop}.1"):
        s.do(Vectorize(x))
    first = loops_of_first(s, part)
    for q in first[:-1]:
        if q.axis.stage == part:
            s.do(Unroll(q.name))
    s.do(Vectorize(first[-1].name))
