"""A compiled program in this process: its native entry function, the memory it owns, and calls that
may overlap.

Memory is contiguous and row-major. A call in flight owns a frame (argument arrays and an arena);
frames are reused, so a hot call allocates nothing; large arenas are those of all programs
(runtime/arenas.py). Values derived from weights are computed by a second program, the prologue, and
stored until a weight changes or `refresh` is called; programs whose callers know their weights
share them (runtime/shared.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from tilewright.ir.dim_code import size_function
from tilewright.ir.node import Graph
from tilewright.runtime import room
from tilewright.runtime.arenas import ARENAS, SHARED
from tilewright.runtime.memory import aligned, require_room
from tilewright.runtime.native import NativeKernel
from tilewright.runtime.program_data import ProgramData
from tilewright.runtime.shared import Derived, Weight, derive

if TYPE_CHECKING:  # what compiling needs is not loaded to run
    from tilewright.graph.cluster import Fused
    from tilewright.graph.memory import Plan
    from tilewright.ir.passes import PassRun
    from tilewright.runtime.profile import Marks

WATCHED_BYTES = 64
# Larger arenas are those of all programs, or of frames that can be given back.
ENTRY_ARENA = 64 * 1024


@dataclass(frozen=True)
class Cut:
    """How a graph was cut into kernels, and where its values live."""

    fused: Fused
    plan: Plan
    passes: tuple[PassRun, ...] = ()  # what each pass before that did


@dataclass
class Details:
    """What is known of a program besides what running it needs."""

    graph: Graph | None = None  # as it was given
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds of compiling it
    marks: Marks | None = None  # where the time of calls goes, if profiling is on
    find_cut: Callable[[], Cut] | None = None

    @cached_property
    def cut(self) -> Cut:
        """Of a program from the cache it is computed on first use."""
        assert self.find_cut is not None, "a program that was compiled knows how to find its cut"
        return self.find_cut()

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


class _Frame:
    __slots__ = (
        "ins",
        "outs",
        "dims",
        "arena",
        "memory",
        "size",
        "bound",
        "watched",
        "found",
        "at",
        "given",
        "needs",
    )

    def __init__(self, n_in: int, n_out: int, n_dims: int, watched: int) -> None:
        self.ins = (ctypes.c_void_p * max(1, n_in))()
        self.outs = (ctypes.c_void_p * max(1, n_out))()
        self.dims = (ctypes.c_int64 * max(1, n_dims))()
        # Numbers are passed sooner than arrays.
        self.at = tuple(map(ctypes.addressof, (self.ins, self.outs, self.dims)))
        self.memory, self.arena = aligned(0)
        self.size = 0
        self.given: Sequence[int] = ()  # the sizes of its last call, and the arena that they need
        self.needs = 0
        self.bound: Bound | None = None
        # Each as far from the next as kernels expect of outputs.
        self.watched, start = aligned(watched * WATCHED_BYTES)
        places = [start + k * WATCHED_BYTES for k in range(watched)]
        self.outs[n_out - watched : n_out] = places
        self.found = [ctypes.c_int64.from_address(a) for a in places]


@dataclass(frozen=True, eq=False)
class Bound:
    """A program's arguments as far as they are known: its first `count` inputs, constants, and what
    was derived from weights.
    """

    ins: Any
    count: int
    derived: Derived | None
    address: int  # of `ins`


@dataclass(frozen=True, eq=False)
class Entry:
    """A program's code and memory for one call at a time, for callers that need no frame."""

    address: int
    arena: int
    cells: int  # where watched outputs go, `WATCHED_BYTES` apart
    watched: int
    inputs: int
    slots: int  # of the arrays of inputs, with constants and what is derived
    memory: tuple[object, ...]


class Program:
    """A program that was loaded. `symbols` are addresses that its code calls besides the pool's."""

    def __init__(
        self,
        data: ProgramData,
        details: Details | None = None,
        prologue: Program | None = None,
        symbols: Mapping[str, int] | None = None,
    ) -> None:
        self.data, self.details = data, details or Details()
        # Attributes, not properties: a hot call looks at some of them.
        self.inputs, self.outputs, self.dims = data.inputs, data.outputs, data.dims
        self.arena, self.constants, self.kernels = data.arena, data.constants, data.kernels
        self.weights, self.kept, self.recipes = data.weights, data.kept, data.recipes
        self.updated, self.spent = data.updated, data.spent
        if prologue is None and data.prologue is not None:
            prologue = self._like_this(data.prologue)
        self.prologue = prologue
        self._fixed: list[int] = []  # where the constants are
        self._frames: list[_Frame] = []
        self._shares = 0  # bytes of its largest arena that was shared
        # Where large arenas lie instead, beside what a call returns: see `room.py`.
        self.room: room.Room | None = None
        self._lock = Lock()
        self._load(symbols)
        self._derived: Derived | None = None
        self._static_arena = data.arena if isinstance(data.arena, int) else None
        self._arena_of = lambda dims: data.arena_size(dict(zip(data.dims, dims, strict=True)))
        if data.dims:
            self._arena_of = size_function(data.arena, data.dims)
        self._watched, self._filled = 0, len(data.outputs)

    def _load(self, symbols: Mapping[str, int] | None) -> None:
        """Brings code and constants to where they run."""
        self._kernel = NativeKernel(self.data.images, self.data.entry, symbols, pointers=4)
        self._call = self._kernel.function
        self._fixed = [c.array.ctypes.data for c in self.data.constants]

    def _like_this(self, data: ProgramData) -> Program:
        """Another program on the same machine."""
        return Program(data)

    @property
    def tells_later(self) -> bool:
        """Does a call return what an earlier one found (see `watch`)?"""
        return False

    @property
    def place(self) -> str:
        """The machine whose memory it uses; empty: this one."""
        return ""

    @property
    def manner(self) -> str:
        """How its kernels are launched, where there is more than one way."""
        return ""

    def allocate(self, size: int) -> tuple[int, object]:
        """Memory for a value that outlives calls: its address, and what owns it."""
        memory, address = aligned(size)
        return address, memory

    def require_room(self, size: int, what: str) -> None:
        """An error that says what it was for where there is not so much memory."""
        require_room(size, what)

    def settle(self) -> None:
        """Returns when all enqueued work is done."""

    def check(self) -> list[int] | None:
        """What calls found in their data (see `watch`) and have not returned yet, once all work is
        done."""
        return None

    def watch(self, count: int) -> None:
        """The last `count` outputs are 64-bit integers that only the caller reads: they lie in the
        frame of a call, which returns them where the first is not 0. Before any call."""
        assert not self._frames
        self._watched, self._filled = count, len(self.outputs) - count

    def change(self, inputs: Sequence[int]) -> bool:
        """The last outputs before the watched ones are new values of these inputs: a call writes
        them there itself, and is given no memory for them. False: the caller does. After `watch`,
        and before any call."""
        return False

    def arena_size(self, dims: Sequence[int] = ()) -> int:
        return self._arena_of(dims)

    @property
    def folded_bytes(self) -> int:
        return sum(p.size for p in self._derived.pieces) if self._derived else 0

    def refresh(self) -> None:
        """Derive everything from the weights again before the next result, here and in programs
        that share it."""
        derived, self._derived = self._derived, None
        if derived is not None:
            derived.current = False
            for piece in derived.pieces:
                piece.forget()

    @property
    def derived(self) -> Derived | None:
        """What is derived from weights now; another object whenever it was derived again."""
        found = self._derived
        return found if found is not None and found.current else None

    def bind(self, addresses: Sequence[int], weights: Sequence[Weight] | None = None) -> Bound:
        """The program with its first inputs, all weights among them, at these addresses.

        `weights` are those that the prologue reads, as the caller knows them; without, what is
        derived is stored until an address changes, and is this program's own.
        """
        # The binding refers to it: another thread may derive again meanwhile.
        derived = None
        rest = list(self._fixed)
        if self.prologue is not None:
            derived = self._fold([addresses[k] for k in self.weights], weights)
            rest += derived.addresses
        others = [0] * (len(self.inputs) - len(addresses))
        ins = (ctypes.c_void_p * max(1, len(self.inputs) + len(rest)))(*addresses, *others, *rest)
        return Bound(ins, len(addresses), derived, ctypes.addressof(ins))

    def entry(self) -> Entry | None:
        """For calls of its code, one at a time; None where they have to go through `run_bound`.
        After `watch`."""
        if self._static_arena is None or self._static_arena > ENTRY_ARENA:
            return None
        arena, at = aligned(self._static_arena)
        cells, first = aligned(self._watched * WATCHED_BYTES)
        folded = 0 if self.prologue is None else len(self.prologue.outputs)
        slots = max(1, len(self.inputs) + len(self._fixed) + folded)
        memory = (self._kernel, arena, cells)
        count = len(self.inputs)
        return Entry(self._kernel.address, at, first, self._watched, count, slots, memory)

    def run(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
        weights: Sequence[Weight] | None = None,
    ) -> list[int] | None:
        """Addresses of contiguous memory in, of memory to fill out. Safe from several threads.

        Returns the watched outputs where the first of them is not 0 (see `watch`).
        """
        return self.run_bound(self.bind(inputs, weights), (), outputs, dims)

    def run_bound(
        self,
        bound: Bound,
        others: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
    ) -> list[int] | None:
        """The same with the inputs that the binding leaves open."""
        try:
            frame = self._frames.pop()
        except IndexError:
            n_out = len(self.outputs)
            frame = _Frame(len(bound.ins), n_out, len(self.dims), self._watched)
        if frame.bound is not bound:
            ctypes.memmove(frame.ins, bound.ins, ctypes.sizeof(bound.ins))
            frame.bound = bound
        if others:
            frame.ins[bound.count : len(self.inputs)] = others
        frame.outs[: self._filled] = outputs
        size = self._static_arena
        if self.dims:
            if dims != frame.given:
                frame.dims[: len(self.dims)] = dims
                frame.given, frame.needs = tuple(dims), self._arena_of(dims)
            size = frame.needs
        assert size is not None
        if size >= SHARED:
            self._run_in_large(frame, size)
        else:
            if frame.size < size:
                require_room(size, "the arena of a call")
                frame.memory, frame.arena = aligned(size)
                frame.size = size
            self._call(*frame.at, frame.arena)
        found = None
        if self._watched and frame.found[0].value:
            found = [x.value for x in frame.found]
        self._frames.append(frame)
        return found

    def _run_in_large(self, frame: _Frame, size: int) -> None:
        """A call in an arena that serves other programs, too."""
        if size > self._shares:
            if self.room is not None:
                require_room(size, "the arena of a call")
            self._shares = size
            ARENAS.join(self, size)
        piece = None if self.room is None else self.room.piece(size)
        if piece is not None:
            self._call(*frame.at, piece.ctypes.data)
            return
        arena = ARENAS.take(size)
        self._call(*frame.at, arena.address)
        ARENAS.put(arena)

    def _fold(self, addresses: list[int], weights: Sequence[Weight] | None) -> Derived:
        identity = addresses if weights is None else [w.key for w in weights]
        found = self.derived
        if found is None or found.identity != identity:
            with self._lock:
                found = self.derived
                if found is None or found.identity != identity:
                    assert self.prologue is not None
                    found = derive(self.recipes, self.prologue, addresses, weights)
                    self._derived = found
        return found

    @property
    def held(self) -> int:
        """Bytes of arenas that are cached for the next calls, with those that all programs
        share."""
        return sum(f.size for f in self._frames) + ARENAS.held

    def trim(self) -> None:
        """Give back the frames of calls that are over, and what programs share: arenas, and free
        memory of large results."""
        self._frames.clear()
        ARENAS.trim()
        room.trim()
