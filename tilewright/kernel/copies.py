"""Asynchronous copies of one block of threads on their way, for the executor in kernel/simt.py.

A copy that a thread asks for belongs to the group of its next Commit. Its data is in flight until
the thread waits for that group: whoever touches the cell before, reading or writing, is wrong.
Afterwards the copy is an ordinary write of that thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NOBODY = -1


@dataclass
class Flight:
    """Per cell of a buffer: who asked for what, as part of which of its groups."""

    thread: np.ndarray
    group: np.ndarray
    value: np.ndarray
    what: str = ""  # how the last one was written


@dataclass(frozen=True)
class Copy:
    """Values for cells of a buffer, each with the thread that asked for it."""

    buffer: str
    cells: np.ndarray
    threads: np.ndarray
    values: np.ndarray
    what: str


class Copies:
    def __init__(self, threads: int) -> None:
        self.commits = np.zeros(threads, np.int64)
        self.flights: dict[str, Flight] = {}

    def ask(self, x: Copy, size: int) -> None:
        """Threads ask for values in cells of a buffer of this size."""
        f = self.flights.get(x.buffer)
        if f is None:
            free = np.full(size, NOBODY, np.int64)
            f = Flight(free, np.zeros(size, np.int64), np.zeros(size, x.values.dtype))
            self.flights[x.buffer] = f
        f.thread[x.cells] = x.threads
        f.group[x.cells] = self.commits[x.threads]
        f.value[x.cells] = x.values
        f.what = x.what

    def commit(self, who: np.ndarray) -> None:
        self.commits[np.unique(who)] += 1

    def wait(self, who: np.ndarray, pending: int) -> list[Copy]:
        """What arrives: all groups of these threads but their latest `pending` ones."""
        out: list[Copy] = []
        for name, f in self.flights.items():
            cells = np.flatnonzero((f.thread != NOBODY) & np.isin(f.thread, who))
            mine = f.thread[cells]
            there = f.group[cells] < self.commits[mine] - pending
            cells, mine = cells[there], mine[there]
            if cells.size:
                f.thread[cells] = NOBODY
                out.append(Copy(name, cells, mine, f.value[cells], f.what))
        return out

    def over(self, buffer: str, cells: np.ndarray) -> tuple[int, int, int] | None:
        """(which of the cells, the cell, who copies to it) for the first one in flight."""
        f = self.flights.get(buffer)
        if f is None:
            return None
        busy = np.flatnonzero(f.thread[cells] != NOBODY)
        if not busy.size:
            return None
        k = int(busy[0])
        return k, int(cells[k]), int(f.thread[cells[k]])
