"""Whole numbers of which little is possible are sorted by as many bits as that has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.running import check
from tests.seeds import every_run
from tilewright.ir.node import Graph


def sorted_dtypes(graph: Graph) -> set[str]:
    return {str(n.inputs[0].dtype) for n in graph.nodes() if n.op.name in ("sort", "topk")}


RANGES = (
    (0, 255, "u8"),
    (0, 256, "i16"),
    (-100, 100, "i16"),
    (-7, 40000, "i32"),
    (0, 1 << 40, "i64"),
)


@every_run(0, 2, 3, 4, 6, 8)
@pytest.mark.parametrize(("ends", "n"), [(ends, n) for ends in RANGES for n in (9, 300)])
def test_numbers_between_two_ends(ends: tuple[int, int, str], n: int) -> None:
    low, high, dtype = ends

    def f(x: Tensor) -> tuple[Any, ...]:
        x = x.clamp(low, high)
        up, down = x.sort(dim=1, stable=True), x.sort(dim=1, descending=True, stable=True)
        return *up, *down, x.topk(5).values, x.argsort(dim=0, stable=True)

    torch.manual_seed(0)
    x = torch.randint(low - 5, high + 5, (4, n))
    used = check(f, x)
    graphs = [s.graph for u in used.units for s in u.captured.segments]
    assert {d for g in graphs for d in sorted_dtypes(g)} == {dtype}
