"""Tile kernels to PTX: lowered for threads that share tiles, scheduled for a block, emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

from tilewright.base.collector import garbage_waits
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.base.fresh_stack import on_fresh_stack
from tilewright.driver.tile.compile import WRITING, binding_of
from tilewright.driver.tile.compiled import Binding
from tilewright.driver.tile.gpu_maps import TileMaps
from tilewright.driver.tile.request import Request
from tilewright.ir.target import Target
from tilewright.kernel.defaults.grid_tiles import schedule_tile_grid
from tilewright.kernel.distribution import REPORTS
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import nest_text
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.lower import lower
from tilewright.lang.tile.lowering.state import Lowered
from tilewright.lang.tile.text import kernel_text
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import Kernels
from tilewright.llvm.objects import cached_ptx


@dataclass(frozen=True)
class GpuCode:
    """What a launch on a GPU needs: the code, and how to call it. Of a kernel that does nothing
    there is no code, and no symbol."""

    binding: Binding
    ptx: str = field(repr=False)
    symbol: str
    threads: tuple[int, int, int]
    shared: int
    reports: int  # where among the arguments the memory for reports is; -1: nowhere
    maps: TileMaps | None = None


@dataclass(frozen=True)
class GpuForms:
    """A kernel on its way to a GPU's code."""

    kernel: Kernel
    lowered: Lowered
    form: Nest
    trace: str
    kernels: Kernels
    target: Target
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def ttir(self) -> str:
        return kernel_text(self.kernel)

    @property
    def nest(self) -> str:
        return nest_text(self.form)

    @property
    def llir(self) -> str:
        return self.kernels.text

    @property
    def ptx(self) -> str:
        return cached_ptx(self.kernels.text, self.target)

    asm = ptx

    @property
    def code(self) -> GpuCode:
        if not self.kernels.launches:  # it does nothing
            return GpuCode(binding_of(self.lowered, self.form, []), "", "", (1, 1, 1), 0, -1)
        (launch,) = self.kernels.launches
        known = {b.name: b for b in self.form.buffers}
        names = [x for x in launch.arguments if x != REPORTS]
        made = binding_of(self.lowered, self.form, [known[x] for x in names])
        at = launch.arguments.index(REPORTS) if REPORTS in launch.arguments else -1
        slots = tuple(names.index(b.buffer) for b in launch.boxes)
        maps = TileMaps(launch.boxes, slots, self.kernels.dims) if slots else None
        return GpuCode(made, self.ptx, launch.symbol, launch.threads, launch.shared, at, maps)


@on_fresh_stack
def write_gpu_tile(wanted: Request, target: Target) -> GpuForms:
    """A kernel as LLVM text for a GPU. What has no schedule there is refused with its name."""
    kernel = wanted.kernel()
    with WRITING, garbage_waits():
        times = [perf_counter()]
        rounds = target.grid is not None and target.grid.rounds_factors
        lowered = lower(kernel, wanted.aliasing, wanted.wraps, threads=True, rounds=rounds)
        times.append(perf_counter())
        near = tuple(
            f"{lowered.given[a].name} {lowered.given[b].name}" for a, b in wanted.aliasing.near
        )
        try:
            trace, nest = schedule_tile_grid(
                lowered.nest, target, wanted.warps, wanted.stages, near
            )
            times.append(perf_counter())
            kernels = emit_kernels(legalise(nest, target), target)
        except TilewrightError as problem:
            raise _placed(problem, wanted) from None
        times.append(perf_counter())
    names = ("lowering", "schedule", "LLVM text")
    phases = {str(n): b - a for n, (a, b) in zip(names, pairwise(times), strict=True)}
    return GpuForms(kernel, lowered, nest, print_trace(trace), kernels, target, phases)


def _placed(problem: TilewrightError, wanted: Request) -> TilewrightError:
    """The problem with the kernel that has it."""
    f = wanted.function
    return Unsupported(
        f"{f.name} on a GPU: {problem.what}", where=f"{f.file}:{f.line}", hint=problem.hint
    )


def compile_gpu_tile(wanted: Request, target: Target, log: Log) -> tuple[GpuCode, GpuForms]:
    forms = write_gpu_tile(wanted, target)
    log.add("tile", f"{wanted.function.name} is lowered to PTX", detail=True)
    return forms.code, forms
