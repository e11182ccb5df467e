"""The launches of a program for given sizes; what is left open are addresses.

Addresses of a call stand in one list: those of the inputs (constants and what is derived from
weights among them), of the outputs, and last that of the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.library import LibraryCall
from tilewright.kernel.tasks import ARENA, Use
from tilewright.llvm.entry import Branch, Carried, Loop, Slices, Slot
from tilewright.llvm.launch import blocks_of
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.image import KernelImage, Size, Steps, Work
from tilewright.runtime.cuda.kernels import launcher_of
from tilewright.runtime.cuda.machine import GivenCall, Matrix
from tilewright.runtime.cuda.module import Facts, Launcher, Module

ALIGN = 256  # of a kernel's scratch memory
FIXED = -1  # a value that depends on no address
COUNTERS = -2  # one that depends on where counters are (`Plan.counting`)
LOADERS = 8  # threads in which the driver compiles PTX

Place = tuple[int, int]  # an offset, and the number of the address that it is added to


@dataclass(frozen=True)
class Planned:
    """A launch: value k of its arguments is `base[k]`, plus the address of number `source[k]`.
    `uses` is the memory that it reads and writes; None where that is not known."""

    launcher: Launcher
    blocks: tuple[int, int, int]
    base: tuple[int, ...]
    source: tuple[int, ...]
    kind: str = ""
    uses: tuple[Use, ...] | None = None
    arguments: tuple[str, ...] = ()
    early: tuple[str, ...] = ()  # arguments that are read before anything of earlier launches
    waits: bool = False  # does it wait for these itself?

    def values(self, addresses: Sequence[int]) -> list[int]:
        return [
            b if s < 0 else b + addresses[s] for b, s in zip(self.base, self.source, strict=True)
        ]


@dataclass(frozen=True)
class PlannedCall:
    """A library call: view k begins at `base[k]`, plus the address of number `source[k]`."""

    call: GivenCall
    base: tuple[int, ...]
    source: tuple[int, ...]

    def values(self, addresses: Sequence[int]) -> list[int]:
        return [b + addresses[s] for b, s in zip(self.base, self.source, strict=True)]


@dataclass(frozen=True)
class PlannedBranch:
    """One of two plans, by the byte at `predicate`: an offset, and the number of the address that
    it is added to. `places` are the addresses of the plans, described in the same way."""

    predicate: tuple[int, int]
    places: tuple[tuple[int, int], ...]
    then: Plan
    other: Plan


@dataclass(frozen=True)
class PlannedLoop:
    """A plan over and over, as long as that of the condition writes a byte other than 0 at `flag`.
    Places are described as those of a branch. Carried values are at `first` before the first round;
    rounds write them at `results` and `spares` in turn; `copies` take them to `results`."""

    condition: Plan
    body: Plan
    flag: Place
    first: tuple[Place, ...]
    results: tuple[Place, ...]
    spares: tuple[Place, ...]
    inputs: tuple[Place, ...]
    arena: Place
    copies: tuple[Plan | None, ...]
    in_place: tuple[bool, ...]  # copied before the first round, and updated where they are then


@dataclass(frozen=True)
class Plan:
    """What a program does, the bytes that launches of its kernels pass on to each other, and those
    of counters, which are zero before and after every launch. No two launches of a plan have the
    same counters, so that they may run at the same time; two runs of a plan must not."""

    actions: tuple[PlannedAction, ...]
    scratch: int
    counters: int = 0

    def counting(self, address: int) -> Plan:
        """The same with its counters at an address."""
        return replace(self, actions=tuple(_counting(a, address) for a in self.actions))

    @cached_property
    def straight(self) -> tuple[Planned | PlannedCall, ...] | None:
        """The launches, where they depend on no data."""
        found = tuple(a for a in self.actions if isinstance(a, (Planned, PlannedCall)))
        return found if len(found) == len(self.actions) else None

    @cached_property
    def overlaps(self) -> bool:
        """May a kernel begin before the one before it ends?"""
        return any(isinstance(a, Planned) and a.early for a in self.straight or ())


PlannedAction = Planned | PlannedCall | PlannedBranch | PlannedLoop


class Kernels:
    """The code of a program's kernels on a GPU."""

    def __init__(self, images: Mapping[str, KernelImage], device: Device) -> None:
        self.images = images
        self._modules: dict[str, Module] = {}
        self.launchers: dict[str, list[Launcher]] = {}

        def load(symbol: str) -> Module:
            return Module(images[symbol].ptx.decode(), device, images[symbol].cubin)

        own = [symbol for symbol, x in images.items() if x.launches]
        if len(own) > 1:
            with ThreadPoolExecutor(min(LOADERS, len(own))) as pool:
                made = list(pool.map(load, own))
        else:
            made = [load(symbol) for symbol in own]
        self.launchers.update((symbol, []) for symbol in images if symbol not in own)
        for symbol, module in zip(own, made, strict=True):
            image = images[symbol]
            self._modules[symbol] = module
            functions = [module.function(x.symbol, x.shared, bool(x.early)) for x in image.launches]
            pairs = zip(functions, image.launches, strict=True)
            self.launchers[symbol] = [launcher_of(f, x, image.dims) for f, x in pairs]

    def facts(self, symbol: str) -> list[Facts]:
        """What each launch of a kernel takes."""
        pairs = zip(self.launchers[symbol], self.images[symbol].launches, strict=True)
        return [f.function.facts(x.threads[0] * x.threads[1] * x.threads[2]) for f, x in pairs]


class Described:
    """Kernels that are not loaded, for plans that are only looked at."""

    def __init__(self, images: Mapping[str, KernelImage]) -> None:
        self.images = images
        self.launchers: dict[str, list[Any]] = {
            symbol: [None] * len(x.launches) for symbol, x in images.items()
        }


class Planner:
    """Makes the plan of an entry for given sizes. Behind the arena's bytes kernels have memory of
    their own, which they use one after the other."""

    def __init__(
        self,
        kernels: Kernels | Described,
        entries: Mapping[str, Steps],
        sizes: Mapping[str, int],
        arena: int,
    ) -> None:
        self.kernels, self.entries = kernels, entries
        self.sizes, self.arena = dict(sizes), arena

    def plan(self, entry: Steps, inputs: int, outputs: int) -> Plan:
        last = inputs + outputs

        def where(slot: Slot) -> tuple[int, int]:
            at = int(D.evaluate(slot.at, self.sizes))
            if slot.kind == "arena":
                return at, last
            return 0, at if slot.kind == "in" else inputs + at

        actions: list[PlannedAction] = []
        scratch = counters = 0
        for a in entry.actions:
            if isinstance(a, Work):
                made, size, counters = self._work(a, where, last, counters)
                actions += made
                scratch = max(scratch, size)
                continue
            inside, plans = (
                self._branch(a, where, last)
                if isinstance(a, Branch)
                else self._loop(a, where, last)
            )
            actions += inside
            for p in plans:
                scratch = max(scratch, p.scratch)
                # What follows begins when a branch or a round has ended, so that it may count in
                # the same place.
                counters = max(counters, p.counters)
        return Plan(tuple(actions), scratch, counters)

    def _work(
        self, w: Work, where: Callable[[Slot], tuple[int, int]], last: int, counters: int
    ) -> tuple[list[Planned | PlannedCall], int, int]:
        """(the launches, bytes that they pass on, bytes of counters so far)"""
        image = self.kernels.images[w.symbol]
        if len(image.arguments) != len(w.args):
            raise Invalid(f"{w.symbol} takes {len(image.arguments)} tensors, not {len(w.args)}")
        named = zip(image.sizes, w.sizes, strict=True)
        sizes = {n: self.sizes[s.name] if s.name else s.value for n, s in named}
        places = {n: where(x) for n, x in zip(image.arguments, w.args, strict=True)}
        room = 0
        taken: dict[str, int] = {}
        for s in image.scratch:
            taken[s.name] = int(D.evaluate(s.size, sizes))
            if s.counter:
                places[s.name] = counters, COUNTERS
                counters += taken[s.name]
                continue
            places[s.name] = self.arena + room, last
            room += _rounded(taken[s.name])
        known = len(w.room) == len(w.args)
        if known:
            bytes_of = (int(D.evaluate(d, self.sizes)) for d in w.room)
            taken |= dict(zip(image.arguments, bytes_of, strict=True))
        only_read = set(image.arguments[: len(image.arguments) - w.written])
        dims = tuple(sizes[d] for d in image.dims)
        made: list[Planned | PlannedCall] = [_call(c, places, sizes) for c in image.calls]
        for k, x in enumerate(image.launches):
            given = [places[a] for a in x.arguments]
            base = (*(b for b, _ in given), *dims)
            source = (*(s for _, s in given), *(FIXED for _ in dims))
            uses = (
                _use(*places[a], taken[a], a not in only_read, last) for a in x.arguments if known
            )
            made.append(
                Planned(
                    self.kernels.launchers[w.symbol][k],
                    blocks_of(x, sizes),
                    base,
                    source,
                    x.symbol,
                    tuple(uses) if known else None,
                    x.arguments,
                    x.early,
                    x.waits,
                )
            )
        return made, room, counters

    def _branch(
        self, b: Branch, where: Callable[[Slot], tuple[int, int]], last: int
    ) -> tuple[list[PlannedAction], list[Plan]]:
        places = (*map(where, b.inputs), *map(where, b.outputs))
        below, arena = self._below(b.arena, last)
        then, other = (
            below.plan(self.entries[name], len(b.inputs), len(b.outputs))
            for name in (b.then, b.other)
        )
        made = PlannedBranch(where(b.predicate), (*places, arena), then, other)
        return [made], [then, other]

    def _below(self, arena: Dim, last: int) -> tuple[Planner, Place]:
        """Who plans what is inside, and where its arena begins."""
        start = int(D.evaluate(arena, self.sizes))
        below = Planner(self.kernels, self.entries, self.sizes, self.arena - start)
        return below, (start, last)

    def _loop(
        self, a: Loop, where: Callable[[Slot], Place], last: int
    ) -> tuple[list[PlannedAction], list[Plan]]:
        """A loop of known length is written out: its launches are part of a graph like others."""
        below, arena = self._below(a.arena, last)
        inputs = len(a.carried) + len(a.slices) + len(a.inputs)
        own = [k for k, c in enumerate(a.carried) if c.stacked is None]
        body = below.plan(self.entries[a.body], inputs, len(own) + len(a.stacked))
        copies = tuple(self._copy(c) for c in a.carried)
        first, results, spares = (
            tuple(where(s) for s in slots)
            for slots in (
                [c.first for c in a.carried],
                [c.result for c in a.carried],
                [c.spare for c in a.carried],
            )
        )
        fixed = tuple(map(where, a.inputs))
        plans = [body, *(p for p in copies if p is not None)]
        if a.condition:
            condition = below.plan(self.entries[a.condition], inputs, 1)
            flow = condition, body, where(a.flag)
            in_place = tuple(c.in_place for c in a.carried)
            made = PlannedLoop(*flow, first, results, spares, fixed, arena, copies, in_place)
            return [made], [condition, *plans]
        count = int(D.evaluate(a.count, self.sizes))
        actions: list[PlannedAction] = []
        now = list(first)
        for j, (c, copy) in enumerate(zip(a.carried, copies, strict=True)):
            if c.in_place and copy is not None:
                actions += [_moved(x, [now[j], results[j], arena]) for x in copy.actions]
                now[j] = results[j]
        new = list(results if count % 2 else spares)  # the last round writes the results
        for k in range(count):
            slices = [self._part(s, k, count, where) for s in a.slices]
            stacked = [self._part(s, k, count, where) for s in a.stacked]
            places = [*now, *slices, *fixed, *(new[j] for j in own), *stacked, arena]
            actions += [_moved(x, places) for x in body.actions]
            for j, c in enumerate(a.carried):
                now[j] = new[j] if c.stacked is None else stacked[c.stacked]
                new[j] = results[j] if new[j] == spares[j] else spares[j]
        for j, copy in enumerate(copies):
            if copy is not None and now[j] != results[j]:
                actions += [_moved(x, [now[j], results[j], arena]) for x in copy.actions]
        return actions, plans

    def _part(self, s: Slices, k: int, count: int, where: Callable[[Slot], Place]) -> Place:
        offset, at = where(s.slot)
        step = int(D.evaluate(s.step, self.sizes))
        return offset + step * (count - 1 - k if s.back else k), at

    def _copy(self, c: Carried) -> Plan | None:
        """From one address to another."""
        if not c.copy:
            return None
        work = Work(c.copy, (Slot("in", 0), Slot("out", 0)), tuple(map(Size, c.dims)))
        return self.plan(Steps("copy", (work,), c.dims), 1, 1)


def _moved(a: PlannedAction, places: Sequence[Place]) -> PlannedAction:
    """An action inside, for addresses outside: each of its own is described by a place."""

    def place(p: Place) -> Place:
        base, source = p
        return (base, source) if source < 0 else (base + places[source][0], places[source][1])

    if isinstance(a, PlannedBranch):
        moved = tuple(map(place, a.places))
        return replace(a, predicate=place(a.predicate), places=moved)
    if isinstance(a, PlannedLoop):
        lists = (a.first, a.results, a.spares, a.inputs)
        first, results, spares, inputs = (tuple(map(place, x)) for x in lists)
        flow = place(a.flag), first, results, spares, inputs, place(a.arena)
        return PlannedLoop(a.condition, a.body, *flow, a.copies, a.in_place)
    found = [place(p) for p in zip(a.base, a.source, strict=True)]
    base, source = tuple(b for b, _ in found), tuple(s for _, s in found)
    if isinstance(a, PlannedCall):
        return replace(a, base=base, source=source)
    # Rounds follow each other: none begins before the one before it has ended.
    return replace(a, base=base, source=source, uses=None, waits=False)


def _call(
    c: LibraryCall, places: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]
) -> PlannedCall:
    def numbers(dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(int(D.evaluate(d, sizes)) for d in dims)

    operands = tuple(Matrix(v.dtype, numbers(v.shape), numbers(v.strides)) for v in c.views)
    given = GivenCall(c.function, operands, c.stride, c.padding, c.dilation, c.groups)
    starts = [int(D.evaluate(v.offset, sizes)) * v.dtype.bytes for v in c.views]
    found = [places[v.buffer] for v in c.views]
    base = tuple(start + b for start, (b, _) in zip(starts, found, strict=True))
    return PlannedCall(given, base, tuple(s for _, s in found))


def _counting(a: PlannedAction, address: int) -> PlannedAction:
    if isinstance(a, PlannedBranch):
        return replace(a, then=a.then.counting(address), other=a.other.counting(address))
    if isinstance(a, PlannedLoop):
        inside = a.condition.counting(address), a.body.counting(address)
        copies = tuple(None if p is None else p.counting(address) for p in a.copies)
        return replace(a, condition=inside[0], body=inside[1], copies=copies)
    if COUNTERS not in a.source:
        return a
    base = tuple(b + address if s == COUNTERS else b for b, s in zip(a.base, a.source, strict=True))
    return replace(a, base=base, source=tuple(FIXED if s == COUNTERS else s for s in a.source))


def _use(base: int, source: int, size: int, writes: bool, last: int) -> Use:
    """Memory of a call: the arena, counters, or what is at an address of its own."""
    if source == last:
        return Use(ARENA, base, size, writes)
    if source == COUNTERS:
        return Use(f"counters{base}", 0, size, writes)
    return Use(f"address{source}", 0, size, writes)


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
