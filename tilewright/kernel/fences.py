"""Statements of a nest that order the threads of a block, their copies and launches, and compute
nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Barrier:
    """The threads of a block wait here for one another."""


@dataclass(frozen=True)
class Commit:
    """The asynchronous stores of a thread since its last Commit are one group (maybe empty)."""


@dataclass(frozen=True)
class Wait:
    """A thread waits until its groups, or asynchronous instructions, but `pending` are done."""

    pending: int
    products: bool = False


@dataclass(frozen=True)
class Acquire:
    """A producer (kernel/roles.py) waits for the release of the iteration `versions` earlier."""

    versions: int


@dataclass(frozen=True)
class Release:
    """Threads have read what was copied for all iterations but the latest `pending`."""

    pending: int = 0


@dataclass(frozen=True)
class Await:
    """A task waits here for earlier launches. Inputs `fetched` come to the cache meanwhile."""

    fetched: tuple[str, ...] = ()
