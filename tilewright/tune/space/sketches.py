"""The schedules that a space is opened from, the default schedule first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Work
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace
from tilewright.tune.candidates import candidates
from tilewright.tune.choose import Ranked
from tilewright.tune.space.rows_beside import rows_beside
from tilewright.tune.space.scans import written_scans
from tilewright.tune.space.tiling import partial_results, plain_maps, tilings, written_out
from tilewright.tune.space.turned import turned_operands
from tilewright.tune.space.windows import shared_windows

# Arguments that rules open: traces that differ in these alone are one sketch.
_OPENED = ("factor", "grain", "distance", "level")


# Each makes schedules of a kind of group, none of others.
_MAKERS: tuple[Callable[[Group, Target, Applied], Iterator[Trace]], ...] = (
    plain_maps,
    tilings,
    turned_operands,
    written_out,
    shared_windows,
    rows_beside,
    partial_results,
    written_scans,
)


def sketches(work: Work, target: Target, applied: Applied) -> list[Trace]:
    """Schedules that differ in more than what rules open: the default, those by other choices, and
    what the makers have for such a group."""
    found = [default_schedule(work, target, applied=applied)[0]]
    if isinstance(work, Group) and target.grid is None:
        found.insert(0, Ranked().choose(work, target).trace)  # what a compile has without tuning
        found += [c.trace for c in candidates(work, target, thorough=True)]
        for maker in _MAKERS:
            found += maker(work, target, applied)
    shapes: dict[tuple[object, ...], Trace] = {}
    for trace in found:
        shapes.setdefault(_shape(trace), trace)
    return list(shapes.values())


def _shape(trace: Trace) -> tuple[object, ...]:
    return tuple(
        (type(s), *((k, v) for k, v in vars(s).items() if k not in _OPENED)) for s in trace
    )
