"""Runs a task graph on numpy, its blocks interleaved in random order, and reports what goes wrong.

Waits really wait: where no block can go on, the error says who waits for what. Each block knows
what of the others it has seen: when a phase has signalled, whoever waits for its counter has seen
all that this block did and saw before. Two tasks that touch one byte, one of them writing it, are
an error unless the later one's block has seen the other. So the result does not depend on luck.
Inside a task threads are watched as in kernel/simt.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.types import from_memory, to_memory
from tilewright.kernel.early import parts
from tilewright.kernel.group import Buffer
from tilewright.kernel.interpret import Env, RunError
from tilewright.kernel.nest import THREADS, Alloc, Loop, Nest, Stmt, mentions, substitute_all, walk
from tilewright.kernel.races import Watch
from tilewright.kernel.simt import _Block, _Grid
from tilewright.kernel.tasks import TaskGraph
from tilewright.kernel.threads import combined, grid_of, launches


@dataclass(frozen=True)
class Body:
    """What the tasks of a phase do: launch number `launch` of a nest, with sizes and with places of
    buffers: by name, a space and an offset in bytes."""

    nest: Nest
    launch: int
    sizes: Mapping[str, int]
    places: Mapping[str, tuple[str, int]]


def run(
    graph: TaskGraph,
    bodies: Sequence[Body],
    memory: Mapping[str, np.ndarray],
    seed: int = 0,
    calls: int = 1,
) -> None:
    """Changes the memory: bytes of every space. A RunError says what went wrong and where."""
    if len(bodies) != len(graph.phases):
        raise Invalid(f"there are {len(graph.phases)} phases, and the code of {len(bodies)}")
    random = np.random.default_rng(seed)
    known: dict[int, _Code] = {}
    codes = [known.setdefault(id(b), _Code(b, seed)) for b in bodies]
    counters: dict[int, int] = {}
    for _ in range(calls):
        _Call(graph, codes, memory, random, counters).run()


class _Code:
    """A phase's launch with numbers for its sizes."""

    def __init__(self, body: Body, seed: int) -> None:
        self.body = body
        self.grid = _Grid(body.nest, dict(body.sizes), seed)
        table: dict[D.Sym, Dim] = {s: body.sizes[s.name] for s in self.grid.nest.dims}
        fixed = substitute_all(self.grid.nest.body, table)
        self.grid.over = {id(c.store): [q.kind for q in c.over] for c in combined(fixed)}
        found = [x for x in launches(fixed) if any(not isinstance(s, Alloc) for s in x)]
        self.launch = found[body.launch]

    @cached_property
    def statements(self) -> tuple[Stmt, ...]:
        return grid_of(self.launch)[1]

    @cached_property
    def points(self) -> list[Env]:
        """By the number of a task: its place in the grid. The first axis counts fastest."""
        loops, _ = grid_of(self.launch)
        out: list[Env] = [{}]
        for x in sorted(loops, key=lambda x: x.kind, reverse=True):
            count = int(D.evaluate(x.extent, dict(self.body.sizes)))
            out = [{**p, x.name: k} for p in out for k in range(count)]
        return out

    @cached_property
    def size(self) -> tuple[int, int, int]:
        size = [1, 1, 1]
        for s, _ in walk(self.statements):
            if isinstance(s, Loop) and s.kind in THREADS:
                axis = THREADS.index(s.kind)
                size[axis] = max(size[axis], D.bounds(s.extent)[1])
        return size[0], size[1], size[2]

    @cached_property
    def buffers(self) -> list[Buffer]:
        """Memory from outside the launch that it uses."""
        used = frozenset().union(*(mentions(s) for s in self.launch))
        inside = {s.buffer for s, p in walk(self.launch) if isinstance(s, Alloc) and p}
        found = [b for b in self.grid.nest.buffers if b.name in used and b.name not in inside]
        for b in found:
            if b.name not in self.body.places:
                raise Invalid(f"nest {self.grid.nest.name}: there is no place for {b.name}")
        return found


class _Seen:
    """Of each byte of a space: which block wrote it last and when, and when each block read it."""

    def __init__(self, size: int, blocks: int) -> None:
        self.writer = np.zeros(size, np.int64)
        self.written = np.zeros(size, np.int64)  # 0: never
        self.wrote = np.zeros(size, np.int64)  # the phase
        self.read = np.zeros((blocks, size), np.int64)


class _View(Watch):
    """A buffer of a task: accesses to its cells, as bytes of a space."""

    def __init__(
        self, call: _Call, block: int, phase: int, b: Buffer, start: int, seen: _Seen
    ) -> None:
        super().__init__(0)
        self.call, self.block, self.phase = call, block, phase
        self.b, self.start, self.seen = b, start, seen
        self.changed: list[np.ndarray] = []

    def _bytes(self, cells: np.ndarray) -> np.ndarray:
        size = self.b.dtype.bytes
        return (self.start + cells[:, None] * size + np.arange(size)).reshape(-1)

    def read(self, cells: np.ndarray, who: np.ndarray, what: str) -> None:
        at = self._bytes(cells)
        self._after_writes(at, f"reads {what}")
        self.seen.read[self.block, at] = self.call.clocks[self.block][self.block]

    def write(self, cells: np.ndarray, who: np.ndarray, what: str, harmless: np.ndarray) -> None:
        at, clock = self._bytes(cells), self.call.clocks[self.block]
        self._after_writes(at, f"writes {what}")
        late = np.argwhere(self.seen.read[:, at] > clock[:, None])
        if late.size:
            self._error(f"writes {what}", f"block {late[0][0]} reads")
        self.seen.writer[at], self.seen.written[at] = self.block, clock[self.block]
        self.seen.wrote[at] = self.phase
        self.changed.append(cells)

    def _after_writes(self, at: np.ndarray, did: str) -> None:
        clock = self.call.clocks[self.block]
        late = np.flatnonzero(self.seen.written[at] > clock[self.seen.writer[at]])
        if late.size:
            k = at[late[0]]
            self._error(did, f"block {self.seen.writer[k]} wrote in phase {self.seen.wrote[k]}")

    def _error(self, did: str, other: str) -> None:
        kind = self.call.graph.phases[self.phase].kind
        raise RunError(
            f"phase {self.phase} ({kind}): block {self.block} {did}, which {other}, and no wait or "
            "no fence orders them"
        )


class _Call:
    """One run of the kernel."""

    def __init__(
        self,
        graph: TaskGraph,
        codes: Sequence[_Code],
        memory: Mapping[str, np.ndarray],
        random: np.random.Generator,
        counters: dict[int, int],
    ) -> None:
        self.graph, self.codes, self.memory = graph, codes, memory
        self.random, self.counters = random, counters
        n = graph.blocks
        self.clocks = [np.zeros(n, np.int64) for _ in range(n)]
        for k, c in enumerate(self.clocks):
            c[k] = 1
        self.published: dict[int, np.ndarray] = {}  # by counter: what waiting for it shows
        self.seen = {name: _Seen(len(m), n) for name, m in memory.items()}
        self.at = [0] * n  # the phase of each block
        self.done = [0] * n  # its tasks in that phase
        self.begun: dict[int, _Task] = {}  # by block: what waits after it has begun early

    def run(self) -> None:
        going = set(range(self.graph.blocks))
        while going:
            ready = []
            for b in sorted(going):
                self._skip(b)
                if self.at[b] == len(self.graph.phases):
                    going.discard(b)
                elif self.done[b] or not self._missing(b) or self._begins(b):
                    ready.append(b)
            if not ready and going:
                self._stuck(sorted(going))
            if ready:
                self._step(ready[int(self.random.integers(len(ready)))])
        # The last block that ends.
        for k in range(self.graph.counters):
            self.counters[k] = 0

    def _skip(self, b: int) -> None:
        """Passes phases in which the block has nothing to do."""
        g = self.graph
        while self.at[b] < len(g.phases) and not len(g.own(self.at[b], b)):
            self.at[b] += 1

    def _begins(self, b: int) -> bool:
        """May the block begin a task before it waits?"""
        return bool(self.graph.phases[self.at[b]].early) and b not in self.begun

    def _missing(self, b: int) -> list[str]:
        waits = self.graph.phases[self.at[b]].waits
        return [
            f"counter {w.counter} is {self.counters.get(w.counter, 0)}, not {w.count}"
            for w in waits
            if self.counters.get(w.counter, 0) < w.count
        ]

    def _stuck(self, blocks: list[int]) -> None:
        b = blocks[0]
        what = f"block {b} waits at phase {self.at[b]}: {self._missing(b)[0]}"
        raise RunError(f"{what}; no block can go on, {len(blocks)} of them wait")

    def _step(self, b: int) -> None:
        k = self.at[b]
        p, own, clock = self.graph.phases[k], self.graph.own(k, b), self.clocks[b]
        begun = self.begun.pop(b, None)
        task = begun or _Task(self, b, k, own[self.done[b]])
        early, rest = parts(task.code.statements)
        if p.early and begun is None and not self.done[b]:
            task.run(early)
            self.begun[b] = task
            return
        if not self.done[b]:
            for w in p.waits:
                if w.counter in self.published:
                    np.maximum(clock, self.published[w.counter], out=clock)
        task.run(rest if begun else (*early, *rest))
        self.done[b] += 1
        if self.done[b] < len(own):
            return
        if p.counter >= 0:
            self.counters[p.counter] = self.counters.get(p.counter, 0) + len(own)
            if p.release:
                before = self.published.setdefault(p.counter, np.zeros_like(clock))
                np.maximum(before, clock, out=before)
            clock[b] += 1
        self.at[b], self.done[b] = k + 1, 0


class _Task:
    """A task of a block, which runs at once or in two parts."""

    def __init__(self, call: _Call, b: int, phase: int, number: int) -> None:
        self.call, self.code = call, call.codes[phase]
        code = self.code
        self.views: dict[str, _View] = {}
        for x in code.buffers:
            space, start = code.body.places[x.name]
            self.views[x.name] = _View(call, b, phase, x, start, call.seen[space])
        self._read()
        by_thread = {name: Watch(m.size) for name, m in code.grid.memory.items()}
        watched: dict[str, Watch] = dict(self.views)
        self.block = _Block(code.grid, number, code.points[number], code.size, watched, by_thread)

    def _read(self) -> None:
        """Memory as it is now."""
        code = self.code
        code.grid.memory = {}
        for x in code.buffers:
            space, start = code.body.places[x.name]
            shape = code.grid.shape(x)
            size = int(np.prod(shape, dtype=np.int64)) * x.dtype.bytes
            raw = self.call.memory[space][start : start + size].view(x.dtype.memory).reshape(shape)
            code.grid.memory[x.name] = np.array(from_memory(raw, x.dtype))

    def run(self, statements: tuple[Stmt, ...]) -> None:
        code = self.code
        self._read()
        self.block.memory |= code.grid.memory
        self.block.run(statements)
        for x in code.buffers:
            cells = self.views[x.name].changed
            if not cells:
                continue
            at = np.unique(np.concatenate(cells))
            space, start = code.body.places[x.name]
            values = to_memory(code.grid.memory[x.name].reshape(-1)[at], x.dtype)
            end = start + code.grid.memory[x.name].size * x.dtype.bytes
            self.call.memory[space][start:end].view(x.dtype.memory)[at] = values
