"""How the schedule of a kernel is chosen: by rules, by a cost model, or by measuring.

All choosers have one interface, so that another one (a tuner that learns) can replace them:
`choose(group, target)` gives a trace, its nest, and what was considered. Whatever chooses, a kernel
that was tuned before has the schedule of its record (`recorded.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, Work
from tilewright.kernel.schedule import RULES, default_schedule
from tilewright.kernel.step import Trace
from tilewright.tune.candidates import Candidate, candidates, multiplies

# Another schedule than the rules' has to be faster by this part: models and clocks are noisy.
CLEARLY = 0.02


@dataclass(frozen=True)
class Considered:
    """One schedule that a kernel could have had, with seconds of a call."""

    choices: str
    estimated: float  # 0: it was only timed
    timed: float | None = None

    def __str__(self) -> str:
        if not self.estimated:
            return f"{self.choices}: {_time_text(self.timed or 0.0)} timed"
        shown = f"{self.choices}: {_time_text(self.estimated)} estimated"
        return shown if self.timed is None else f"{shown}, {_time_text(self.timed)} timed"


@dataclass(frozen=True)
class Chosen:
    """A schedule, and what it was chosen from: the one taken first, then the runners-up."""

    trace: Trace
    nest: Nest
    considered: tuple[Considered, ...] = ()
    final: bool = True  # False: with more time the result could be another one

    def __str__(self) -> str:
        return said_of(self.considered)


def said_of(considered: Sequence[Considered]) -> str:
    """The one taken, and the others, in words."""
    if not considered:
        return "by the rules"
    first, *others = considered
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
class Made:
    """A kernel by some choices: its trace as text, and its code."""

    choices: Choices
    trace: str
    image: bytes


@dataclass(frozen=True)
class Picked:
    """One of several kernels of a group, and what the others would take."""

    made: Made
    considered: tuple[Considered, ...] = ()
    final: bool = True

    def __str__(self) -> str:
        return said_of(self.considered)


@runtime_checkable
class Picker(Chooser, Protocol):
    """A chooser that measures code. It says by which choices a group is worth compiling; whoever
    asked compiles it, at the same time as others, and lets it pick one."""

    def choices(self, group: Work) -> tuple[Choices, ...]: ...  # none: the rules decide

    def pick(self, group: Group, target: Target, made: Sequence[Made]) -> Picked: ...


@dataclass(frozen=True)
class Default:
    """By the rules, and choices that hold for all kernels."""

    name: str = "default"
    alone: bool = False
    choices: Choices = RULES

    def choose(self, group: Work, target: Target) -> Chosen:
        return Chosen(*default_schedule(group, target, self.choices))


# By records alone, which every compile looks at first, and by the rules where there is none.
RECORDS = Default("records")

# By the rules for kernels that follow each other at once: what can begins before it waits.
EARLY = Default("early", choices=Choices(early=True))


@dataclass(frozen=True)
class Ranked:
    """The best by the cost model, where it is clearly better than the rules'."""

    name: str = "ranked"
    alone: bool = False

    def choose(self, group: Work, target: Target) -> Chosen:
        if isinstance(group, Nest) or not multiplies(group):
            return Default().choose(group, target)
        return chosen(ranked(candidates(group, target)), target)


def ranked(found: list[Candidate]) -> list[Candidate]:
    """From the best to the worst by the model; the rules' (the first) where none clearly wins."""
    order = sorted(found, key=lambda c: c.cost.cycles)
    if order[0].cost.cycles > (1 - CLEARLY) * found[0].cost.cycles:
        order.remove(found[0])
        order.insert(0, found[0])
    return order


def chosen(found: list[Candidate], target: Target, took: list[float] | None = None) -> Chosen:
    """The first of several, with what was estimated or timed of each."""
    times = took or [None] * len(found)
    considered = tuple(
        Considered(str(c.choices), c.cost.seconds(target), t)
        for c, t in zip(found, times, strict=True)
    )
    return Chosen(found[0].trace, found[0].nest, considered)


def _time_text(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
