"""A compiled program: one native entry function, the memory it owns, and calls that may overlap.

Memory is contiguous and row-major. A call in flight owns a frame (argument arrays and an arena);
frames are reused, so a hot call allocates nothing. Values derived from weights are computed by a
second program, the prologue, and kept until a weight changes or `refresh` is called; programs whose
callers know their weights share them (runtime/shared.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Literal
from tilewright.ir.types import TensorType, to_memory
from tilewright.runtime.library import Library
from tilewright.runtime.memory import aligned, require_room
from tilewright.runtime.shared import Derived, Recipe, Weight, derive

WATCHED_BYTES = 64
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def literal_memory(x: Literal) -> np.ndarray:
    """A constant as it lies in memory: no copy of its own where numpy has the same form."""
    return x.array if x.dtype.memory == x.dtype.numpy else to_memory(x.array, x.dtype)


def literal_bytes(x: Literal) -> bytes:
    """The same as bytes."""
    return literal_memory(x).tobytes()


@dataclass(frozen=True)
class KernelInfo:
    """What became of a cluster: for explain."""

    name: str
    symbol: str
    group: str
    trace: str
    calls: int
    cached: bool
    seconds: float
    places: tuple[str, ...] = ()


class _Frame:
    __slots__ = ("ins", "outs", "dims", "arena", "memory", "size", "bound", "watched", "found")

    def __init__(self, n_in: int, n_out: int, n_dims: int, watched: int) -> None:
        self.ins = (ctypes.c_void_p * max(1, n_in))()
        self.outs = (ctypes.c_void_p * max(1, n_out))()
        self.dims = (ctypes.c_int64 * max(1, n_dims))()
        self.memory, self.arena = aligned(0)
        self.size = 0
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


@dataclass
class Program:
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    dims: tuple[str, ...]
    library: Library
    entry: str
    arena: Dim  # bytes
    constants: tuple[Literal, ...] = ()
    kernels: tuple[KernelInfo, ...] = ()
    weights: tuple[int, ...] = ()  # inputs that the prologue reads
    prologue: Program | None = None
    recipes: tuple[Recipe, ...] = ()  # of the prologue's results
    kept: tuple[int, ...] = ()  # weights that calls read themselves
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._call: Callable[..., None] = _ENTRY(self.library.address(self.entry))
        self._constants = [literal_memory(c) for c in self.constants]
        self._fixed = [a.ctypes.data for a in self._constants]
        self._frames: list[_Frame] = []
        self._lock = Lock()
        self._derived: Derived | None = None
        self._static_arena = self.arena if isinstance(self.arena, int) else None
        self._watched, self._filled = 0, len(self.outputs)

    def watch(self, count: int) -> None:
        """The last `count` outputs are 64-bit integers for the caller's eyes: they lie in the frame
        of a call, which returns them where the first is not 0. Before any call."""
        assert not self._frames
        self._watched, self._filled = count, len(self.outputs) - count

    def arena_size(self, dims: Sequence[int] = ()) -> int:
        return int(D.evaluate(self.arena, dict(zip(self.dims, dims, strict=True))))

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
        """What is derived from weights now; another object whenever it was derived anew."""
        found = self._derived
        return found if found is not None and found.current else None

    def bind(self, addresses: Sequence[int], weights: Sequence[Weight] | None = None) -> Bound:
        """The program with its first inputs, all weights among them, at these addresses.

        `weights` are those that the prologue reads, as the caller knows them; without, what is
        derived is kept until an address changes, and is this program's own.
        """
        # Held by the binding: another thread may derive anew meanwhile.
        derived = None
        rest = list(self._fixed)
        if self.prologue is not None:
            derived = self._fold([addresses[k] for k in self.weights], weights)
            rest += derived.addresses
        others = [0] * (len(self.inputs) - len(addresses))
        ins = (ctypes.c_void_p * max(1, len(self.inputs) + len(rest)))(*addresses, *others, *rest)
        return Bound(ins, len(addresses), derived)

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
            frame.dims[: len(self.dims)] = dims
            size = self.arena_size(dims)
        assert size is not None
        if frame.size < size:
            require_room(size, "the arena of a call")
            frame.memory, frame.arena = aligned(size)
            frame.size = size
        self._call(frame.ins, frame.outs, frame.dims, frame.arena)
        found = None
        if self._watched and frame.found[0].value:
            found = [x.value for x in frame.found]
        self._frames.append(frame)
        return found

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
        """Bytes of arenas that are kept for the next calls."""
        return sum(f.size for f in self._frames)

    def trim(self) -> None:
        """Give back the frames of calls that are over."""
        self._frames.clear()
