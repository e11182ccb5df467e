"""Points at random, all of which are equally likely to be drawn decision by decision."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.tune.search.state import State
from tilewright.tune.space.space import Point

# Draws for each point that is wanted: many are illegal, or known already.
PATIENCE = 20


@dataclass
class Random:
    name: str = "random"

    def propose(self, state: State, count: int) -> list[Point]:
        found: list[Point] = []
        for _ in range(PATIENCE * count):
            if len(found) == count:
                break
            found = state.fresh([*found, state.draw()])
        return found
