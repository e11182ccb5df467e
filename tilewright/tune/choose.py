"""How the schedule of a kernel is chosen: by rules, by a cost model, or by measuring.

All choosers have one interface, so that another one (a tuner that learns) can replace them:
`choose(group, target)` gives a trace, its nest, and what was considered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, Work, start
from tilewright.kernel.schedule import RULES, default_schedule
from tilewright.kernel.step import Trace, apply, parse_trace, print_trace
from tilewright.kernel.text import group_text
from tilewright.runtime import pool
from tilewright.tune.candidates import Candidate, candidate, candidates, multiplies, points
from tilewright.tune.measure import timed

# Candidates that are timed, the one by the rules included.
TOP = 4
# Another schedule than the rules' has to be faster by this part: models and clocks are noisy.
CLEARLY = 0.02
# Kernels of fewer seconds are left to the model.
TOO_SHORT = 10e-6
# A bar is shown when choosing takes longer.
BAR_SECONDS = 1.0


@dataclass(frozen=True)
class Considered:
    """One schedule that a kernel could have had, with seconds of a call."""

    choices: str
    estimated: float
    timed: float | None = None

    def __str__(self) -> str:
        shown = f"{self.choices}: {_time_text(self.estimated)} estimated"
        return shown if self.timed is None else f"{shown}, {_time_text(self.timed)} timed"


@dataclass(frozen=True)
class Chosen:
    """A schedule, and what it was chosen from: the one taken first, then the runners-up."""

    trace: Trace
    nest: Nest
    considered: tuple[Considered, ...] = ()
    settled: bool = True  # False: with more time the result could be another one

    def __str__(self) -> str:
        if not self.considered:
            return "by the rules"
        first, *others = self.considered
        behind = "; ".join(map(str, others))
        return f"{first}" + (f" (others: {behind})" if others else " (no other was worth a try)")


class Chooser(Protocol):
    """Decides about one kernel at a time. Any thread may call it, unless it needs the machine
    alone."""

    @property
    def name(self) -> str: ...  # its part of the keys of cached schedules

    @property
    def alone(self) -> bool: ...  # does it measure?

    def choose(self, group: Work, target: Target) -> Chosen: ...


@dataclass(frozen=True)
class Default:
    """By the rules."""

    name: str = "default"
    alone: bool = False

    def choose(self, group: Work, target: Target) -> Chosen:
        return Chosen(*default_schedule(group, target))


@dataclass(frozen=True)
class Ranked:
    """The best by the cost model, where it is clearly better than the rules'."""

    name: str = "ranked"
    alone: bool = False

    def choose(self, group: Work, target: Target) -> Chosen:
        if isinstance(group, Nest) or not multiplies(group):
            return Default().choose(group, target)
        return _chosen(ranked(candidates(group, target)), target)


@dataclass
class Timed:
    """The best few by the model are measured; the result is cached, so that it happens once.

    `seconds` are for all groups together: when they are spent, the model decides.
    """

    cache: Cache
    seconds: float
    name: str = "timed"
    alone: bool = True
    spent: float = field(default=0.0, init=False)

    def choose(self, group: Work, target: Target) -> Chosen:
        if isinstance(group, Nest):  # of a tile kernel, whose choices are the author's constants
            return Default().choose(group, target)
        key = f"{target.key()}\n{pool.get_threads()} threads\n{group_text(group)}"
        known = self._known(key, group)
        if known is not None:
            return known
        began = time.perf_counter()
        try:
            made = self._timed(group, target, began)
        finally:
            self.spent += time.perf_counter() - began
        if made.settled:
            stored = {
                "trace": print_trace(made.trace),
                "considered": [asdict(x) for x in made.considered],
            }
            self.cache.put("schedule", key, json.dumps(stored).encode())
        return made

    def _known(self, key: str, group: Group) -> Chosen | None:
        hit = self.cache.get("schedule", key)
        if hit is None:
            return None
        stored = json.loads(hit)
        trace = parse_trace(stored["trace"])
        considered = tuple(Considered(**x) for x in stored["considered"])
        return Chosen(trace, apply(start(group), trace), considered)

    def _timed(self, group: Group, target: Target, began: float) -> Chosen:
        def in_time() -> bool:
            return self.spent + time.perf_counter() - began < self.seconds

        if candidate(group, target, RULES).cost.seconds(target) < TOO_SHORT:
            return Ranked().choose(group, target)
        if not in_time():
            return replace(Ranked().choose(group, target), settled=False)
        every = candidates(group, target, thorough=True)
        rules, found = every[0], sorted(every, key=lambda c: c.cost.cycles)[:TOP]
        if rules not in found:
            found[-1] = rules
        took = timed([c.nest for c in found], target, going_on=in_time) if len(found) > 1 else None
        if took is None:
            out_of_time = len(found) > 1
            return replace(_chosen(ranked(every), target), settled=not out_of_time)
        best, usual = min(took), took[found.index(rules)]
        first = took.index(best) if best < (1 - CLEARLY) * usual else found.index(rules)
        order = sorted(range(len(found)), key=lambda k: (k != first, took[k]))
        return _chosen([found[k] for k in order], target, [took[k] for k in order])


def ranked(found: list[Candidate]) -> list[Candidate]:
    """From the best to the worst by the model; the rules' (the first) where none clearly wins."""
    order = sorted(found, key=lambda c: c.cost.cycles)
    if order[0].cost.cycles > (1 - CLEARLY) * found[0].cost.cycles:
        order.remove(found[0])
        order.insert(0, found[0])
    return order


def _chosen(found: list[Candidate], target: Target, took: list[float] | None = None) -> Chosen:
    times = took or [None] * len(found)
    considered = tuple(
        Considered(str(c.choices), c.cost.seconds(target), t)
        for c, t in zip(found, times, strict=True)
    )
    return Chosen(found[0].trace, found[0].nest, considered)


NAMES = ("default", "ranked", "timed")


def chooser(name: str, cache: Cache, seconds: float) -> Chooser:
    """By name; `seconds` is how long `timed` may take for a whole program."""
    if name == "timed":
        return Timed(cache, seconds)
    known: dict[str, Chooser] = {"default": Default(), "ranked": Ranked()}
    if name not in known:
        raise Invalid(f"there is no way to choose called {name!r}", hint=f"it is {_or(NAMES)}")
    return known[name]


def choose_all(by: Chooser, groups: Mapping[str, Group], target: Target) -> dict[str, Chosen]:
    """One after the other, what computes most first, with a bar where that takes long."""
    out: dict[str, Chosen] = {}
    order = sorted(groups, key=lambda name: points(groups[name]), reverse=True)
    with _bar(len(groups)) as advance:
        for name in order:
            out[name] = by.choose(groups[name], target)
            advance()
    return out


@contextmanager
def _bar(total: int) -> Iterator:
    """A bar on a terminal, once it has taken longer than BAR_SECONDS."""
    console = Console(stderr=True)
    columns = (TextColumn("timing schedules"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    task = bar.add_task("", total=total)
    began, started = time.perf_counter(), False

    def advance() -> None:
        nonlocal started
        bar.advance(task)
        late = time.perf_counter() - began > BAR_SECONDS
        if late and not started and console.is_terminal:
            bar.start()
            started = True

    try:
        yield advance
    finally:
        if started:
            bar.stop()


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
