"""Results of one shape that share values too costly to compute twice, as the tanh that both a
GELU and its gradient are made of: such a value is there for a vector of elements at a time.

    parallel o.0:
      lane l: t[l] = tanh(x[16*o.0+l])
      lane l: y[16*o.0+l] = 1 - t[l]*t[l]
      lane l: z[16*o.0+l] = t[l] + 1
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.defaults.maps import can_fuse_at, fuse_outer
from tilewright.kernel.defaults.rows import common_prefix
from tilewright.kernel.defaults.scheduler import (
    USUAL,
    Scheduler,
    lanes_and_rest,
    lanes_for,
    work_per_point,
)
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.split import Split


def element_by_element(s: Scheduler, inner: Sequence[Stage], outs: Sequence[Stage]) -> bool:
    """Do all of these have one shape, and need one element of each other at each point?"""
    host = outs[0].name
    path, every = s.path(host), [*(x for x in inner if x.is_map), *outs]
    alike = all(
        len(s.path(x.name)) == len(path)
        and all(map(D.known_eq, (p.extent for p in s.path(x.name)), (p.extent for p in path)))
        for x in every
    )
    return bool(path) and alike and common_prefix(s, list(inner), list(outs), host) == len(path)


def schedule_shared_values(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """False, and no step, where the stages are anything else."""
    if not all(x.is_map for x in (*inner, *outs)) or not element_by_element(s, inner, outs):
        return False
    before = s.nest, list(s.trace)
    try:
        _schedule(s, [x.name for x in inner], [x.name for x in outs])
    except Refused:
        s.nest, s.trace[:] = before
        return False
    return True


def _schedule(s: Scheduler, shared: list[str], outs: list[str]) -> None:
    host, every = outs[-1], [*shared, *outs]
    _collapse(s, shared, outs)
    for later, earlier in zip(outs[:0:-1], outs[-2::-1], strict=True):
        s.do(ComputeWith(earlier, s.path(later)[-1].name))
    if len(s.path(host)) > 2:
        fuse_outer(s, [host], len(s.path(host)) - 1, divide=False)
    path = s.path(host)
    work = sum(work_per_point(s, x) for x in every)
    lanes = min(lanes_for(s, x) for x in every)
    last, e = path[-1].name, path[-1].extent
    if isinstance(e, int):
        lanes = min(lanes, e)
    s.do(Split(last, lanes))
    for x in reversed(shared):
        s.do(ComputeAt(x, f"{last}.0"))
    own = [s.own(x)[-1].name for x in shared if s.own(x)]
    for x in shared:
        s.attempt(SetScope(x, "register"))
    s.attempt(Peel(f"{last}.0"))
    for x in (*own, f"{last}.1"):
        lanes_and_rest(s, x)
    if len(path) == 1:
        s.parallel(f"{last}.0", work * lanes // 2)
    else:
        inside = [p.extent if isinstance(p.extent, int) else USUAL for p in path[1:]]
        for size in inside:
            work *= size
        s.parallel(path[0].name, work // 2)


def _collapse(s: Scheduler, shared: Sequence[str], outs: Sequence[str]) -> None:
    """Loops that are one walk through memory in all stages become one, and so do the axes of what
    is shared; those of one element at the end are part of the loop before them."""
    path = s.path(outs[0])
    end = last = len(path) - 1
    while last > 0 and path[last].extent == 1:
        last -= 1
    while last >= 0:
        first = last
        while first and all(can_fuse_at(s, x, first - 1) for x in (*shared, *outs)):
            first -= 1
        if first < end:
            for x in outs:
                *outer, inner = [p.name for p in s.path(x)[first : end + 1]]
                for k, name in enumerate(reversed(outer)):
                    s.do(Fuse(name, inner, inner := f"{x}.f{first}x{k}"))
            for x in shared:
                s.do(FuseAxes(x, first, end - first + 1))
        end = last = first - 1
