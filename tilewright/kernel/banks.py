"""How often threads wait for each other at the banks of shared memory.

There are 32 banks of 4 bytes. Threads of a warp that touch different words of one bank are served
in turns; those that touch one word are served together. Of accesses of 8 and 16 bytes, 16 and 8
threads come at a time. `conflicts` computes one warp of every access of a nest; the executor of
threads (kernel/simt.py) counts every access that it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.fragments import LANE, LANES
from tilewright.kernel.group import Buffer
from tilewright.kernel.intrinsic import ROW_BYTES, Match, warp_match
from tilewright.kernel.nest import (
    THREADS,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    mentions,
    store_loads,
    walk,
)
from tilewright.kernel.threads import block_size, launches

BANKS = 32
WORD = 4


@dataclass(frozen=True)
class Turns:
    """In how many turns some accesses are served, and in how many they could be."""

    taken: int = 0
    least: int = 0

    def __add__(self, other: Turns) -> Turns:
        return Turns(self.taken + other.taken, self.least + other.least)

    @property
    def conflicts(self) -> int:
        return self.taken - self.least


@dataclass(frozen=True)
class Conflict:
    """One access of a nest and the turns of a warp that does it."""

    stage: str
    access: str
    writes: bool
    turns: Turns

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        return (
            f"{self.stage} {verb} {self.access} in {self.turns.taken} turns of the memory banks, "
            f"{self.turns.least} would do"
        )


def request(first: np.ndarray, size: int, lanes: np.ndarray | None = None) -> Turns:
    """The turns of a warp whose threads touch so many bytes each, from these on. Which threads come
    at a time is fixed by their `lanes` (by default the first ones), also where some do nothing."""
    low = int(first.min(initial=0)) // (BANKS * WORD) * (BANKS * WORD)
    lanes = np.arange(len(first)) if lanes is None else lanes
    return _turns((first - low).astype(np.int64).tobytes(), lanes.astype(np.int64).tobytes(), size)


@lru_cache(1 << 12)
def _turns(places: bytes, threads: bytes, size: int) -> Turns:
    """The same of places from a first bank on: loops make the same requests again and again."""
    first, lanes = (np.frombuffer(x, np.int64) for x in (places, threads))
    together = LANES if size <= WORD else LANES * WORD // size
    at = lanes // together
    taken = least = 0
    for k in np.unique(at):
        part = first[at == k]
        words = np.unique((part[:, None] + np.arange(0, size, min(size, WORD))) // WORD)
        taken += int(np.bincount(words % BANKS).max(initial=0))
        least += -(-len(words) // BANKS)
    return Turns(taken, least)


def turns(b: Buffer, cells: np.ndarray, who: np.ndarray) -> Turns:
    """The turns of threads that touch cells of a buffer in one statement, each as many."""
    places = cells if b.swizzle is None else b.swizzle.place(cells)
    order = np.argsort(who, kind="stable")
    who, at = who[order], places[order] * b.dtype.bytes
    total = Turns()
    for warp in np.unique(who // LANES):
        own = who // LANES == warp
        threads, count = np.unique(who[own], return_counts=True)
        if (count != count[0]).any():  # a ragged end: as many as all have
            continue
        rows = at[own].reshape(len(threads), count[0])
        size = int(count[0]) * b.dtype.bytes
        adjacent = (np.diff(rows, axis=1) == b.dtype.bytes).all() and not (rows[:, 0] % size).any()
        if adjacent and size <= 16:
            total += request(rows[:, 0], size, threads % LANES)
        else:
            for column in rows.T:
                total += request(column, b.dtype.bytes, threads % LANES)
    return total


def given_rows(b: Buffer, cells: np.ndarray) -> Turns:
    """The turns of an instruction to which every thread of a warp gives the address of a row."""
    places = cells if b.swizzle is None else b.swizzle.place(cells)
    return request(places * b.dtype.bytes, ROW_BYTES)


def conflicts(n: Nest, of: str = "") -> list[Conflict]:
    """The accesses to shared memory (`of` one buffer) for which the first warp of a block takes
    more turns than it has to, in the first iteration of every loop."""
    out: list[Conflict] = []
    for launch in launches(n.body):
        size = block_size(launch)
        everyone = np.arange(min(LANES, size["thread.x"] * size["thread.y"] * size["thread.z"]))
        x, y = size["thread.x"], size["thread.y"]
        coords: dict[str, np.ndarray] = dict(
            zip(THREADS, (everyone % x, everyone // x % y, everyone // (x * y)))
        )
        done: set[int] = set()
        for s, path in walk(launch):
            if of and of not in mentions(s):
                continue
            if isinstance(s, Loop) and (found := warp_match(n, s)) is not None:
                done |= {id(t) for t, _ in walk((s,))}
                out += _of_instruction(n, found, s, path, coords)
            elif isinstance(s, Store) and id(s) not in done:
                out += _of_store(n, s, path, coords)
    out = [c for c in out if not of or c.access.startswith(f"{of}[")]
    return [c for c in out if c.turns.conflicts]


def _of_store(n: Nest, s: Store, path: Path, coords: dict[str, np.ndarray]) -> Iterator[Conflict]:
    used = [(str(x.source), x.index, False) for x in store_loads(s)]
    for name, index, writes in [*used, (s.buffer, s.index, True)]:
        b = n.buffer(name)
        if b.scope != "shared":
            continue
        who = np.arange(len(coords["thread.x"]))
        wide = next((q for q in path if q.kind == "lane"), None)
        count = D.bounds(wide.extent)[1] if wide is not None else 1
        env = {q.name: np.repeat(coords[q.kind], count) for q in path if q.kind in THREADS}
        if wide is not None:
            env[wide.name] = np.tile(np.arange(count), len(who))
        cells = _cells(b, index, env)
        if cells is not None:
            cells = np.broadcast_to(cells, (len(who) * count,))
            found = turns(b, cells, np.repeat(who, count))
            yield Conflict(s.stage, _text(name, index), writes, found)


def _of_instruction(
    n: Nest, found: Match, s: Stmt, path: Path, coords: dict[str, np.ndarray]
) -> Iterator[Conflict]:
    stage = next(x.stage for x, _ in walk((s,)) if isinstance(x, Store))
    for x in found.operands:
        b = n.buffer(x.buffer)
        if b.scope == "shared" and x.index:
            env = {q.name: coords[q.kind] for q in path if q.kind in THREADS}
            cells = _cells(b, x.index, {**env, LANE.name: np.arange(LANES)})
            if cells is not None:
                yield Conflict(stage, _text(x.buffer, x.index), False, given_rows(b, cells))


def _cells(b: Buffer, index: tuple[Dim, ...], env: dict[str, np.ndarray]) -> np.ndarray | None:
    """The places of an access, all other variables being 0; None where data decides them."""
    lin = linear_index(b, index)
    if any(True for _ in D.data_values(lin)):
        return None
    zeros = {s.name: 0 for s in D.symbols(lin) if s.name not in env}
    return np.asarray(D.evaluate(lin, {**zeros, **env}))


def _text(name: str, index: tuple[Dim, ...]) -> str:
    return f"{name}[{','.join(map(str, index))}]"
