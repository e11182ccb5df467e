"""Choices of a user's own: `factors`, `choice` and `flag`.

With a name they are choices of a template, a function that is run again for each assignment, and
give a plain value: what is being tried, or the default where nothing is tuned. Without a name they
give the values themselves (`Values`), for a space whose keys are the names.

    s[C].split(i, tune.factors("rows", 64))           # 8, unless `te.tune` tries another
    tw.autotune(space={"BLOCK": tune.factors(256)})   # 1, 2, 4, … 256
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from tilewright.base.errors import Invalid, require
from tilewright.tune.space.decision import Decision, Plain
from tilewright.tune.space.decision import factors as divisors

T = TypeVar("T", bound=Plain)


@dataclass(frozen=True)
class Values:
    """What something may be, without a name; see `Decision`."""

    values: tuple[Plain, ...]
    default: Plain
    ordered: bool = False

    def named(self, name: str) -> Decision:
        return Decision(name, self.values, self.default, self.ordered)


class BadTemplate(Invalid):
    """A mistake of a template that no other values mend."""


@dataclass
class Choosing:
    """One run of a template: `decide` gives the value of each choice that it comes to."""

    decide: Callable[[Decision], Plain]
    asked: dict[str, Decision] = field(default_factory=dict)
    given: dict[str, Plain] = field(default_factory=dict)

    def choose(self, d: Decision) -> Plain:
        known = self.asked.get(d.name)
        if known is None:
            self.asked[d.name] = d
            self.given[d.name] = self.decide(d)
        elif known.values != d.values:
            raise BadTemplate(
                f"there are two choices called {d.name}: one of {_listed(known.values)}, and one "
                f"of {_listed(d.values)}",
                hint="give one of them another name",
            )
        return self.given[d.name]


_current: ContextVar[Choosing | None] = ContextVar("choosing", default=None)


@contextmanager
def choosing(by: Choosing) -> Iterator[Choosing]:
    """What is asked for inside is decided so."""
    before = _current.set(by)
    try:
        yield by
    finally:
        _current.reset(before)


@contextmanager
def given(assignment: Mapping[str, Plain]) -> Iterator[None]:
    """Choices inside have these values, and their defaults where nothing is said about them."""

    def decide(d: Decision) -> Plain:
        if d.name in assignment:
            d.check(assignment[d.name])
        return assignment.get(d.name, d.default)

    with choosing(Choosing(decide)) as made:
        yield
    unknown = [name for name in assignment if name not in made.asked]
    if unknown:
        known = ", ".join(made.asked) or "none"
        raise Invalid(f"nothing asked for {', '.join(unknown)}", hint=f"the choices are {known}")


@overload
def factors(
    name: str, extent: object, /, *, least: int = 1, most: int | None = None, default: int = 0
) -> int: ...
@overload
def factors(
    extent: object, /, *, least: int = 1, most: int | None = None, default: int = 0
) -> Values: ...
def factors(*named: Any, least: int = 1, most: int | None = None, default: int = 0) -> int | Values:
    """One of the divisors of a number, or of an axis' extent, from `least` to `most`; by default
    the one in the middle."""
    name, extent = _named(named)
    extent = getattr(extent, "extent", extent)
    what = f"factors of {extent}" if name is None else f"{name}: factors of {extent}"
    if not isinstance(extent, int) or isinstance(extent, bool):
        raise Invalid(
            f"{what}, which is no number that is known now",
            hint="say which sizes to try: tune.choice(name, [8, 16, 32])",
        )
    require(extent > 0, f"{what}, which has none", hint="give a number of 1 or more")
    found = tuple(d for d in divisors(extent, most) if d >= least)
    require(found, f"{what} from {least} to {most or extent}: there are none")
    usual = default or found[len(found) // 2]
    return _made(name, Values(found, usual, ordered=True))  # type: ignore[return-value]


@overload
def choice(name: str, values: Sequence[T], /, *, default: T | None = None) -> T: ...
@overload
def choice(values: Sequence[Plain], /, *, default: Plain | None = None) -> Values: ...
def choice(*named: Any, default: Any = None) -> Any:
    """One of several numbers, strings, answers or tuples of these; by default the first. Numbers in
    ascending order are sizes, of which neighbours are alike."""
    name, values = _named(named)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise Invalid(f"a choice of {values!r}, which is no list", hint="write [8, 16, 32]")
    found = tuple(map(_plain, values))
    require(found, f"{name or 'a choice'} has no values", hint="give at least one")
    numbers = [v for v in found if type(v) is int]
    ordered = len(numbers) == len(found) and sorted(numbers) == numbers
    return _made(name, Values(found, found[0] if default is None else default, ordered))


@overload
def flag(name: str, /, *, default: bool = False) -> bool: ...
@overload
def flag(*, default: bool = False) -> Values: ...
def flag(name: str | None = None, /, *, default: bool = False) -> bool | Values:
    """Yes or no."""
    return _made(name, Values((False, True), default))  # type: ignore[return-value]


def _made(name: str | None, values: Values) -> Plain | Values:
    """What was asked for: the value of a choice, or what it may be."""
    if name is None:
        values.named("values")  # or a sentence about them
        return values
    d, by = values.named(name), _current.get()
    return d.default if by is None else by.choose(d)


def _named(given: Sequence[Any]) -> tuple[str | None, Any]:
    """A name, if there is one, and what follows it."""
    if len(given) == 2 and isinstance(given[0], str):
        return given[0], given[1]
    if len(given) == 1:
        return None, given[0]
    shown = ", ".join(map(repr, given))
    raise Invalid(f"a choice of ({shown})", hint='such as tune.choice("rows", [4, 8])')


def _plain(x: Any) -> Plain:
    if isinstance(x, (list, tuple)):
        return tuple(map(_plain, x))
    if isinstance(x, (bool, int, str)):
        return x
    raise Invalid(
        f"{x!r} cannot be a value of a choice", hint="numbers, strings, answers, tuples of these"
    )


def _listed(values: Sequence[Plain]) -> str:
    return ", ".join(map(repr, values))
