"""Rows and products of one row on a GPU by other numbers in their schedules, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from tests.gpu.product_checks import Shape
from tests.gpu.timing import medians
from tilewright.driver.program.grid_run import GridProgram
from tilewright.ir.node import Graph
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.defaults import grid_rows_ahead, grid_sums, grid_totals, grids

Found = dict[str, Any]
Numbers = Mapping[str, int]
Inputs = Callable[[], list[torch.Tensor]]
SETS = 4


@dataclass(frozen=True)
class Varied:
    """A program of tests/gpu/programs.py and numbers of its schedule, by what they are called."""

    name: str
    dtype: DType
    size: tuple[int, int]
    numbers: Mapping[str, Numbers]

    @property
    def title(self) -> str:
        return f"variants of {self.name} {self.dtype} {self.size[0]}x{self.size[1]}"


LARGE, RAGGED = (8192, 4096), (8191, 4099)
SHARES: dict[str, Numbers] = {f"share {k}": {"SHARE": k} for k in (8, 16, 32)}
ENDS: dict[str, Numbers] = {f"{k} vectors": {"BESIDE_ENDS": k} for k in (2, 4, 8)}
THREADS: dict[str, Numbers] = {f"threads {k}": {"THREADS": k} for k in (128, 256, 512)}
# Rows that are only read: how many elements a thread has, how many rows are on their way.
READ: dict[str, Numbers] = {f"share {k}": {"READ_SHARE": k} for k in (16, 32, 64, 128)}
AHEAD: dict[str, Numbers] = {
    **READ,
    "1 ahead, 10 blocks": {"AHEAD": 1, "BLOCKS": 10},
    "2 ahead": {"AHEAD": 2},
    "2 ahead, 6 blocks": {"AHEAD": 2, "BLOCKS": 6},
    "3 ahead, 6 blocks": {"AHEAD": 3, "BLOCKS": 6},
    "2 ahead, share 16": {"AHEAD": 2, "READ_SHARE": 16, "BLOCKS": 6},
}
# Weights are shifted: with registers for so many blocks, or as the assembler likes.
SHIFTED: dict[str, Numbers] = {"as it is": {}, "any registers": {"ENDS_THREADS": 0}}
WALKS: dict[str, Numbers] = {
    "as it is": {},
    "a row of each block": {"WALKING": 0},
    "9 blocks": {"WALKING": 1152},
    "10 blocks": {"WALKING": 1280},
}
TOTALS: dict[str, Numbers] = {
    "as it is": {},
    "2 loads": {"LOADS": 2, "TURN": 512},
    "8 loads": {"LOADS": 8, "TURN": 2048},
    "8 loads, 4 blocks": {"LOADS": 8, "TURN": 2048, "PIECES": 4},
    "16 blocks": {"PIECES": 16},
}
# Numbers that are elsewhere than in grids.py, or have another name there.
PLACES: dict[str, tuple[Any, str]] = {
    "AHEAD": (grid_rows_ahead, "AHEAD"),
    "BLOCKS": (grid_rows_ahead, "RESIDENT"),
    "WALKING": (grid_totals, "WALKING"),
    "LOADS": (grid_sums, "LOADS"),
    "TURN": (grid_sums, "TURN"),
    "PIECES": (grid_sums, "BLOCKS"),
}
VARIED = (
    Varied("cross_entropy", bf16, LARGE, AHEAD),
    Varied("cross_entropy", f32, LARGE, AHEAD),
    Varied("cross_entropy", bf16, RAGGED, READ),
    Varied("softmax", bf16, LARGE, SHARES),
    Varied("softmax", bf16, RAGGED, ENDS),
    Varied("layer_norm", bf16, LARGE, SHARES),
    Varied("layer_norm", bf16, RAGGED, {**SHIFTED, **ENDS}),
    Varied("loss", bf16, LARGE, WALKS),
    Varied("loss", f32, LARGE, WALKS),
    Varied("loss", bf16, RAGGED, WALKS),
    Varied("total", bf16, LARGE, TOTALS),
    Varied("total", f32, LARGE, TOTALS),
    Varied("rms_norm", f32, LARGE, SHARES),
    Varied("rms_norm", bf16, RAGGED, ENDS),
    Varied("add", bf16, LARGE, THREADS),
    Varied("chain", bf16, LARGE, THREADS),
)
# Warps of a block, vectors of a thread that are on their way at a time, blocks of a multiprocessor
# that there are registers for.
ONE_ROW: dict[str, Numbers] = {
    "as it is": {},
    "few registers": {"RESIDENT": 0},
    "2 blocks": {"RESIDENT": 2},
    "4 blocks": {"RESIDENT": 4},
    "4 warps, 6 blocks": {"WARPS": 4, "RESIDENT": 6},
    "2 warps, 12 blocks": {"WARPS": 2, "RESIDENT": 12},
    "16 loads, 2 blocks": {"BESIDE": 16, "RESIDENT": 2},
    "16 loads, 4 warps, 4 blocks": {"BESIDE": 16, "WARPS": 4, "RESIDENT": 4},
    "16 loads, 2 warps, 8 blocks": {"BESIDE": 16, "WARPS": 2, "RESIDENT": 8},
}


def _made(graph: Graph, numbers: Numbers) -> GridProgram:
    """Compiled with other numbers; nothing of it is in a cache."""
    with ExitStack() as stack:
        for name, k in numbers.items():
            stack.enter_context(patch.object(*PLACES.get(name, (grids, name)), k))
        made = GridProgram(graph)
        made.compile()
    return made


def side_by_side(
    graph: Graph, sets: list[list[torch.Tensor]], numbers: Mapping[str, Numbers], others: Any
) -> Found:
    """Each right beside the first of `others`, then timed in turn with them."""
    contenders: dict[str, list[Callable[[], object]]] = {
        name: [lambda x=x, f=f: f(*x) for x in sets] for name, f in others.items()
    }
    first = next(iter(others.values()))
    want = first(*(x.double() if x.is_floating_point() else x for x in sets[0])).reshape(-1)
    for name, given in numbers.items():
        p = _made(graph, given)
        got = p(*sets[0])[0].reshape(-1).double()
        off = float((got - want).norm() / want.norm())
        assert off < 1e-2, f"{name} is off by {off:.2e} of the norm"
        contenders[name] = [lambda x=x, p=p: p(*x) for x in sets]
    moved = sum(x.nbytes for x in sets[0])
    into = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    sources = [torch.empty_like(into) for _ in range(SETS)]
    contenders["copy of what is read"] = [lambda x=x: into.copy_(x) for x in sources]
    t = medians(contenders, 30)
    best = min(t[name] for name in numbers)
    return {
        "us": best * 1e6,
        "of_copy": t["copy of what is read"] / best,
        "facts": ", ".join(f"{name} {v * 1e6:.1f} us" for name, v in t.items()),
    }


def row_checks(
    graphs: Mapping[str, Callable[..., Graph]],
    references: Mapping[str, Callable[..., torch.Tensor]],
    inputs: Callable[[str, DType, tuple[int, int]], list[torch.Tensor]],
) -> Iterator[tuple[str, Callable[[], Found]]]:
    def one(v: Varied) -> Found:
        sets = [inputs(v.name, v.dtype, v.size) for _ in range(SETS)]
        others = {"eager": references[v.name]}
        return side_by_side(graphs[v.name](v.dtype, *v.size), sets, v.numbers, others)

    def row(columns: int, depth: int) -> Found:
        shape = Shape(1, columns, depth, linear=True)
        others = {"torch": shape.reference}
        return side_by_side(shape.graph(), [shape.inputs() for _ in range(SETS)], ONE_ROW, others)

    for v in VARIED:
        yield v.title, lambda v=v: one(v)
    for columns, depth in ((16384, 4096), (4096, 16384), (32000, 2048), (2048, 8192)):
        yield f"variants of one row {depth}x{columns}", lambda c=columns, d=depth: row(c, d)
