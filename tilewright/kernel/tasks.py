"""A program as one kernel: what its blocks run in which order, and what they wait for.

A phase is what would be a launch; its tasks are the blocks of that launch's grid. All blocks of
the kernel are resident, and each goes through the phases in order: tasks are dealt out in turn, and
it runs its own. Before the first of them it waits until counters have reached a count; after the
last it adds their number to the phase's counter. The last block to finish sets all counters to zero
for the next call.

Tasks that begin with copies of memory which no phase before writes (kernel/early.py) wait after
these instead: `early` names that memory.

A task graph prints and parses, and `faults` says what is wrong with one. kernel/simt_tasks.py runs
it, llvm/tasks.py writes the code that does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod

from tilewright.base.errors import Invalid

# Memory that is divided among values by offset; other spaces are one value each.
ARENA = "arena"


@dataclass(frozen=True)
class Use:
    """Memory that the tasks of a phase read or write: a space; of the arena, a range of bytes."""

    space: str
    start: int = 0
    size: int = 0
    writes: bool = False

    def conflicts(self, other: Use) -> bool:
        """May one of them write what the other uses?"""
        if self.space != other.space or not (self.writes or other.writes):
            return False
        if self.space != ARENA:
            return True
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        where = f" {self.start} {self.size}" if self.space == ARENA else ""
        return f"{'write' if self.writes else 'read'} {self.space}{where}"


@dataclass(frozen=True)
class Wait:
    """Until a counter has reached a count."""

    counter: int
    count: int


@dataclass(frozen=True)
class Phase:
    """The tasks of what would be one launch. A counter of -1 is none: nobody waits for the phase.
    Without `release` what was written is not visible to who sees the count: a fault."""

    kind: str
    blocks: tuple[int, int, int]
    threads: int
    uses: tuple[Use, ...] = ()
    waits: tuple[Wait, ...] = ()
    counter: int = -1
    release: bool = True
    early: tuple[str, ...] = ()  # spaces that tasks read before they wait

    @property
    def tasks(self) -> int:
        return prod(self.blocks)


@dataclass(frozen=True)
class TaskGraph:
    """All phases in order. `blocks` of `threads` run them; there are `counters`."""

    blocks: int
    threads: int
    counters: int
    phases: tuple[Phase, ...]

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Of each phase: which block has its first task. Blocks take turns, also across phases."""
        ends = accumulate((p.tasks for p in self.phases), initial=0)
        return tuple(end % self.blocks for end in ends)[:-1]

    def own(self, phase: int, block: int) -> range:
        """The tasks of a phase that a block runs."""
        start = (block - self.firsts[phase]) % self.blocks
        return range(start, self.phases[phase].tasks, self.blocks)

    def __str__(self) -> str:
        return print_tasks(self)


# ---- dependences


def conflict(a: Phase, b: Phase) -> bool:
    return any(x.conflicts(y) for x in a.uses for y in b.uses)


def ordered(phases: Sequence[Phase], blocks: int, threads: int) -> TaskGraph:
    """The graph of phases whose waits are not known: each waits for the earlier ones that use its
    memory, unless another wait implies that. One that would read early what an earlier one writes
    waits before its tasks."""
    before: list[int] = []  # of each phase: the set of phases that are complete when it begins
    needs: list[list[int]] = []
    for k, p in enumerate(phases):
        done, own = 0, []
        for j in range(k - 1, -1, -1):
            if not done >> j & 1 and conflict(p, phases[j]):
                own.append(j)
                done |= before[j] | 1 << j
        before.append(done)
        needs.append(own)
    waited = sorted({j for own in needs for j in own})
    counter = {j: n for n, j in enumerate(waited)}
    made = [
        replace(
            p,
            waits=tuple(Wait(counter[j], phases[j].tasks) for j in sorted(own)),
            counter=counter.get(k, -1),
            early=() if list(_too_early(phases, k)) else p.early,
        )
        for k, (p, own) in enumerate(zip(phases, needs, strict=True))
    ]
    return TaskGraph(blocks, threads, len(waited), tuple(made))


# ---- checks


def faults(g: TaskGraph, resident: int | None = None) -> Iterator[str]:
    """What is wrong with a graph, of which so many blocks can be resident."""
    if g.blocks < 1 or g.threads < 1:
        yield f"{g.blocks} blocks of {g.threads} threads run nothing"
        return
    if resident is not None and g.blocks > resident:
        yield f"{g.blocks} blocks wait for each other, and only {resident} are resident"
    signals: dict[int, int] = {}
    for k, p in enumerate(g.phases):
        if p.threads > g.threads:
            yield f"phase {k} takes {p.threads} threads, a block has {g.threads}"
        if p.tasks < 1:
            yield f"phase {k} has no tasks"
        if p.counter >= g.counters:
            yield f"phase {k} adds to counter {p.counter}, and only {g.counters} are reset"
        if p.counter >= 0 and not p.release:
            yield f"phase {k} adds to counter {p.counter} without a fence"
        if p.counter in signals and p.counter >= 0:
            yield f"phases {signals[p.counter]} and {k} both add to counter {p.counter}"
        signals.setdefault(p.counter, k)
    complete: list[int] = []
    for k, p in enumerate(g.phases):
        done = 0
        for w in p.waits:
            j = signals.get(w.counter)
            if j is None or w.counter < 0:
                yield f"phase {k} waits for counter {w.counter}, to which no phase adds"
            elif j >= k:
                yield f"phase {k} waits for phase {j}, which does not come before it"
            elif w.count != g.phases[j].tasks:
                tasks = f"phase {j} has {g.phases[j].tasks} tasks"
                yield f"phase {k} waits until counter {w.counter} is {w.count}, and {tasks}"
            else:
                done |= complete[j] | 1 << j
        complete.append(done)
        for j in range(k):
            if not done >> j & 1 and conflict(p, g.phases[j]):
                x, y = next((x, y) for x in p.uses for y in g.phases[j].uses if x.conflicts(y))
                yield f"phase {k} ({x}) does not wait for phase {j} ({y})"
        yield from _too_early(g.phases, k)


def _too_early(phases: Sequence[Phase], k: int) -> Iterator[str]:
    for space in phases[k].early:
        if space == ARENA:
            yield f"phase {k} reads the arena before it waits"
        for j, p in enumerate(phases[:k]):
            if any(u.writes and u.space == space for u in p.uses):
                yield f"phase {k} reads {space} before it waits, and phase {j} writes it"


def check(g: TaskGraph, resident: int | None = None) -> TaskGraph:
    """The graph, or an error with the first fault."""
    for what in faults(g, resident):
        raise Invalid(f"task graph: {what}")
    return g


# ---- text


def print_tasks(g: TaskGraph) -> str:
    lines = [f"tasks: {g.blocks} blocks of {g.threads} threads, {g.counters} counters"]
    for k, p in enumerate(g.phases):
        size = "x".join(map(str, p.blocks))
        lines.append(f"phase {k}: {p.kind} {size} of {p.threads} threads")
        lines += [f"  {u}" for u in p.uses]
        lines += [f"  early {space}" for space in p.early]
        lines += [f"  wait {w.counter} {w.count}" for w in p.waits]
        if p.counter >= 0:
            lines.append(f"  signal {p.counter}" + ("" if p.release else " relaxed"))
    return "\n".join(lines) + "\n"


_HEAD = re.compile(r"tasks: (\d+) blocks of (\d+) threads, (\d+) counters")
_PHASE = re.compile(r"phase (\d+): (\S+) (\d+)x(\d+)x(\d+) of (\d+) threads")
_LINES = {
    "use": re.compile(r"  (read|write) (\w+)(?: (\d+) (\d+))?"),
    "wait": re.compile(r"  wait (-?\d+) (\d+)"),
    "signal": re.compile(r"  signal (\d+)( relaxed)?"),
    "early": re.compile(r"  early (\w+)"),
}


def parse_tasks(text: str) -> TaskGraph:
    lines = [(n, x) for n, x in enumerate(text.splitlines(), 1) if x.strip()]
    if not lines or (head := _HEAD.fullmatch(lines[0][1])) is None:
        raise Invalid("a task graph begins with a line such as: tasks: 8 blocks of 256 threads, …")
    phases: list[Phase] = []
    for n, line in lines[1:]:
        found = _PHASE.fullmatch(line)
        if found is not None:
            number, kind, x, y, z, threads = found.groups()
            if int(number) != len(phases):
                raise Invalid(f"phase {number} is number {len(phases)}", where=f"line {n}")
            phases.append(Phase(kind, (int(x), int(y), int(z)), int(threads)))
        elif phases:
            phases[-1] = _with_line(phases[-1], line, n)
        else:
            raise Invalid(f"{line.strip()!r} belongs to no phase", where=f"line {n}")
    blocks, threads, counters = map(int, head.groups())
    return TaskGraph(blocks, threads, counters, tuple(phases))


def _with_line(p: Phase, line: str, n: int) -> Phase:
    for what, pattern in _LINES.items():
        found = pattern.fullmatch(line)
        if found is None:
            continue
        given = found.groups()
        if what == "use":
            start, size = int(given[2] or 0), int(given[3] or 0)
            return replace(p, uses=(*p.uses, Use(given[1], start, size, given[0] == "write")))
        if what == "wait":
            return replace(p, waits=(*p.waits, Wait(int(given[0]), int(given[1]))))
        if what == "signal":
            return replace(p, counter=int(given[0]), release=given[1] is None)
        return replace(p, early=(*p.early, given[0]))
    raise Invalid(
        f"{line.strip()!r} is no part of a phase",
        where=f"line {n}",
        hint="such a line begins with read, write, wait, signal or early",
    )
