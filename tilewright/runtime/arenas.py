"""Large arenas, which all programs of a process share: one of a call that is over serves the next
call, of whichever program. A training step then has one arena for both of its passes, and the
kernels of the second find its pages in place. Where results of training steps have a room of their
own (`room.py`), large arenas of these programs lie there instead.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import Any, NamedTuple

from tilewright.runtime.memory import LARGE_PAGE, aligned, require_room

SHARED = LARGE_PAGE  # bytes from which an arena is shared; small ones stay with their program


class Arena(NamedTuple):
    memory: Any
    address: int
    size: int


class Arenas:
    """Arenas that no call is using. What no living program could need is given back."""

    def __init__(self) -> None:
        self._free: list[Arena] = []
        self._needs: list[int] = []  # largest arenas of living programs
        self._gone: list[int] = []  # the same of programs that have died since
        self._lock = Lock()

    def join(self, program: Any, size: int) -> None:
        """A program may ask for so many bytes as long as it lives."""
        with self._lock:
            self._needs.append(size)
        weakref.finalize(program, self._leave, size)

    def _leave(self, size: int) -> None:
        """The collector may call this at any time, even while this thread holds the lock: whoever
        holds it then does the work."""
        self._gone.append(size)
        if self._lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._lock.release()

    def _give_back(self) -> None:
        while self._gone:
            self._needs.remove(self._gone.pop())
        most = max(self._needs, default=0)
        self._free = [a for a in self._free if a.size <= most]

    def take(self, size: int) -> Arena:
        """The smallest that is large enough; a new one replaces the largest that is not."""
        with self._lock:
            self._give_back()
            fitting = [a for a in self._free if a.size >= size]
            if fitting:
                found = min(fitting, key=lambda a: a.size)
                self._free = [a for a in self._free if a is not found]
                return found
            largest = max(self._free, key=lambda a: a.size, default=None)
            self._free = [a for a in self._free if a is not largest]
        del largest  # before more is asked for
        require_room(size, "the arena of a call")
        return Arena(*aligned(size), size)

    def put(self, arena: Arena) -> None:
        with self._lock:
            self._free.append(arena)
            self._give_back()

    def trim(self) -> None:
        with self._lock:
            self._free = []

    @property
    def held(self) -> int:
        return sum(a.size for a in self._free)


ARENAS = Arenas()
