"""Tuning one group: a search proposes points, a process measures them, a model learns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from tilewright.ir.target import Target
from tilewright.kernel.group import Group
from tilewright.kernel.step import Trace, print_trace
from tilewright.kernel.text import group_text
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.search.state import Measured, Model, Search, State
from tilewright.tune.space.made import space_of
from tilewright.tune.space.space import Point, Space

# Points of a race beside the default schedule.
BATCH = 8
# The last race: the best few by the races before, more rounds, and again the default schedule.
FINALISTS = 3
FINAL_ROUNDS = 15
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
    """A group that is tuned step by step: `step` is one race."""

    group: Group
    target: Target
    measuring: Measuring
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
        self.default = self.state.space.replay(self.group, self.state.space.default)
        self.state.seen.add(self.default.trace)
        self.state.measured.append(Measured(self.default, 1.0))
        self._text = group_text(self.group)

    def step(self, most: int = BATCH) -> list[Trial]:
        """One race of at most so many points; none where the search has ended."""
        points = self.search.propose(self.state, most)
        if not points:
            self.ended = True
            return []
        made = self._race(points)
        for p, trial in zip(points, made, strict=True):
            self.state.seen.add(p.trace)
            self.state.measured.append(Measured(p, trial.ratio))
        self.trials += made
        self.model.learn(self.group, self.state.measured, self.target)
        return made

    def _race(self, points: list[Point], rounds: int | None = None) -> list[Trial]:
        usual, self.measuring.rounds = self.measuring.rounds, rounds or self.measuring.rounds
        traces = [print_trace(p.trace) for p in (self.default, *points)]
        first, *verdicts = self.measuring.measure(self._text, traces)
        self.measuring.rounds = usual
        self.seconds = first.seconds or self.seconds
        if first.seconds is None:  # nothing can be compared with it
            self.ended, self.problem = True, f"its default schedule {first.fault}: {first.why}"
        out = []
        for k, (p, v) in enumerate(zip(points, verdicts, strict=True)):
            known = v.seconds is not None and first.seconds is not None
            ratio = (v.seconds or 0.0) / (first.seconds or 1.0) if known else None
            out.append(Trial(len(self.trials) + k, p.trace, v, ratio))
        return out

    def final(self) -> Trial | None:
        """The best few race once more with the default schedule; None where that one wins."""
        best = [m.point for m in self.state.best(FINALISTS + 1) if m.point is not self.default]
        if not best:
            return None
        made = [t for t in self._race(best[:FINALISTS], FINAL_ROUNDS) if t.ratio is not None]
        winner = min(made, key=lambda t: t.ratio or 0.0, default=None)
        if winner is None or winner.ratio is None or winner.ratio > 1 - CLEARLY:
            return None
        return winner


def tuned(
    tuning: Tuning, trials: int, going_on: Callable[[], bool] = lambda: True
) -> Iterator[list[Trial]]:
    """Races until so many trials are done, nothing is left, or it should stop."""
    while len(tuning.trials) < trials and not tuning.ended and going_on():
        made = tuning.step(min(BATCH, trials - len(tuning.trials)))
        if made:
            yield made
