"""Products by single warps (mma.sync, ldmatrix, cp.async) on a GPU that has better instructions, as
GPUs of capability 8 multiply: ours for such a target beside Triton's for the same.

Triton takes `arch` as an option of a launch: its own forms are made for that one, PTX for the GPU
at hand. Both are looked at: neither has an instruction of groups of warps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch

import tilewright as tw
from tests.gpu.product_checks import Shape
from tests.gpu.tile_checks import uncached
from tests.gpu.tile_kernels import load
from tests.gpu.timing import medians
from tilewright import targets
from tilewright.driver.program.grid_run import GridProgram
from tilewright.driver.tile import gpu
from tilewright.ir.target import Target
from tilewright.kernel.defaults import grid_tiles, grid_warp_products
from tilewright.runtime.cuda.device import device
from tilewright.targets.nvptx import with_numbers

Found = dict[str, Any]
Call = Callable[[], Any]
OLDER, ARCH = "cuda:80", "sm80"
# Tiles of a block, its warps and the versions of operands: those of Triton's tutorial for GPUs of
# capability 8, and larger ones.
BLOCKS = (
    ((128, 256, 64), 8, 3),
    ((128, 256, 32), 8, 4),
    ((128, 128, 64), 4, 3),
    ((128, 128, 32), 4, 4),
    ((64, 256, 32), 4, 4),
)
SHAPES = (
    Shape(4096, 4096, 4096),
    Shape(8192, 8192, 8192),
    Shape(4096, 4096, 4096, linear=True),
    Shape(1024, 1024, 1024),
)


# Numbers of a graph's product, by what they are called.
LARGE, SMALL = ((128, 256, 64, 64),), ((128, 128, 64, 64),)
EARLY = {"LATE": False, "ALWAYS": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "graph": {},
    "graph, 128x256": {"TILES": LARGE},
    "graph, 128x256, 3 versions": {"TILES": LARGE, "MOST": 2},
    "graph, 128x256, early": {"TILES": LARGE, **EARLY},
    "graph, 128x256 by 32": {"TILES": LARGE, "DEPTHS": (32,)},
    "graph, 128x128": {"TILES": SMALL},
    "graph, 128x128, early": {"TILES": SMALL, **EARLY},
    "graph, 128x128 by 32, 6 versions": {"TILES": SMALL, "DEPTHS": (32,), "SEVERAL": 5},
    "graph, in rows": {"NEIGHBOURS": 1},
}


# The same of tile kernels.
OURS: dict[str, dict[str, Any]] = {
    "ours": {"BOTH": True},
    "ours, copies behind": {"BEHIND": True},
    "ours, warps share rows": {"BOTH": False},
}


def older() -> Target:
    """Capability 8.0 with the numbers of the GPU at hand."""
    return with_numbers(targets.get(OLDER), **device(0).numbers())


def _by_warps(ptx: str, whose: str) -> None:
    assert "mma.sync" in ptx and "wgmma" not in ptx, f"{whose} are no products of single warps"


def _tile(
    shape: Shape, x: torch.Tensor, w: torch.Tensor, want: torch.Tensor, how: Any, triton: bool
) -> Call | str:
    """A launch of tutorial 3's kernel, by either compiler; or why there is none of Triton's, or
    none that fits."""
    block, warps, stages = how
    b = w.T if shape.linear else w
    c = torch.empty(shape.rows, shape.columns, device="cuda", dtype=x.dtype)
    grid = (tw.cdiv(shape.rows, block[0]) * tw.cdiv(shape.columns, block[1]),)
    sizes = (shape.rows, shape.columns, shape.deep, *x.stride(), *b.stride(), *c.stride())
    options = {"num_warps": warps, "num_stages": stages}
    kernel = load(True).matmul_kernel if triton else tw.jit(load(False).matmul_kernel.fn)
    options |= {"arch": ARCH} if triton else {}

    def launch() -> Any:
        return kernel[grid](x, b, c, *sizes, *block, 8, None, **options)

    try:
        with uncached(), patch.object(gpu, "target_of", lambda _: older()):
            made = launch()
    except Exception as problem:
        if not triton and "shared memory" not in str(problem):
            raise
        return f"{type(problem).__name__}: {str(problem)[:200]}"
    _by_warps(made.asm["ptx"], "Triton's" if triton else "ours")
    error = float((c.double() - want).norm() / want.norm())
    assert error < 5e-3, f"{how} is off by {error:.2e} of the norm"
    return launch


def by_warps(shape: Shape) -> Found:
    """A graph's product and tile kernels of all blocks, ours and Triton's."""
    x, w = shape.inputs()
    calls: dict[str, Call] = {}
    missing: list[str] = []
    want = shape.reference(x.double(), w.double())
    varied = shape == SHAPES[0]  # compiling takes the most of the time
    for name, numbers in list(VARIANTS.items())[: None if varied else 1]:
        with patch.multiple(grid_warp_products, **numbers) if numbers else nullcontext():
            p = GridProgram(shape.graph(), target=older())
            p.compile()
        for k, *_ in p.kernels:
            _by_warps(k.loaded().ptx, "ours")
        error = float((p(x, w)[0].double() - want).norm() / want.norm())
        assert error < 5e-3, f"{name} is off by {error:.2e} of the norm"
        calls[name] = lambda p=p: p(x, w)
    for how in BLOCKS[: None if varied else 3]:
        (m, n, k), warps, stages = how
        name = f"{m}x{n}x{k} by {warps}, {stages}"
        own = list(OURS) if varied and how in BLOCKS[:2] else ["ours"]
        for whose in (*own, *(["triton"] if find_spec("triton") is not None else [])):
            with patch.multiple(grid_tiles, **OURS.get(whose, {"BOTH": True})):
                launch = _tile(shape, x, w, want, how, whose == "triton")
            if isinstance(launch, str):
                missing.append(f"no {whose} {name}: {launch}")
            else:
                calls[f"{whose} {name}"] = launch
    calls["cuBLAS"] = lambda: shape.reference(x, w)
    t = medians({name: [f] for name, f in calls.items()}, 20)
    work = 2 * shape.rows * shape.columns * shape.deep
    theirs = min((v for name, v in t.items() if name.startswith("triton")), default=0.0)
    tile = min(v for name, v in t.items() if name.startswith("ours"))
    shown = [f"{name} {v * 1e6:.1f} us ({work / v * 1e-12:.0f} TFLOP/s)" for name, v in t.items()]
    return {
        "us": t["graph"] * 1e6,
        "of_triton": theirs / t["graph"],
        "tile_of_triton": theirs / tile,
        "facts": f"graph {theirs / t['graph']:.2f} and tiles {theirs / tile:.2f} of Triton's best; "
        + ", ".join([*shown, *missing]),
    }


def warp_checks() -> Iterator[tuple[str, Callable[[], Found]]]:
    for shape in SHAPES:
        yield f"{shape.title} by single warps", lambda s=shape: by_warps(s)
