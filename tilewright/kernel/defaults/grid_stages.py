"""Stages of a GPU in launches of their own: whatever no better schedule takes."""

from __future__ import annotations

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.defaults.grid_sums import schedule_sum
from tilewright.kernel.defaults.grid_totals import finish_last
from tilewright.kernel.defaults.inlining import inline_maps
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.nest import Loop, Store, seek
from tilewright.kernel.steps.add_atomically import AddAtomically
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.split import Split

THREADS = 256  # of a block that computes a map


def stage_by_stage(s: Scheduler) -> None:
    """Each stage in launches of its own; but for sums, a result for every thread."""
    for stage in inline_maps(s):
        sums = stage.is_reduce and not stage.ordered
        if sums and schedule_sum(s, stage.name):
            continue
        if stage.ordered and _scattered(s, stage.name):
            continue
        for k, (store, path) in enumerate(_stores(s, stage.name)):
            moving = set().union(*(D.symbols(i) for i in store.index)) if store.index else set()
            data = [p.name for p in path if p.var in moving]
            plain(s, data, f"{stage.name}.{k}", [p.name for p in path])
    finish_last(s)


def _scattered(s: Scheduler, stage: str) -> bool:
    """Additions at places that are read from memory, as atomics; False where they cannot be."""
    before = s.nest, list(s.trace)
    if not any(True for i in s.store(stage).index for _ in D.data_values(i)):
        return False
    loops = [[p.name for p in path] for _, path in _stores(s, stage)]
    for k, names in enumerate(loops[:-1]):  # first values
        plain(s, names, f"{stage}.{k}", names)
    try:
        first, *rest = loops[-1]
        for k, inner in enumerate(rest):
            s.do(Fuse(first, inner, f"{stage}.u{k}"))
            first = f"{stage}.u{k}"
        s.do(Split(first, THREADS))
        s.do(AddAtomically(stage))
        s.do(Bind(f"{first}.0", "block.x"))
        s.do(Bind(f"{first}.1", "thread.x"))
    except Refused:
        s.nest, s.trace[:] = before
        return False
    return True


def _stores(s: Scheduler, stage: str) -> list[tuple[Store, tuple[Loop, ...]]]:
    found = seek(s.nest.body, ("stage", stage))
    return [(x, p) for x, p in found if isinstance(x, Store)]


def plain(s: Scheduler, loops: list[str], name: str, path: list[str]) -> None:
    """Loops, outermost first, as blocks of threads, as far as they may run in any order. Of an
    update in order, one whose iterations never meet goes outside of the rest, which stays."""
    if not loops:
        return
    before = s.nest, list(s.trace)
    whole = loops[0]
    for k, inner in enumerate(loops[1:]):
        if not s.attempt(Fuse(whole, inner, f"{name}.w{k}")):
            break
        whole = f"{name}.w{k}"
    inner = [(x, *(y for y in path if y != x)) for x in reversed(loops) if x != path[0]]
    for loop, order in (*((x, ()) for x in (whole, *loops)), *((x[0], x) for x in inner)):
        try:
            if order and not s.attempt(Reorder(order)):
                continue
            flat(s, loop, THREADS)
            return
        except Refused:  # each iteration needs the result of the one before
            s.nest, s.trace[:] = before[0], list(before[1])


def flat(s: Scheduler, loop: str, threads: int) -> None:
    """A loop as blocks of threads."""
    s.do(Split(loop, threads))
    s.do(Bind(f"{loop}.0", "block.x"))
    s.do(Bind(f"{loop}.1", "thread.x"))
