"""A compiled program on a GPU, on the addresses of CUDA memory.

Calls only enqueue work on the current stream. A call with the addresses of an earlier one replays
its CUDA graph; there are a few, and the oldest gets other addresses. Each stream has an arena of
its own, so that calls on several streams do not share it; those on one stream run in order.

What a program checks about its data is known when the GPU has done the work: the kernel that finds
something writes it to memory of the host, and the next call returns what an earlier one found
(`Machine.blocking`: the call itself).
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from itertools import compress
from operator import ne, or_
from threading import Lock
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.types import TensorType
from tilewright.llvm.objects import cached_ptx
from tilewright.runtime.cuda import write_back
from tilewright.runtime.cuda.image import EntryImage, KernelImage, from_bytes
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.memory import HostWords, Memory, zero
from tilewright.runtime.cuda.module import Launcher, Module
from tilewright.runtime.cuda.plan import (
    ALIGN,
    FIXED,
    Kernels,
    Place,
    Plan,
    Planned,
    PlannedAction,
    PlannedCall,
    PlannedLoop,
    Planner,
)
from tilewright.runtime.cuda.replay import Called, Launched, Replay, no_libraries
from tilewright.runtime.cuda.tasks import TaskReplay, Tasks, begins_early
from tilewright.runtime.program import Details, Program
from tilewright.runtime.program_data import ProgramData
from tilewright.runtime.shared import Derived, Weight

STREAMS = 8  # whose arenas are cached
GRAPHS = 16  # of one stream: for as many values of sizes
# Graphs for the same sizes. Torch's allocator gives results the same few addresses in turn, and a
# graph whose arguments were replaced takes longer to launch.
ALIKE = 4
VECTOR = 16  # addresses that kernels are given are multiples of this many bytes
WATCHED_BYTES = 64
WATCHED_WORDS = WATCHED_BYTES // 8
# Fewer launches are enqueued one by one: that takes no longer.
FEWEST = 2


@dataclass(frozen=True, eq=False)
class GpuBound:
    """A program's arguments as far as they are known: its first `count` inputs; then, after those
    that a call passes, constants and what was derived from weights."""

    first: list[int]
    rest: list[int]
    derived: Derived | None
    aligned: bool


@dataclass(eq=False)
class _Graph:
    """A graph, or one kernel in its place, and the addresses that it has now."""

    replay: Replay | TaskReplay
    bound: GpuBound
    varying: tuple[int, ...]
    addresses: list[int]


@dataclass(eq=False)
class _Shape:
    """The program for given sizes on one stream."""

    plan: Plan
    cells: int  # where in the arena is what is not 0 where a check found something
    new: int = 0  # and where new values of arguments are
    counters: object = None  # what owns the counters of its launches
    calls: int = 0
    graphs: list[_Graph] = field(default_factory=list)  # the one that was used last is the first
    # By the number of an address: which launches use it, and where.
    users: dict[int, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)


@dataclass(eq=False)
class _Room:
    """The memory of calls on one stream, and what runs there."""

    arena: int = 0
    owner: object = None
    size: int = -1
    shapes: OrderedDict[tuple[int, ...], _Shape] = field(default_factory=OrderedDict)
    libraries: object = None  # where libraries work
    lock: Lock = field(default_factory=Lock)

    def replayed(
        self, dims: tuple[int, ...], bound: GpuBound, varying: tuple[int, ...], stream: int
    ) -> bool:
        """Enqueues the graph that has these addresses, if there is one."""
        with self.lock:
            shape = self.shapes.get(dims)
            if shape is None:
                return False
            for k, g in enumerate(shape.graphs):
                if g.varying == varying and g.bound is bound:
                    if k:
                        shape.graphs.insert(0, shape.graphs.pop(k))
                    if dims:
                        self.shapes.move_to_end(dims)
                    g.replay.alone(stream)
                    return True
        return False


class CudaProgram(Program):
    """A program that was loaded into a GPU."""

    def __init__(
        self,
        data: ProgramData,
        machine: Machine,
        details: Details | None = None,
        prologue: Program | None = None,
    ) -> None:
        self.machine = machine
        super().__init__(data, details, prologue)

    def _load(self, symbols: Mapping[str, int] | None) -> None:
        grid, device = self.data.target.grid, self.machine.device
        if grid is None or grid.capability > device.capability:
            raise Unsupported(
                f"code for {self.data.target.name} does not run on {device.name}, which is of "
                f"capability {device.capability / 10}",
                hint=f"compile for cuda:{device.capability}",
            )
        before = device.enter()
        try:
            *kernels, entry = self.data.images
            named = zip((k.symbol for k in self.data.kernels), kernels, strict=True)
            images = {symbol: from_bytes(KernelImage, image) for symbol, image in named}
            self.code = Kernels(images, device)
            made = from_bytes(EntryImage, entry)
            self._entries = {e.symbol: e for e in made.entries}
            self.tasks = Tasks(made.tasks, device) if made.tasks is not None else None
            self.not_one_kernel = made.refused  # why there are no tasks, where they were asked for
            self._constants = [Memory.of(device, c.array) for c in self.data.constants]
        finally:
            device.leave(before)
        self._fixed = [c.address for c in self._constants]
        self._rooms: OrderedDict[int, _Room] = OrderedDict()
        self._found_words: HostWords | None = None
        self._changed: tuple[int, ...] = ()  # inputs that get other values
        self._new = write_back.Room(())

    def _like_this(self, data: ProgramData) -> Program:
        return CudaProgram(data, self.machine)

    # ---- memory

    @property
    def manner(self) -> str:
        if self.not_one_kernel:
            return f"launched kernel by kernel, not as one: {self.not_one_kernel}"
        return f"one kernel; {self.tasks.facts}" if self.tasks is not None else ""

    @property
    def place(self) -> str:
        return self.machine.name

    def allocate(self, size: int) -> tuple[int, object]:
        return self.machine.lasting(size)

    def require_room(self, size: int, what: str) -> None:
        """Allocation with an error that says what it was for."""

    def settle(self) -> None:
        self.machine.device.synchronise()

    @property
    def held(self) -> int:
        return sum(max(0, r.size) for r in list(self._rooms.values()))

    def trim(self) -> None:
        with self._lock:
            self._rooms.clear()

    # ---- checks

    @property
    def tells_later(self) -> bool:
        return not self.machine.blocking

    def watch(self, count: int) -> None:
        assert not self._rooms
        self._watched, self._filled = count, len(self.outputs) - count
        if count:
            before = self.machine.device.enter()
            try:
                self._found_words = HostWords(self.machine.device, (count - 1) * WATCHED_WORDS)
            finally:
                self.machine.device.leave(before)

    def entry(self) -> None:
        """Its calls launch kernels."""

    def change(self, inputs: Sequence[int]) -> bool:
        if self.dims or self.tasks is not None or not 0 < len(inputs) <= write_back.MOST:
            return False
        assert not self._rooms
        first = self._filled - len(inputs)
        types = self.outputs[first : self._filled]
        sizes = (int(D.evaluate(t.size, {})) * t.dtype.bytes for t in types)
        new = write_back.Room(tuple(sizes))
        if new.size > write_back.MOST_BYTES:
            return False
        self._changed, self._new, self._filled = tuple(inputs), new, first
        return True

    def _said(self) -> list[int] | None:
        """What an earlier call found; it is returned once."""
        assert self._found_words is not None
        values = self._found_words.values
        found = values[::WATCHED_WORDS]
        if not any(found):
            return None
        values[:] = [0] * len(values)
        return [1, *found]

    def check(self) -> list[int] | None:
        if self._found_words is None:
            return None
        self.settle()
        return self._said()

    # ---- calls

    def bind(self, addresses: Sequence[int], weights: Sequence[Weight] | None = None) -> Any:
        derived = None
        rest = list(self._fixed)
        if self.prologue is not None:
            derived = self._fold([addresses[k] for k in self.weights], weights)
            rest += derived.addresses
        first = list(addresses)
        return GpuBound(first, rest, derived, not any(a % VECTOR for a in first))

    def run_bound(
        self,
        bound: Any,
        others: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
    ) -> list[int] | None:
        machine = self.machine
        if self._watched and (found := self._said()) is not None:
            return found
        stream, varying, sizes = machine.stream(), (*others, *outputs), tuple(dims)
        capturing = machine.capturing()
        room = self._rooms.get(stream)
        if room is None or capturing or not room.replayed(sizes, bound, varying, stream):
            before = machine.device.enter()
            try:
                if not bound.aligned or reduce(or_, varying, 0) % VECTOR:
                    self._realigned(bound, others, outputs, sizes, stream)
                else:
                    self._run(bound, others, outputs, sizes, stream)
            finally:
                machine.device.leave(before)
        if machine.blocking and not capturing:
            machine.device.within(self._wait, stream)
            return self._said() if self._watched else None
        return None

    def _wait(self, stream: int) -> None:
        self.machine.device.driver.call("cuStreamSynchronize", stream)

    def _run(
        self,
        bound: GpuBound,
        others: Sequence[int],
        outputs: Sequence[int],
        dims: tuple[int, ...],
        stream: int,
    ) -> None:
        if self.machine.capturing():
            # What records the stream owns what is allocated meanwhile.
            room = _Room()
            shape = self._shape(room, dims)
            addresses = self._addresses(room, shape, bound, others, outputs)
            self._launch(shape.plan.actions, addresses, stream)
            return
        room = self._rooms.get(stream) or self._new_room(stream)
        with room.lock:
            shape = self._shape(room, dims)
            varying = (*others, *outputs)
            oldest = shape.graphs[-1] if len(shape.graphs) == ALIKE else None
            if oldest is not None and oldest.bound is bound:
                # Only what a call passes is elsewhere.
                if _moved(oldest, shape, self._places(bound, others, outputs), varying):
                    shape.graphs.insert(0, shape.graphs.pop())
                    oldest.replay(stream)
                    return
            addresses = self._addresses(room, shape, bound, others, outputs)
            shape.calls += 1
            straight = shape.plan.straight
            if straight is None or len(straight) <= FEWEST or shape.calls < 2:
                self._launch(shape.plan.actions, addresses, stream)
                return
            found = None
            if len(shape.graphs) >= ALIKE:
                found = shape.graphs.pop()
                if _as_ordered(found, shape, addresses) and _replace(found, shape.users, addresses):
                    found.bound, found.varying, found.addresses = bound, varying, addresses
                else:
                    found = None
            if found is None:
                found = _Graph(self._recorded(room, straight, addresses), bound, varying, addresses)
                shape.users = shape.users or _users(straight)
            shape.graphs.insert(0, found)
            found.replay(stream)

    def _places(
        self, bound: GpuBound, others: Sequence[int], outputs: Sequence[int]
    ) -> Sequence[int]:
        """Where what a call passes stands among all addresses."""
        first, second = len(bound.first), len(bound.first) + len(others) + len(bound.rest)
        return (*range(first, first + len(others)), *range(second, second + len(outputs)))

    def _recorded(
        self, room: _Room, straight: Sequence[Planned | PlannedCall], addresses: list[int]
    ) -> Replay | TaskReplay:
        """The launches as one kernel or a CUDA graph."""
        if self.tasks is not None:
            try:
                return self.tasks.replay(straight, addresses)
            except Unsupported as why:
                self.tasks, self.not_one_kernel = None, why.what
        launches: list[Launched | Called] = [
            (p.launcher, p.blocks, p.values(addresses))
            if isinstance(p, Planned)
            else (p.call, p.values(addresses))
            for p in straight
        ]
        early = begins_early(straight, addresses)
        libraries = self.machine.libraries
        if libraries is None:
            return Replay(self.machine.device, launches, early=early)
        if room.libraries is None and any(isinstance(p, PlannedCall) for p in straight):
            room.libraries = libraries.room()
        return Replay(
            self.machine.device,
            launches,
            lambda call, values: libraries.recorded(call, values, room.libraries),
            early,
        )

    def _new_room(self, stream: int) -> _Room:
        with self._lock:
            room = self._rooms.setdefault(stream, _Room())
            while len(self._rooms) > STREAMS:
                self._rooms.popitem(last=False)
            return room

    def _shape(self, room: _Room, dims: tuple[int, ...]) -> _Shape:
        """The program for these sizes, with memory for it on the stream."""
        found = room.shapes.get(dims)
        if found is not None:
            if dims:
                room.shapes.move_to_end(dims)
            return found
        arena = _rounded(self.arena_size(dims))
        planner = Planner(self.code, self._entries, dict(zip(self.dims, dims, strict=True)), arena)
        inputs = len(self.inputs) + len(self._fixed) + len(self.recipes)
        plan = planner.plan(self._entries[self.data.entry], inputs, len(self.outputs))
        cells = arena + plan.scratch
        new = _rounded(cells + WATCHED_BYTES * bool(self._watched))
        size = new + self._new.size
        last = inputs + len(self.outputs)  # the number of the arena's address
        if self._changed:
            found = (cells, last) if self._watched else (0, FIXED)
            places = [found, (new, last), *((0, k) for k in self._changed)]
            base, source = zip(*places, strict=True)
            function = _write_back(self.machine, self._new).function(write_back.NAME)
            launcher = Launcher(function, (write_back.THREADS, 1, 1), len(base))
            changes = Planned(launcher, self._new.blocks, base, source)
            plan = replace(plan, actions=(*plan.actions, changes))
        if size > room.size:
            room.shapes.clear()  # graphs have the address of the arena that was
            room.arena, room.owner = self.machine.allocate(size) if size else (0, None)
            room.size = size
        counters = None
        if plan.counters:
            address, counters = self.machine.allocate(plan.counters)
            zero(self.machine.device, address, plan.counters, self.machine.stream())
            plan = plan.counting(address)
        made = room.shapes[dims] = _Shape(plan, cells, new, counters)
        while len(room.shapes) > GRAPHS:
            room.shapes.popitem(last=False)
        return made

    def _addresses(
        self,
        room: _Room,
        shape: _Shape,
        bound: GpuBound,
        others: Sequence[int],
        outputs: Sequence[int],
    ) -> list[int]:
        """All addresses of a call, in the order of plans."""
        cells = []
        if self._found_words is not None:
            words = range(len(self._found_words.values) // WATCHED_WORDS)
            told = (self._found_words.address + k * WATCHED_BYTES for k in words)
            cells = [room.arena + shape.cells, *told]
        new = [room.arena + shape.new + at for at in self._new.offsets]
        return [*bound.first, *others, *bound.rest, *outputs, *new, *cells, room.arena]

    def _launch(
        self,
        actions: Sequence[PlannedAction],
        addresses: list[int],
        stream: int,
    ) -> None:
        """Enqueues the launches one by one."""
        for a in actions:
            if isinstance(a, Planned):
                a.launcher.again(a.values(addresses), a.blocks, stream)
                continue
            if isinstance(a, PlannedCall):
                if self.machine.libraries is None:
                    no_libraries(a.call, ())
                else:
                    self.machine.libraries.run(a.call, a.values(addresses))
                continue
            if isinstance(a, PlannedLoop):
                self._loop(a, addresses, stream)
                continue
            offset, at = a.predicate
            taken = a.then if self._byte(addresses[at] + offset, stream) else a.other
            self._launch(taken.actions, [b + addresses[s] for b, s in a.places], stream)

    def _loop(self, a: PlannedLoop, addresses: list[int], stream: int) -> None:
        """Rounds while the condition holds, which the host reads before each."""

        def at(places: Sequence[Place]) -> list[int]:
            return [b + addresses[s] for b, s in places]

        now, results, spares = at(a.first), at(a.results), at(a.spares)
        inputs, (arena, flag) = at(a.inputs), at((a.arena, a.flag))
        new, other = results, spares
        for j, copy in enumerate(a.copies):
            if a.in_place[j] and copy is not None:
                self._launch(copy.actions, [now[j], results[j], arena], stream)
                now[j] = results[j]
        while True:
            given = [*now, *inputs]
            self._launch(a.condition.actions, [*given, flag, arena], stream)
            if not self._byte(flag, stream):
                break
            self._launch(a.body.actions, [*given, *new, arena], stream)
            now, new, other = new, other, new
        for copy, here, there in zip(a.copies, now, results, strict=True):
            if copy is not None and here != there:
                self._launch(copy.actions, [here, there, arena], stream)

    def _byte(self, address: int, stream: int) -> int:
        """A byte of the GPU's memory, once the stream has come so far."""
        call = self.machine.device.driver.call
        if self.machine.capturing():
            raise Unsupported(
                "a branch or a loop depends on data, and cannot be part of a CUDA graph",
                hint="leave torch.cond and while_loop out of what is captured",
            )
        value = ctypes.c_ubyte()
        call("cuStreamSynchronize", stream)
        call("cuMemcpyDtoH_v2", ctypes.addressof(value), address, 1)
        return value.value

    def _realigned(
        self,
        bound: GpuBound,
        others: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int],
        stream: int,
    ) -> None:
        """A call with addresses that kernels do not take: those tensors are copied."""
        sizes = dict(zip(self.dims, dims, strict=True))
        copy = self.machine.device.driver.call
        owners: list[object] = []

        def moved(address: int, t: TensorType) -> tuple[int, int]:
            if address % VECTOR == 0:
                return address, 0
            size = int(D.evaluate(t.size, sizes)) * t.dtype.bytes
            made, owner = self.machine.allocate(size)
            owners.append(owner)
            return made, size

        given = [*bound.first, *others]
        inputs: list[int] = []
        for address, t in zip(given, self.inputs, strict=True):
            made, size = moved(address, t)
            if size:
                copy("cuMemcpyDtoDAsync_v2", made, address, size, stream)
            inputs.append(made)
        results = [moved(a, t) for a, t in zip(outputs, self.outputs, strict=False)]
        count = len(bound.first)
        again = GpuBound(inputs[:count], bound.rest, bound.derived, True)
        self._run(again, inputs[count:], [a for a, _ in results], tuple(dims), stream)
        for address, (made, size) in zip(outputs, results, strict=True):
            if size:
                copy("cuMemcpyDtoDAsync_v2", address, made, size, stream)
        for k, size in zip(self._changed, self._new.sizes, strict=True):
            if inputs[k] != given[k]:
                copy("cuMemcpyDtoDAsync_v2", given[k], inputs[k], size, stream)


def _users(
    straight: Sequence[Planned | PlannedCall],
) -> dict[int, dict[int, list[tuple[int, int]]]]:
    """By the number of an address: the launches that use it, at which positions, plus what."""
    found: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for k, p in enumerate(straight):
        for position, (base, source) in enumerate(zip(p.base, p.source, strict=True)):
            if source != FIXED:
                found.setdefault(source, {}).setdefault(k, []).append((position, base))
    return found


def _moved(graph: _Graph, shape: _Shape, places: Sequence[int], varying: tuple[int, ...]) -> bool:
    """The graph takes other addresses of what a call passes; False where it cannot."""
    addresses = list(graph.addresses)
    changed: dict[int, list[tuple[int, int]]] = {}
    others = map(ne, graph.varying, varying)  # most are where they were
    for n, new in compress(zip(places, varying, strict=True), others):
        addresses[n] = new
        for k, used in shape.users.get(n, {}).items():
            changed.setdefault(k, []).extend((at, base + new) for at, base in used)
    if not _as_ordered(graph, shape, addresses):
        return False
    for k, values in changed.items():
        if not graph.replay.replace(k, values):
            return False
    graph.varying, graph.addresses = varying, addresses
    return True


def _as_ordered(graph: _Graph, shape: _Shape, addresses: list[int]) -> bool:
    """May the same kernels of a graph begin early with other addresses?"""
    straight = shape.plan.straight or ()
    if isinstance(graph.replay, TaskReplay) or not shape.plan.overlaps:
        return True
    return begins_early(straight, addresses) == begins_early(straight, graph.addresses)


def _replace(
    graph: _Graph, users: dict[int, dict[int, list[tuple[int, int]]]], addresses: list[int]
) -> bool:
    """The graph takes these addresses from now on; False where it cannot."""
    changed: dict[int, list[tuple[int, int]]] = {}
    for n, (old, new) in enumerate(zip(graph.addresses, addresses, strict=True)):
        if old != new:
            for k, places in users.get(n, {}).items():
                changed.setdefault(k, []).extend((at, base + new) for at, base in places)
    return all(graph.replay.replace(k, values) for k, values in changed.items())


@cache
def _write_back(machine: Machine, new: write_back.Room) -> Module:
    return Module(cached_ptx(write_back.text(new), machine.target), machine.device)


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
