"""What a schedule leaves open, as ordinary steps: where and how reductions are initialised.

In the group a reduction's first values are a nest of their own. TVM's follow the data axes of the
update, and so do these: inside the innermost data loop that is outside of all the loops summed
over, as vectors where the update runs as vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.ir.expr import Fn, Load, Value
from tilewright.kernel.group import Group
from tilewright.kernel.nest import THREADS, Barrier, Loop, Nest, Path, Store, find, start, walk
from tilewright.kernel.step import Step, Trace, apply
from tilewright.kernel.steps.bind import Bind
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.reverse_compute_at import ReverseComputeAt
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize


def finished(group: Group, trace: Sequence[Step], nest: Nest) -> tuple[Trace, Nest]:
    """The trace with the steps that complete it, and the nest it leads to."""
    if any(isinstance(s, Barrier) for s, _ in walk(nest.body)):
        return tuple(trace), nest  # barriers are computed last; what follows would not know them
    f = _Finish(group, tuple(trace), nest)
    for stage in _reductions(nest):
        f.place(stage)
        f.spread(stage)
        f.widen(stage)
        f.take_apart(stage)
    return f.trace, f.nest


def _stores(n: Nest, stage: str, first: bool) -> list[tuple[Store, Path]]:
    """The statements that set the first values of a reduction, or those that update it."""
    found = ((s, p) for s, p in walk(n.body) if isinstance(s, Store) and s.stage == stage)
    return [(s, p) for s, p in found if (s.combine is None) == first]


def _reductions(n: Nest) -> list[str]:
    updated = [s.stage for s, _ in walk(n.body) if isinstance(s, Store) and s.combine is not None]
    return [x for x in dict.fromkeys(updated) if _stores(n, x, True)]


class _Finish:
    """A trace that grows by steps which are accepted."""

    def __init__(self, group: Group, trace: Trace, nest: Nest) -> None:
        self.group, self.trace, self.nest = group, trace, nest

    def attempt(self, *steps: Step) -> bool:
        try:
            nest = apply(self.nest, steps)
        except Refused:
            return False
        self.trace, self.nest = (*self.trace, *steps), nest
        return True

    def place(self, stage: str) -> None:
        """First values inside the data loops of the update, as far in as it goes."""
        copied = len(_stores(self.nest, stage, False)) > 1
        for at in _data_loops(self.nest, stage):
            step = InitAt(stage, at)
            if self._earlier(step) if copied else self.attempt(step):
                return

    def _earlier(self, step: InitAt) -> bool:
        """Peel has copied the update: before that the step may be possible."""
        k = next((k for k, s in enumerate(self.trace) if isinstance(s, Peel)), None)
        if k is None:
            return False
        try:
            placed = step.apply(apply(start(self.group), self.trace[:k]))
            nest = apply(placed, self.trace[k:])
        except Refused:
            return False
        self.trace, self.nest = (*self.trace[:k], step, *self.trace[k:]), nest
        return True

    def take_apart(self, stage: str) -> None:
        """Components of a tuple are stored where the tuple is complete: they are one stage to the
        user, whose loops are the reduction's."""
        outs = {b.name for b in self.group.outputs}
        parts = [s.name for s in self.group.stages if s.name in outs and _is_item(s.value, stage)]
        loops = [s.at for s in self.trace if isinstance(s, InitAt) and s.stage == stage]
        for name in parts if loops else ():
            self.attempt(ReverseComputeAt(name, loops[-1]))

    def spread(self, stage: str) -> None:
        """First values are set by the threads that update them: each then has its own."""
        for at, axis, kind, size in _thread_loops(self.nest, stage):
            loop = f"{stage}.init.i{at}"
            if [x.kind for x, _ in find(self.nest, loop)] != ["serial"]:
                continue
            extent = find(self.nest, loop)[0][0].extent
            if size == 1:
                self.attempt(Bind(loop, kind))
            elif extent == size * axis:
                self.attempt(Split(loop, size), Bind(f"{loop}.0", kind), Unroll(f"{loop}.1"))

    def widen(self, stage: str) -> None:
        """First values as vectors as wide as the update's; written out where they are registers."""
        lane, width = _lane_loop(self.nest, stage)
        if lane is not None:
            bounds = [D.bounds(x.extent)[1] for x, _ in find(self.nest, lane)]
            if max(bounds) > width:
                lane = f"{lane}.1" if self.attempt(Split(lane, width)) else None
        if self.nest.buffer(stage).scope == "register":
            for x in _init_loops(self.nest, stage):
                if x != lane:
                    self.attempt(Unroll(x, self._ragged(x)))
        if lane is not None:
            self.attempt(Vectorize(lane, self._ragged(lane)))

    def _ragged(self, loop: str) -> bool:
        return all(not isinstance(x.extent, int) for x, _ in find(self.nest, loop))


def _thread_loops(n: Nest, stage: str) -> list[tuple[int, int, str, int]]:
    """The axes along which threads update a reduction: (which, threads, their axis, results of
    each)."""
    out: list[tuple[int, int, str, int]] = []
    for s, p in _stores(n, stage, False)[:1]:
        for k, i in enumerate(s.index):
            for q in (q for q in p if q.kind in THREADS and q.var in D.symbols(i)):
                size = D.coefficient(i, q.var)
                if isinstance(size, int) and size > 0:
                    out.append((k, D.bounds(q.extent)[1], q.kind, size))
    return out


def _is_item(v: Value, stage: str) -> bool:
    tuples = v.args[0] if isinstance(v, Fn) and v.name == "item" else None
    return isinstance(tuples, Load) and tuples.source == stage


def _data_loops(n: Nest, stage: str) -> Iterator[str]:
    """The loops of the update that the first values are not inside of, up to the first one which is
    summed over; innermost first."""
    around = {q.var for _, p in _stores(n, stage, True) for q in p}
    for s, p in _stores(n, stage, False)[:1]:
        own: list[Loop] = []
        along = set().union(*(D.symbols(i) for i in s.index))
        for q in p:
            if q.var in around:
                continue
            if q.var not in along or q.kind in ("lane", "tensor"):
                break
            own.append(q)
        yield from (q.name for q in reversed(own))


def _init_loops(n: Nest, stage: str) -> list[str]:
    """The loops around the first values alone, outermost first, as far as they are still serial."""
    shared = {q.var for _, p in _stores(n, stage, False) for q in p}
    found = [q for _, p in _stores(n, stage, True) for q in p if q.var not in shared]
    return list(dict.fromkeys(q.name for q in found if q.kind == "serial"))


def _lane_loop(n: Nest, stage: str) -> tuple[str | None, int]:
    """The loop of the first values along the axis of the update's lanes, and how many those are."""
    own = _init_loops(n, stage)
    widths: dict[int, int] = {}
    for s, p in _stores(n, stage, False):
        for q in p:
            for k in (k for k, i in enumerate(s.index) if q.var in D.symbols(i)):
                if q.kind == "lane":
                    widths[k] = max(widths.get(k, 1), D.bounds(q.extent)[1])
    for s, p in _stores(n, stage, True):
        for k, width in widths.items():
            along = [q.name for q in p if q.name in own and q.var in D.symbols(s.index[k])]
            if along:
                return along[-1], width
    return None, 1
