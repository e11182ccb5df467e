"""The default schedule of a group: a trace, from the group, the numbers of the target and
choices (kernel/defaults/choices.py) alone.

Five shapes cover what fusion makes: maps, maps with totals, rows, contractions and chains of these
(see kernel/defaults/). What fits none of them has its naive loops where a step refuses; where these
multiply and add, the nest says why, and whoever compiles it tells the user. Those of
a GPU are in kernel/defaults/grids.py. A tile kernel is a naive nest and takes the same way in.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.expr import extent
from tilewright.ir.target import Target
from tilewright.kernel.defaults.chains import find_chain, schedule_chain
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.contractions import (
    is_contraction,
    product_operands,
    schedule_contraction,
)
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.defaults.grids import grid_schedule
from tilewright.kernel.defaults.inlining import edges_in_lanes, inline_maps
from tilewright.kernel.defaults.maps import schedule_map, schedule_program
from tilewright.kernel.defaults.rows import schedule_rows, short_columns
from tilewright.kernel.defaults.scheduler import Applied, Scheduler
from tilewright.kernel.defaults.shared_values import element_by_element, schedule_shared_values
from tilewright.kernel.defaults.strided_windows import schedule_strided_window
from tilewright.kernel.defaults.sums_out import with_plain_outputs
from tilewright.kernel.defaults.tile_blocks import find_tiles, schedule_tiles
from tilewright.kernel.defaults.tile_kernels import schedule_programs
from tilewright.kernel.defaults.tile_sums import find_sums, find_taps, schedule_sums, schedule_taps
from tilewright.kernel.defaults.totals import schedule_totals
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Nest, Store, Work, walk
from tilewright.kernel.step import Trace
from tilewright.kernel.steps.compute_inline import ComputeInline

RULES = Choices()


def default_schedule(
    group: Work, target: Target, choices: Choices = RULES, applied: Applied | None = None
) -> tuple[Trace, Nest]:
    """The trace and the nest it leads to. What the choices leave open is decided by rules. Several
    schedules of one group share what is `applied`."""
    applied = applied or Applied()
    if isinstance(group, Nest) and target.grid is not None:
        return schedule_tile_grid(group, target)
    if isinstance(group, Nest):
        return schedule_programs(group, target)
    if target.grid is not None:
        return grid_schedule(group, target, choices)
    first, plain = with_plain_outputs(group)
    if first:
        try:
            trace = (*first, *default_schedule(plain, target, choices, applied)[0])
            nest = applied.start(group)
            for step in trace:
                nest = applied.apply(step, nest)
            return trace, nest
        except Refused:
            pass
    s, why = _chained(group, target, choices, applied)
    if s is not None:
        return tuple(s.trace), s.nest
    s = Scheduler(group, target, choices, applied=applied)
    stages = inline_maps(s)
    outs = [x for x in stages if group.buffer(x.name).scope == "out"]
    inner = [x for x in stages if x not in outs]
    if any(x.ordered for x in stages):
        schedule_program(s, inner, outs)
    elif not inner:
        schedule_map(s, outs)
    elif schedule_shared_values(s, inner, outs) or schedule_totals(s, inner, outs):
        pass
    elif schedule_strided_window(s, inner, outs):
        pass
    elif (sums := _one_contraction(s, inner)) is not None:
        at = inner.index(sums)
        if not _reuses(s, sums) and short_columns(s, inner, outs):
            pass
        elif not _tiled(s, sums, outs, inner[:at], inner[at + 1 :]):
            s = Scheduler(group, target, choices, applied=applied)
            stages = inline_maps(s)
            schedule_rows(s, [x for x in stages if x not in outs], outs)
    else:
        schedule_rows(s, inner, outs)
    if why or adds_singly(s.nest):
        s.nest = replace(s.nest, unscheduled=why or NO_TILE)
    return tuple(s.trace), s.nest


NO_TILE = "no register tile fits its sums"
# Fewer products are not worth a word.
MANY = 1 << 14


def adds_singly(n: Nest) -> bool:
    """Are many products of a sum added one after the other, with nothing written out or in lanes
    around them?"""
    for x, path in walk(n.body):
        if not isinstance(x, Store) or x.combine != "add" or product_operands(x.value) is None:
            continue
        many = prod(guess(p.extent) for p in path) >= MANY
        if many and not any(p.kind in ("lane", "tensor", "unroll") for p in path):
            return True
    return False


def _chained(
    group: Group, target: Target, choices: Choices, applied: Applied
) -> tuple[Scheduler | None, str]:
    """A schedule of a chain, or why it has none: what should stay in the cache between its steps
    is then stored, or made again and again. Neither where a group is no chain, or so small that
    this does not matter."""
    ways: tuple[tuple[Any, Any], ...] = (
        (find_chain, schedule_chain),
        (find_tiles, schedule_tiles),
        (find_sums, schedule_sums),
        (find_taps, schedule_taps),
    )
    why = ""
    for find, schedule in ways:
        found = find(group)
        if found is None:
            continue
        s = Scheduler(group, target, choices, applied=applied)
        try:
            if schedule(s, found):
                return s, ""
            why = NO_TILE
        except Refused as refused:  # a shape that does not fit; the caller starts again
            why = refused.what
        break
    return None, why if max(map(_points, group.stages)) >= MANY else ""


def _points(st: Stage) -> int:
    return prod(guess(extent(x)) for x in (*st.axes, *st.raxes)) if st.raxes else 0


def _one_contraction(s: Scheduler, inner: list[Stage]) -> Stage | None:
    """The only stage, or the only one besides images with their edges before it and maps of its
    elements after it."""
    at = next((k for k, x in enumerate(inner) if is_contraction(s, x)), None)
    if at is None:
        return None
    images, after = inner[:at], inner[at + 1 :]
    padded = all(edges_in_lanes(s.store(x.name).value, s.path(x.name)) for x in images)
    return inner[at] if padded and all(x.is_map for x in after) else None


def _reuses(s: Scheduler, sums: Stage) -> bool:
    """Is a number part of several products? A tile of a sum of squares, say, saves no read."""
    operands = product_operands(s.store(sums.name).value) or ()
    along = {v for v in (*sums.axes, *sums.raxes) if extent(v) != 1}
    return any(along - set().union(*map(D.symbols, x.index)) for x in operands)


def _tiled(
    s: Scheduler, acc: Stage, outs: list[Stage], images: list[Stage], shared: list[Stage]
) -> bool:
    """`shared` are costly values that several results are made of. In the loops of a tile these
    have the sums in registers, and equal functions of them are one: they are not stored."""
    if shared and not element_by_element(s, [acc, *shared], outs):
        return False
    try:
        for x in shared:
            s.do(ComputeInline(x.name))
        return schedule_contraction(s, acc, outs, images)
    except Refused:  # a shape the tile does not fit; the caller starts again
        return False
