"""Schedules of products on a GPU chosen by its clock: ours, and a library's call with a kernel of
ours for the rest. Loaded only where a GPU is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

import numpy as np

from tilewright.base.cache import Cache
from tilewright.base.errors import Refused, TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.graph.classify import guess
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.grid_chain_ways import ways
from tilewright.kernel.defaults.grid_library import sums_of_products
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.nest import Nest, Work, start
from tilewright.kernel.schedule import RULES
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import group_text
from tilewright.llvm.entry import Slot
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.cuda.image import KernelImage, Size, Steps, from_bytes
from tilewright.runtime.cuda.image import Work as KernelWork
from tilewright.runtime.cuda.machine import GivenCall, Machine, Recorded
from tilewright.runtime.cuda.memory import zero
from tilewright.runtime.cuda.plan import ALIGN, Kernels, Plan, Planned, Planner
from tilewright.runtime.cuda.replay import Called, Launched, Replay, no_libraries
from tilewright.runtime.cuda.stream import Event
from tilewright.tune.choose import Chosen, Considered, Default, Made, Picked
from tilewright.tune.stored import load_choice, store_choice

# Another schedule than the rules' has to be faster by this part.
MARGIN = 0.03
ROUNDS = 9
# One sample is so long, so that the clock's resolution (half a microsecond) does not matter.
SAMPLE_SECONDS = 200e-6
MOST_CALLS = 50  # of one kernel in a sample
FEW_CALLS = 3  # that say how many a sample takes
# Weights of a model do not stay in the cache from one use to the next: samples use several copies
# of the arguments in turn, so many at most.
MOST_SETS = 4
RANDOM = 1 << 16  # numbers that are drawn; larger arguments repeat them
LIBRARY = Choices(library=True)
LIBRARIES = {"product": "cuBLAS", "convolution": "cuDNN", "weight gradient": "cuDNN"}


@dataclass
class Measured:
    """The rules' schedule, other ones of ours, and a library's call take turns on the GPU; the
    result is cached. `seconds` are for all groups together: when they are spent, rules decide."""

    machine: Machine
    cache: Cache
    seconds: float
    log: Log
    make: Callable[[Group, Choices], Made]  # compiles a group; Refused where it cannot be
    variants: tuple[Choices, ...] = (RULES, Choices(tile=1), LIBRARY)
    alone: bool = False
    spent: float = field(default=0.0, init=False)

    @property
    def name(self) -> str:
        return f"measured on {self.machine.key()}"

    def choices(self, group: Work) -> tuple[Choices, ...]:
        """The rules' first."""
        if isinstance(group, Nest):
            return ()
        if chained := ways(group):
            others = tuple(Choices(tile=k) for k in range(1, len(chained)))
            return (RULES, *others) if others else ()
        if not sums_of_products(group):
            return ()
        return tuple(c for c in self.variants if not c.library or self.machine.libraries)

    def choose(self, group: Work, target: Target) -> Chosen:
        wanted = self.choices(group)
        if isinstance(group, Nest) or not wanted:
            return Default().choose(group, target)
        known = load_choice(self.cache, self._key(group, target), group)
        if known is not None:
            return known
        made: list[Made] = []
        for c in wanted:
            try:
                made.append(self.make(group, c))
            except Refused as why:
                self.log.add("schedule", f"{group.name}: {c}: {why.what}", detail=True)
        found = self.pick(group, target, made)
        trace = parse_trace(found.made.trace)
        return Chosen(trace, apply(start(group), trace), found.considered, found.final)

    def pick(self, group: Group, target: Target, made: Sequence[Made]) -> Picked:
        distinct = list({m.trace: m for m in reversed(made)}.values())[::-1]
        if len(distinct) < 2:
            return Picked(distinct[0])
        if self.spent > self.seconds:
            return Picked(distinct[0], final=False)
        images = [from_bytes(KernelImage, m.image) for m in distinct]
        began = time.perf_counter()
        try:
            took = timed(images, group, target, self.machine)
        except CudaError as problem:
            if problem.lost:
                raise
            # There is no memory for a second set of arguments, say.
            self.log.add("schedule", f"{group.name} is not timed: {problem.what}")
            return Picked(distinct[0], final=False)
        finally:
            self.spent += time.perf_counter() - began
        found = self._best(distinct, [_label(m, x) for m, x in zip(distinct, images)], took)
        key = self._key(group, target)
        store_choice(self.cache, key, found.made.trace, found.considered)
        return found

    def _key(self, group: Group, target: Target) -> str:
        return f"{self.name}\n{target.key()}\n{group_text(group)}"

    def _best(
        self, made: Sequence[Made], labels: Sequence[str], took: Sequence[float | TilewrightError]
    ) -> Picked:
        right: dict[int, float] = {}
        for k, t in enumerate(took):
            if isinstance(t, TilewrightError):
                self.log.add("schedule", f"{labels[k]} cannot be timed: {t.what}")
            else:
                right[k] = t
        if 0 not in right:
            raise Unsupported("the schedule by the rules does not run on this GPU")
        best = min(right, key=lambda k: right[k])
        first = best if right[best] < (1 - MARGIN) * right[0] else 0
        order = sorted(right, key=lambda k: (k != first, right[k]))
        return Picked(made[first], tuple(Considered(labels[k], 0.0, right[k]) for k in order))


def _label(made: Made, image: KernelImage) -> str:
    """Who computes it, and by which choices."""
    if image.calls:
        return f"{LIBRARIES[image.calls[0].function]} through torch"
    return "ours" if made.choices == RULES else f"ours, {made.choices}"


def timed(
    images: Sequence[KernelImage], group: Group, target: Target, machine: Machine
) -> list[float | TilewrightError]:
    """Seconds of a call of each kernel of a group on the GPU: medians of rounds in which they take
    turns. An error in its place where one does not run."""
    before = machine.device.enter()
    try:
        return _timed(images, group, target, machine)
    finally:
        machine.device.leave(before)


def _timed(
    images: Sequence[KernelImage], group: Group, target: Target, machine: Machine
) -> list[float | TilewrightError]:
    arguments = _Arguments(group, target, machine)
    samples = [_sample(x, machine, arguments) for x in images]
    right = [s for s in samples if isinstance(s, _Sample)]
    stream = machine.stream()
    # All rounds are enqueued before the first is looked at: a GPU that waits for the next call
    # would be timed waiting.
    rounds = [
        [(Event(machine.device), Event(machine.device), s) for s in right] for _ in range(ROUNDS)
    ]
    for begin, end, s in (x for one in rounds for x in one):
        begin.record(stream)
        s.replay(stream)
        end.record(stream)
    machine.device.synchronise()
    times = {id(s): [one[k][1].since(one[k][0]) for one in rounds] for k, s in enumerate(right)}
    return [median(times[id(s)]) / s.calls if isinstance(s, _Sample) else s for s in samples]


@dataclass(frozen=True)
class _Sample:
    """Some calls of one kernel in turn on copies of its arguments, as one CUDA graph."""

    replay: Replay
    calls: int
    keeps: object  # memory that the calls use


class _Arguments:
    """Memory for the arguments of a group's kernels, in several copies: floats at random, whole
    numbers zero, which is an index into anything."""

    def __init__(self, group: Group, target: Target, machine: Machine) -> None:
        buffers = (*group.inputs, *group.outputs)
        sizes = [max(1, guess(b.size) * b.dtype.bytes) for b in buffers]
        starts = list(accumulate((-(-n // ALIGN) * ALIGN for n in sizes), initial=0))
        copies = min(MOST_SETS, max(1, -(-2 * target.l2 // starts[-1])))
        first, self.owner = machine.lasting(copies * starts[-1])
        self.sets = [[first + k * starts[-1] + at for at in starts[:-1]] for k in range(copies)]
        self.sizes = {s.name: guess(D.as_int(s)) for s in group.dim_symbols()}
        rng, stream = np.random.default_rng(0), machine.stream()
        kept = [_content(b, rng) for b in buffers]
        for addresses in self.sets:
            for address, n, some in zip(addresses, sizes, kept, strict=True):
                _fill(address, n, some, machine, stream)
        machine.device.synchronise()


def _content(b: Buffer, rng: np.random.Generator) -> np.ndarray:
    if b.scope != "in" or not b.dtype.is_float:
        return np.zeros(RANDOM, np.uint8)
    numbers = rng.standard_normal(RANDOM).astype(np.float32)
    if b.dtype.name == "bf16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(b.dtype.numpy)


def _fill(address: int, size: int, some: np.ndarray, machine: Machine, stream: int) -> None:
    """Memory of the GPU gets some bytes, again and again: it copies what is there already."""
    call, done = machine.device.driver.call, min(size, some.nbytes)
    call("cuMemcpyHtoDAsync_v2", address, some.ctypes.data, done, stream)
    while done < size:
        more = min(done, size - done)
        call("cuMemcpyDtoDAsync_v2", address + done, address, more, stream)
        done += more


def _sample(
    image: KernelImage, machine: Machine, arguments: _Arguments
) -> _Sample | TilewrightError:
    try:
        plan = _planned(image, machine, arguments)
        arena, owner = machine.lasting(plan.scratch)
        counters, counted = machine.lasting(plan.counters)
        zero(machine.device, counters, plan.counters, machine.stream())
        plan = plan.counting(counters)
        calls = [_bound(plan, x, arena) for x in arguments.sets]
        libraries = machine.libraries
        room = libraries.room() if libraries is not None and image.calls else None
        known: dict[tuple[int, ...], Recorded] = {}  # a graph may hold the same one several times

        def record(call: GivenCall, values: Sequence[int]) -> Recorded:
            if libraries is None:
                return no_libraries(call, values)
            if tuple(values) not in known:
                if not known:  # what a library prepares is prepared before
                    libraries.run(call, values)
                    machine.device.synchronise()
                known[tuple(values)] = libraries.recorded(call, values, room)
            return known[tuple(values)]

        stream = machine.stream()
        once = Replay(machine.device, calls[0], record)
        begin, end = Event(machine.device), Event(machine.device)
        once(stream)
        begin.record(stream)
        for _ in range(FEW_CALLS):
            once(stream)
        end.record(stream)
        count = int(SAMPLE_SECONDS / max(1e-6, end.since(begin) / FEW_CALLS))
        count = max(len(calls), min(MOST_CALLS, count))
        launches = [x for k in range(count) for x in calls[k % len(calls)]]
        made = Replay(machine.device, launches, record)
        made(stream)
        machine.device.synchronise()
        return _Sample(made, count, (owner, counted, room))
    except TilewrightError as problem:
        return problem
    except RuntimeError as problem:  # of a library
        return Unsupported(str(problem).splitlines()[0])


def _planned(image: KernelImage, machine: Machine, arguments: _Arguments) -> Plan:
    """The launches of a kernel, over its arguments and the memory that they pass on."""
    kernels = Kernels({"kernel": image}, machine.device)
    count = len(image.arguments)
    slots = tuple(Slot("in", k) for k in range(count))
    work = KernelWork("kernel", slots, tuple(map(Size, image.sizes)))
    entry = Steps("entry", (work,), image.sizes)
    return Planner(kernels, {}, arguments.sizes, 0).plan(entry, count, 0)


def _bound(plan: Plan, arguments: Sequence[int], arena: int) -> list[Launched | Called]:
    addresses = [*arguments, arena]
    out: list[Launched | Called] = []
    for p in plan.straight or ():
        values = p.values(addresses)
        out.append((p.launcher, p.blocks, values) if isinstance(p, Planned) else (p.call, values))
    return out
