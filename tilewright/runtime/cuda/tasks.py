"""A program as one kernel on a GPU: the task graph of its launches, and the table that the kernel
reads (llvm/tasks.py has its form)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.kernel.tasks import ARENA, Phase, TaskGraph, Use, check, ordered
from tilewright.llvm import tasks as layout
from tilewright.llvm.tasks import ENTRY, Kind
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.image import KernelImage, Steps, TasksImage, Work
from tilewright.runtime.cuda.memory import Memory
from tilewright.runtime.cuda.module import Facts, Module
from tilewright.runtime.cuda.plan import Described, Planned, PlannedCall, Planner


def phases_of(
    launches: Sequence[Planned], kinds: Sequence[Kind], names: Mapping[str, str] = {}
) -> list[Phase]:
    """Launches as phases. Spaces that are one memory in this call have one of the `names`."""
    threads = {k.symbol: k.threads for k in kinds}
    made: list[Phase] = []
    for p in launches:
        if p.kind not in threads or p.uses is None:
            raise Unsupported(f"the memory that {p.kind or 'a launch'} uses is not known")
        uses = dict.fromkeys(
            u if u.space == ARENA else Use(names.get(u.space, u.space), writes=u.writes)
            for u in p.uses
        )
        spaces = (u.space for a, u in zip(p.arguments, p.uses, strict=False) if a in p.early)
        early = dict.fromkeys(names.get(x, x) for x in spaces)
        made.append(Phase(p.kind, p.blocks, threads[p.kind], tuple(uses), early=tuple(early)))
    return made


def same_memory(launches: Sequence[Planned], values: Sequence[Sequence[int]]) -> dict[str, str]:
    """Spaces that overlap others where launches have these values, such as an input that is also a
    result: by name, the first of them."""
    ends: dict[str, tuple[int, int]] = {}
    for p, own in zip(launches, values, strict=True):
        for u, at in zip(p.uses or (), own, strict=False):
            if u.space != ARENA and ends.get(u.space, (0, 0))[1] < at + u.size:
                ends[u.space] = at, at + u.size
    found: dict[str, str] = {}
    last, first = 0, ""
    for space, (start, end) in sorted(ends.items(), key=lambda x: x[1]):
        if start < last:
            found[space] = first
        else:
            first = space
        last = max(last, end)
    return found


def begins_early(launches: Sequence[Planned | PlannedCall], addresses: Sequence[int]) -> list[bool]:
    """Which launches of a sequence may begin before the one before them ends: those that wait for
    it themselves, where what they read before that is written by none before. All before that one
    have ended then, since it waited for them, or began after them."""
    known = [p for p in launches if isinstance(p, Planned) and p.uses is not None]
    names = same_memory(known, [p.values(addresses) for p in known])
    written: set[str] = {ARENA}
    anything = False  # may have been written
    out: list[bool] = []
    for p in launches:
        if not isinstance(p, Planned):
            anything = True
            out.append(False)
            continue
        uses = [(names.get(u.space, u.space), u) for u in p.uses or ()]
        early = {x for a, (x, _) in zip(p.arguments, uses, strict=False) if a in p.early}
        unknown = anything or p.uses is None
        out.append(p.waits and not (p.early and (unknown or early & written)))
        anything = anything or p.uses is None
        written |= {x for x, u in uses if u.writes}
    return out


def graph_of(
    steps: Steps,
    images: Mapping[str, KernelImage],
    kinds: Sequence[Kind],
    threads: int,
    blocks: int,
) -> TaskGraph:
    """The task graph of a program of known sizes, before it is loaded."""
    works = [a for a in steps.actions if isinstance(a, Work)]
    ends: dict[str, int] = {}
    for w in works:
        for slot, size in zip(w.args, w.room, strict=True):
            taken = D.evaluate(size, {}) if slot.kind == ARENA else 1
            end = int(D.evaluate(slot.at, {})) + int(taken)
            ends[slot.kind] = max(ends.get(slot.kind, 0), end)
    planner = Planner(Described(images), {}, {}, ends.get(ARENA, 0))
    plan = planner.plan(steps, ends.get("in", 0), ends.get("out", 0))
    launches = [p for p in plan.actions if isinstance(p, Planned) and 0 not in p.blocks]
    return check(ordered(phases_of(launches, kinds), blocks, threads))


class Table:
    """The records of a graph whose launches have these values."""

    def __init__(
        self, g: TaskGraph, launches: Sequence[Planned], image: TasksImage, values: list[list[int]]
    ) -> None:
        numbers = {k.symbol: n for n, k in enumerate(image.kinds)}
        self.words = np.zeros((len(g.phases), image.words), np.int64)
        for k, p in enumerate(g.phases):
            if len(p.waits) > layout.MOST_WAITS:
                most = layout.MOST_WAITS
                raise Unsupported(
                    f"{p.kind} waits for {len(p.waits)} others, at most {most} can be"
                )
            row = self.words[k]
            row[layout.KIND], row[layout.TASKS] = numbers[p.kind], p.tasks
            row[layout.ALONG_X], row[layout.ALONG_Y] = p.blocks[0], p.blocks[1]
            row[layout.FIRST] = g.firsts[k]
            row[layout.COUNTER] = layout.counter_place(p.counter) if p.counter >= 0 else -1
            row[layout.WAITS], row[layout.EARLY] = len(p.waits), bool(p.early)
            for n, w in enumerate(p.waits):
                at = layout.WAIT + 2 * n
                row[at : at + 2] = layout.counter_place(w.counter), w.count
        for k, own in enumerate(values):
            for position, value in enumerate(own):
                self.put(k, position, value)

    def put(self, phase: int, position: int, value: int) -> None:
        self.words[phase, layout.VALUES + position] = value


class TaskReplay:
    """A program with its addresses, as one launch; launches of no kind of task follow it."""

    def __init__(self, tasks: Tasks, launches: Sequence[Planned], values: list[list[int]]) -> None:
        self.tasks, self._all, self._values = tasks, launches, values
        count = sum(bool(p.kind) for p in launches)
        # Of the phases, and of what follows: which launches they are.
        self._own = [k for k in range(count) if 0 not in launches[k].blocks]
        self._rest = range(count, len(launches))
        self.launches = [launches[k] for k in self._own]
        self._phase = {k: n for n, k in enumerate(self._own)}
        self._plan(same_memory(self.launches, self._given()))
        self.memory = Memory.of(tasks.device, self.table.words)
        self._moved = False

    def _given(self) -> list[list[int]]:
        return [self._values[k] for k in self._own]

    def _plan(self, names: dict[str, str]) -> None:
        tasks = self.tasks
        self.names = names
        self.graph = tasks.graph(self.launches, names)
        self.table = Table(self.graph, self.launches, tasks.image, self._given())
        room = np.zeros(layout.counter_place(self.graph.counters), np.uint8)
        self.counters = Memory.of(tasks.device, room)

    def replace(self, launch: int, values: Sequence[tuple[int, int]]) -> bool:
        """Other values at some positions of a launch, for later calls."""
        for position, value in values:
            self._values[launch][position] = value
            if launch in self._phase:
                self.table.put(self._phase[launch], position, value)
        self._moved = True
        return True

    def __call__(self, stream: int) -> None:
        if self._moved:
            self._renew(stream)
        g = self.graph
        self.tasks.launch(g, self.memory.address, self.counters.address, stream)
        for k in self._rest:
            p = self._all[k]
            p.launcher.again(self._values[k], p.blocks, stream)

    def alone(self, stream: int) -> None:
        """The same, whatever the thread's device is."""
        self.tasks.device.within(self, stream)

    def _renew(self, stream: int) -> None:
        """The table as it is now, once earlier calls on the stream have ended. Where other memory
        overlaps than before, phases wait for others."""
        names = same_memory(self.launches, self._given())
        if names != self.names:
            self._plan(names)
        words, call = self.table.words, self.tasks.device.driver.call
        call("cuMemcpyHtoDAsync_v2", self.memory.address, words.ctypes.data, words.nbytes, stream)
        self._moved = False


class Tasks:
    """The kernel that runs a program's tasks, on a GPU."""

    def __init__(self, image: TasksImage, device: Device) -> None:
        self.image, self.device = image, device
        self.function = Module(image.ptx.decode(), device).function(ENTRY, image.shared)
        self.facts: Facts = self.function.facts(image.threads)
        self.resident = self.facts.blocks * dict(device.facts)["multiprocessors"]
        if self.resident < 1:
            raise Unsupported("no block of the kernel fits a multiprocessor")
        self.blocks = self.resident  # fewer may be chosen
        self._launch = device.driver.function("cuLaunchCooperativeKernel")

    def graph(self, launches: Sequence[Planned], names: Mapping[str, str]) -> TaskGraph:
        """The checked task graph of launches."""
        phases = phases_of(launches, self.image.kinds, names)
        made = ordered(phases, self.blocks, self.image.threads)
        return check(made, self.resident)

    def replay(
        self, launches: Sequence[Planned | PlannedCall], addresses: Sequence[int]
    ) -> TaskReplay:
        """A program as one launch."""
        found = [p for p in launches if isinstance(p, Planned)]
        if len(found) != len(launches):
            raise Unsupported("a library computes a part of it")
        return TaskReplay(self, found, [p.values(addresses) for p in found])

    def launch(self, g: TaskGraph, table: int, counters: int, stream: int) -> None:
        """Asks for a launch; the driver refuses one whose blocks are not all resident."""
        given = (ctypes.c_int64 * 5)(table, len(g.phases), counters, g.counters, g.blocks)
        start = ctypes.addressof(given)
        places = (ctypes.c_void_p * 5)(*(start + 8 * k for k in range(5)))
        size = (g.blocks, 1, 1, g.threads, 1, 1)
        code = self._launch(self.function.handle, *size, self.image.shared, stream, places)
        if code:
            where = f"{ENTRY}, {g.blocks} blocks of {g.threads} threads that wait for each other"
            raise self.device.driver.error("cuLaunchCooperativeKernel", code, where)
