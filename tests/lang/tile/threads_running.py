"""Tile kernels scheduled for a GPU and run on the SIMT executor: blocks of threads, on numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.driver.tile.compile import binding_of
from tilewright.kernel import simt
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.distribution import REPORT_WORDS, REPORTS
from tilewright.kernel.nest import Nest
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.lowering.state import GRID, Lowered
from tilewright.targets.nvptx import for_capability


def scheduled(
    kernel: ir.Kernel, warps: int = 4, capability: int = 90, wraps: bool = False
) -> tuple[Lowered, Nest]:
    """The nest of a kernel for a GPU."""
    low = lower(kernel, wraps=wraps, threads=True)
    return low, schedule_tile_grid(low.nest, for_capability(capability), warps)[1]


def run_threads(
    kernel: ir.Kernel, grid: tuple[int, ...], values: Sequence[Any], warps: int = 4
) -> np.ndarray | None:
    """Runs a kernel; its arguments are arrays (or arrays and the element that is pointed to) and
    numbers, in order. Returns the words that it reported, if it reports."""
    low, nest = scheduled(kernel, warps)
    overflows = binding_of(low, low.nest, []).overflows
    if overflows and eval(overflows, {"values": values, "grid": (*grid, 1, 1)}):
        low, nest = scheduled(kernel, warps, wraps=True)
    arrays: dict[str, Any] = {}
    dims: dict[str, int] = dict(zip(GRID, (*grid, 1, 1), strict=False))
    for g, x in zip(low.given, values, strict=True):
        if g.kind == "pointer":
            arrays[g.name] = x
        elif g.kind == "dim":
            dims[g.name] = int(x) // g.unit
        else:
            arrays[g.name] = np.array(x, low.nest.buffer(g.name).dtype.numpy)
    for name, which in low.addresses.items():
        array, at = values[which] if isinstance(values[which], tuple) else (values[which], 0)
        arrays[name] = np.array(array.ctypes.data + at * array.itemsize, np.int64)
    told = None
    if any(b.name == REPORTS for b in nest.buffers):
        told = arrays[REPORTS] = np.zeros(REPORT_WORDS, np.int64)
    simt.run(nest, arrays, dims)
    return told
