"""Target zero for nests with blocks and threads: runs them on numpy and reports every race.

Blocks run in shuffled order. The threads of a block step together, statement by statement, as
vectors in shuffled order; that stands for every interleaving, because two threads that touch one
cell of shared or global memory between two barriers, one of them writing, are an error and not a
result (writing the same value twice is none, until it is read). So are two blocks that touch
one global cell, a barrier that some threads of the block do not reach, an access outside its
buffer, a thread that reads what another one left in its own private memory, and any access to a
cell for which a copy is on its way.

Fresh memory holds garbage. A shared buffer that is allocated in a loop is the same memory every
time. What a nest means here is written in kernel/threads.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.types import as_dtype
from tilewright.kernel.atomic import in_one
from tilewright.kernel.banks import Turns, given_rows, turns
from tilewright.kernel.cells import beyond, outside, repeated
from tilewright.kernel.copies import Copies, Copy, Products, present
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.fragments import LANE, LANES
from tilewright.kernel.interpret import Env, Machine, RunError, _combine, execute
from tilewright.kernel.intrinsic import INTRINSICS, Match, Operand, warp_match
from tilewright.kernel.nest import (
    BRANCHES,
    THREADS,
    Alloc,
    Atomic,
    Barrier,
    Commit,
    If,
    Loop,
    Nest,
    Release,
    Stmt,
    Store,
    Wait,
    While,
    substitute_all,
    walk,
)
from tilewright.kernel.races import MANY, Watch, equal
from tilewright.kernel.regions import Everything, Region
from tilewright.kernel.roles import consumers, producer, role_loop
from tilewright.kernel.simt_order import Order
from tilewright.kernel.simt_reads import Owned, Reader, atomically, nested, spread
from tilewright.kernel.simt_roles import Producer
from tilewright.kernel.text import line_text
from tilewright.kernel.threads import block_size, combined, grid_of, launches, thread_chain


def run(
    nest: Nest,
    arrays: Mapping[str, np.ndarray],
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    banks: dict[str, Turns] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs by name, like kernel.interpret.run. A RunError says what went wrong and where.
    `banks` is filled with the turns that accesses to shared memory take, by access."""
    grid = _Grid(nest, dict(dims or {}), seed)
    grid.banks = banks
    return execute(grid, arrays)


class _Grid(Machine):
    """The device: global memory and the launches of a nest, one after the other."""

    banks: dict[str, Turns] | None = None
    order = Order({})  # of the blocks of a launch

    def block(self, body: tuple[Stmt, ...], env: Env) -> None:
        table: dict[D.Sym, Dim] = {s: self.sizes[s.name] for s in self.nest.dims}
        for s in body:
            if isinstance(s, Alloc) and self.nest.buffer(s.buffer).scope != "shared":
                self.memory[s.buffer] = self.garbage(self.nest.buffer(s.buffer))
        # With numbers for the dimensions every extent has a bound: the size of the block.
        fixed = substitute_all(body, table)
        # By identity: equal updates may stand inside loops of different kinds.
        # A loop of one thread elects it: there is nothing to combine.
        several = (c for c in combined(fixed) if any(q.extent != 1 for q in c.over))
        self.over = {id(c.store): [q.kind for q in c.over] for c in several}
        coded = [x for x in self.regions if not self._plain(x)]
        for name in coded:  # numbers that are codes in memory, as numbers
            self.memory[name] = self.regions[name].get(np.arange(self.regions[name].size))
        for launch in launches(fixed):
            self._launch(launch)
        for name in coded:
            self.regions[name].put(np.arange(self.regions[name].size), self.memory[name])

    def _plain(self, name: str) -> bool:
        region = self.regions[name]
        return isinstance(region, Everything) or region.array.dtype == region.dtype.numpy

    def _launch(self, launch: tuple[Stmt, ...]) -> None:
        loops, body = grid_of(launch)
        points: list[Env] = [{}]
        for q in loops:
            points = [
                {**p, q.name: k}
                for p in points
                for k in range(int(D.evaluate(q.extent, {**self.sizes, **p})))
            ]
        x, y, z = (block_size(body)[axis] for axis in THREADS)
        written = [x for x in self.memory if self.nest.buffer(x).scope != "in"]
        # Blocks that hand memory on to each other by atomic operations are in some order.
        ordered = any(isinstance(s, Atomic) and s.order != "relaxed" for s, _ in walk(body))
        counters = [x for x in written if self.nest.buffer(x).scope == "counter"]
        apart = [] if ordered and not counters else written
        by_block = {name: Watch(self.memory[name].size) for name in apart}
        by_thread = {name: Watch(self.memory[name].size) for name in written}
        self.order = Order(by_block)
        for k in self.random.permutation(len(points)):
            _Block(self, int(k), points[k], (x, y, z), by_block, by_thread).run(body)
            for watch in by_thread.values():
                watch.clear()
        for name in counters:
            self.counted(name)


class _Block:
    """One block: its threads, its shared memory and the private memory of each thread."""

    def __init__(
        self,
        grid: _Grid,
        number: int,
        at: Env,
        size: tuple[int, int, int],
        by_block: dict[str, Watch],
        by_thread: dict[str, Watch],
    ) -> None:
        self.grid, self.number, self.at, self.size = grid, number, at, size
        (x, y, _), self.count = size, prod(size)
        everyone = np.arange(self.count)
        self.coords = {
            "thread.x": everyone % x,
            "thread.y": everyone // x % y,
            "thread.z": everyone // (x * y),
        }
        self.by_block = by_block  # global memory
        self.by_thread = dict(by_thread)  # global memory and the shared one
        self.memory = dict(grid.memory)
        self.private: dict[str, np.ndarray] = {}  # per thread and cell: has it been written?
        self.sizes = grid.sizes
        self.copies = Copies(self.count + 1)  # a producer is one more than the threads
        self.producer: Producer | None = None
        self.products = Products(self.count)
        self.goes_on = False  # is an asynchronous instruction running?
        self.inner: set[int] = set()  # loops inside those where all threads were seen to come
        self.counted = True  # are accesses to shared memory those of the threads named?

    def run(self, body: tuple[Stmt, ...]) -> None:
        everyone = self.grid.random.permutation(self.count)
        if role_loop(body) is None:
            self.statements(body, dict(self.at), everyone)
            return
        self.producer = Producer(self, producer(body), dict(self.at))
        self.statements(consumers(body), dict(self.at), everyone)
        self.producer.end()

    # ---- statements: `who` is the thread of each point that runs

    def statements(self, body: tuple[Stmt, ...], env: Env, who: np.ndarray) -> None:
        for s in body:
            if isinstance(s, Alloc):
                self.allocate(s.buffer)
            elif isinstance(s, Barrier):
                self._barrier(who)
            elif isinstance(s, Store):
                self.store(s, env, who)
            elif isinstance(s, Commit):
                self.copies.commit(who)
            elif isinstance(s, Wait):
                self._wait(s, who)
            elif isinstance(s, Release) and self.producer is not None:
                self._all(who, "a release")
                self.producer.release(s)
            elif isinstance(s, Loop):
                self._loop(s, env, who)
            elif isinstance(s, Atomic):
                cells = atomically(self, s, self.grid.nest.buffer(s.buffer).dtype, env, who)
                since = self.by_thread if self.count > 1 else None
                self.grid.order.atomic(self.number, s, cells, since)
            elif isinstance(s, If):
                taken = spread(Reader(self, "if", env, who)(s.condition), who.shape)
                for body_, there in ((s.then, taken), (s.other, ~taken)):
                    self._some(body_, env, who, there)
            elif isinstance(s, While):
                self._while(s, env, who)
            elif isinstance(s, BRANCHES):
                raise RunError(f"threads of a block cannot run {line_text(s)} yet")

    def _while(self, s: While, env: Env, who: np.ndarray) -> None:
        while who.size:
            going = spread(Reader(self, s.name, env, who)(s.condition), who.shape)
            env = {k: v[going] if np.ndim(v) else v for k, v in env.items()}
            who = who[going]
            if who.size:
                self.statements(s.body, env, who)

    def allocate(self, name: str) -> None:
        b = self.grid.nest.buffer(name)
        if name in self.grid.memory:
            return  # global, allocated before the launch
        if b.scope == "shared":
            self.memory[name] = self.grid.garbage(b)
            self.by_thread.setdefault(name, Watch(self.memory[name].size))
        else:
            one = self.grid.garbage(b)
            self.memory[name] = np.tile(one, (self.count,) + (1,) * one.ndim)
            self.private[name] = np.zeros((self.count, one.size), np.bool_)

    def _barrier(self, who: np.ndarray) -> None:
        self._all(who, "a barrier")
        self.grid.order.barrier(self.number)
        for w in self.by_thread.values():
            w.clear()

    def _absent(self, who: np.ndarray) -> np.ndarray:
        return np.flatnonzero(~present(who, self.count))

    def _come(self, s: Loop, who: np.ndarray, why: str) -> None:
        if (absent := self._absent(who)).size:
            raise RunError(f"{self.thread(absent[0])} does not reach {s.name}, {why}")

    def _all(self, who: np.ndarray, where: str) -> None:
        if (absent := self._absent(who)).size:
            some = f"{self.thread(who[0])} waits at {where}" if who.size else where
            raise RunError(f"{some} that {self.thread(absent[0])} does not reach")

    def _wait(self, s: Wait, who: np.ndarray) -> None:
        """What arrives is written now, by the thread that issued the copy; what an instruction read
        is read until now."""
        for r in self.products.wait(who, s.pending) if s.products else ():
            self.by_thread[r.buffer].read(r.cells, r.threads, r.what)
        if s.products:
            return
        if self.producer is not None:
            self._all(who, "a wait for copies")
            for x in self.producer.wait():
                self.memory[x.buffer].reshape(-1)[x.cells] = x.values
            return
        for x in self.copies.wait(who, s.pending):
            self.memory[x.buffer].reshape(-1)[x.cells] = x.values
            none = np.zeros(len(x.cells), np.bool_)
            self.by_thread[x.buffer].write(x.cells, x.threads, x.what, none)

    def _loop(self, s: Loop, env: Env, who: np.ndarray) -> None:
        if s.name in env:
            raise RunError(f"loop {s.name} is inside another loop of that name")
        raw = Reader(self, s.name, env, who).dim(s.extent)
        count = spread(np.maximum(np.asarray(raw, np.int64), 0), who.shape)
        if s.kind in THREADS:
            mine = self.coords[s.kind][who]
            there = mine < count
            self._meet(s, who)
            self._some(s.body, {**env, s.name: mine}, who, there)
        elif s.kind == "tensor" and (found := warp_match(self.grid.nest, s)) is not None:
            self._together(s, found, env, who)
        elif s.kind == "tensor" and s.instruction and INTRINSICS[s.instruction].engine:
            self._elected(s, env, who)
        elif s.kind == "lane":
            wide = {k: np.repeat(v, count) if np.ndim(v) else v for k, v in env.items()}
            begin = np.repeat(np.cumsum(count) - count, count)
            wide[s.name] = np.arange(len(begin)) - begin
            if len(begin):
                self.statements(s.body, wide, np.repeat(who, count))
        else:
            for k in range(int(count.max(initial=0))):
                self._some(s.body, {**env, s.name: k}, who, count > k)

    def _together(self, s: Loop, found: Match, env: Env, who: np.ndarray) -> None:
        """An instruction of whole warps: every element is read and written by its owner."""
        team = found.intrinsic.team
        threads = prod(team.values())
        warp = who // threads
        chain, (warps, first) = nested(s), np.unique(warp, return_index=True)
        absent = np.flatnonzero(~present(who[warp == warps[0]] % threads, threads))
        fits = all(self._width(a) == k for a, k in team.items())
        if not fits or absent.size or len(who) % threads:
            raise RunError(f"{s.instruction} is for whole warps, which do not come to {s.name}")
        store = chain[-1].body[0]
        assert isinstance(store, Store)
        self.goes_on = found.intrinsic.asynchronous
        if self.goes_on:
            self.products.begin(who)
        here = {k: v[first] if np.ndim(v) else v for k, v in env.items()}
        owners = {x.buffer: x.owners for x in found.operands if x.owners}
        ev = Owned(self, store.stage, here, warps * threads, owners, chain)
        for x in (x for x in found.operands if x.name in found.intrinsic.addresses):
            start = here | dict.fromkeys((y.name for y in chain), 0)
            self._rows_given(store.stage, x, start, len(warps))
        self.counted = False
        self._writable(store)
        if store.atomic:
            self.store(store, *ev.points(store))
        else:
            self._write(store, *ev.written(store, once=store.buffer in self.private))
        self.counted, self.goes_on = True, False

    def _elected(self, s: Loop, env: Env, who: np.ndarray) -> None:
        """A copy that one thread issues, all of its points at once."""
        self._come(s, who, "which a block issues once")
        # Any thread may be that one: here it is none that instructions of warps read for.
        first = {k: v[0] if np.ndim(v) else v for k, v in env.items()}
        self.bring(s, first, self.count - 1)

    def bring(self, s: Loop, env: Env, by: int) -> None:
        chain = nested(s)
        points = np.indices([int(D.evaluate(x.extent, env)) for x in chain])
        env = env | {x.name: at.reshape(-1) for x, at in zip(chain, points, strict=True)}
        (store,) = chain[-1].body
        assert isinstance(store, Store)
        self.counted = False
        self.store(store, env, np.full(points[0].size, by))
        self.counted = True

    def _rows_given(self, stage: str, x: Operand, here: Env, warps: int) -> None:
        """Counts the turns of an instruction to which threads give addresses of rows."""
        if self.grid.banks is None:
            return
        b = self.grid.nest.buffer(x.buffer)
        for k in range(warps):
            env = {name: v[k] if np.ndim(v) else v for name, v in here.items()}
            env = {**self.grid.sizes, **env, LANE.name: np.arange(LANES)}
            at = np.asarray(D.evaluate(linear_index(b, x.index), env))
            self.note_turns(f"{stage}: {x.buffer}", given_rows(b, at))

    def note_turns(self, key: str, found: Turns) -> None:
        if self.grid.banks is not None:
            self.grid.banks[key] = self.grid.banks.get(key, Turns()) + found

    def _some(self, body: tuple[Stmt, ...], env: Env, who: np.ndarray, there: np.ndarray) -> None:
        if there.all():
            self.statements(body, env, who)
        elif there.any():
            part = {k: v[there] if np.ndim(v) else v for k, v in env.items()}
            self.statements(body, part, who[there])

    def _meet(self, s: Loop, who: np.ndarray) -> None:
        """All threads come to the loops of an update that combines their values."""
        chain = thread_chain(s)
        if id(chain[-1].body[-1]) not in self.grid.over or id(s) in self.inner:
            return
        self.inner |= {id(x) for x in chain[1:]}
        self._come(s, who, "where the values of threads are combined")

    def _combine(self, s: Store, env: Env, who: np.ndarray) -> None:
        """One value of every thread; those that differ only along the loops combined over have one
        result."""
        b = self.grid.nest.buffer(s.buffer)
        self._writable(s)
        ev = Reader(self, s.stage, env, who)
        v = as_dtype(spread(ev(s.value), who.shape), b.dtype)
        index = [spread(ev.dim(i), who.shape) for i in s.index]
        what = f"{s.buffer}[{','.join(map(str, s.index))}]"
        cells = self.cells(s.buffer, index, who, True, f"{s.stage}: {what} writes")
        key = np.zeros(self.count, np.int64)
        for axis in THREADS:
            if axis not in self.grid.over[id(s)]:
                key = key * self._width(axis) + self.coords[axis]
        f = _combine(str(s.function), b.dtype)
        flat = self.memory[s.buffer].reshape(-1)
        order = np.argsort(who)  # the same always: equal values have equal bits
        for k in np.unique(key[who]):
            mine = order[key[who[order]] == k]
            total = v[mine[0]]
            with np.errstate(all="ignore"):
                for x in v[mine[1:]]:
                    total = as_dtype(f(total, x), b.dtype)
            everyone, cell = np.flatnonzero(key == k), cells[mine[:1]]
            if s.buffer in self.private:
                self.private[s.buffer][everyone, cell] = True
                at = everyone * self.private[s.buffer].shape[1] + cell
            else:
                at = cell
                one = everyone[:1]  # the first along the loops combined over
                self.touch(s.stage, s.buffer, what, cell, one)
                self.touch(s.stage, s.buffer, what, cell, one, np.zeros(1, np.bool_))
            with np.errstate(all="ignore"):
                flat[at] = as_dtype(f(flat[at], total), b.dtype)

    def _width(self, axis: str) -> int:
        return self.size[THREADS.index(axis)]

    def store(self, s: Store, env: Env, who: np.ndarray) -> None:
        if id(s) in self.grid.over:
            self._combine(s, env, who)
            return
        if s.atomic:
            atomically(self, in_one(s), self.grid.nest.buffer(s.buffer).dtype, env, who)
            return
        self._writable(s)
        ev = Reader(self, s.stage, env, who)
        v = spread(ev(s.value), who.shape)
        index = [spread(ev.dim(i), who.shape) for i in s.index]
        self._write(s, who, index, v[None])

    def _writable(self, s: Store) -> None:
        if s.buffer not in self.memory:
            raise RunError(f"{s.stage}: {s.buffer} is written where it is not allocated")
        if self.grid.nest.buffer(s.buffer).scope == "in":
            raise RunError(f"{s.stage}: the input {s.buffer} is written")

    def _write(
        self, s: Store, who: np.ndarray, index: list[np.ndarray], values: np.ndarray
    ) -> None:
        """Each of `values` has one for each point; several are combined with it in their order."""
        n, b = len(who), self.grid.nest.buffer(s.buffer)
        values = as_dtype(values, b.dtype)
        v = values[-1]
        what = f"{s.buffer}[{','.join(map(str, s.index))}]"
        cells = self.cells(s.buffer, index, who, True, f"{s.stage}: {what} writes")
        if b.scope == "memory":
            self.grid.regions[s.buffer].put(cells, v)
            return
        flat = self.memory[s.buffer].reshape(-1)
        if s.asynchronous:
            self._ask(s, what, cells, who, v)
            return
        if s.buffer in self.private:
            size = self.private[s.buffer].shape[1]
            self.finished(s.stage, s.buffer, what, who, cells)
            self.private[s.buffer][who, cells] = True
            if self.goes_on:
                self.products.result(s.buffer, self.private[s.buffer].shape, who, cells)
            at = who * size + cells
        else:
            at = cells
            if s.function is not None:
                self.touch(s.stage, s.buffer, what, cells, who)
            latest = np.empty(flat.size, np.int64)
            latest[cells] = np.arange(n)
            last = latest[cells]  # per point, the last one at its cell
            same = equal(v, flat[cells]) & (s.function is None)
            # Threads that write one cell together may if they agree; lanes of one thread are it.
            agree = equal(v, v[last]) & (s.function is None)
            for k in np.flatnonzero((who != who[last]) & ~agree)[:1]:
                self.race(s.stage, what, int(who[k]), int(who[last[k]]), f"writes {what}")
            self.touch(s.stage, s.buffer, what, cells, who, same)
        f = None if s.function is None else _combine(s.function, b.dtype)
        with np.errstate(all="ignore"):
            for v in values:
                if f is None:
                    flat[at] = v
                elif b.dtype.memory == b.dtype.numpy:
                    f.at(flat, at, v)
                else:  # what numpy does not round to itself
                    for c, x in zip(at, v, strict=True):
                        flat[c] = as_dtype(f(flat[c], x), b.dtype)

    def _ask(self, s: Store, what: str, cells: np.ndarray, who: np.ndarray, v: np.ndarray) -> None:
        """An asynchronous copy: a write from now on, the data of which comes later."""
        if self.grid.nest.buffer(s.buffer).scope != "shared":
            raise RunError(f"{s.stage}: {what} is copied to asynchronously and is not shared")
        none = np.zeros(len(cells), np.bool_)
        again = repeated(cells, self.memory[s.buffer].size)
        for k in again[:1]:
            self._busy(s.stage, what, int(who[k]), int(cells[k]), int(who[cells == cells[k]][0]))
        self.touch(s.stage, s.buffer, what, cells, who, none)
        self.copies.ask(Copy(s.buffer, cells, who, v, what), self.memory[s.buffer].size)

    def _busy(
        self, stage: str, what: str, one: int, cell: int, other: int, verb: str = "writes"
    ) -> None:
        name = what.partition("[")[0]
        at = ",".join(str(int(k)) for k in np.unravel_index(cell, self.memory[name].shape))
        raise RunError(
            f"{stage}: {self.thread(one)} {verb} {what}, but {name}[{at}] is in flight: "
            f"{self.thread(other, short=True)} issued the copy and has not waited"
        )

    # ---- cells and accesses to them

    def region(self, name: str) -> Region | Everything | None:
        is_memory = self.grid.nest.buffer(name).scope == "memory"
        return self.grid.regions.get(name) if is_memory else None

    def cells(
        self, name: str, index: list[np.ndarray], who: np.ndarray, mask: Any, what: str
    ) -> np.ndarray:
        """The cells of points, each inside the buffer where the mask holds."""
        region = self.grid.regions.get(name)
        if region is not None:
            found = region.find(index[0])
            bad = np.flatnonzero((found < 0) & mask)
            if bad.size:
                at = f"element {int(index[0][bad[0]])} in {self.thread(who[bad[0]])}"
                raise RunError(f"{what} outside the memory of {name}: {at}")
            return np.maximum(found, 0)
        shape = self.memory[name].shape[1 if name in self.private else 0 :]
        if len(index) != len(shape):
            raise RunError(f"{what} with {len(index)} indices, {name} has {len(shape)} axes")
        out = np.zeros(len(who), np.int64)
        for k, (x, size) in enumerate(zip(index, shape, strict=True)):
            if beyond(x, size):
                bad = np.flatnonzero(outside(x, size) & mask)
                if bad.size:
                    at = f"index {int(x[bad[0]])} in {self.thread(who[bad[0]])}"
                    raise RunError(f"{what} outside axis {k} of {size}: {at}")
                x = np.clip(x, 0, max(size - 1, 0))
            out = out * size + x
        return out

    def touch(
        self,
        stage: str,
        name: str,
        what: str,
        cells: np.ndarray,
        who: np.ndarray,
        harmless: np.ndarray | None = None,
    ) -> None:
        """Records a read, or a write where `harmless` is given; another thread or block is a
        race."""
        b = self.grid.nest.buffer(name)
        if self.grid.banks is not None and b.scope == "shared" and self.counted:
            self.note_turns(f"{stage}: {name}", turns(b, cells, who))
        watch = self.by_thread.get(name)
        if watch is None or not cells.size:
            return
        verb = "reads" if harmless is None else "writes"
        found = self.copies.over(name, cells)
        if found is not None:
            k, cell, other = found
            self._busy(stage, what, int(who[k]), cell, other, verb)
        if harmless is None and self.goes_on:
            self.products.read(name, cells, who, what)
        still = self.products.reading(name, cells) if harmless is not None else None
        if still is not None:
            k, r = still
            raise RunError(
                f"{stage}: {self.thread(who[k])} writes {what}, but an asynchronous instruction "
                f"still reads it as {r.what}: nobody has waited for products"
            )
        if harmless is None:
            found = watch.read(cells, who, what)
            if found is not None:
                self.race(stage, what, found[0], found[1], f"writes {found[2]}", "reads")
        else:
            found = watch.write(cells, who, what, harmless)
            if found is not None:
                self.race(stage, what, *found)
        whole = self.by_block.get(name)
        if whole is None:
            return
        me = np.full(len(cells), self.number)
        if harmless is None:
            clash = whole.read(cells, me, what)
        else:
            clash = whole.write(cells, me, what, np.zeros(len(cells), np.bool_))
        if clash is not None:
            other = f"writes {clash[2]}" if harmless is None else clash[2]
            raise RunError(
                f"{stage}: {self._block()} {verb} {what}, of which another block {other} one cell"
            )

    def finished(
        self, stage: str, name: str, what: str, who: np.ndarray, cells: np.ndarray
    ) -> None:
        """Results of an asynchronous instruction are there after a wait."""
        k = None if self.goes_on else self.products.unfinished(name, who, cells)
        if k is not None:
            raise RunError(
                f"{stage}: {self.thread(who[k])} touches {what}, which an asynchronous instruction "
                "still computes: it has not waited for products"
            )

    def race(
        self, stage: str, what: str, one: int, other: int, did: str, verb: str = "writes"
    ) -> None:
        them = "other threads" if other == MANY else self.thread(other, short=True)
        if other == MANY:
            did = did.replace("writes", "write", 1).replace("reads", "read", 1)
        raise RunError(
            f"{stage}: {self.thread(one)} {verb} {what} and {them} {did}: "
            "one cell, with no barrier between"
        )

    def thread(self, t: Any, short: bool = False) -> str:
        if t == self.count:
            return "the producer"
        axes = [a for a, n in zip(THREADS, self.size, strict=True) if n > 1] or [THREADS[0]]
        at = ", ".join(f"{a[-1]}={int(self.coords[a][t])}" for a in axes)
        return f"thread ({at})" + ("" if short else f" of {self._block()}")

    def _block(self) -> str:
        return f"block ({', '.join(f'{k}={v}' for k, v in self.at.items())})"
