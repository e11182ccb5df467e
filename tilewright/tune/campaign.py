"""Tuning many kernels: trials go where the next one is expected to save most time of a call, and
everything that is measured is on disk before the next race begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tilewright.base.cache import code_version
from tilewright.base.errors import TilewrightError
from tilewright.ir.target import Target
from tilewright.kernel.cost import cost, together
from tilewright.kernel.group import Group
from tilewright.kernel.step import parse_trace, print_trace
from tilewright.kernel.text import group_text, parse_group
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.records import Record, Records
from tilewright.tune.search.state import Measured, Model, Search
from tilewright.tune.space.decision import Plain
from tilewright.tune.tuner import BATCH, Trial, Tuning

# Of what a kernel still loses by the model, the next race is expected to save this part at first.
HOPE = 0.25
# Races without a gain after which a kernel waits until all others have had theirs.
PATIENCE = 4


@dataclass
class Task:
    """One kernel of a program: its group, how often a call of the program runs it, its tuning."""

    text: str
    calls: int
    names: tuple[str, ...]
    target: Target
    measuring: Measuring
    search: Callable[[], Search]
    model: Model
    seed: int
    fruitless: int = 0
    races: int = 0
    winner: Trial | None = None
    closed: bool = False  # its last race is over

    @cached_property
    def group(self) -> Group:
        return parse_group(self.text)

    @cached_property
    def tuning(self) -> Tuning:
        made = (self.target, self.measuring, self.search(), self.model, self.seed)
        return Tuning(self.group, *made)

    @property
    def ratio(self) -> float:
        """Of the best so far to the default schedule."""
        return (self.tuning.state.best()[0].ratio or 1.0) if self.started else 1.0

    @property
    def started(self) -> bool:
        return "tuning" in self.__dict__

    @property
    def ended(self) -> bool:
        return self.started and self.tuning.ended

    @cached_property
    def _estimate(self) -> tuple[float, float]:
        """Seconds by the model: of the default schedule, and of nothing but products and bytes."""
        c = cost(self.tuning.default.nest, self.target)
        cores = max(1.0, c.threads)
        least = together(c.products, (c.once, c.once, c.once), self.target) / cores
        return c.seconds(self.target), min(least, c.cycles) / (self.target.mhz * 1e6)

    @property
    def expected(self) -> float:
        """Seconds of a call of the program that the next race should save."""
        whole, roof = self._estimate
        now = (self.tuning.seconds or whole) * self.ratio
        distance = max(0.05, 1 - roof / max(whole * self.ratio, 1e-12))
        return self.calls * now * distance * HOPE * 0.5**self.fruitless / (1 + self.races) ** 0.5


@dataclass
class Campaign:
    """All kernels of a program."""

    tasks: list[Task]
    records: Records
    trials: int  # for each kernel, at most
    until: float = float("inf")  # by time.monotonic()
    known: int = field(default=0, init=False)  # trials of earlier runs

    def resume(self) -> None:
        """What earlier runs measured is known and not measured again."""
        for t in self.tasks:
            found = self.records.trials((t.text, t.target.key(), t.measuring.threads))
            for r in found[: self.trials]:
                if _restored(t.tuning, r):
                    self.known += 1
            if found:
                t.model.learn(t.group, t.tuning.state.measured, t.target)

    def run(self) -> Iterator[tuple[Task, list[Trial]]]:
        """Race after race, until trials or time are used up or nothing is left to try."""
        while time.monotonic() < self.until:
            open_ = [t for t in self.tasks if not t.ended and self._left(t) > 0]
            if not open_:
                break
            fresh = [t for t in open_ if t.fruitless < PATIENCE] or open_
            t = max(fresh, key=lambda t: t.expected)
            before = t.ratio
            made = t.tuning.step(min(BATCH, self._left(t)))
            t.races += 1
            t.fruitless = 0 if t.ratio < 0.99 * before else t.fruitless + 1
            self.records.add(_trial(t, x) for x in made)
            if made:
                yield t, made

    def _left(self, t: Task) -> int:
        return self.trials - (len(t.tuning.trials) if t.started else 0)

    def finish(self) -> Iterator[Task]:
        """The last race of each kernel; what wins is a record."""
        for t in self.tasks:
            if not t.started or not t.tuning.trials:
                continue
            t.winner = t.tuning.final()
            t.closed = True
            self.records.add([_best(t)])
            yield t


def _record(t: Task, kind: str, trace: str, verdict: Verdict | None, **others: Any) -> Record:
    seconds = verdict.seconds if verdict else t.tuning.seconds
    place = (t.text, t.target.key(), t.measuring.threads)
    made = Record(kind, *place, trace, seconds, t.tuning.seconds, version=code_version())
    return replace(made, **others)


def _trial(t: Task, x: Trial) -> Record:
    given = next(dict(m.point.given) for m in t.tuning.state.measured if m.point.trace == x.trace)
    return _record(
        t,
        "trial",
        print_trace(x.trace),
        x.verdict,
        given=given,
        fault=x.verdict.fault,
        why=x.verdict.why,
    )


def _best(t: Task) -> Record:
    trials = len(t.tuning.trials)
    if t.winner is None:
        return _record(t, "best", print_trace(t.tuning.default.trace), None, trials=trials)
    return _record(t, "best", print_trace(t.winner.trace), t.winner.verdict, trials=trials)


def _restored(tuning: Tuning, r: Record) -> bool:
    """A trial of an earlier run, if its decisions still lead to its steps."""
    given = {name: _plain(v) for name, v in r.given.items()}
    try:
        point = tuning.state.space.replay(tuning.group, given)
        same = point.trace == parse_trace(r.trace)
    except TilewrightError:
        return False
    if not same or point.trace in tuning.state.seen:
        return False
    tuning.state.seen.add(point.trace)
    tuning.state.measured.append(Measured(point, r.ratio))
    verdict = Verdict(r.seconds, fault=r.fault)
    tuning.trials.append(Trial(len(tuning.trials), point.trace, verdict, r.ratio))
    return True


def _plain(x: object) -> Plain:
    """JSON has no tuples."""
    if isinstance(x, list):
        return tuple(map(_plain, x))
    assert isinstance(x, (bool, int, str))
    return x


def tasks_of(
    kernels: Sequence[tuple[str, int, str]],
    target: Target,
    measuring: Measuring,
    search: Callable[[], Search],
    model: Model,
    seed: int,
) -> list[Task]:
    """Distinct kernels of a program from (the text of a group, calls, a name)."""
    found: dict[str, tuple[int, list[str]]] = {}
    for text, calls, name in kernels:
        text = group_text(parse_group(text))
        before, names = found.get(text, (0, []))
        found[text] = before + calls, [*names, name]
    made = (target, measuring, search, model, seed)
    return [Task(text, n, tuple(names), *made) for text, (n, names) in found.items()]
