"""Tile kernels to native code: lowered, scheduled, emitted, loaded, and called over a grid."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from tilewright.base.events import Log
from tilewright.ir.target import Target
from tilewright.ir.types import DTYPES, to_memory
from tilewright.kernel.defaults.tile_kernels import schedule_tiles
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import nest_text
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.lowering.reports import Reports
from tilewright.lang.tile.lowering.state import GRID, Lowered
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly, kept_object
from tilewright.runtime import pool
from tilewright.runtime.library import Library

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

# One thread at a time makes interned values, as Python would let it anyway; LLVM is outside.
_WRITING = Lock()


@dataclass
class CompiledTile:
    """A kernel in memory. `launch` takes addresses and numbers in the order of its arguments."""

    lowered: Lowered
    form: Nest
    target: Target
    trace: str
    llir: str
    library: Library
    reports: Reports
    callback: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        n = self.form
        self._entry = _ENTRY(self.library.address(n.name))
        at = {g.name: k for k, g in enumerate(self.lowered.given)}
        self._slots: list[tuple[int, Callable[[Any], Any] | None]] = []
        for b in n.buffers:
            if b.scope not in ("in", "out"):
                continue
            if b.name in self.lowered.addresses:
                self._slots.append((self.lowered.addresses[b.name], ctypes.c_int64))
            else:
                self._slots.append((at[b.name], None if b.pointer else _cell(b.dtype.name)))
        # A dim is one of the grid's, or an argument divided by what it is a multiple of.
        self._grid = [(k, GRID.index(d.name)) for k, d in enumerate(n.dims) if d.name in GRID]
        self._given = [
            (k, at[d.name], self.lowered.given[at[d.name]].unit)
            for k, d in enumerate(n.dims)
            if d.name in at
        ]
        self._args = ctypes.c_void_p * max(1, len(self._slots))
        self._dims = ctypes.c_int64 * len(n.dims)

    def launch(self, values: Sequence[Any], grid: Sequence[int], threads: int = 0) -> None:
        args, dims, kept = self._args(), self._dims(), []
        for k, (which, made) in enumerate(self._slots):
            if made is None:
                args[k] = values[which]
            else:
                cell = made(values[which])
                kept.append(cell)
                args[k] = ctypes.addressof(cell)
        for k, axis in self._grid:
            dims[k] = grid[axis]
        for k, which, unit in self._given:
            dims[k] = values[which] // unit
        self._entry(ctypes.addressof(args), ctypes.addressof(dims))
        if self.reports.pending:
            self.reports.finish()

    @property
    def nest(self) -> str:
        return nest_text(self.form)

    @property
    def asm(self) -> str:
        return assembly(self.llir, self.target)


def _cell(dtype: str) -> Callable[[Any], Any]:
    """Numbers of a dtype in memory of their own."""
    plain = {"f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool}.get(dtype)
    if plain is not None:
        return plain
    d = DTYPES[dtype]

    def made(v: Any) -> Any:
        held = to_memory(np.array([v], d.numpy), d).tobytes()
        return ctypes.create_string_buffer(held, max(8, len(held)))

    return made


def compile_tile(kernel: Kernel, target: Target, log: Log) -> CompiledTile:
    """Native code of a kernel, out of the cache where the same was compiled before."""
    with _WRITING:
        lowered = lower(kernel)
        trace, nest = schedule_tiles(lowered.nest, target)
        text = emit(nest, target)
    reports = Reports(kernel.name, lowered.sites)
    symbols = {"tw_parallel": pool.address()}
    callback = _REPORT(reports.take) if lowered.sites else None
    if callback is not None:
        symbols["tw_report"] = ctypes.cast(callback, ctypes.c_void_p).value or 0
    library = Library([kept_object(text, target, log)], symbols)
    return CompiledTile(lowered, nest, target, print_trace(trace), text, library, reports, callback)
