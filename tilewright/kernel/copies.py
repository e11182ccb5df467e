"""What goes on while the threads of a block do other things, for the executor in kernel/simt.py.

A copy that a thread issues belongs to the group of its next Commit. Its data is in flight until
the thread waits for that group: any access to the cell before that, reading or writing, is an
error. Afterwards the copy is an ordinary write of that thread.

An asynchronous instruction reads until its threads wait for it: writing what it reads is an
error, and so is touching its results, except by other such instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NOBODY = -1


def present(who: np.ndarray, count: int) -> np.ndarray:
    """Which of so many threads are among these; without sorting, as sets of numpy would."""
    out = np.zeros(count, np.bool_)
    out[who] = True
    return out


@dataclass
class Flight:
    """Per cell of a buffer: the thread that issued a copy, its value, and its group."""

    thread: np.ndarray
    group: np.ndarray
    value: np.ndarray
    what: str = ""  # how the last one was written


@dataclass(frozen=True)
class Copy:
    """Values for cells of a buffer, each with the thread that issued the copy."""

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
        """Threads issue copies to cells of a buffer of this size."""
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
        self.commits += present(who, len(self.commits))

    def wait(self, who: np.ndarray, pending: int) -> list[Copy]:
        """What arrives: all groups of these threads but their latest `pending` ones."""
        out: list[Copy] = []
        waits = present(who, len(self.commits))
        for name, f in self.flights.items():
            cells = np.flatnonzero(f.thread != NOBODY)
            mine = f.thread[cells]
            there = waits[mine] & (f.group[cells] < self.commits[mine] - pending)
            cells, mine = cells[there], mine[there]
            if cells.size:
                f.thread[cells] = NOBODY
                out.append(Copy(name, cells, mine, f.value[cells], f.what))
        return out

    def over(self, buffer: str, cells: np.ndarray) -> tuple[int, int, int] | None:
        """(which of the cells, the cell, the thread that copies to it) for the first one in
        flight."""
        f = self.flights.get(buffer)
        if f is None:
            return None
        busy = np.flatnonzero(f.thread[cells] != NOBODY)
        if not busy.size:
            return None
        k = int(busy[0])
        return k, int(cells[k]), int(f.thread[cells[k]])


@dataclass(frozen=True)
class Read:
    """Cells that an asynchronous instruction reads, the thread that does so for each, and which of
    its instructions it is."""

    buffer: str
    cells: np.ndarray
    threads: np.ndarray
    number: np.ndarray
    what: str


class Products:
    """The asynchronous instructions of a block that no thread has waited for."""

    def __init__(self, threads: int) -> None:
        self.begun = np.zeros(threads, np.int64)
        self.reads: list[Read] = []
        self.results: dict[str, np.ndarray] = {}  # per thread and cell: which wrote it last, or 0

    def begin(self, who: np.ndarray) -> None:
        self.begun += present(who, len(self.begun))

    def read(self, buffer: str, cells: np.ndarray, threads: np.ndarray, what: str) -> None:
        both = np.unique(cells * len(self.begun) + threads)  # once each
        cells, threads = both // len(self.begun), both % len(self.begun)
        self.reads.append(Read(buffer, cells, threads, self.begun[threads], what))

    def result(
        self, buffer: str, shape: tuple[int, int], who: np.ndarray, cells: np.ndarray
    ) -> None:
        held = self.results.setdefault(buffer, np.zeros(shape, np.int64))
        held[who, cells] = self.begun[who]

    def wait(self, who: np.ndarray, pending: int) -> list[Read]:
        """The reads that are over: of all instructions of these threads but the latest."""
        waits = present(who, len(self.begun))
        done: list[Read] = []
        left: list[Read] = []
        for r in self.reads:
            over = waits[r.threads] & (r.number <= self.begun[r.threads] - pending)
            for which, out in ((over, done), (~over, left)):
                if which.any():
                    cells, threads, number = r.cells[which], r.threads[which], r.number[which]
                    out.append(Read(r.buffer, cells, threads, number, r.what))
        self.reads = left
        for held in self.results.values():
            mine = held[who]
            mine[mine <= self.begun[who][:, None] - pending] = 0
            held[who] = mine
        return done

    def reading(self, buffer: str, cells: np.ndarray) -> tuple[int, Read] | None:
        """(which of the cells, who reads it) for the first one that is still read."""
        for r in (r for r in self.reads if r.buffer == buffer):
            busy = np.flatnonzero(np.isin(cells, r.cells))
            if busy.size:
                return int(busy[0]), r
        return None

    def unfinished(self, buffer: str, who: np.ndarray, cells: np.ndarray) -> int | None:
        """Which of these threads' own cells is a result that is not there yet: the first one."""
        held = self.results.get(buffer)
        bad = np.flatnonzero(held[who, cells]) if held is not None else np.zeros(0, np.int64)
        return int(bad[0]) if bad.size else None
