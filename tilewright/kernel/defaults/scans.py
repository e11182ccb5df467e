"""Scans along rows: elements of a row are lanes, which are combined in steps of one, two, four …"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.kernel.defaults.scheduler import Scheduler, lanes_for, vector_loop, work_per_point
from tilewright.kernel.group import Stage
from tilewright.kernel.step import Step
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.scan_lanes import ScanLanes
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.vectorize import Vectorize

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
    row = guess(own[-1].extent) * s.nest.buffer(name).dtype.bytes
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


def scans_of_same_rows(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """Several scans of the same rows, and maps of what they carry, such as the largest elements so
    far and where they are: all of some elements of a row before those after them, so that reading,
    computing and writing take turns; False (and no step) where that fails."""
    before = s.nest, list(s.trace)
    every = [*inner, *outs]
    if len(every) < 2 or not all(x.ordered or x.is_map for x in every):
        return False
    work = sum(work_per_point(s, x.name) * _size(_row(s, x)[-1]) for x in every)
    if _together(s, every, outs[-1].name) and _side_by_side(s, every, outs[-1].name):
        if s.parallel(s.path(outs[-1].name)[0].name, work):
            return True
    s.nest, s.trace[:] = before
    return False


def _side_by_side(s: Scheduler, every: list[Stage], host: str) -> bool:
    """As many lanes of each stage, in one loop along the rows."""
    along = {x.name: s.path(x.name)[-1] for x in every}
    lanes = min(_most_lanes(s, x.name) for x in every)
    while FEWEST < lanes > D.bounds(along[host].extent)[1]:
        lanes //= 2
    if lanes < FEWEST or not _has_vectors(along[host].extent, lanes):
        return False
    if not all(s.attempt(Split(p.name, lanes)) for p in along.values()):
        return False
    vectors = f"{along[host].name}.0"
    others = [x.name for x in every if x.name != host]
    if not _one_by_one(s, others, lambda x: ComputeWith(x, vectors)):
        return False
    if not D.known_eq(D.mod(along[host].extent, lanes), 0):
        s.attempt(Peel(vectors))
    for x in every:
        step = ScanLanes if x.ordered else Vectorize
        if not s.attempt(step(f"{along[x.name].name}.1")):
            return False
    return True


def _row(s: Scheduler, x: Stage) -> tuple[D.Dim, ...]:
    return tuple(s.nest.buffer(x.name).shape)


def _together(s: Scheduler, every: list[Stage], host: str) -> bool:
    """The loops over rows of all stages become the one of the last."""
    path = s.path(host)
    shapes = {_row(s, x) for x in every}
    sizes = [guess(_row(s, x)[-1]) * s.nest.buffer(x.name).dtype.bytes for x in every]
    depths = {len(s.path(x.name)) for x in every}
    if len(path) < 2 or len(shapes) > 1 or depths != {len(path)} or sum(sizes) > s.target.l2:
        return False
    at, others = path[-2].name, [x.name for x in every if x.name != host]
    local = {x for x in others if s.nest.buffer(x).scope == "local"}
    if not _one_by_one(s, others, lambda x: (ComputeAt if x in local else ComputeWith)(x, at)):
        return False
    top = path[0].name
    for k, p in enumerate(path[1:-1]):
        if not s.attempt(Fuse(top, p.name, f"{host}.o{k}")):
            break
        top = f"{host}.o{k}"
    return True


def _one_by_one(s: Scheduler, stages: list[str], step: Callable[[str], Step]) -> bool:
    """A step for each of some stages, those that others read after these."""
    while stages:
        left = [x for x in reversed(stages) if not s.attempt(step(x))]
        if len(left) == len(stages):
            return False
        stages = left[::-1]
    return True


def _lanes(s: Scheduler, stage: str) -> bool:
    """Vectors along the last loop of a scan."""
    last, lanes = s.path(stage)[-1], _most_lanes(s, stage)
    if lanes < FEWEST or not _has_vectors(last.extent, lanes):
        return False
    if not s.attempt(Split(last.name, lanes)):
        return False
    if not D.known_eq(D.mod(last.extent, lanes), 0):
        s.attempt(Peel(f"{last.name}.0"))
    return s.attempt(ScanLanes(f"{last.name}.1"))


def _has_vectors(extent: D.Dim, lanes: int) -> bool:
    """Is a row as long as its vectors? One whose length only the call knows is as long as usual,
    and may have none: what is left of a row is computed element by element."""
    return D.known_le(lanes * SHORTEST, extent) or (
        not isinstance(extent, int) and lanes * SHORTEST <= guess(extent)
    )


def _most_lanes(s: Scheduler, stage: str) -> int:
    size = s.nest.buffer(stage).dtype.bytes
    return min(BYTES // size, MOST) if s.target.lanes(8 * size) > 1 else 1


def _size(extent: D.Dim) -> int:
    return extent if isinstance(extent, int) else 256
