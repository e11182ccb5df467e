"""Scans, such as running sums: several steps of several rows are written out. A step finds the
result before it in a register then, and what one row waits for is computed for the others."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.maps import broad_columns, fuse_outer
from tilewright.kernel.defaults.scheduler import Applied, Scheduler, store_reads, work_per_point
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop
from tilewright.kernel.schedule import RULES
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize

# Rows side by side, and steps of each that are written out; steps of columns.
ROWS, STEPS = 4, 16
STEPS_OF_COLUMNS = 4


def written_scans(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """A scan along its last axis has rows side by side; along the one before, columns in lanes."""
    s = Scheduler(group, target, RULES, applied=applied)
    try:
        stages = inline_maps(s)
        if len(stages) != 1 or not stages[0].ordered or len(s.path(stages[0].name)) < 2:
            return
        along = _scanned(s, stages[0].name)
        path = s.path(stages[0].name)
        if along == [path[-1]]:
            _rows(s, stages[0].name)
        elif along == [path[-2]]:
            _columns(s, stages[0].name)
        else:
            return
    except Refused:
        return
    yield tuple(s.trace)


def _scanned(s: Scheduler, stage: str) -> list[Loop]:
    """The loops along which a stage reads what it wrote before."""
    store = s.store(stage)
    own = [x for x in store_reads(store) if x.source == store.buffer]
    pairs = [(i, j) for x in own for i, j in zip(x.index, store.index, strict=True)]
    moving = [D.symbols(j) for i, j in pairs if not D.known_eq(i, j)]
    return [p for p in s.path(stage) if any(p.var in x for x in moving)]


def _rows(s: Scheduler, stage: str) -> None:
    """
    parallel row.0: for step.0:
      unroll row.1 in 4: unroll step.1 in 16: …
    """
    work = _work(s, stage)
    fuse_outer(s, [stage], len(s.path(stage)) - 1)
    rows, steps = (p.name for p in s.path(stage))
    s.do(Split(rows, min(ROWS, guess(s.path(stage)[0].extent))))
    s.do(Split(steps, STEPS))
    s.do(Reorder((f"{rows}.0", f"{steps}.0", f"{rows}.1", f"{steps}.1")))
    for x in (f"{rows}.0", f"{steps}.0"):
        s.attempt(Peel(x))
    for x in (f"{steps}.1", f"{rows}.1"):
        s.do(Unroll(x))
    _share(s, f"{rows}.0", work)


def _columns(s: Scheduler, stage: str) -> None:
    """
    parallel col.0: for step.0: for col.1.0:
      unroll step.1 in 4: lane col.1.1: …
    """
    work, lanes = _work(s, stage), s.target.lanes(max(32, s.nest.buffer(stage).dtype.bits))
    *outer, steps, cols = (p.name for p in s.path(stage))
    s.do(Split(cols, broad_columns(guess(s.path(stage)[-1].extent), s.target.cores, lanes)))
    s.do(Split(steps, STEPS_OF_COLUMNS))
    s.do(Reorder((*outer, f"{cols}.0", f"{steps}.0", f"{steps}.1", f"{cols}.1")))
    for x in (f"{cols}.0", f"{steps}.0"):
        s.attempt(Peel(x))
    s.do(Split(f"{cols}.1", lanes))
    s.do(Reorder((f"{cols}.1.0", f"{steps}.1", f"{cols}.1.1")))
    s.attempt(Peel(f"{cols}.1.0"))
    s.do(Vectorize(f"{cols}.1.1"))
    s.do(Unroll(f"{steps}.1"))
    _share(s, (*outer, f"{cols}.0")[0], work)


def _work(s: Scheduler, stage: str) -> int:
    return work_per_point(s, stage) * prod(guess(p.extent) for p in s.path(stage))


def _share(s: Scheduler, loop: str, work: int) -> None:
    s.parallel(loop, work // max(1, *(guess(x.extent) for x in s.loops(loop))))
