"""Programs that wait for each other, step by step: they take turns.

Programs run one after the other until one of them waits: it reads memory again and again and
sees the same. Then its thread is suspended, and another thread goes on with the next program, or
with one that has waited before. Only one thread runs at a time, and they take turns in a fixed
order, so that results are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import copy_context
from threading import Condition, Thread
from typing import Any, Protocol

from tilewright.base.errors import Invalid

MOST = 1024  # programs that may wait at the same time


class Stepping(Protocol):
    """What runs: it can save and restore the state of the current program."""

    changes: int  # of memory, so far
    turns: Turns | None

    def programs(self) -> Iterator[Any]: ...
    def put_aside(self) -> dict[str, Any]: ...
    def take_up(self, state: dict[str, Any]) -> None: ...


class _Abandoned(BaseException):
    """Ends the threads of programs that wait when the launch has failed."""


class Turns:
    def __init__(self, builder: Stepping, run: Callable[[], Any]) -> None:
        self.builder, self.run = builder, run
        self._programs = builder.programs()
        self._left = True  # may there be a program that has not started?
        self._ring: list[object] = []  # threads that have not ended
        self._turn: object | None = None
        self._condition = Condition()
        self._error: BaseException | None = None
        self._seen = -1
        self._quiet = 0  # reads of all programs since memory changed

    def go(self) -> None:
        """Runs all programs; the error of the first that fails is raised."""
        me = object()
        self._ring.append(me)
        self._turn = me
        self.builder.turns = self
        try:
            self._drain(me)
            with self._condition:
                self._condition.wait_for(lambda: not self._ring)
        except BaseException as error:
            self._fail(error)
            with self._condition:
                self._condition.wait_for(lambda: all(x is me for x in self._ring))
        finally:
            self.builder.turns = None
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Called by a program that waits: the others have their turn."""
        me = self._turn
        assert me is not None
        if self.builder.changes != self._seen:
            self._seen, self._quiet = self.builder.changes, 0
        self._quiet += 1
        if not self._left and self._quiet > 2 * len(self._ring):
            raise Invalid("a value that no one writes: all programs have ended or wait")
        state = self.builder.put_aside()
        with self._condition:
            if self._left and len(self._ring) < MOST:
                self._start()
            else:
                self._turn = self._after(me)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._turn is me or self._error is not None)
        if self._error is not None:
            raise _Abandoned
        self.builder.take_up(state)

    def _drain(self, me: object) -> None:
        for _ in self._programs:
            self.run()
        with self._condition:
            self._left = False
            self._turn = self._after(me)
            self._ring.remove(me)
            self._condition.notify_all()

    def _after(self, me: object) -> object:
        return self._ring[(self._ring.index(me) + 1) % len(self._ring)]

    def _start(self) -> None:
        """One more thread, whose turn it is."""
        it = object()
        self._ring.append(it)
        self._turn = it
        context = copy_context()
        Thread(target=lambda: context.run(self._other, it), daemon=True).start()

    def _other(self, me: object) -> None:
        try:
            self._drain(me)
        except BaseException as error:
            self._fail(error)
            with self._condition:
                self._ring.remove(me)
                self._condition.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._condition:
            if self._error is None:
                self._error = error
            self._condition.notify_all()
