"""Every point, in the order of the space; for small ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tilewright.base.errors import require
from tilewright.tune.search.state import P, Progress

# Assignments that are gone through: to replay more takes hours, whatever is measured.
MOST = 100_000


@dataclass
class Exhaustive:
    name: str = "exhaustive"
    _rest: Iterator[Any] | None = field(default=None, init=False)

    def propose(self, state: Progress[P], count: int) -> list[P]:
        if self._rest is None:
            require(
                state.space.size <= MOST,
                f"the space has {state.space.size:,} points, and an exhaustive search goes through "
                f"{MOST:,} at most",
                hint="use another search, such as evolution",
            )
            self._rest = self._all(state)
        found: list[P] = []
        for p in self._rest:
            found = state.fresh([*found, p])
            if len(found) == count:
                break
        return found

    def _all(self, state: Progress[P]) -> Iterator[P]:
        decisions = state.space.decisions
        for values in product(*(d.values for d in decisions)):
            found = state.point({d.name: v for d, v in zip(decisions, values, strict=True)})
            if found is not None:
                yield found
