"""`te.tune`: the choices of a template that make the fastest schedule here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tilewright.base import knobs
from tilewright.base.errors import Invalid, Refused
from tilewright.driver.te.build import Lowered, build, runs_here, target_of
from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import Trace
from tilewright.kernel.text import group_text
from tilewright.lang.te.expression import Tensor
from tilewright.lang.te.schedule import Schedule
from tilewright.runtime import pool
from tilewright.tune.campaign import Campaign, Task
from tilewright.tune.choosing import BadTemplate
from tilewright.tune.choosing import given as choices_given
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.models import model_for
from tilewright.tune.records import Records
from tilewright.tune.search import search_named
from tilewright.tune.space.decision import Assignment
from tilewright.tune.space.space import Point
from tilewright.tune.space.template import Template
from tilewright.tune.timed import bar
from tilewright.tune.tuner import Trial

Made = tuple[Schedule, Sequence[Tensor]]


@dataclass(frozen=True)
class Tuned:
    """The best that was found: what was chosen, the schedule that it makes, its seconds of a call
    beside those of the default schedule, and all that was tried."""

    given: Assignment
    schedule: Schedule
    args: Sequence[Tensor]
    target: Target
    seconds: float
    usual: float
    trials: tuple[Trial, ...]
    measured: int  # now; the others are known from before
    space: Template

    def build(self) -> Any:
        """As `tw.build` of the schedule."""
        return build(self.schedule, self.args, self.target)

    def __str__(self) -> str:
        chosen = ", ".join(f"{n}={v!r}" for n, v in self.space.relevant(self.given).items())
        times = f"{self.seconds * 1e6:.1f} us, by default {self.usual * 1e6:.1f} us"
        faults = Counter(t.verdict.fault for t in self.trials if t.verdict.fault)
        failed = "".join(f", {n} {what}" for what, n in faults.items())
        return f"{chosen}: {times}; {len(self.trials)} trials{failed}"


def tune(
    function: Callable[..., Made],
    *args: Any,
    trials: int = 64,
    minutes: float = 10.0,
    target: str | Target | None = None,
    search: str = "evolution",
    model: str = "auto",
    seed: int = 0,
    records: str | Path | None = None,
) -> Tuned:
    """Tune a template: a function that gives a schedule and its arguments, as `tw.build` takes
    them, and asks for choices (`tune.factors`, `tune.choice`, `tune.flag`) where it makes them.

    It is called with `args` again and again. At most so many schedules are measured, for so many
    minutes, each beside the default schedule, whose results it has to give. What was measured is
    kept in the file of records: tuning again goes on from there."""
    chosen = target_of(target)
    runs_here(chosen)
    if trials < 1:
        raise Invalid(f"{trials} trials find nothing", hint="1 or more")
    make = _Maker(function, args, chosen)
    space = Template.of(make.name, make)
    group = make.group
    assert group is not None  # there is a legal point
    known = Records.load(Path(records) if records is not None else knobs.records_file())
    guess = model_for(model, chosen, Console(stderr=True).print)
    search_named(search)  # or a word about it before anything is measured
    measuring = Measuring(chosen, pool.get_threads())
    task = Task(
        group_text(group), 1, (make.name,), chosen, measuring,
        lambda: search_named(search), guess, seed, space,
    )  # fmt: skip
    campaign = Campaign([task], known, trials, time.monotonic() + 60 * minutes)
    new = 0
    try:
        campaign.resume()
        with bar(trials) as advance:
            for _, some in campaign.run():
                new += len(some)
                for _ in some:
                    advance()
        list(campaign.finish())
    finally:
        measuring.close()
    best, seconds, usual = _best(task)
    with choices_given(space.relevant(best.given)):
        schedule, arguments = _made(function(*args), make.name)
    tried = tuple(task.tuning.trials)
    return Tuned(best.given, schedule, arguments, chosen, seconds, usual, tried, new, space)


class _Maker:
    """Runs a template; all its schedules have to compute the same."""

    def __init__(self, function: Callable[..., Made], args: Sequence[Any], target: Target) -> None:
        if isinstance(function, Schedule):
            raise Invalid(
                "a schedule is made already, each of its choices by default",
                hint="give the function that makes it: `def f(): …; return s, [A, B, C]`",
            )
        if not callable(function):
            raise Invalid(f"{function!r} is no function that makes a schedule")
        self.name = str(getattr(function, "__name__", "the template"))
        self.function, self.args, self.target = function, args, target
        self.group: Group | None = None

    def __call__(self) -> tuple[Trace, Nest]:
        s, args = _made(self.function(*self.args), self.name)
        self.group = self.group or s.group
        if s.group != self.group:
            raise BadTemplate(
                f"{self.name} computes something else for other choices",
                hint="choices are for the schedule: make the expressions without them",
            )
        lowered = Lowered(s, args, target=self.target)
        packed = [b.name for b in lowered.nest.buffers if b.scope == "in" and b.packed_as]
        if packed:
            raise Refused(
                f"{self.name} takes {', '.join(packed)} in a layout of its own: schedules are "
                "compared on the same arguments",
                hint="change the layout of a stage, such as s.cache_read",
            )
        return lowered.trace, lowered.nest


def _made(found: object, name: str) -> Made:
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Schedule):
        return found[0], found[1]
    raise Invalid(
        f"{name} gives {type(found).__name__}, not a schedule and its arguments",
        hint="end it with `return s, [A, B, C]`",
    )


def _best(task: Task) -> tuple[Point, float, float]:
    """What won the last race, now or in an earlier run; where that is no schedule of the template,
    its fastest trial. With its seconds and those of the default schedule in the same race."""
    tuning = task.tuning
    points = {m.point.trace: m.point for m in tuning.state.measured}
    best = task.winner if task.winner is not None and task.winner.trace in points else None
    timed = [t for t in tuning.trials if t.ratio is not None]
    best = best or min(timed, key=lambda t: t.ratio or 0.0, default=None)
    if best is None or not best.ratio or not best.verdict.seconds:
        first = next((t.verdict for t in tuning.trials), None)
        why = task.problem or (f"{first.fault}: {first.why}" if first else "time was up")
        raise Invalid(f"no schedule of {task.names[0]} was measured: {why}")
    return points[best.trace], best.verdict.seconds, best.verdict.seconds / best.ratio
