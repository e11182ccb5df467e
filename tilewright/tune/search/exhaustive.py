"""Every point, in the order of the space; for small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tilewright.tune.search.state import State
from tilewright.tune.space.space import Point


@dataclass
class Exhaustive:
    name: str = "exhaustive"
    _rest: Iterator[Point] | None = field(default=None, init=False)

    def propose(self, state: State, count: int) -> list[Point]:
        if self._rest is None:
            self._rest = self._all(state)
        found: list[Point] = []
        for p in self._rest:
            found = state.fresh([*found, p])
            if len(found) == count:
                break
        return found

    def _all(self, state: State) -> Iterator[Point]:
        decisions = state.space.decisions
        for values in product(*(d.values for d in decisions)):
            found = state.point({d.name: v for d, v in zip(decisions, values, strict=True)})
            if found is not None:
                yield found
