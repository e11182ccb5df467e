"""Matrix products on a GPU: right, and timed beside cuBLAS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.gpu.random_products import Product
from tests.gpu.timing import medians
from tests.graph.build import arg, build, graph
from tilewright.driver.program.grid_run import GridKernel, GridProgram, target_of
from tilewright.ir.node import Graph
from tilewright.ir.types import bf16
from tilewright.kernel.interpret import run_group
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.runtime.cuda.device import device
from tilewright.targets.nvptx import with_numbers

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def exact_products(products: list[tuple[Product, int]]) -> set[str]:
    """Products of numbers whose sums are exact, each for a GPU of so many multiprocessors; the
    instructions that did them."""
    on, used = device(0), set[str]()
    for p, multiprocessors in products:
        target = with_numbers(target_of(on), multiprocessors=multiprocessors)
        trace, nest = default_schedule(p.group(), target)
        used |= {str(s.instruction) for s in trace if isinstance(s, Tensorize)}
        given = p.arguments()
        want = run_group(p.group(), given)["y"].astype("d")
        kind = TYPES[p.dtype]
        ins = {x: torch.from_numpy(v.astype("f")).cuda().to(kind) for x, v in given.items()}
        y = torch.full(want.shape, float("nan"), device="cuda", dtype=kind)
        k = GridKernel(nest, target, on)
        for _ in range(3):
            y.fill_(float("nan"))
            k({**ins, "y": y}, {}, torch.cuda.current_stream().cuda_stream)
            got = y.double().cpu().numpy()
            if not np.array_equal(got, want):
                bad = np.argwhere(got != want)
                at = tuple(bad[0])
                raise AssertionError(
                    f"{p}: {len(bad)} of {got.size} are wrong, the first at {at}: {got[at]} "
                    f"instead of {want[at]}"
                )
    return used


ORDERS = ((False, False), (False, True), (True, False), (True, True))


def group_products() -> dict[str, Any]:
    """By groups of warps, operands in every order, tiles of every size."""
    every: list[tuple[Product, int]] = []
    for across in ORDERS:
        every.append((Product(256, 512, 448, across=across, epilogue="bias"), 1))
        every.append((Product(128, 128, 128, across=across, dtype="f16", batch=3), 1))
        every.append((Product(128, 256, 64, across=across), 64))
        # Sizes that no tile divides; a long sum in parts.
        every.append((Product(200, 136, 264, across=across, epilogue="bias", batch=2), 4))
        every.append((Product(72, 104, 2056, across=across, epilogue="relu"), 64))
    used = exact_products(every)
    groups = sorted(x for x in used if "wgmma" in x)
    assert len(groups) >= 8, f"few products are done by groups of warps: {groups}"
    return {"facts": ", ".join(sorted(used))}


@dataclass(frozen=True)
class Shape:
    """A product of a batch; `linear` has the rows of both operands along the sum."""

    rows: int
    columns: int
    deep: int
    batch: int = 1
    linear: bool = False
    gelu: bool = False

    @property
    def title(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        what = "gelu" if self.gelu else "linear" if self.linear else "gemm"
        return f"{what} bf16 {batch}{self.rows}x{self.columns}x{self.deep}"

    def graph(self) -> Graph:
        lead = (self.batch,) if self.batch > 1 else ()
        x = arg("x", *lead, self.rows, self.deep, dtype=bf16)
        if not self.linear:
            return graph(build.matmul(x, arg("w", *lead, self.deep, self.columns, dtype=bf16)))
        w = arg("w", *lead, self.columns, self.deep, dtype=bf16)
        order = (0, 2, 1) if lead else (1, 0)
        y = build.matmul(x, build.permute(w, order))
        if not self.gelu:
            return graph(y)
        b = arg("b", self.columns, dtype=bf16)
        wide = [build.cast(v, v.dtype.accumulator) for v in (y, b)]
        return graph(build.cast(build.gelu(build.add(*wide)), bf16))

    def inputs(self) -> list[torch.Tensor]:
        lead = (self.batch,) if self.batch > 1 else ()
        x = torch.randn(*lead, self.rows, self.deep, device="cuda")
        shape = (self.columns, self.deep) if self.linear else (self.deep, self.columns)
        w = torch.randn(*lead, *shape, device="cuda") / self.deep**0.5
        more = [torch.randn(self.columns, device="cuda")] if self.gelu else []
        return [v.bfloat16() for v in (x, w, *more)]

    def reference(self, x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
        if not self.linear:
            return x @ w
        return F.gelu(F.linear(x, w, *b)) if self.gelu else x @ w.transpose(-1, -2)


# What cuBLAS is compared with: large, skinny, ragged, batched, long sums.
SHAPES = (
    Shape(4096, 4096, 4096),
    Shape(8192, 8192, 8192),
    Shape(8192, 4096, 16384, linear=True),
    Shape(4096, 11008, 4096, linear=True),
    Shape(256, 4096, 4096),
    Shape(64, 8192, 8192, linear=True),
    Shape(1000, 1000, 1000),
    Shape(4000, 4088, 4104, linear=True),
    Shape(1024, 1024, 1024, batch=16),
    Shape(512, 512, 64, batch=64, linear=True),
    Shape(512, 512, 65536),
    Shape(1024, 1024, 16384, linear=True),
)
FUSED = (
    Shape(4096, 4096, 4096, linear=True, gelu=True),
    Shape(8192, 16384, 4096, linear=True, gelu=True),
    Shape(256, 4096, 4096, linear=True, gelu=True),
)


def timed(shape: Shape, check: Callable[..., float]) -> dict[str, Any]:
    """Right by float64, or by float32 where that takes too much memory, then timed."""
    p = GridProgram(shape.graph())
    p.compile()
    sets = [shape.inputs() for _ in range(3)]
    poison = torch.full((2 * shape.rows * shape.columns * shape.batch,), 255, dtype=torch.uint8)
    poison = poison.cuda()
    del poison  # what is allocated next holds NaN where nothing is written
    (got,) = p(*sets[0])
    eager = shape.reference(*sets[0])
    small = shape.rows * shape.columns * shape.deep * shape.batch <= 2**34
    exact = shape.reference(*(v.double() if small else v.float() for v in sets[0]))
    error = check(got, exact, eager, bf16)
    assert torch.equal(got, p(*sets[0])[0]), "two runs differ"
    del exact, eager
    t = medians(
        {
            "ours": [lambda x=x: p(*x) for x in sets],
            "eager": [lambda x=x: shape.reference(*x) for x in sets],
        },
        20,
    )
    facts = [f for k, *_ in p.kernels for f in k.loaded().facts()]
    work = 2 * shape.batch * shape.rows * shape.columns * shape.deep
    return {
        "us": t["ours"] * 1e6,
        "eager": t["eager"] / t["ours"],
        "tflops": work / t["ours"] * 1e-12,
        "error": error,
        "kernels": len(facts),
        "facts": f"{work / t['ours'] * 1e-12:.0f} TFLOP/s; " + "; ".join(map(str, facts)),
    }
