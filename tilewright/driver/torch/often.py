"""Sizes that are called often: a program of their own, compiled while the one of all sizes serves.

A call looks its sizes up in a dictionary. Where there is nothing, they are counted, and the program
of all sizes runs; when they were counted often enough, another process is asked to compile the
graph for them (`driver/program/meanwhile.py`). What comes back is put into the dictionary: the next
call finds it. Nobody waits for any of this, and the end of the process does not either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Generic, Protocol, TypeVar

from tilewright.base.events import Log
from tilewright.driver.torch.protocol import Program
from tilewright.ir.node import Graph

T = TypeVar("T")
C = TypeVar("C", contravariant=True)
Key = tuple[int, ...]

# Sizes that are counted at the same time. Beyond, counting begins again: what is called often is
# soon counted anew.
MOST_COUNTED = 4096


@dataclass(frozen=True)
class Limits:
    """After so many calls with the same sizes these get a program; so many programs at a time."""

    after: int
    most: int


@dataclass(frozen=True)
class Meanwhile:
    """How a program is compiled while calls go on: `request` takes what makes a graph, and a
    function that is called, on another thread, with the program and what is to be said of it, or
    with None and the reason why there is none."""

    limits: Limits
    request: Callable[[Callable[[], Graph], Callable[[Program | None, str], None]], None]


class Ready(Protocol[C]):
    """Is given how calls are done and by which program; or None and the reason."""

    def __call__(self, run: C | None, program: Program | None, said: str) -> None: ...


class _Way(Generic[T]):
    """How calls of some sizes are done, and how many were since somebody asked."""

    __slots__ = ("calls", "program", "run")

    def __init__(self, run: T, program: Program) -> None:
        self.run, self.program, self.calls = run, program, 0


class Often(Generic[T]):
    """Counts calls by their sizes, and has programs for those that are called often.

    There are at most `limits.most` at a time. When all places are taken, sizes that were called
    twice as often as one of them since the last time take its place; each such exchange doubles how
    often that must be, so that sizes that are all called alike do not push each other out.
    """

    def __init__(
        self,
        name: str,
        symbols: Sequence[str],
        limits: Limits,
        ask: Callable[[Key, Ready[T]], None],
        log: Log,
    ) -> None:
        self._name, self._symbols, self._limits = name, symbols, limits
        self._ask, self._log = ask, log
        self.table: dict[Key, _Way[T]] = {}  # replaced and read without a lock
        self._counts: dict[Key, int] = {}
        self._asked: set[Key] = set()  # requested, and not refused
        self._needed = limits.after
        self._lock = Lock()

    def way(self, key: Key) -> T | None:
        """How a call of these sizes is done, where they have a program; the others are counted."""
        found = self.table.get(key)
        if found is not None:
            found.calls += 1
            return found.run
        count = self._counts.get(key, 0) + 1
        self._counts[key] = count
        if count >= self._needed:
            self._request(key)
        elif len(self._counts) > MOST_COUNTED:
            self._counts = {}
        return None

    def programs(self) -> list[Program]:
        return [w.program for w in self.table.values()]

    def _request(self, key: Key) -> None:
        with self._lock:
            count, self._counts[key] = self._counts.get(key, 0), 0
            if key in self._asked or count < self._needed:
                return
            if len(self._asked) >= self._limits.most and not self._make_room(count):
                return
            self._asked.add(key)
        self._log.add(
            "specialise",
            f"{self._name} is compiled for {self._said(key)} meanwhile: {count} calls had them",
            values=dict(zip(self._symbols, key, strict=True)),
        )
        self._ask(key, partial(self._take, key))

    def _make_room(self, count: int) -> bool:
        """Drop the program that was called least, where that is half as often as others are."""
        if not self.table:
            return False  # all are being compiled
        key, least = min(self.table.items(), key=lambda item: item[1].calls)
        for w in self.table.values():
            w.calls = 0
        if 2 * least.calls > count:
            return False
        self.table = {k: w for k, w in self.table.items() if k != key}
        self._asked.discard(key)
        self._needed *= 2
        what = f"the program of {self._name} for {self._said(key)} is dropped"
        self._log.add("specialise", f"{what}: other sizes are called more often")
        return True

    def _take(self, key: Key, run: T | None, program: Program | None, said: str) -> None:
        values = dict(zip(self._symbols, key, strict=True))
        if run is None or program is None:
            what = f"{self._name} has no program for {self._said(key)} alone: {said}"
            self._log.add("specialise", what, values=values)
            return
        with self._lock:
            self.table = {**self.table, key: _Way(run, program)}
            self._counts.pop(key, None)
        self._log.add(
            "specialised",
            f"{self._name} for {self._said(key)} has a program of its own from now on: {said}",
            values=values,
        )

    def _said(self, key: Key) -> str:
        return ", ".join(f"{s} = {n}" for s, n in zip(self._symbols, key, strict=True))


def weights_apart(program: Program) -> str:
    """How much memory of packed weights it has that no other program shares, in words."""
    derived = program.derived
    pieces = [] if derived is None else derived.pieces
    own = sum(p.size for p in pieces if len(p.users) < 2)
    if not own:
        return "all packed weights are shared"
    return f"{own / 1e6:.1f} MB of packed weights are its own"
