"""Fewer launches of a GPU: the last block of a grid does what follows it (`FinishLast`).

That is done wherever what follows has one block, or the blocks of the grid before it: it takes as
long as in a launch of its own, and a block knows sooner that it is the last one than another launch
begins. Where it has to have fewer blocks for this, the times are compared (`pays`).

Totals are such an end: reductions of all results of a kernel, such as the loss of a batch out of
those of its rows (graph/totals.py), and what is computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.expr import extent, loads
from tilewright.kernel.axis import moved
from tilewright.kernel.defaults.grid_lanes import VECTOR
from tilewright.kernel.defaults.scheduler import Scheduler, accesses, contiguous
from tilewright.kernel.group import Group, Stage
from tilewright.kernel.nest import Loop
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.finish_last import FinishLast, is_grid
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.pragma import MOST_RESIDENT, Pragma
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.kernel.steps.walk import Walk
from tilewright.kernel.threads import block_size

LAUNCH = 5000  # cycles of another launch
COUNTING = 2500  # until a block knows that it is the last one
READS = 32  # bytes that a block reads in a cycle, of what others have just written
BANDWIDTH = 2400  # and all blocks together
MOST = 1 << 16  # elements that one block reduces
# Threads of a multiprocessor that walk over rows, with 64 registers each; 0: a block has one row.
WALKING: int = 1024
FEWEST = 2  # rows of a block that walks
BESIDE = 8  # loads of a thread, for each total, that are on their way at a time


def pays(size: int, blocks: int) -> bool:
    """Do so many blocks, the last ones of a grid, read some bytes sooner than another launch?"""
    return COUNTING + size / (READS * blocks) < LAUNCH + size / BANDWIDTH


def finish_last(s: Scheduler) -> None:
    """The last blocks of grids do what follows them, where they can; then barriers."""
    made = 0
    for x in [x for x in s.nest.body if is_grid(x)] if not s.choices.early else ():
        before = s.nest, list(s.trace)
        try:
            s.do(FinishLast(x.name, f"done{made}"))
            s.do(Synchronise())
            made += 1
        except Refused:
            s.nest, s.trace[:] = before
    if not made:
        s.attempt(Synchronise())


def before_totals(group: Group, again: bool) -> Group | None:
    """A group without its totals, whose results are what these read; None where it has none, or
    where something else reads them. Maps of arguments are computed `again` for them."""
    known = _of_arguments(group)
    late = _late(group, known)
    head = tuple(x for x in group.stages if x.name not in late)
    tail = [x for x in group.stages if x.name in late]
    if not tail or not head or any(x.ordered or _elements(x) > MOST for x in tail):
        return None
    read = {name for x in tail for name in _sources(x)} - (known if again else set())
    used = {x.name for x in head} | {name for x in head for name in _sources(x)}
    buffers = tuple(
        replace(b, scope="out") if b.name in read and b.scope == "local" else b
        for b in group.buffers
        if b.name in used
    )
    if not any(b.scope == "out" for b in buffers):
        return None
    return replace(group, buffers=buffers, stages=head)


def _elements(x: Stage) -> int:
    """How many a reduction has."""
    return D.bounds(prod((extent(a) for a in x.raxes), start=1))[1]


def _of_arguments(group: Group) -> set[str]:
    """Arguments, and maps of them."""
    known = {b.name for b in group.inputs}
    for x in group.stages:
        if x.is_map and _sources(x) <= known and group.buffer(x.name).scope == "local":
            known.add(x.name)
    return known


def _late(group: Group, known: set[str]) -> set[str]:
    """Totals, what reads them, and maps of what is known that only these read; nothing where those
    have axes that read them."""
    late: set[str] = set()
    for x in group.stages:
        if (x.is_reduce and not x.axes) or _sources(x) & late:
            late.add(x.name)
    if any(group.stage(name).axes for name in late):
        return set()
    for x in reversed(group.stages):
        readers = {y.name for y in group.stages if x.name in _sources(y)}
        if x.name in known and readers and readers <= late:
            late.add(x.name)
    return late


def _sources(x: Stage) -> set[str]:
    values = [x.value, *((x.init,) if x.init is not None else ())]
    return {str(r.source) for v in values for r in loads(v)}


def schedule_ends(s: Scheduler, head: Group) -> None:
    """The totals of a group whose other stages (`head`) are scheduled, by the threads of one block:
    the last one of these stages."""
    own = {x.name for x in head.stages}
    tail = [x for x in s.group.stages if x.name not in own]
    grids = [x for x in s.nest.body if is_grid(x)]
    size = block_size((grids[-1],)) if grids else {}
    threads = [(axis, n) for axis in ("thread.y", "thread.x") if (n := size.get(axis, 1)) > 1]
    if len(grids) == 1 and any(x.is_reduce for x in head.stages):
        _walk_over(s, grids[0], prod(n for _, n in threads))
    for x in tail:
        if x.axes:
            s.do(ComputeInline(x.name))
    _by_threads(s, [x.name for x in tail if x.is_reduce], threads)
    finish_last(s)


def _walk_over(s: Scheduler, rows: Loop, threads: int) -> None:
    """As many blocks as run at a time walk over the rows. To say that it is done takes a block half
    as long as a row: it waits until others see its results, then for the counter."""
    assert s.target.grid is not None
    resident = min(max(1, WALKING // threads), MOST_RESIDENT)
    blocks = resident * s.target.grid.multiprocessors
    many = isinstance(rows.extent, int) and rows.extent >= FEWEST * blocks
    if WALKING and many and s.attempt(Walk(rows.name, blocks)):
        s.do(Pragma(f"{rows.name}.1", "resident", resident))


def _by_threads(s: Scheduler, sums: list[str], threads: list[tuple[str, int]]) -> None:
    """Reductions by the threads of a block, each of which has partial results. Those of as many
    elements share loops, so that what they read is on its way at the same time."""
    flat = {x: _flat(s, x) for x in sums}
    lanes = min(_lanes(s, x, s.loops(flat[x])[0]) for x in sums)
    made: list[_Loops] = []
    for x in sums:
        loops = _Loops.of(s, x, flat[x], lanes, threads)
        shares = (y for y in made if s.attempt(ComputeWith(loops.part, y.inner)))
        if next(shares, None) is None:
            made.append(loops)
        for k, (axis, _) in reversed(list(enumerate(threads))):
            s.do(Bind(f"{loops.part}.init.i{k}", axis))
            s.do(Bind(loops.own[k], axis))
    for loops in made:
        loops.spread(s, threads)


def _flat(s: Scheduler, stage: str) -> str:
    """One loop over all that is reduced."""
    first, *rest = (p.name for p in s.path(stage))
    for k, inner in enumerate(rest):
        s.do(Fuse(first, inner, f"{stage}.q{k}"))
        first = f"{stage}.q{k}"
    return first


def _lanes(s: Scheduler, stage: str, loop: Loop) -> int:
    """Elements that a thread reads at a time: all that is read begins at multiples of 16 bytes."""
    store = s.store(stage)
    read = [b.dtype.bytes for b, _ in accesses(s, store)[1:] if b.name != stage]
    lanes = VECTOR // max(read, default=VECTOR) if contiguous(s, store, loop.var) else 1
    return lanes if isinstance(loop.extent, int) and loop.extent % lanes == 0 else 1


@dataclass(frozen=True)
class _Loops:
    """The loops of a reduction: those over its threads. Those of its partial results: turns of
    threads, and lanes ("" where there is one)."""

    part: str
    own: tuple[str, ...]
    turns: str
    lane: str

    @classmethod
    def of(
        cls, s: Scheduler, stage: str, flat: str, lanes: int, threads: list[tuple[str, int]]
    ) -> _Loops:
        lane, part = "", f"{stage}p"
        if lanes > 1:
            s.do(Split(flat, lanes))
            flat, lane = f"{flat}.0", moved(f"{flat}.1", part)
        own: list[str] = []
        for _, count in reversed(threads):
            s.do(Split(flat, count))
            flat, own = f"{flat}.0", [f"{flat}.1", *own]
        s.do(RFactor(stage, tuple(own), part))
        return cls(part, tuple(own), moved(flat, part), lane)

    @property
    def inner(self) -> str:
        return self.lane or moved(self.own[-1], self.part)

    def spread(self, s: Scheduler, threads: list[tuple[str, int]]) -> None:
        for own, (axis, _) in zip(self.own, threads, strict=True):
            s.do(Bind(moved(own, self.part), axis))
        turns = self.turns
        if s.loops(turns):
            count = s.loops(turns)[0].extent
            if not isinstance(count, int) or count > BESIDE:
                s.do(Split(turns, BESIDE))
                turns = f"{turns}.1"
            s.do(Unroll(turns, not isinstance(s.loops(turns)[0].extent, int)))
        if self.lane and s.loops(self.lane):
            s.do(Vectorize(self.lane))
