"""Every point, in the order of the space; for small ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product

from tilewright.base.errors import require
from tilewright.tune.search.state import P, Progress

# Assignments that are gone through: to replay more takes hours, whatever is measured.
MOST = 100_000


@dataclass
class Exhaustive:
    name: str = "exhaustive"
    gone: int = 0  # assignments that were looked at; the search goes on after them

    def propose(self, state: Progress[P], count: int) -> list[P]:
        require(
            state.space.size <= MOST,
            f"the space has {state.space.size:,} points, and an exhaustive search goes through "
            f"{MOST:,} at most",
            hint="use another search, such as evolution",
        )
        decisions, found = state.space.decisions, list[P]()
        for values in islice(product(*(d.values for d in decisions)), self.gone, None):
            self.gone += 1
            given = {d.name: v for d, v in zip(decisions, values, strict=True)}
            found = state.fresh([*found, state.point(given)])
            if len(found) == count:
                break
        return found
