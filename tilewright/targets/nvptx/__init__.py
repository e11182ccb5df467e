"""nvptx: NVIDIA's GPUs by capability, compiled to PTX, which the driver assembles.

Numbers are those of one board of each capability; `runtime/cuda/device.py` reads
those of the machine at hand from the driver. Which PTX version each capability is compiled with,
and which instructions it has, are allow-lists of llvm/nvvm.py: LLVM ends the process on what is not
there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.ir.product import Product, TileShape
from tilewright.ir.target import Grid, Target
from tilewright.kernel.intrinsic import products
from tilewright.llvm import nvvm
from tilewright.runtime.cuda.device import Device
from tilewright.targets.family import Family, Host
from tilewright.targets.nvptx import additions as additions  # declares them
from tilewright.targets.nvptx import group_products as group_products  # declares them
from tilewright.targets.nvptx import intrinsics as intrinsics  # declares them
from tilewright.targets.nvptx import register_products as register_products  # declares them

_KIB = 1024
_MIB = 1024 * 1024


def _preset(name: str, cpu: str, l2: int, grid: Grid) -> Target:
    """A GPU as a target: the vectors of a thread are the 16 bytes of one access to memory."""
    return Target(
        name,
        nvvm.TRIPLE,
        cpu,
        (f"+ptx{grid.ptx}",),
        vector_bits=128,
        vector_registers=64,
        has_fma=True,
        has_f16=True,
        has_bf16="bf16" in grid.has,
        tiles=(TileShape(14, 3, 8),),
        l1=grid.shared,
        l2=l2,
        l3=l2,
        cache_line=128,
        cores=grid.multiprocessors,
        grid=grid,
        products=_products(grid),
    )


def _products(grid: Grid) -> tuple[Product, ...]:
    """What default schedules multiply with, the best first: groups of warps, warps."""
    found: list[str] = []
    if "wgmma" in grid.has:
        found += [group_products.product_name(*x) for x in group_products.NAMES]
    if "mma.bf16" in grid.has:
        found += ["nvptx.mma.bf16", "nvptx.mma.f16"]
    return products(*found)


def _grid(capability: int, multiprocessors: int, bandwidth: int, **more: int) -> Grid:
    ptx, has = nvvm.CAPABILITIES[capability].ptx, nvvm.CAPABILITIES[capability].has
    own = {"multiprocessors": multiprocessors, "bandwidth": bandwidth, **more}
    return Grid(capability, ptx, has, **own)


_SHARED = {  # bytes of a block at most, bytes of a multiprocessor, threads and blocks of one
    75: (64 * _KIB, 64 * _KIB, 1024, 16),
    80: (163 * _KIB, 164 * _KIB, 2048, 32),
    86: (99 * _KIB, 100 * _KIB, 1536, 16),
    89: (99 * _KIB, 100 * _KIB, 1536, 24),
    90: (227 * _KIB, 228 * _KIB, 2048, 32),
}


def _limits(capability: int) -> dict[str, int]:
    block, whole, threads, blocks = _SHARED[capability]
    return {"block_shared": block, "shared": whole, "threads": threads, "blocks": blocks}


PRESETS = (
    _preset("cuda:75", "sm_75", 4 * _MIB, _grid(75, 40, 320, **_limits(75))),
    _preset("cuda:80", "sm_80", 40 * _MIB, _grid(80, 108, 1555, **_limits(80))),
    _preset("cuda:86", "sm_86", 6 * _MIB, _grid(86, 84, 936, **_limits(86))),
    _preset("cuda:89", "sm_89", 48 * _MIB, _grid(89, 142, 864, **_limits(89))),
    _preset("cuda:90", "sm_90a", 60 * _MIB, _grid(90, 132, 4800, **_limits(90))),
)


def for_capability(capability: int) -> Target:
    """The preset for a GPU of this capability (major * 10 + minor). One of the same major number
    and a lower minor one serves, since code for it runs there, but not 9.0a."""
    for preset in reversed(PRESETS):
        grid = preset.grid
        assert grid is not None
        same = grid.capability // 10 == capability // 10 and grid.capability <= capability
        if grid.capability == capability or (same and not preset.cpu.endswith("a")):
            return preset
    known = ", ".join(str(p.grid.capability / 10) for p in PRESETS if p.grid is not None)
    raise Unsupported(
        f"there is no target for GPUs of capability {capability / 10}",
        hint=f"code can be made for {known}",
    )


def with_numbers(target: Target, **numbers: Any) -> Target:
    """The target with the numbers of a given machine in its grid."""
    assert target.grid is not None
    return replace(target, grid=replace(target.grid, **numbers))


def target_of(device: Device) -> Target:
    """A GPU at hand as a target."""
    return with_numbers(for_capability(device.capability), **device.numbers())


def _describe(host: Host) -> Target:
    raise Unsupported("a GPU is not the machine that this process runs on")


FAMILY = Family("nvptx", ("nvptx64",), PRESETS, _describe)
