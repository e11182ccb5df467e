"""What to measure next is proposed here or in other processes: a search that ranks hundreds of
schedules takes longer than a race of a few of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.base.collector import garbage_waits
from tilewright.kernel.step import print_trace
from tilewright.tune.search.state import Search
from tilewright.tune.space.decision import Assignment

if TYPE_CHECKING:
    from tilewright.tune.tuner import Tuning


@dataclass(frozen=True)
class Proposed:
    """What was decided for each point and the steps that follow from it; the search and its random
    numbers as they are afterwards. No points: the search has ended."""

    given: tuple[Assignment, ...]
    traces: tuple[str, ...]
    search: Search
    rng: Any  # as Random.getstate() gives it


class Proposing(Protocol):
    def asked(self, tuning: Tuning, most: int) -> Callable[[], Proposed]:
        """A question by what is known now, and a function that gives the answer: it may be called
        from another thread, and nothing that is learned in between changes what it says."""
        ...


class Here:
    """In this thread, at once."""

    def asked(self, tuning: Tuning, most: int) -> Callable[[], Proposed]:
        with garbage_waits():
            points = tuning.state.fresh(tuning.first) or tuning.search.propose(tuning.state, most)
        given = tuple(p.given for p in points)
        traces = tuple(print_trace(p.trace) for p in points)
        made = Proposed(given, traces, tuning.search, tuning.state.rng.getstate())
        return lambda: made


HERE = Here()
