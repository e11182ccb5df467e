"""Tile kernels scheduled for a GPU, run on the SIMT executor (threads on numpy) or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright as tw
from tests.gpu import emulate
from tests.gpu.emulate_bounds import BESIDE
from tilewright.driver.tile.compile import binding_of
from tilewright.kernel import simt
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.distribution import REPORT_WORDS, REPORTS
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.lang.tile import ir
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.lowering.state import GRID, Lowered
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import Kernels
from tilewright.targets.nvptx import for_capability


def scheduled(
    kernel: ir.Kernel, warps: int = 4, capability: int = 90, wraps: bool = False
) -> tuple[Lowered, Nest]:
    """The nest of a kernel for a GPU."""
    target = for_capability(capability)
    assert target.grid is not None
    low = lower(kernel, wraps=wraps, threads=True, rounds=target.grid.rounds_factors)
    return low, schedule_tile_grid(low.nest, target, warps)[1]


def run_threads(
    kernel: ir.Kernel,
    grid: tuple[int, ...],
    values: Sequence[Any],
    warps: int = 4,
    capability: int = 90,
) -> np.ndarray | None:
    """Runs a kernel; its arguments are arrays (or arrays and the element that is pointed to) and
    numbers, in order. Returns the words that it reported, if it reports."""
    low, nest = scheduled(kernel, warps, capability)
    overflows = binding_of(low, low.nest, []).overflows
    if overflows and eval(overflows, {"values": values, "grid": (*grid, 1, 1)}):
        low, nest = scheduled(kernel, warps, capability, wraps=True)
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


def on_gpu(f: Any, k: Any, arrays: dict[str, Any]) -> None:
    """Runs a random kernel on a GPU: copies of all memory go there and back."""
    import torch

    there: dict[str, torch.Tensor] = {}
    given: dict[str, Any] = dict(k.numbers)
    for name, a in arrays.items():
        # As far from a multiple of 16 bytes as here.
        odd = a.whole.ctypes.data % 16
        held = torch.zeros(a.whole.size + 16, dtype=torch.uint8, device="cuda")
        there[name] = held[odd : odd + a.whole.size]
        there[name].copy_(torch.from_numpy(a.whole))
        first = a.address - a.whole.ctypes.data
        size = a.base.itemsize
        count = (a.whole.size - first) // size
        part = there[name][first : first + count * size]
        given[name] = tw.reinterpret(_as_plain(part, size), a.dtype)
    f[k.grid](**{n: given.get(n) for n in k.parameters}, num_warps=(4, 1, 2, 8)[k.seed % 4])
    torch.cuda.synchronize()
    for name, a in arrays.items():
        a.whole[:] = there[name].cpu().numpy()


def _as_plain(x: Any, size: int) -> Any:
    """Bytes as integers of a size."""
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(kinds[size])


def write_code(kernel: ir.Kernel, warps: int = 4, capability: int = 90) -> tuple[Lowered, Kernels]:
    """The code of a kernel for a GPU."""
    low, nest = scheduled(kernel, warps, capability)
    target = for_capability(capability)
    return low, emit_kernels(legalise(nest, target), target)


def run_emulated(
    kernel: ir.Kernel,
    grid: tuple[int, ...],
    values: Sequence[Any],
    warps: int = 4,
    capability: int = 90,
) -> None:
    """Runs a kernel's code for a GPU on this processor; float32 and int arguments, and arrays."""
    low, made = write_code(kernel, warps, capability)
    given: dict[str, int] = dict(zip(GRID, (*grid, 1, 1), strict=False))
    loaded = emulate.Loaded(made)
    copies: list[tuple[Any, np.ndarray]] = []
    for g, x in zip(low.given, values, strict=True):
        if g.kind == "pointer":  # in memory of its own, with nothing beside it
            raw = np.full(x.nbytes + 256 + 2 * BESIDE, emulate.CANARY, np.uint8)
            start = BESIDE + -raw.ctypes.data % 256
            own = raw[start : start + x.nbytes]
            own[:] = x.reshape(-1).view(np.uint8)
            copies.append((x, own))
            given[g.name] = own.ctypes.data
            loaded.threads.arenas.put(g.name, own.ctypes.data, x.nbytes)
        elif g.kind == "dim":
            given[g.name] = int(x) // g.unit
        else:
            given[g.name] = int(np.array(x, np.float32).view(np.int32))
    gx, gy, gz = (*grid, 1, 1)[:3]
    for x in made.launches:
        parameters = [given[name] for name in (*x.arguments, *made.dims)]
        loaded.launch(x, parameters, (gx, gy, gz))
    for x, own in copies:
        x.reshape(-1).view(np.uint8)[:] = own
