"""Schedules of products on a GPU chosen by its clock: ours, and a library's call with a kernel of
ours for the rest. Loaded only where a GPU is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import median

import numpy as np

from tilewright.base.cache import Cache
from tilewright.base.errors import Refused, TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.grid_library import sums_of_products
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.legal import legalise
from tilewright.kernel.library import library_calls, without_library
from tilewright.kernel.nest import Nest, Work
from tilewright.kernel.schedule import RULES, default_schedule
from tilewright.kernel.step import Trace
from tilewright.kernel.text import group_text
from tilewright.llvm.entry import Slot
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import cached_ptx
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.cuda.image import KernelImage, Scratch, Size, Steps
from tilewright.runtime.cuda.image import Work as KernelWork
from tilewright.runtime.cuda.machine import GivenCall, Machine, Recorded
from tilewright.runtime.cuda.plan import Kernels, Plan, Planned, Planner
from tilewright.runtime.cuda.replay import Called, Launched, Replay, no_libraries
from tilewright.runtime.cuda.stream import Event
from tilewright.tune.choose import Chosen, Considered, Default
from tilewright.tune.stored import load_choice, store_choice

# Another schedule than the rules' has to be faster by this part.
MARGIN = 0.03
ROUNDS = 9
# One sample is so long, so that the clock's resolution (half a microsecond) does not matter.
SAMPLE_SECONDS = 200e-6
MOST_CALLS = 50  # of one kernel in a sample
# Weights of a model do not stay in the cache from one use to the next: samples use several copies
# of the arguments in turn, so many at most.
MOST_SETS = 4
RANDOM = 1 << 16  # numbers that are drawn; larger arguments repeat them
LIBRARY = Choices(library=True)
LIBRARIES = {"product": "cuBLAS", "convolution": "cuDNN"}


@dataclass
class Measured:
    """The rules' schedule, other ones of ours, and a library's call take turns on the GPU; the
    result is cached. `seconds` are for all groups together: when they are spent, rules decide."""

    machine: Machine
    cache: Cache
    seconds: float
    log: Log
    variants: tuple[Choices, ...] = (RULES, Choices(tile=1), LIBRARY)
    alone: bool = True
    spent: float = field(default=0.0, init=False)

    @property
    def name(self) -> str:
        return f"measured on {self.machine.key()}"

    def choose(self, group: Work, target: Target) -> Chosen:
        if isinstance(group, Nest) or not sums_of_products(group):
            return Default().choose(group, target)
        key = f"{self.name}\n{target.key()}\n{group_text(group)}"
        known = load_choice(self.cache, key, group)
        if known is not None:
            return known
        found = self._candidates(group, target)
        if len(found) < 2:
            return Chosen(found[0][1], found[0][2])
        if self.spent > self.seconds:
            return Chosen(found[0][1], found[0][2], final=False)
        began = time.perf_counter()
        try:
            took = timed([nest for *_, nest in found], target, self.machine)
        except CudaError as problem:
            if problem.lost:
                raise
            # There is no memory for a second set of arguments, say.
            self.log.add("schedule", f"{group.name} is not timed: {problem.what}")
            return Chosen(found[0][1], found[0][2], final=False)
        finally:
            self.spent += time.perf_counter() - began
        made = self._best(found, took)
        store_choice(self.cache, key, made)
        return made

    def _candidates(self, group: Group, target: Target) -> list[tuple[Choices, Trace, Nest]]:
        """Distinct schedules, the rules' first."""
        out: list[tuple[Choices, Trace, Nest]] = []
        for choices in self.variants:
            if choices.library and self.machine.libraries is None:
                continue
            try:
                trace, nest = default_schedule(group, target, choices)
            except Refused as why:
                self.log.add("schedule", f"{group.name}: {choices}: {why.what}", detail=True)
                continue
            if all(trace != known for _, known, _ in out):
                out.append((choices, trace, nest))
        return out

    def _best(
        self, found: list[tuple[Choices, Trace, Nest]], took: Sequence[float | TilewrightError]
    ) -> Chosen:
        right: dict[int, float] = {}
        for k, t in enumerate(took):
            if isinstance(t, TilewrightError):
                said = f"{_label(found[k])} cannot be timed: {t.what}"
                self.log.add("schedule", said)
            else:
                right[k] = t
        if 0 not in right:
            raise Unsupported("the schedule by the rules does not run on this GPU")
        best = min(right, key=lambda k: right[k])
        first = best if right[best] < (1 - MARGIN) * right[0] else 0
        order = sorted(right, key=lambda k: (k != first, right[k]))
        considered = tuple(Considered(_label(found[k]), 0.0, right[k]) for k in order)
        return Chosen(found[first][1], found[first][2], considered)


def _label(found: tuple[Choices, Trace, Nest]) -> str:
    """Who computes it, and by which choices."""
    choices, _, nest = found
    if choices.library:
        return f"{LIBRARIES[library_calls(nest)[0].function]} through torch"
    return "ours" if choices == RULES else f"ours, {choices}"


def timed(nests: Sequence[Nest], target: Target, machine: Machine) -> list[float | TilewrightError]:
    """Seconds of a call of each nest on the GPU: medians of rounds in which they take turns. An
    error in its place where one does not run."""
    before = machine.device.enter()
    try:
        return _timed(nests, target, machine)
    finally:
        machine.device.leave(before)


def _timed(
    nests: Sequence[Nest], target: Target, machine: Machine
) -> list[float | TilewrightError]:
    arguments = _Arguments(nests[0], target, machine)
    samples = [_sample(n, target, machine, arguments) for n in nests]
    times: list[list[float]] = [[] for _ in nests]
    stream = machine.stream()
    start_event, end = Event(machine.device), Event(machine.device)
    for _ in range(ROUNDS):
        for s, found in zip(samples, times, strict=True):
            if isinstance(s, _Sample):
                start_event.record(stream)
                s.replay(stream)
                end.record(stream)
                found.append(end.since(start_event) / s.calls)
    machine.device.synchronise()
    pairs = zip(samples, times, strict=True)
    return [median(t) if isinstance(s, _Sample) else s for s, t in pairs]


@dataclass(frozen=True)
class _Sample:
    """Some calls of one kernel in turn on copies of its arguments, as one CUDA graph."""

    replay: Replay
    calls: int
    keeps: object  # memory that the calls use


class _Arguments:
    """Memory for the arguments of a group's nests, in several copies: floats at random, whole
    numbers zero, which is an index into anything."""

    def __init__(self, nest: Nest, target: Target, machine: Machine) -> None:
        self.buffers = [b for b in nest.buffers if b.scope in ("in", "out")]
        sizes = [guess(b.size) * b.dtype.bytes for b in self.buffers]
        copies = min(MOST_SETS, max(1, -(-2 * target.l2 // max(1, sum(sizes)))))
        rng = np.random.default_rng(0)
        one = [_content(b, n, rng) for b, n in zip(self.buffers, sizes, strict=True)]
        self.sets = [[_placed(x, machine) for x in one] for _ in range(copies)]
        self.sizes = {s.name: guess(D.as_int(s)) for s in nest.dims}


@dataclass(frozen=True, eq=False)
class _Piece:
    """Memory of the GPU: its address, and what owns it."""

    address: int
    owner: object


def _placed(array: np.ndarray, machine: Machine) -> _Piece:
    made = _Piece(*machine.lasting(array.nbytes))
    machine.device.driver.call("cuMemcpyHtoD_v2", made.address, array.ctypes.data, array.nbytes)
    return made


def _content(b: Buffer, size: int, rng: np.random.Generator) -> np.ndarray:
    if b.scope != "in" or not b.dtype.is_float:
        return np.zeros(max(1, size), np.uint8)
    numbers = rng.standard_normal(RANDOM).astype(np.float32)
    few = (numbers.view(np.uint32) >> 16).astype(np.uint16) if b.dtype.name == "bf16" else None
    if few is None:
        few = numbers.astype(b.dtype.numpy)
    return np.resize(few, max(1, size // b.dtype.bytes))


def _sample(
    nest: Nest, target: Target, machine: Machine, arguments: _Arguments
) -> _Sample | TilewrightError:
    try:
        plan, arena = _planned(nest, target, machine, arguments)
        calls = [_bound(plan, x, arena) for x in arguments.sets]
        libraries = machine.libraries
        room = libraries.room() if libraries is not None and library_calls(nest) else None

        def record(call: GivenCall, values: Sequence[int]) -> Recorded:
            if libraries is None:
                return no_libraries(call, values)
            libraries.run(call, values)  # what a library prepares is prepared before
            machine.device.synchronise()
            return libraries.recorded(call, values, room)

        stream = machine.stream()
        once = Replay(machine.device, calls[0], record)
        start_event, end = Event(machine.device), Event(machine.device)
        once(stream)
        start_event.record(stream)
        once(stream)
        end.record(stream)
        count = int(SAMPLE_SECONDS / max(1e-6, end.since(start_event)))
        count = max(len(calls), min(MOST_CALLS, count))
        launches = [x for k in range(count) for x in calls[k % len(calls)]]
        made = Replay(machine.device, launches, record)
        made(stream)
        machine.device.synchronise()
        return _Sample(made, count, (arena, room))
    except TilewrightError as problem:
        return problem
    except RuntimeError as problem:  # of a library
        return Unsupported(str(problem).splitlines()[0])


def _planned(
    nest: Nest, target: Target, machine: Machine, arguments: _Arguments
) -> tuple[Plan, _Piece]:
    """The launches of a nest, and the memory that they pass on to each other."""
    made = emit_kernels(legalise(without_library(nest), target), target)
    names = tuple(b.name for b in arguments.buffers)
    dims = tuple(s.name for s in nest.dims)
    scratch = tuple(Scratch(b.name, prod(b.shape, start=b.dtype.bytes)) for b in made.scratch)
    ptx = cached_ptx(made.text, target).encode() if made.launches else b""
    image = KernelImage(made.launches, names, scratch, dims, made.dims, ptx, library_calls(nest))
    kernels = Kernels({nest.name: image}, machine.device)
    slots = tuple(Slot("in", k) for k in range(len(names)))
    entry = Steps("entry", (KernelWork(nest.name, slots, tuple(Size(d) for d in dims)),), dims)
    plan = Planner(kernels, {}, arguments.sizes, 0).plan(entry, len(names), 0)
    return plan, _Piece(*machine.lasting(plan.scratch))


def _bound(plan: Plan, arguments: Sequence[_Piece], arena: _Piece) -> list[Launched | Called]:
    addresses = [*(m.address for m in arguments), arena.address]
    out: list[Launched | Called] = []
    for p in plan.straight or ():
        values = p.values(addresses)
        out.append((p.launcher, p.blocks, values) if isinstance(p, Planned) else (p.call, values))
    return out
