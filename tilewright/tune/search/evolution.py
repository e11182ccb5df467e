"""Evolution: the fastest so far and points at random are mutated and crossed, the model says which
of their children are worth measuring, and a few at random keep it honest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.tune.search.state import P, Progress
from tilewright.tune.space.decision import Assignment

PARENTS = 16  # of the measured ones
POPULATION = 48
GENERATIONS = 3
CROSSED = 0.3  # of the children have two parents
AT_RANDOM = 0.15  # of what is measured is not the model's choice
SKETCHES = 0.75  # at most, of what is measured first


@dataclass
class Evolution:
    name: str = "evolution"

    def propose(self, state: Progress[P], count: int) -> list[P]:
        known = [m.point for m in state.best(PARENTS)]
        # The model may be wrong about a whole sketch: each is measured early, as it was made.
        sketches = state.sketches()
        first = sketches[: max(1, round(SKETCHES * count))]
        count -= len(first)
        drawn = (p for _ in range(POPULATION // 2) if (p := state.draw()) is not None)
        people = [*known, *sketches, *drawn]
        for _ in range(GENERATIONS):
            if not people:
                return first
            children = [self._child(state, people) for _ in range(POPULATION)]
            legal = {p.key: p for p in (*people, *children) if p is not None}
            people = state.ranked(list(legal.values()))[:POPULATION]
        taken = {p.key for p in first}
        fresh = [p for p in state.fresh(people) if p.key not in taken]
        random = min(len(fresh), round(AT_RANDOM * count))
        chosen = fresh[: count - random]
        rest = fresh[count - random :]
        return [*first, *chosen, *state.rng.sample(rest, min(random, len(rest)))]

    def _child(self, state: Progress[P], people: list[P]) -> P | None:
        # The better half is the first half: they have most children.
        first = people[min(state.rng.randrange(len(people)), state.rng.randrange(len(people)))]
        given = first.given
        if state.rng.random() < CROSSED:
            given = _crossed(state, given, state.rng.choice(people).given)
        return state.point(state.neighbour(given, state.rng.choice((1, 1, 2, 3))))


def _crossed(state: Progress[Any], a: Assignment, b: Assignment) -> Assignment:
    return {name: state.rng.choice((a[name], b[name])) for name in a}
