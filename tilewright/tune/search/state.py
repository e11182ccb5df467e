"""What a search knows: the space, what was measured, and a model that guesses the rest.

A search needs no more of a point than its assignment and what tells it from others (`Candidate`):
the same ones find schedules of a group and constants of a tile kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, Protocol, TypeVar

from tilewright.ir.target import Target
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.tune.space.decision import Assignment, Decision, Plain
from tilewright.tune.space.draft import WRITTEN_OUT
from tilewright.tune.space.space import SKETCH, Point, Space

# Stores that a nest may write out: more take LLVM seconds, and never fit the registers.
MOST_WRITTEN = 768
# Nests are kept so that points share the steps that they begin with, until there are this many: a
# proposal makes up to about three thousand.
MOST_APPLIED = 4_000


class Model(Protocol):
    """Guesses which of several schedules of a group is faster; less is better."""

    @property
    def name(self) -> str: ...

    def scores(self, group: Group, points: Sequence[Point], target: Target) -> Sequence[float]: ...

    def learn(self, group: Group, measured: Sequence[Measured], target: Target) -> None: ...


class Candidate(Protocol):
    """A point of a space, as far as a search looks at it."""

    @property
    def given(self) -> Assignment: ...

    @property
    def key(self) -> Hashable: ...


P = TypeVar("P", bound=Candidate)


@dataclass(frozen=True)
class Measured(Generic[P]):
    """A point, and its seconds relative to those of the default schedule in the same race; None
    where it has none: it was refused, wrong, crashed or hung."""

    point: P
    ratio: float | None


class Progress(ABC, Generic[P]):
    """How far a search has come, and how it makes points: all that a search is given."""

    space: Space
    rng: Random
    measured: list[Measured[P]]
    seen: set[Hashable]

    @abstractmethod
    def draw(self, prefer: Callable[[Decision], Sequence[Plain]] | None = None) -> P | None:
        """A legal point at random; None where none was found."""

    @abstractmethod
    def point(self, given: Assignment) -> P | None:
        """The point of an assignment, if it is legal."""

    @abstractmethod
    def scores(self, points: Sequence[P]) -> Sequence[float]:
        """By the model; less is better."""

    def fresh(self, points: Iterable[P | None]) -> list[P]:
        """Those that are points, neither measured nor proposed before, nor twice among these."""
        out: dict[Hashable, P] = {}
        for p in points:
            if p is not None and p.key not in self.seen:
                out.setdefault(p.key, p)
        return list(out.values())

    def best(self, count: int = 1) -> list[Measured[P]]:
        """The fastest that were measured."""
        known = [m for m in self.measured if m.ratio is not None]
        return sorted(known, key=lambda m: m.ratio or 0.0)[:count]

    def ranked(self, points: Sequence[P]) -> list[P]:
        """By the model, the best first."""
        if not points:
            return []
        scores = self.scores(points)
        order = sorted(range(len(points)), key=lambda k: (scores[k], k))
        return [points[k] for k in order]

    def sketches(self) -> list[P]:
        """The sketches of the space as their rules made them, those that were not proposed yet,
        the best by the model first."""
        which = self.space.named.get(SKETCH)
        found = map(self.point, ({SKETCH: v} for v in which.values) if which else ())
        return self.ranked(self.fresh(found))

    def neighbour(self, given: Assignment, changes: int = 1) -> Assignment:
        """Some decisions made again; ordered ones move by a step or two more often than not."""
        relevant = [n for n in self.space.relevant(given) if len(self.space.named[n].values) > 1]
        out = dict(given)
        for name in self.rng.sample(relevant, min(changes, len(relevant))):
            d = self.space.named[name]
            out[name] = self._moved(d, out[name])
        return out

    def _moved(self, d: Decision, value: Plain) -> Plain:
        at = next(k for k, v in enumerate(d.values) if v == value and type(v) is type(value))
        if d.ordered and self.rng.random() < 0.7:
            near = [k for k in (at - 2, at - 1, at + 1, at + 2) if 0 <= k < len(d.values)]
            return d.values[self.rng.choice(near)]
        return self.rng.choice([v for k, v in enumerate(d.values) if k != at])


@dataclass
class State(Progress[Point]):
    """One group's search. The same seed and the same measurements give the same proposals."""

    group: Group
    target: Target
    space: Space
    model: Model
    rng: Random
    applied: Applied = field(default_factory=Applied)
    measured: list[Measured[Point]] = field(default_factory=list)
    seen: set[Hashable] = field(default_factory=set)

    def draw(self, prefer: Callable[[Decision], Sequence[Plain]] | None = None) -> Point | None:
        """A legal point at random that is not too long to compile."""
        self._forget()
        found = self.space.draw(self.group, self.rng, prefer, self.applied)
        return found if found is not None and fits(found.nest) else None

    def point(self, given: Assignment) -> Point | None:
        """The point of an assignment, if it is legal and not too long to compile."""
        self._forget()
        found = self.space.legal(self.group, given, self.applied)
        return found if found is not None and fits(found.nest) else None

    def scores(self, points: Sequence[Point]) -> Sequence[float]:
        return self.model.scores(self.group, points, self.target)

    def _forget(self) -> None:
        if self.applied.count > MOST_APPLIED:
            self.applied = Applied()


class Search(Protocol):
    """A way to search: says which points to measure next. An empty answer ends the search."""

    @property
    def name(self) -> str: ...

    def propose(self, state: Progress[P], count: int) -> list[P]: ...


def fits(nest: Nest) -> bool:
    """Is what a nest writes out short enough to be compiled?"""
    total = 0.0
    for s, path in walk(nest.body):
        if isinstance(s, Store):
            n = 1.0
            for q in path:
                if q.kind in WRITTEN_OUT and q.kind != "tensor" and isinstance(q, Loop):
                    e = q.extent if isinstance(q.extent, int) else 1
                    n *= max(1.0, e / 4 if q.kind == "lane" else e)
            total += n
    return total <= MOST_WRITTEN
