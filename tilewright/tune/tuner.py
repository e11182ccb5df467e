"""Tuning one group: a search proposes points, a process measures them, a model learns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

from tilewright.base.errors import Invalid, Refused
from tilewright.base.medians import median_interval
from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Trace, print_trace
from tilewright.kernel.text import group_text
from tilewright.tune.measuring.measurer import Measurer
from tilewright.tune.measuring.race import FAULTS, Verdict
from tilewright.tune.proposing import HERE, Proposed
from tilewright.tune.search.state import Measured, Model, Search, State
from tilewright.tune.space.made import space_of
from tilewright.tune.space.space import Point, Space

# Points of a race beside the default schedule.
BATCH = 8
# The last race: the best few by the races before, many more rounds, and again the default schedule.
FINALISTS = 3
FINAL_ROUNDS = 99
# Another schedule than the default has to be faster by this part: clocks are noisy.
CLEARLY = 0.02


@dataclass(frozen=True)
class Trial:
    """One measured candidate."""

    number: int
    trace: Trace
    verdict: Verdict
    ratio: float | None  # of its seconds to those of the default schedule in the same race


@dataclass
class Tuning:
    """A group that is tuned step by step: `step` is one race. All are compared with the default
    schedule, which is a point of the space that rules derive, and need not be one of another."""

    group: Group
    target: Target
    measuring: Measurer
    search: Search
    model: Model
    seed: int = 0
    space: Space | None = None
    trials: list[Trial] = field(default_factory=list)
    ended: bool = False
    problem: str = ""  # why it ended early
    seconds: float | None = None  # of the default schedule, as last measured
    state: State = field(init=False)

    def __post_init__(self) -> None:
        space = self.space or space_of(self.group, self.target)
        self.state = State(self.group, self.target, space, self.model, Random(self.seed))
        try:
            first = space.replay(self.group, space.default)
        except (Refused, Invalid) as why:
            hint = "give its decisions defaults that lead to a legal schedule"
            raise Invalid(f"its space has no legal point: {why.what}", hint=hint) from None
        self.first: list[Point] = []  # raced before the search proposes anything
        if self.space is None:
            self.default = first
            self.state.seen.add(first.key)
            self.state.measured.append(Measured(first, 1.0))
        else:
            self.default = Point({}, *default_schedule(self.group, self.target))
            self.first.append(first)
        self.text = group_text(self.group)
        self._usual = print_trace(self.default.trace)

    def step(self, most: int = BATCH) -> list[Trial]:
        """One race of at most so many points; none where the search has ended."""
        proposed = HERE.asked(self, most)()
        return self.absorbed(proposed, self.measured(proposed.traces))

    def measured(self, traces: Sequence[str], rounds: int | None = None) -> list[Verdict]:
        """A race of the default schedule, which is the first, and these. Nothing is changed here:
        it may run beside other work on this object."""
        return self.measuring.measure(self.text, [self._usual, *traces], rounds) if traces else []

    def absorbed(self, proposed: Proposed, verdicts: Sequence[Verdict]) -> list[Trial]:
        """What a race found becomes trials, and the model learns from it."""
        self.search = proposed.search
        self.state.rng.setstate(proposed.rng)
        applied = self.state.applied = Applied()  # nests of all races would take much memory
        points = [self.state.space.replay(self.group, x, applied) for x in proposed.given]
        made = self._judged(points, verdicts) if points else []
        if not made:
            self.ended = True
            return []
        for p, trial in zip(points, made, strict=True):
            self.state.seen.add(p.trace)
            self.state.measured.append(Measured(p, trial.ratio))
        self.trials += made
        self.model.learn(self.group, self.state.measured, self.target)
        return made

    def _judged(self, points: Sequence[Point], verdicts: Sequence[Verdict]) -> list[Trial]:
        """None where the default schedule has no time, with which others could be compared."""
        first, *others = verdicts
        if first.seconds is None:
            self.problem = f"its default schedule {FAULTS[first.fault]}: {first.why}"
            return []
        self.seconds = first.seconds
        return [
            Trial(len(self.trials) + k, p.trace, v, median(parts) if parts else None)
            for k, (p, v) in enumerate(zip(points, others, strict=True))
            for parts in [v.beside(first)]
        ]

    def finalists(self) -> list[Point]:
        """The best few, which race once more with the default schedule."""
        best = [m.point for m in self.state.best(FINALISTS + 1) if m.point is not self.default]
        return best[:FINALISTS]

    def decided(self, points: Sequence[Point], verdicts: Sequence[Verdict]) -> Trial | None:
        """Who won the last race; None where that is the default schedule, which wins where no
        other is clearly faster, and surely: noise alone would seldom look like that."""
        if not points:
            return None
        made = [
            t
            for t in self._judged(points, verdicts)
            if t.ratio is not None
            and t.ratio <= 1 - CLEARLY
            and median_interval(t.verdict.beside(verdicts[0]))[1] < 1
        ]
        winner = min(made, key=lambda t: t.ratio or 0.0, default=None)
        if winner is None or winner.ratio is None or self.seconds is None:
            return None
        # What is recorded is what decided.
        said = replace(winner.verdict, seconds=self.seconds * winner.ratio)
        return replace(winner, verdict=said)

    def final(self) -> Trial | None:
        """The last race; None where the default schedule wins."""
        points = self.finalists()
        traces = [print_trace(p.trace) for p in points]
        return self.decided(points, self.measured(traces, FINAL_ROUNDS))


def tuned(
    tuning: Tuning, trials: int, going_on: Callable[[], bool] = lambda: True
) -> Iterator[list[Trial]]:
    """Races until so many trials are done, nothing is left, or it should stop."""
    while len(tuning.trials) < trials and not tuning.ended and going_on():
        made = tuning.step(min(BATCH, trials - len(tuning.trials)))
        if made:
            yield made
