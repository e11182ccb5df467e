"""Maps: contiguous axes fused, lanes over the innermost one, threads over the rest."""

from __future__ import annotations

from math import prod

from tilewright.base.errors import Refused
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Value, walk
from tilewright.kernel.defaults.cases import schedule_cases, schedule_short_rows
from tilewright.kernel.defaults.interleave import schedule_interleaved
from tilewright.kernel.defaults.panels import schedule_panels
from tilewright.kernel.defaults.scans import rounded_scan, scan_rows, scans_of_same_rows
from tilewright.kernel.defaults.scheduler import (
    USUAL,
    Scheduler,
    can_fuse,
    lanes_for,
    store_reads,
    vector_loop,
    work_per_point,
)
from tilewright.kernel.defaults.turned import schedule_turned
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.group import Stage
from tilewright.kernel.nest import Loop, Store
from tilewright.kernel.nest import walk as walk_nest
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_with import ComputeWith, share_all
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize


def collapse(s: Scheduler, stages: list[str]) -> None:
    """Fuse neighbouring loops that are one walk through memory, the same way in all stages."""
    parts = s.apart(stages)
    of = {st: parts.get(st, s) for st in stages}
    fused = 0
    for k in range(len(s.path(stages[0])) - 2, -1, -1):
        if all(can_fuse_at(of[st], st, k) for st in stages):
            for st in stages:
                path = of[st].path(st)
                of[st].do(Fuse(path[k].name, path[k + 1].name, f"{st}.f{fused}"))
            fused += 1
    s.join(parts)


def can_fuse_at(s: Scheduler, stage: str, k: int) -> bool:
    path = s.path(stage)
    return len(path) > k + 1 and can_fuse(s, s.store(stage), path[k].var, path[k + 1].var)


# So many usual sizes are several axes, such as those of images and their channels.
MANY = 8


def fuse_outer(s: Scheduler, stages: list[str], count: int, divide: bool = True) -> None:
    """The first `count` loops of each stage become one; unless they may `divide` by a number that
    only the call knows, without the last of these where that is needed."""
    for j in range(count - 1):
        if any(s.path(st)[1].extent == 0 for st in stages):
            return
        many = j or guess(s.path(stages[0])[0].extent) >= MANY * USUAL
        if many and j == count - 2 and not divide and any(must_divide(s, st) for st in stages):
            return
        for st in stages:
            path = s.path(st)
            s.do(Fuse(path[0].name, path[1].name, f"{st}.o{j}"))


def must_divide(s: Scheduler, stage: str) -> bool:
    """Would the first two loops as one divide by a number that only the call knows, in each
    iteration? Where two loops became the first one already, threads have enough of it."""
    first, second, *_ = s.path(stage)
    if isinstance(second.extent, int):
        return False
    stores = [x for x, _ in walk_nest(first.body) if isinstance(x, Store)]
    return not all(can_fuse(s, x, first.var, second.var) for x in stores)


# Maps that have schedules of their own; each says whether it is one.
_OF_THEIR_OWN = (schedule_cases, schedule_interleaved, schedule_panels, schedule_short_rows)


def schedule_map(s: Scheduler, outs: list[Stage]) -> None:
    host = outs[0].name
    names = [x.name for x in outs]
    _without_ones(s, names)
    if len(outs) == 1 and s.path(host) and schedule_turned(s, host):
        return
    if len(outs) == 1:
        _neighbours_soon(s, host)
    if all(len(s.path(n)) == len(s.path(host)) for n in names):
        collapse(s, names)
    _share_loops(s, host, names[1:])
    if s.path(host) and not any(way(s, host) for way in _OF_THEIR_OWN):
        schedule_alone(s, host)


def _without_ones(s: Scheduler, names: list[str]) -> None:
    """A loop of one iteration in the place of lanes would hide how the others walk memory: it
    becomes one with the loop before it."""
    while all(len(s.path(n)) > 1 and s.path(n)[-1].extent == 1 for n in names):
        for n in names:
            *_, before, last = s.path(n)
            s.do(Fuse(before.name, last.name, f"{n}.u{len(s.path(n))}"))


def _neighbours_soon(s: Scheduler, host: str) -> None:
    """Of an operand that is read across and not turned, as an image that gets edges on its way to
    another order may be: its neighbours in memory are read while the first cache has them."""
    path = s.path(host)
    if len(path) < 3:
        return
    last = path[-1]
    for x in store_reads(s.store(host)):
        if not isinstance(x.source, str):
            continue
        index = linear_index(s.nest.buffer(x.source), x.index)
        if D.coefficient(index, last.var) in (None, 0, 1):
            continue
        for k, along in enumerate(path[:-2]):
            lines = prod(D.bounds(p.extent)[1] for p in path[k + 1 :])
            if D.coefficient(index, along.var) == 1 and lines * s.target.cache_line > s.target.l1:
                order = (*path[k + 1 : -1], along, last)
                s.attempt(Reorder(tuple(p.name for p in order)))
                return


def _share_loops(s: Scheduler, host: str, others: list[str]) -> None:
    """All stages share the loops of the host; those that cannot have their own."""
    path = s.path(host)
    if not path or not others:
        return
    steps = [ComputeWith(name, path[-1].name) for name in others]
    if len(steps) > 1:
        try:
            s.nest = share_all(steps, s.nest)
        except Refused:
            pass  # one at a time: some may
        else:
            s.trace += steps
            return
    for step in steps:
        if not s.attempt(step):
            schedule_alone(s, step.stage)


def schedule_alone(s: Scheduler, host: str) -> None:
    """Lanes and threads for a stage's own perfect nest."""
    path = s.path(host)
    if not path:
        return
    if len(path) > 2:
        fuse_outer(s, [host], len(path) - 1, divide=False)
        path = s.path(host)
    work = work_per_point(s, host)
    lanes = lanes_for(s, host)
    inner = path[-1].name
    e = path[-1].extent
    over = vector_loop(s, inner, lanes)
    if over is not None and _differs_by_vector(s, host, over):
        s.attempt(Unroll(over))
    if len(path) == 1:
        if over is not None and s.loops(over):
            s.parallel(over, work * lanes // 2)
    else:
        size = e if isinstance(e, int) else 256
        for p in path[1:-1]:
            size *= p.extent if isinstance(p.extent, int) else USUAL
        s.parallel(path[0].name, work * max(size, 1) // 2)


# Vectors of a row, and all their operations, that are written out.
VECTORS, WRITTEN = 16, 512


def _differs_by_vector(s: Scheduler, host: str, over: str) -> bool:
    """Does a position choose what elements of short rows are, such as edges of images or which of
    several rows they are a part of? For each vector that is known then, mostly: in a loop all of
    them would be computed, and read under masks."""
    (loop, *_) = s.loops(over) or (None,)
    if loop is None or not isinstance(loop.extent, int) or len(s.path(host)) < 2:
        return False
    stores = [x for x, _ in walk_nest(loop.body) if isinstance(x, Store)]
    every = [v for x in stores for v in walk(x.value)]
    chosen = any(
        isinstance(v, Fn) and v.name == "select" and _position_of(v.args[0], loop.var)
        for v in every
    )
    work = sum(isinstance(v, (Fn, Load)) for v in every)
    return chosen and loop.extent <= VECTORS and loop.extent * work <= WRITTEN


def _position_of(condition: Value, along: Sym) -> bool:
    """Is it made of positions alone, one along this loop among them?"""
    every = list(walk(condition))
    known = all(isinstance(v, (Fn, Index, Const)) for v in every)
    indices = [v for v in every if isinstance(v, Index)]
    return known and any(along in D.symbols(v.dim) for v in indices)


# Several rows of a scan in turn: each waits for its own last result only.
BESIDE = 8
# Rows that are carried begin in lines of a cache next to each other, whatever their length: of rows
# a power of two apart it has room for a few.
PAGE, LINE = 512, 8


FEW_VECTORS = 8  # of a short row, which are written out
FEW = 4  # iterations of an innermost loop that are written out


def _write_out(s: Scheduler, st: Stage) -> None:
    """The few writes of one point of an update that data place, each at its own place."""
    path, store = s.path(st.name), s.store(st.name)
    last = path[-1].extent
    if len(path) > 1 and isinstance(last, int) and 1 < last <= FEW:
        if any(v for i in store.index for v in D.data_values(i)):
            s.attempt(Unroll(path[-1].name))


def _whole_rows(s: Scheduler, st: Stage) -> None:
    """Lanes along rows of an update that data place as a whole: all elements of one go to the same
    row, each to its own column."""
    store, last = s.store(st.name), s.path(st.name)[-1]
    placed = [i for i in store.index if any(D.data_values(i))]
    if placed and last.kind == "serial" and not any(last.var in D.symbols(i) for i in placed):
        if D.coefficient(store.index[-1], last.var) == 1:
            over = vector_loop(s, last.name, lanes_for(s, st.name))
            if over is not None and all(_few(x) for x in s.loops(over)):
                s.attempt(Unroll(over))


def _few(loop: Loop) -> bool:
    return isinstance(loop.extent, int) and loop.extent <= FEW_VECTORS


def _rounded(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> bool:
    """A result that is rounded from what a scan of rows carries: a few rows are carried at a time,
    side by side, and then rounded; False (and no step) where that fails."""
    before = s.nest, list(s.trace)
    if len(inner) != 1 or len(outs) != 1 or not inner[0].ordered or not outs[0].is_map:
        return False
    name, out = inner[0].name, outs[0].name
    scan, store = s.path(name)[-1], s.store(name)
    rows = s.path(out)[0].extent if len(s.path(out)) > 1 else 1
    if (isinstance(rows, int) and rows < BESIDE) or D.symbols(store.index[-1]) != {scan.var}:
        return False
    if len(s.path(out)) == 2 and len(s.path(name)) == 2:
        first, last = s.path(out)
        work = work_per_point(s, name) * (scan.extent if isinstance(scan.extent, int) else 256)
        s.do(Split(first.name, BESIDE))
        block = f"{first.name}.0"
        if s.attempt(ComputeAt(name, block)):
            few = s.path(name)[-2].name
            s.attempt(StorageAlign(name, 0, PAGE, LINE))
            if s.attempt(Reorder((scan.name, few))) and s.attempt(Unroll(few)):
                vector_loop(s, last.name, lanes_for(s, out))
                if s.parallel(block, work * BESIDE):
                    return True
    s.nest, s.trace[:] = before
    return False


def schedule_program(s: Scheduler, inner: list[Stage], outs: list[Stage]) -> None:
    """Scans and scatters: one iteration per outer index where that is legal, naive loops inside."""
    if rounded_scan(s, inner, outs) or _rounded(s, inner, outs):
        return
    if scans_of_same_rows(s, inner, outs):
        return
    for st in [*inner, *outs]:
        if scan_rows(s, st):
            continue
        if st.is_map:
            _map_of_scan(s, st)
            continue
        path = s.path(st.name)
        scanned = len(path) > 1 and path[0].kind == "serial"
        if scanned and not _beside(s, st) and not _columns(s, st):
            size = 1
            for p in path[1:]:
                size *= p.extent if isinstance(p.extent, int) else 64
            work = work_per_point(s, st.name)
            if not s.parallel(path[0].name, work * size):
                _shared_inside(s, st, work)
        if scanned:
            _write_out(s, st)
            _whole_rows(s, st)
        shape = s.nest.buffer(st.name).shape
        if s.loops(first := f"{st.name}.init.i0"):
            vector_loop(s, f"{st.name}.init.i{len(shape) - 1}", 16)
            if len(shape) > 1 and not any(q.kind == "parallel" for q in s.loops(first)):
                s.parallel(first, prod(map(guess, shape[1:])) // 2)


def _map_of_scan(s: Scheduler, st: Stage) -> None:
    """What is made of a scan, element by element: rows are shared by threads, as the scan's are.
    Elements are lanes where they lie next to each other."""
    path, work = s.path(st.name), work_per_point(s, st.name)
    gathers = any(D.data_values(i) for x in store_reads(s.store(st.name)) for i in x.index)
    if path and not gathers:
        lanes = lanes_for(s, st.name)
        over = vector_loop(s, path[-1].name, lanes)
        if len(path) == 1 and over is not None and s.loops(over):
            s.parallel(over, work * lanes)
    if len(path) > 1:
        s.parallel(path[0].name, work * prod(guess(p.extent) for p in path[1:]))


def _shared_inside(s: Scheduler, st: Stage, work: int) -> None:
    """Threads share a loop inside the one that has to go in order, brought outside of it: rows of
    matrices that data place as a whole."""
    before = s.nest, list(s.trace)
    first, *middle, last = s.path(st.name)
    for k, p in enumerate(middle):
        others = [first, *middle[:k], *middle[k + 1 :]]
        size = 1
        for x in (*others, last):
            size *= x.extent if isinstance(x.extent, int) else 64
        if s.attempt(Reorder((p.name, *(x.name for x in others)))):
            if s.parallel(p.name, work * size):
                return
            s.nest, s.trace[:] = before


# Columns that one thread scans at a time: few streams of memory, each as long as it can be.
BROAD = 16


def broad_columns(columns: int, threads: int, lanes: int) -> int:
    """Whole vectors of columns, of which each thread has some: what is left over is none's."""
    most = max(1, columns // (max(1, threads) * lanes))
    return min(BROAD, most) * lanes


def _columns(s: Scheduler, st: Stage) -> bool:
    """Columns of a scan along another axis than the last are lanes, and blocks of them are shared
    by threads; False (and no step) where that fails."""
    before = s.nest, list(s.trace)
    path, store = s.path(st.name), s.store(st.name)
    last = path[-1].name
    lanes, e = lanes_for(s, st.name), path[-1].extent
    reads = [x for x in store_reads(store) if x.source == store.buffer]
    if reads and isinstance(e, int) and e >= lanes:
        work = work_per_point(s, st.name)
        for p in path[:-1]:
            work *= p.extent if isinstance(p.extent, int) else 64
        broad = broad_columns(e, s.target.cores, lanes)
        names = [p.name for p in path[:-1]]
        if (
            s.attempt(Split(last, broad))
            and s.attempt(Reorder((f"{last}.0", *names, f"{last}.1")))
            and (e % broad == 0 or s.attempt(Peel(f"{last}.0")))
            and s.attempt(Split(f"{last}.1", lanes))
        ):
            s.attempt(Peel(f"{last}.1.0"))
            if s.attempt(Vectorize(f"{last}.1.1")):
                s.parallel(f"{last}.0", work * broad)
                return True
    s.nest, s.trace[:] = before
    return False


def _beside(s: Scheduler, st: Stage) -> bool:
    """Several rows of a scan along the last axis in turn; False (and no step) where that fails."""
    before = s.nest, list(s.trace)
    path = s.path(st.name)
    scan = path[-1]
    work = work_per_point(s, st.name) * (scan.extent if isinstance(scan.extent, int) else 256)
    store = s.store(st.name)
    reads = [x for x in store_reads(store) if x.source == store.buffer]
    if reads and store.index and D.symbols(store.index[-1]) == {scan.var}:
        fuse_outer(s, [st.name], len(path) - 1)
        rows, *rest = s.path(st.name)
        if len(rest) == 1 and not (isinstance(rows.extent, int) and rows.extent < BESIDE):
            outer, few = f"{rows.name}.0", f"{rows.name}.1"
            s.do(Split(rows.name, BESIDE))
            # The rows that are left over are side by side too: they are peeled last.
            if s.attempt(Reorder((outer, scan.name, few))):
                if not (isinstance(rows.extent, int) and rows.extent % BESIDE == 0):
                    s.attempt(Peel(outer))
                if s.attempt(Unroll(few)) and s.parallel(outer, work * BESIDE):
                    return True
    s.nest, s.trace[:] = before
    return False
