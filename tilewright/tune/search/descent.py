"""Coordinate descent: from the best known point, at first the best sketch, one decision at a time;
where all neighbours were measured, from the next best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.tune.search.state import P, Progress
from tilewright.tune.space.decision import Assignment


@dataclass
class Descent:
    name: str = "descent"

    def propose(self, state: Progress[P], count: int) -> list[P]:
        first = state.sketches()  # the best of them is where it begins
        if first:
            return first[:count]
        given = [m.point.given for m in state.best(len(state.measured))] or [state.space.default]
        for start in given:
            found = state.fresh(map(state.point, _around(state, start)))
            if found:
                return state.ranked(found)[:count]
        return []


def _around(state: Progress[Any], given: Assignment) -> Iterator[Assignment]:
    """All assignments that differ in one decision, ordered ones by up to two steps."""
    for name, value in state.space.relevant(given).items():
        d = state.space.named[name]
        at = next(k for k, v in enumerate(d.values) if v == value and type(v) is type(value))
        for k, v in enumerate(d.values):
            if k != at and (not d.ordered or abs(k - at) <= 2):
                yield {**given, name: v}
