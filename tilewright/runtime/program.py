"""A compiled program: one native entry function, the memory it owns, and calls that may overlap.

Memory is contiguous and row-major. A call in flight owns a frame (argument arrays and an arena);
frames are reused, so a hot call allocates nothing. Values derived from weights are computed by a
second program, the prologue, and kept until a weight's address changes or `refresh` is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Literal
from tilewright.ir.types import TensorType, bf16
from tilewright.runtime.library import Library

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
ALIGN = 64


def aligned(size: int) -> tuple[np.ndarray, int]:
    """Memory of `size` bytes (never none) and its aligned address."""
    raw = np.empty(max(size, 1) + ALIGN, np.uint8)
    return raw, (raw.ctypes.data + ALIGN - 1) // ALIGN * ALIGN


def literal_bytes(x: Literal) -> bytes:
    """A constant as it lies in memory."""
    if x.dtype is bf16:
        bits = np.ascontiguousarray(x.array, dtype=np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).tobytes()
    return x.array.tobytes()


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
    __slots__ = ("ins", "outs", "dims", "arena", "memory", "size", "bound")

    def __init__(self, n_in: int, n_out: int, n_dims: int) -> None:
        self.ins = (ctypes.c_void_p * max(1, n_in))()
        self.outs = (ctypes.c_void_p * max(1, n_out))()
        self.dims = (ctypes.c_int64 * max(1, n_dims))()
        self.memory, self.arena = aligned(0)
        self.size = 0
        self.bound: Bound | None = None


@dataclass(frozen=True)
class _Derived:
    """What the prologue made of the weights at these addresses."""

    weights: list[int]
    memory: list[np.ndarray]
    addresses: list[int]


@dataclass(frozen=True, eq=False)
class Bound:
    """A program's arguments as far as they are known: its first `count` inputs, constants, and what
    was derived from weights.
    """

    ins: Any
    count: int
    derived: _Derived | None


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
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._call: Callable[..., None] = _ENTRY(self.library.address(self.entry))
        self._constants = [ctypes.create_string_buffer(literal_bytes(c)) for c in self.constants]
        self._fixed = [ctypes.addressof(c) for c in self._constants]
        self._frames: list[_Frame] = []
        self._lock = Lock()
        self._derived: _Derived | None = None
        self._static_arena = self.arena if isinstance(self.arena, int) else None

    def arena_size(self, dims: Sequence[int] = ()) -> int:
        return int(D.evaluate(self.arena, dict(zip(self.dims, dims, strict=True))))

    @property
    def folded_bytes(self) -> int:
        return sum(a.nbytes for a in self._derived.memory) if self._derived else 0

    def refresh(self) -> None:
        """Derive everything from the weights again before the next result."""
        self._derived = None

    @property
    def derived(self) -> object:
        """What is derived from weights now; another object whenever it was derived anew."""
        return self._derived

    def bind(self, addresses: Sequence[int]) -> Bound:
        """The program with its first inputs, all weights among them, at these addresses."""
        # Held by the binding: another thread may derive anew meanwhile.
        derived = None
        rest = list(self._fixed)
        if self.prologue is not None:
            derived = self._fold([addresses[k] for k in self.weights])
            rest += derived.addresses
        others = [0] * (len(self.inputs) - len(addresses))
        ins = (ctypes.c_void_p * max(1, len(self.inputs) + len(rest)))(*addresses, *others, *rest)
        return Bound(ins, len(addresses), derived)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], dims: Sequence[int] = ()) -> None:
        """Addresses of contiguous memory in, of memory to fill out. Safe from several threads."""
        self.run_bound(self.bind(inputs), (), outputs, dims)

    def run_bound(
        self,
        bound: Bound,
        others: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
    ) -> None:
        """The same with the inputs that the binding leaves open."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(len(bound.ins), len(self.outputs), len(self.dims))
        if frame.bound is not bound:
            ctypes.memmove(frame.ins, bound.ins, ctypes.sizeof(bound.ins))
            frame.bound = bound
        if others:
            frame.ins[bound.count : len(self.inputs)] = others
        frame.outs[: len(self.outputs)] = outputs
        size = self._static_arena
        if self.dims:
            frame.dims[: len(self.dims)] = dims
            size = self.arena_size(dims)
        assert size is not None
        if frame.size < size:
            frame.memory, frame.arena = aligned(size)
            frame.size = size
        self._call(frame.ins, frame.outs, frame.dims, frame.arena)
        self._frames.append(frame)

    def _fold(self, weights: list[int]) -> _Derived:
        found = self._derived
        if found is None or found.weights != weights:
            with self._lock:
                found = self._derived
                if found is None or found.weights != weights:
                    found = self._derived = self._derive(weights)
        return found

    def _derive(self, weights: list[int]) -> _Derived:
        assert self.prologue is not None
        made = []
        for t in self.prologue.outputs:
            if not isinstance(t.size, int):
                raise Invalid(f"a folded weight has a symbolic shape {t!r}")
            made.append(aligned(t.size * t.dtype.bytes))
        addresses = [a for _, a in made]
        self.prologue.run(weights, addresses)
        self.prologue.trim()
        return _Derived(weights, [m for m, _ in made], addresses)

    @property
    def held(self) -> int:
        """Bytes of arenas that are kept for the next calls."""
        return sum(f.size for f in self._frames)

    def trim(self) -> None:
        """Give back the frames of calls that are over."""
        self._frames.clear()
