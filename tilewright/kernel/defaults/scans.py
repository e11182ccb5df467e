"""Scans along rows: elements of a row are lanes, which are combined in steps of one, two, four …"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.kernel.defaults.scheduler import Scheduler, lanes_for, vector_loop, work_per_point
from tilewright.kernel.group import Stage
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.scan_lanes import ScanLanes
from tilewright.kernel.steps.split import Split

MOST = 32  # lanes
FEWEST = 8  # of fewer lanes the steps between them take as long as one element after the other
SHORTEST = 1  # vectors of a row: also of rows with a rest of one element they take less time
BYTES = 256  # what is carried waits for the vector before: longer ones wait more rarely


def scan_rows(s: Scheduler, st: Stage) -> bool:
    """Lanes along the rows of a scan, threads over rows; False (and no step) where it is none."""
    before = s.nest, list(s.trace)
    path = s.path(st.name)
    if not st.ordered or not path or any(p.kind != "serial" for p in path):
        return False
    work = work_per_point(s, st.name) * _size(path[-1].extent)
    if not _lanes(s, st.name):
        s.nest, s.trace[:] = before
        return False
    top = path[0].name
    for k, p in enumerate(path[1:-1]):
        if not s.attempt(Fuse(top, p.name, f"{st.name}.o{k}")):
            break
        top = f"{st.name}.o{k}"
    if len(path) > 1:
        s.parallel(top, work)
    return True


def rounded_scan(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """A result that is rounded from what a scan of rows carries: row by row, while the cache has
    it; False (and no step) where that fails."""
    before = s.nest, list(s.trace)
    if len(inner) != 1 or len(outs) != 1 or not inner[0].ordered or not outs[0].is_map:
        return False
    name, out = inner[0].name, outs[0].name
    own, path = s.path(name), s.path(out)
    row = D.bounds(own[-1].extent)[1] * s.nest.buffer(name).dtype.bytes
    if len(path) == len(own) > 1 and row <= s.target.l2:
        work = work_per_point(s, name) * _size(own[-1].extent)
        top = path[0].name
        for k, p in enumerate(path[1:-1]):
            if not s.attempt(Fuse(top, p.name, f"{out}.o{k}")):
                break
            top = f"{out}.o{k}"
        alone = len(s.path(out)) == 2
        if alone and s.attempt(ComputeAt(name, top)) and _lanes(s, name):
            vector_loop(s, s.path(out)[-1].name, lanes_for(s, out))
            s.parallel(top, work)
            return True
    elif len(path) == len(own) == 1 and _lanes(s, name):
        over = vector_loop(s, path[0].name, lanes_for(s, out))
        if over is not None and s.loops(over):
            s.parallel(over, work_per_point(s, out) * FEWEST)
        return True
    s.nest, s.trace[:] = before
    return False


def _lanes(s: Scheduler, stage: str) -> bool:
    """Vectors along the last loop of a scan."""
    last, size = s.path(stage)[-1], s.nest.buffer(stage).dtype.bytes
    lanes = min(BYTES // size, MOST) if s.target.lanes(8 * size) > 1 else 1
    if lanes < FEWEST or not D.known_le(lanes * SHORTEST, last.extent):
        return False
    if not s.attempt(Split(last.name, lanes)):
        return False
    if not D.known_eq(D.mod(last.extent, lanes), 0):
        s.attempt(Peel(f"{last.name}.0"))
    return s.attempt(ScanLanes(f"{last.name}.1"))


def _size(extent: D.Dim) -> int:
    return extent if isinstance(extent, int) else 256
