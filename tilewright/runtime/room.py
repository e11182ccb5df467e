"""Memory for large results that live beyond a call: what a forward pass keeps for its gradient, and
the gradients.

The system clears each page that a process touches for the first time, which takes several times as
long as to write it. Libraries of C give large pieces of memory back to the system as soon as they
are freed, so a training step would wait for its pages anew. Here pages stay as long as a program
lives that asks for such memory. All pieces lie in one range of addresses that is reserved at once:
neighbours that are free become one piece again, and large pages serve many.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from bisect import bisect_left
from collections import deque
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from tilewright.base import knobs
from tilewright.base.machine import system_memory
from tilewright.runtime.memory import LARGE_PAGE

LEAST = 128 << 10  # bytes of a piece: smaller ones are quickly found elsewhere
ALIGN = 4096
# Linux counts memory that is reserved only as if it were used, unless it is told not to.
_NO_RESERVE = 0x4000


class Free:
    """Free pieces of a range: the first that is large enough is taken, so that most of what is in
    use is near the beginning."""

    def __init__(self, size: int) -> None:
        self.starts, self.sizes = [0], [size]
        self.touched = 0  # everything behind was never used, or was given back

    def take(self, size: int) -> int | None:
        for k, room in enumerate(self.sizes):
            if room >= size:
                start = self.starts[k]
                if room == size:
                    del self.starts[k], self.sizes[k]
                else:
                    self.starts[k] += size
                    self.sizes[k] -= size
                self.touched = max(self.touched, start + size)
                return start
        return None

    def put(self, start: int, size: int) -> None:
        """A piece becomes one with free neighbours."""
        k = bisect_left(self.starts, start)
        if k < len(self.starts) and start + size == self.starts[k]:
            size += self.sizes[k]
            del self.starts[k], self.sizes[k]
        if k > 0 and self.starts[k - 1] + self.sizes[k - 1] == start:
            self.sizes[k - 1] += size
        else:
            self.starts.insert(k, start)
            self.sizes.insert(k, size)

    def used(self) -> list[tuple[int, int]]:
        """Free pieces that may have been touched."""
        pairs = zip(self.starts, self.sizes, strict=True)
        found = [(a, min(n, self.touched - a)) for a, n in pairs if a < self.touched]
        if found and sum(found[-1]) == self.touched:
            self.touched = found[-1][0]
        return found


class Piece(np.ndarray):
    """Bytes of a room, which are free again when nobody refers to them."""

    room: Any = None
    start: int = 0

    def __del__(self) -> None:
        if self.room is not None:  # None of a view, which refers to the piece
            self.room.drop(self.start, self.nbytes)


class Room:
    """Pieces of memory. Threads may ask for them, and drop them, at any time."""

    # Of the class: when modules are torn down, names in them are gone.
    _ending = staticmethod(sys.is_finalizing)

    def __init__(self, size: int) -> None:
        self._lock = Lock()
        # What was dropped. The collector may say so while this thread holds the lock.
        self._dropped: deque[tuple[int, int]] = deque()
        self._joined, self._gone = 0, deque[None]()  # programs that came, and those that went
        self._free = Free(size // LARGE_PAGE * LARGE_PAGE)
        self._memory = _reserved(self._free.sizes[0])
        raw = np.frombuffer(self._memory, np.uint8)
        self._shift = -raw.ctypes.data % LARGE_PAGE
        self._bytes = raw[self._shift :]

    def piece(self, size: int) -> Piece | None:
        """None where there is no room for it."""
        size = -(-size // ALIGN) * ALIGN
        with self._lock:
            self._collect()
            start = self._free.take(size)
        if start is None:
            return None
        made = self._bytes[start : start + size].view(Piece)
        made.start, made.room = start, self
        return made

    def _collect(self) -> None:
        while self._dropped:
            self._free.put(*self._dropped.popleft())

    def drop(self, start: int, size: int) -> None:
        """Nobody refers to a piece any more."""
        self._dropped.append((start, size))
        self._tidy()

    def join(self, program: Any) -> None:
        """A program may ask for memory as long as it lives."""
        with self._lock:
            self._joined += 1
        weakref.finalize(program, self._leave)

    def _leave(self) -> None:
        self._gone.append(None)
        self._tidy()

    def _tidy(self) -> None:
        """Where no program is left, free memory is given back. This thread may hold the lock
        already: then the next one to drop something does it. Of a process that ends nothing is."""
        if len(self._gone) < self._joined or self._ending():
            return
        if self._lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._lock.release()

    def trim(self) -> None:
        """Gives free memory back to the system."""
        with self._lock:
            self._give_back()

    def _give_back(self) -> None:
        self._collect()
        for start, size in self._free.used():
            with suppress(OSError):
                self._memory.madvise(mmap.MADV_DONTNEED, self._shift + start, size)


def _reserved(size: int) -> mmap.mmap:
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=kind)
    with suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


@cache
def _shared() -> Room | None:
    size = system_memory()
    if size is None or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    with suppress(OSError, ValueError):  # a limit of addresses, or none to spare
        return Room(size)
    return None


def room() -> Room | None:
    """The one of this process; None where there is none, or none is wanted."""
    return _shared() if knobs.keep_pages.get() else None


def trim() -> None:
    """Gives free memory back to the system, if there is any."""
    if _shared.cache_info().currsize and (found := _shared()) is not None:
        found.trim()
