"""Tiles of any group's results: neighbours along one axis are lanes, along another they are rows
in registers, and everything that they need is computed inside.

    for i.0: for j.0:                       # shared by threads
      for r: for i.1 in 4: lane j.1: t[i.1,j.1] += …
      for i.1 in 4: lane j.1: y[i,j] = … t[i.1,j.1]

One schedule for each axis that may have the lanes. Which are worth measuring is the search's
concern: a step that does not fit refuses, and that schedule is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir.target import Target
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.rows import reduction_lanes
from tilewright.kernel.defaults.scheduler import PIECE, Applied, Scheduler
from tilewright.kernel.defaults.tiles import lanes_of_tile, reorder, unroll_reduction
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.schedule import RULES
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll

# Axes that may have the lanes, from the innermost; others are further apart in memory.
MOST_AXES = 2
# Rows of a tile, and vectors of a row, before the rules open them.
ROWS, VECTORS = 4, 2
# Pieces of a reduction for each thread, and numbers for each of its results, where threads share it.
PIECES = 4
LONG = 64


def tilings(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Schedules by tiles: with rows and without them, for each axis that may have the lanes."""
    s, inner, host = _begun(group, target, applied)
    if host is None:
        return
    wide = [k for k, p in enumerate(s.path(host.name)) if p.extent != 1][-MOST_AXES:]
    for col, rows in product(reversed(wide), (True, False)):
        others = [k for k in wide if k != col]
        if rows and not others:
            continue
        s, inner, host = _begun(group, target, applied)
        assert host is not None
        try:
            _tile(s, inner, host, col, others[-1] if rows else None)
        except Refused:
            continue
        yield tuple(s.trace)


def _begun(
    group: Group, target: Target, applied: Applied
) -> tuple[Scheduler, list[Stage], Stage | None]:
    """A group whose maps are inlined, its stages before the last result, and that one."""
    s = Scheduler(group, target, RULES, applied=applied)
    try:
        stages = inline_maps(s)
    except Refused:
        return s, [], None
    outs = [x for x in stages if group.buffer(x.name).scope == "out"]
    if len(outs) != 1 or not s.path(outs[0].name):
        return s, [], None
    return s, [x for x in stages if x is not outs[0]], outs[0]


def _tile(s: Scheduler, inner: list[Stage], host: Stage, col: int, row: int | None) -> None:
    names = [p.name for p in s.path(host.name)]
    lanes = s.target.lanes(max(32, s.nest.buffer(host.name).dtype.bits))
    extents = [guess(p.extent) for p in s.path(host.name)]
    c, r = names[col], None if row is None else names[row]
    tails = [f"{c}.0"]
    s.do(Split(c, lanes * VECTORS if extents[col] > lanes else lanes))
    if r is not None and row is not None:
        s.do(Split(r, min(ROWS, extents[row])))
        tails.insert(0, f"{r}.0")
    rest = [x for x in names if x not in (c, r)]
    # Of a scan, what waits for each other stays inside: the tiles are around it.
    ordered = host.ordered
    around = [*tails, *rest] if ordered else [*rest, *tails]
    inside = [f"{c}.1"] if r is None else [f"{r}.1", f"{c}.1"]
    now = [p.name for p in s.path(host.name)]
    if now != [*around, *inside]:
        s.do(Reorder((*around, *inside)))
    for st in reversed(inner):
        s.do(ComputeAt(st.name, around[-1]))
    for loop in tails:
        s.attempt(Peel(loop))
    for st in inner:
        _fill(s, st, col, row, lanes)
    if r is not None:
        s.attempt(Unroll(f"{r}.1"))
    lanes_of_tile(s, f"{c}.1", lanes)
    _share(s, host.name, tails if ordered else around)


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


def _share(s: Scheduler, host: str, around: Sequence[str]) -> None:
    """Threads share the loops around the tiles, as many of them as are one inside the other."""
    top = around[0]
    for k, x in enumerate(around[1:]):
        into = f"{host}.q{k}"
        if not s.attempt(Fuse(top, x, into)):
            break
        top = into
    s.attempt(Parallel(top))


def partial_results(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Where a reduction has few results, threads share it: each has results of its own part, which
    are put together in the end."""
    s, inner, host = _begun(group, target, applied)
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
    data, red = s.axes(st.name)
    longest = max(red, key=lambda p: guess(p.extent))
    pieces = PIECES * max(1, s.target.cores)
    s.do(Split(longest.name, max(1, -(-guess(longest.extent) // pieces))))
    part = f"{st.name}c"
    s.do(RFactor(st.name, (f"{longest.name}.0",), part))
    shared = f"{part}{longest.name.removeprefix(st.name)}.0"
    names = [p.name for p in s.path(part)]
    if names[0] != shared:
        s.attempt(Reorder((shared, *(x for x in names if x != shared))))
    reduction_lanes(s, part)
    s.attempt(Parallel(s.path(part)[0].name))
