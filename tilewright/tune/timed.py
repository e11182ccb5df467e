"""Schedules chosen by measuring. Loaded only for that, with what it needs to run kernels and to
show progress: a program whose schedules the cost model chooses compiles without these."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.cache import Cache
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, Work
from tilewright.kernel.schedule import RULES
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import group_text
from tilewright.runtime import pool
from tilewright.tune.candidates import candidate, candidates, points
from tilewright.tune.choose import (
    CLEARLY,
    Chooser,
    Chosen,
    Default,
    Ranked,
    chosen,
    ranked,
)
from tilewright.tune.measure import timed
from tilewright.tune.stored import load_choice, store_choice

# Candidates that are timed, the one by the rules included.
TOP = 4
# Kernels of fewer seconds are left to the model.
TOO_SHORT = 10e-6
# A bar is shown when choosing takes longer.
BAR_SECONDS = 1.0


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
        known = load_choice(self.cache, key, group)
        if known is not None:
            return known
        began = time.perf_counter()
        try:
            made = self._timed(group, target, began)
        finally:
            self.spent += time.perf_counter() - began
        if made.final:
            store_choice(self.cache, key, print_trace(made.trace), made.considered)
        return made

    def _timed(self, group: Group, target: Target, began: float) -> Chosen:
        def in_time() -> bool:
            return self.spent + time.perf_counter() - began < self.seconds

        if candidate(group, target, RULES).cost.seconds(target) < TOO_SHORT:
            return Ranked().choose(group, target)
        if not in_time():
            return replace(Ranked().choose(group, target), final=False)
        every = candidates(group, target, thorough=True)
        rules, found = every[0], sorted(every, key=lambda c: c.cost.cycles)[:TOP]
        if rules not in found:
            found[-1] = rules
        took = timed([c.nest for c in found], target, going_on=in_time) if len(found) > 1 else None
        if took is None:
            out_of_time = len(found) > 1
            return replace(chosen(ranked(every), target), final=not out_of_time)
        best, usual = min(took), took[found.index(rules)]
        first = took.index(best) if best < (1 - CLEARLY) * usual else found.index(rules)
        order = sorted(range(len(found)), key=lambda k: (k != first, took[k]))
        return chosen([found[k] for k in order], target, [took[k] for k in order])


def in_order(by: Chooser, groups: Mapping[str, Group], target: Target) -> dict[str, Chosen]:
    """One after the other, what computes most first, with a bar where that takes long."""
    out: dict[str, Chosen] = {}
    order = sorted(groups, key=lambda name: points(groups[name]), reverse=True)
    with bar(len(groups)) as advance:
        for name in order:
            out[name] = by.choose(groups[name], target)
            advance()
    return out


@contextmanager
def bar(total: int) -> Iterator:
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
