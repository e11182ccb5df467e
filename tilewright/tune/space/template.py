"""The space of a template: a function that asks for choices as it makes a schedule.

It is run again for each assignment, so it may branch, loop and compute with what it gets, and every
step is checked as it is made. Nothing is derived from its text: which choices there are is found by
running it with each value of each choice once. The values of one may depend on another
(`factors("inner", outer)`): its decision has all of them, and a run that finds the value
of an assignment not among its own refuses that point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tilewright.base.errors import Invalid, Refused, TilewrightError
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.nest import Nest, Work
from tilewright.kernel.step import Trace
from tilewright.tune.choosing import BadTemplate, Choosing, choosing
from tilewright.tune.space.decision import Assignment, Decision, Plain
from tilewright.tune.space.space import MOST_TRIES, Point, Space

Make = Callable[[], tuple[Trace, Nest]]
# Runs in which choices are looked for: a template takes some milliseconds.
MOST_RUNS = 512
# Assignments whose points are remembered: a search comes back to them.
MOST_KNOWN = 1000


@dataclass(frozen=True)
class _Known:
    """A run: the choices that it asked for, and what it made or why it did not."""

    asked: frozenset[str]
    made: tuple[Trace, Nest] | TilewrightError


@dataclass(frozen=True)
class Template(Space):
    """Decisions, and a function in the place of steps: `make` asks for choices and gives the steps
    of a schedule and the nest that they lead to."""

    name: str
    make: Make
    _known: dict[tuple[Plain, ...], _Known] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, make: Make) -> Template:
        """Finds the choices of a function, and a legal point to begin with."""
        found = _Found(name, make)
        found.explore()
        decisions = found.decided()
        return cls(decisions, (), name, make)

    def relevant(self, given: Assignment) -> Assignment:
        given = self.complete(given)
        asked = self._made(given).asked
        return {name: value for name, value in given.items() if name in asked}

    def replay(self, work: Work, given: Assignment, applied: Applied | None = None) -> Point:
        given = self.complete(given)
        found = self._made(given).made
        if isinstance(found, TilewrightError):
            raise found.with_traceback(None)
        return Point(given, *found)

    def draw(
        self,
        work: Work,
        rng: Random,
        prefer: Callable[[Decision], Sequence[Plain]] | None = None,
        applied: Applied | None = None,
    ) -> Point | None:
        return self.drawn(rng, prefer)

    def drawn(
        self, rng: Random, prefer: Callable[[Decision], Sequence[Plain]] | None = None
    ) -> Point | None:
        """Decided choice by choice, as the function asks; again where a step is refused."""

        def decide(d: Decision) -> Plain:
            known = self.named.get(d.name)
            left = [v for v in d.values if known is not None and _among(v, known.values)]
            if not left:
                return d.default
            if prefer is None:
                return rng.choice(left)
            return prefer(replace(d, values=tuple(left), default=left[0]))[0]

        for _ in range(MOST_TRIES):
            run = Choosing(decide)
            try:
                trace, nest = _run(self.name, self.make, run)
            except (Refused, Invalid):
                continue
            given = self.complete({n: v for n, v in run.given.items() if n in self.named})
            self._remember(given, _Known(frozenset(run.asked), (trace, nest)))
            return Point(given, trace, nest)
        return None

    def _made(self, given: Assignment) -> _Known:
        """What the function makes of an assignment of all decisions."""
        found = self._known.get(tuple(given.values()))
        if found is None:
            run = Choosing(lambda d: _value(d, given))
            try:
                made = _run(self.name, self.make, run)
            except (Refused, Invalid) as problem:
                made = problem
            found = self._remember(given, _Known(frozenset(run.asked), made))
        return found

    def _remember(self, given: Assignment, known: _Known) -> _Known:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[tuple(given.values())] = known
        return known

    def __str__(self) -> str:
        return f"{super().__str__()}# steps: those that {self.name} makes\n"


def _run(name: str, make: Make, run: Choosing) -> tuple[Trace, Nest]:
    """One run. What a user's own code raises for some values makes these illegal."""
    try:
        with choosing(run):
            return make()
    except (Refused, Invalid):
        raise
    except Exception as problem:
        raise Refused(f"{name} raises {type(problem).__name__}: {problem}") from problem


def _value(d: Decision, given: Assignment) -> Plain:
    value = given.get(d.name, d.default)
    if not _among(value, d.values):
        raise Refused(f"{d.name} is {value!r}, which it cannot be where the others are as they are")
    return value


def _among(value: Plain, values: Sequence[Plain]) -> bool:
    return any(type(v) is type(value) and v == value for v in values)


@dataclass
class _Found:
    """The choices of a function, as runs come across them."""

    name: str
    make: Make
    known: dict[str, Decision] = field(default_factory=dict)
    legal: Assignment | None = None
    why: TilewrightError | None = None  # the first that was refused

    def explore(self) -> None:
        """Runs with each value of each choice, where the choice was met first."""
        todo: deque[Assignment] = deque([{}])
        runs = 0
        while todo and runs < MOST_RUNS:
            runs += 1
            run = self._try(todo.popleft())
            for name, d in run.asked.items():
                before = self.known.get(name)
                new = [v for v in d.values if before is None or not _among(v, before.values)]
                value = run.given.get(name, d.default)
                todo += [{**run.given, name: v} for v in new if not _among(v, (value,))]
                self.known[name] = d if before is None else _joined(before, d)

    def _try(self, given: Assignment) -> Choosing:
        run = Choosing(lambda d: _value(d, given))
        try:
            _run(self.name, self.make, run)
        except (Refused, Invalid) as problem:
            if isinstance(problem, BadTemplate) or (isinstance(problem, Invalid) and not given):
                raise
            if problem.__cause__ is not None and not given:
                raise problem.__cause__ from None
            self.why = self.why or problem
        else:
            self.legal = self.legal if self.legal is not None else dict(run.given)
        return run

    def decided(self) -> tuple[Decision, ...]:
        """The decisions; their defaults are a legal point."""
        if not self.known:
            raise Invalid(
                f"{self.name} asks for no choice: there is nothing to tune",
                hint='write tune.factors("rows", 64), tune.choice or tune.flag in its calls',
            )
        found = tuple(self.known.values())
        legal = self.legal
        if legal is None:
            drawn = Template(found, (), self.name, self.make).drawn(Random(0))
            legal = None if drawn is None else drawn.given
        if legal is None:
            said = f"; the first is refused because: {self.why.what}" if self.why else ""
            raise Invalid(
                f"{self.name} has no legal point among {len(found)} choices{said}",
                hint="other values, or `try` around a step that may be refused",
            )
        return tuple(replace(d, default=legal.get(d.name, d.default)) for d in found)


def _joined(a: Decision, b: Decision) -> Decision:
    """The values of both."""
    more = [v for v in b.values if not _among(v, a.values)]
    values = [*a.values, *more]
    ordered = a.ordered and b.ordered
    if ordered and more:
        values.sort()  # type: ignore[type-var]
    return replace(a, values=tuple(values), ordered=ordered)
