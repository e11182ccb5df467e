"""The schedules that a space is opened from, the default schedule first."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.defaults.contractions import parallel_tiles
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Applied, Scheduler, store_reads
from tilewright.kernel.defaults.tiles import Tile, fill_tile, place_tile
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Work
from tilewright.kernel.schedule import RULES, default_schedule
from tilewright.kernel.step import Trace
from tilewright.tune.candidates import candidates

# Arguments that rules open: traces that differ in these alone are one sketch.
_OPENED = ("factor", "grain", "distance", "level")


def sketches(work: Work, target: Target, applied: Applied) -> list[Trace]:
    """Schedules that differ in more than what rules open: the default, those by other choices, and
    tiles of results with any reduction inside."""
    found = [default_schedule(work, target, applied=applied)[0]]
    if isinstance(work, Group) and target.grid is None:
        found += [c.trace for c in candidates(work, target, thorough=True)]
        found += tiled(work, target, applied)
    shapes: dict[tuple[object, ...], Trace] = {}
    for trace in found:
        shapes.setdefault(_shape(trace), trace)
    return list(shapes.values())


def _shape(trace: Trace) -> tuple[object, ...]:
    return tuple(
        (type(s), *((k, v) for k, v in vars(s).items() if k not in _OPENED)) for s in trace
    )


def tiled(group: Group, target: Target, applied: Applied) -> Iterator[Trace]:
    """Tiles of the results in registers, a reduction of any kind inside: neighbouring results along
    one axis are lanes, along another they are rows. One schedule for each pair of axes."""
    s = Scheduler(group, target, RULES, applied=applied)
    try:
        stages = inline_maps(s)
    except Refused:
        return
    outs = [x for x in stages if group.buffer(x.name).scope == "out"]
    inner = [x for x in stages if x not in outs]
    if len(inner) != 1 or len(outs) != 1 or any(x.ordered for x in stages):
        return
    (acc,), (host,) = inner, outs
    path = s.path(host.name)
    reads = [r for r in store_reads(s.store(host.name)) if r.source == acc.name]
    if len(reads) != 1 or not acc.raxes or len(path) < 2:
        return
    same = [D.is_sym(i) and D.the_sym(i) is p.var for i, p in zip(reads[0].index, path)]
    if len(same) != len(path) or not all(same):
        return
    names, axes = [p.name for p in path], [f"i{k}" for k in range(len(path))]
    wide = [k for k, p in enumerate(path) if p.extent != 1]
    lanes = target.lanes(s.nest.buffer(acc.name).dtype.bits)
    for col in wide[-2:]:
        for row in [k for k in wide if k != col][-1:] or [k for k in range(len(path)) if k != col]:
            made = Scheduler(group, target, RULES, applied=applied)
            inline_maps(made)
            tile = Tile(acc.name, host.name, [*names], [*axes], row, col, 4, lanes, 2, plain=True)
            try:
                placed = place_tile(made, tile)
                fill_tile(made, placed)
                parallel_tiles(made, placed)
            except Refused:
                continue
            yield tuple(made.trace)
