"""Tiles of any group's results (kernel/defaults/result_tiles.py), one schedule for each axis that
may have the lanes; short reductions that are written out; and reductions that threads share. Which
are worth measuring is the search's concern: where a step refuses, that schedule is left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir.target import Target
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.maps import collapse, schedule_alone
from tilewright.kernel.defaults.result_tiles import ROWS, share, tile_results
from tilewright.kernel.defaults.rows import SHORT, reduction_lanes
from tilewright.kernel.defaults.scheduler import PIECE, Applied, Scheduler, contiguous
from tilewright.kernel.defaults.tiles import reorder
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Path, Store, walk
from tilewright.kernel.schedule import RULES
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Axes that may have the lanes, from the innermost; others are further apart in memory.
MOST_AXES = 2
# Where threads share a reduction: pieces for each thread, and the fewest numbers of a result.
PIECES = 4
LONG = 64


def plain_maps(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """A map as any other one, also where the rules have something of its own for it: loops that are
    one walk through memory as one, lanes, threads."""
    s, inner, host = begun(group, target, applied)
    if host is None or inner:
        return
    collapse(s, [host.name])
    schedule_alone(s, host.name)
    yield tuple(s.trace)


def tilings(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Schedules by tiles: with rows and without them, for each axis that may have the lanes."""
    s, inner, host = begun(group, target, applied)
    if host is None:
        return
    wide = [k for k, p in enumerate(s.path(host.name)) if p.extent != 1][-MOST_AXES:]
    for col, rows in product(reversed(wide), (True, False)):
        others = [k for k in wide if k != col]
        if rows and not others:
            continue
        s, inner, host = begun(group, target, applied)
        assert host is not None
        try:
            tile_results(s, inner, host, col, others[-1] if rows else None)
        except Refused:
            continue
        yield tuple(s.trace)


def written_out(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """A reduction of a few numbers that lie next to each other: all of it is written out, for
    several results in turn, and none has lanes, which would read far apart."""
    s, inner, host = begun(group, target, applied)
    if host is None or len(inner) != 1 or not inner[0].is_reduce:
        return
    st, last = inner[0].name, s.path(host.name)[-1].name
    reduced = s.reduced(st)
    extents = [p.extent for p in reduced]
    if not all(isinstance(e, int) for e in extents) or prod(map(guess, extents)) > SHORT:
        return
    if not contiguous(s, s.store(st), reduced[-1].var):
        return
    work = prod(guess(p.extent) for p in (*s.path(host.name), *reduced))
    around = [p.name for p in s.path(host.name)][:-1]
    rows = [p.name for p in s.axes(st)[0]][-1:]
    try:
        s.do(Split(last, ROWS))
        s.do(ComputeAt(st, f"{last}.0"))
        s.attempt(Peel(f"{last}.0"))
        s.attempt(SetScope(st, "register"))
        reorder(s, (*(p.name for p in reduced), *rows))
        for x in rows:
            s.do(Unroll(x))
            s.attempt(Unroll(x.replace(f"{st}.", f"{st}.init.", 1)))
        for p in reversed(reduced):
            s.do(Unroll(p.name))
        s.do(Unroll(f"{last}.1"))
        share(s, host.name, [*around, f"{last}.0"], work)
    except Refused:
        return
    yield tuple(s.trace)


def begun(
    group: Group, target: Target, applied: Applied
) -> tuple[Scheduler, list[Stage], Stage | None]:
    """A group whose maps are inlined, its stages before the last result, and that one."""
    s = Scheduler(group, target, RULES, applied=applied)
    try:
        stages = inline_maps(s)
    except Refused:
        return s, [], None
    outs = [x for x in stages if group.buffer(x.name).scope == "out"]
    if len(outs) != 1 or not s.path(outs[0].name) or any(x.ordered for x in stages):
        return s, [], None
    return s, [x for x in stages if x is not outs[0]], outs[0]


def loops_of_first(s: Scheduler, stage: str) -> Path:
    """The loops in which the results of a reduction begin."""
    stores = ((x, p) for x, p in walk(s.nest.body) if isinstance(x, Store) and x.stage == stage)
    return next(p for x, p in stores if x.combine is None)


def partial_results(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Where a reduction has few results, threads share it: each has results of its own part, which
    are put together in the end."""
    s, inner, host = begun(group, target, applied)
    if host is None:
        return
    long = [st for st in inner if st.is_reduce and _few_results(s, st)]
    if not long:
        return
    try:
        for st in long:
            _in_parts(s, st)
        for st in reversed(inner):
            if st not in long:
                s.attempt(ComputeAt(st.name, s.path(host.name)[0].name))
    except Refused:
        return
    yield tuple(s.trace)


def _few_results(s: Scheduler, st: Stage) -> bool:
    data, red = s.axes(st.name)
    results, steps = (prod(guess(p.extent) for p in x) for x in (data, red))
    return LONG * results <= steps and results * steps >= 2 * PIECE


def _in_parts(s: Scheduler, st: Stage) -> None:
    red = s.reduced(st.name)
    longest = max(red, key=lambda p: guess(p.extent))
    pieces = PIECES * max(1, s.target.cores)
    s.do(Split(longest.name, max(1, -(-guess(longest.extent) // pieces))))
    part = f"{st.name}c"
    s.do(RFactor(st.name, (f"{longest.name}.0",), part))
    shared = f"{moved(longest.name, part)}.0"
    for k in range(len(s.path(part))):  # threads share the results too, where there are several
        top, *rest = (p.name for p in s.path(part))
        if top == shared or not s.attempt(Fuse(top, rest[0], into := f"{part}.o{k}")):
            break
        shared = into if rest[0] == shared else shared
    reduction_lanes(s, part)
    s.attempt(Parallel(s.path(part)[0].name))
