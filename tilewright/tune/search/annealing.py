"""Simulated annealing on the model: walks that begin at the fastest points, take a worse neighbour
less and less often, and hand over the best that they met."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from tilewright.tune.search.state import P, Progress

WALKS = 8
STEPS = 24
HOT, COLD = 0.5, 0.02  # by which part worse a step may be, at first and in the end


@dataclass
class Annealing:
    name: str = "annealing"

    def propose(self, state: Progress[P], count: int) -> list[P]:
        walkers = [*(m.point for m in state.best(WALKS)), *state.sketches()][:WALKS]
        while len(walkers) < WALKS and (p := state.draw()) is not None:
            walkers.append(p)
        if not walkers:
            return []
        met = {p.key: p for p in walkers}
        scores = list(state.scores(walkers))
        for k in range(STEPS):
            heat = HOT * (COLD / HOT) ** (k / (STEPS - 1))
            moved = [state.point(state.neighbour(p.given)) or p for p in walkers]
            new = state.scores(moved)
            for i, (p, score) in enumerate(zip(moved, new, strict=True)):
                met.setdefault(p.key, p)
                worse = log(max(score, 1e-30) / max(scores[i], 1e-30))
                if worse <= 0 or state.rng.random() < exp(-worse / heat):
                    walkers[i], scores[i] = p, score
        return state.ranked(state.fresh(met.values()))[:count]
