"""What each value of each decision has cost on average: for spaces of whose points nothing is known
but their assignments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import exp, log
from typing import Any

from tilewright.tune.search.state import Candidate, Measured
from tilewright.tune.space.decision import Plain

# How slow one counts that failed, relative to the average.
FAILED = 4.0


def additive(points: Sequence[Candidate], measured: Sequence[Measured[Any]]) -> list[float]:
    """A guess of each point's time relative to others: the product of what its values cost. Values
    that were seen seldom count less, those never seen not at all."""
    known = [log(m.ratio) for m in measured if m.ratio]
    usual = sum(known) / max(1, len(known))
    costs: dict[tuple[str, Plain], list[float]] = defaultdict(list)
    for m in measured:
        cost = log(m.ratio) - usual if m.ratio else log(FAILED)
        for item in m.point.given.items():
            costs[item].append(cost)
    effect = {item: sum(x) / (1 + len(x)) for item, x in costs.items()}
    return [exp(sum(effect.get(item, 0.0) for item in p.given.items())) for p in points]
