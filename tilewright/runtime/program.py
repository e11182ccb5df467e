"""A compiled program: one native entry function, the memory it owns, and calls that may overlap.

Memory is contiguous and row-major. A call in flight owns a frame (argument arrays and an arena);
frames are reused, so a hot call allocates nothing. Values derived from weights are computed by a
second program, the prologue, and kept until a weight's address changes or `refresh` is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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
    __slots__ = ("ins", "outs", "dims", "arena", "memory", "size")

    def __init__(self, n_in: int, n_out: int, n_dims: int) -> None:
        self.ins = (ctypes.c_void_p * max(1, n_in))()
        self.outs = (ctypes.c_void_p * max(1, n_out))()
        self.dims = (ctypes.c_int64 * max(1, n_dims))()
        self.memory, self.arena = aligned(0)
        self.size = 0


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
        self._call = _ENTRY(self.library.address(self.entry))
        self._constants = [ctypes.create_string_buffer(literal_bytes(c)) for c in self.constants]
        self._fixed = [ctypes.addressof(c) for c in self._constants]
        self._frames: list[_Frame] = []
        self._lock = Lock()
        self._folded: list[tuple[np.ndarray, int]] = []
        self._folded_for: list[int] | None = None
        self._static_arena = self.arena if isinstance(self.arena, int) else None

    def arena_size(self, dims: Sequence[int] = ()) -> int:
        return int(D.evaluate(self.arena, dict(zip(self.dims, dims, strict=True))))

    @property
    def folded_bytes(self) -> int:
        return sum(a.nbytes for a, _ in self._folded)

    def refresh(self) -> None:
        """Derive everything from the weights again before the next result."""
        self._folded_for = None

    def run(self, inputs: Sequence[int], outputs: Sequence[int], dims: Sequence[int] = ()) -> None:
        """Addresses of contiguous memory in, of memory to fill out. Safe from several threads."""
        addresses = [*inputs, *self._fixed]
        if self.prologue is not None:
            folded = self._fold([inputs[k] for k in self.weights])
            addresses += folded
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(len(addresses), len(self.outputs), len(self.dims))
        frame.ins[: len(addresses)] = addresses
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

    def _fold(self, weights: list[int]) -> list[int]:
        if weights != self._folded_for:
            with self._lock:
                if weights != self._folded_for:
                    self._folded = self._derive(weights)
                    self._addresses = [a for _, a in self._folded]
                    self._folded_for = weights
        return self._addresses

    def _derive(self, weights: list[int]) -> list[tuple[np.ndarray, int]]:
        assert self.prologue is not None
        out = []
        for t in self.prologue.outputs:
            if not t.is_static:
                raise Invalid(f"a folded weight has a symbolic shape {t!r}")
            assert isinstance(t.size, int)
            out.append(aligned(t.size * t.dtype.bytes))
        self.prologue.run(weights, [a for _, a in out])
        self.prologue.trim()
        return out

    def trim(self) -> None:
        """Give back the frames of calls that are over."""
        self._frames.clear()
