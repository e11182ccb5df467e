"""Packing in groups: rows are read in vectors, and every element lands where it should."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tests.kernel.native import Native
from tilewright.base.events import Log
from tilewright.graph.fuse import fuse
from tilewright.ir import dim as D
from tilewright.ir.types import DType, bf16, i8
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Loop, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.targets import default, get


def packing(rows: D.Dim, columns: D.Dim, width: int, group: int, dtype: DType) -> Group:
    x = arg("x", rows, columns, dtype=dtype)
    y = build.relayout(x, f"k, j -> j//{width}, k//{group}, j%{width}, k%{group}")
    (c,) = fuse(graph(y), default(), Log()).clusters
    return build_group("packing", c.nodes, c.inputs, c.outputs)


@pytest.mark.parametrize(
    "size",
    [(64, 48, 12, 4), (62, 50, 12, 4), (8, 7, 12, 4), (9, 96, 48, 2), (4, 13, 4, 4)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [i8, bf16], ids=str)
def test_groups(size: tuple[int, int, int, int], dtype: DType) -> None:
    _, nest = default_schedule(packing(*size, dtype), default())
    check(Native(nest), size, dtype, {})


@pytest.mark.parametrize("columns", [0, 1, 12, 50])
def test_rows_of_symbolic_length(columns: int) -> None:
    nest = default_schedule(packing(10, D.sym("n", 0, 64), 12, 2, bf16), default())[1]
    check(Native(nest), (10, columns, 12, 2), bf16, {"n": columns})


def check(
    native: Native, size: tuple[int, int, int, int], dtype: DType, dims: dict[str, int]
) -> None:
    rows, columns, width, group = size
    x = np.random.default_rng(0).integers(-128, 128, (rows, columns)).astype(dtype.numpy)
    want = np.zeros((-(-columns // width), -(-rows // group), width, group), dtype.numpy)
    for k in range(rows):
        for j in range(columns):
            want[j // width, k // group, j % width, k % group] = x[k, j]
    np.testing.assert_array_equal(native({"a0": x}, dims)["y0"], want)
    assert native.strays({"a0": x}, dims) is None


@pytest.mark.parametrize("target", ["arm64", "x86-64-v3", "x86-64-v4"])
def test_lanes_run_along_what_is_read(target: str) -> None:
    _, nest = default_schedule(packing(64, 50, 12, 4, i8), get(target))
    loops = [s for s, _ in walk(nest.body) if isinstance(s, Loop)]
    assert {x.name for x in loops if x.kind == "lane"} == {"y0.i2"}
    assert {x.name for x in loops if x.kind == "unroll"} == {"y0.i3"}
    # All tiles but the last are read without a condition.
    assert len([x for x in loops if x.kind == "lane"]) == 2
