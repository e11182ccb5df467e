"""The schedules that a space is opened from, the default schedule first."""

from __future__ import annotations

from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Work
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace
from tilewright.tune.candidates import candidates
from tilewright.tune.choose import Ranked
from tilewright.tune.space.scans import written_scans
from tilewright.tune.space.tiling import partial_results, plain_maps, tilings, written_out
from tilewright.tune.space.windows import shared_windows

# Arguments that rules open: traces that differ in these alone are one sketch.
_OPENED = ("factor", "grain", "distance", "level")


def sketches(work: Work, target: Target, applied: Applied) -> list[Trace]:
    """Schedules that differ in more than what rules open: the default, those by other choices,
    tiles of results with whatever they need inside, short reductions that are written out, windows
    that share their columns, reductions that threads share, and scans whose steps are written out."""
    found = [default_schedule(work, target, applied=applied)[0]]
    if isinstance(work, Group) and target.grid is None:
        found.insert(0, Ranked().choose(work, target).trace)  # what a compile has without tuning
        found += [c.trace for c in candidates(work, target, thorough=True)]
        found += plain_maps(work, target, applied)
        found += tilings(work, target, applied)
        found += written_out(work, target, applied)
        found += shared_windows(work, target, applied)
        found += partial_results(work, target, applied)
        found += written_scans(work, target, applied)
    shapes: dict[tuple[object, ...], Trace] = {}
    for trace in found:
        shapes.setdefault(_shape(trace), trace)
    return list(shapes.values())


def _shape(trace: Trace) -> tuple[object, ...]:
    return tuple(
        (type(s), *((k, v) for k, v in vars(s).items() if k not in _OPENED)) for s in trace
    )
