"""Packing in panels: a few rows go through all panels together, the last panel by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tests.kernel.native import Native
from tilewright.base.events import Log
from tilewright.graph.fuse import fuse
from tilewright.ir import dim as D
from tilewright.ir.types import f32
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.fuse import Fuse
from tilewright.targets import default, get


def packing(rows: D.Dim, columns: D.Dim, width: int) -> Group:
    x = arg("x", rows, columns, dtype=f32)
    y = build.relayout(x, f"k, j -> j//{width}, k, j%{width}")
    (c,) = fuse(graph(y), default(), Log()).clusters
    return build_group("packing", c.nodes, c.inputs, c.outputs)


@pytest.mark.parametrize(
    "size",
    [(64, 48, 12), (63, 50, 12), (9, 17, 12), (6, 7, 12), (33, 100, 48), (300, 70, 16)],
    ids=str,
)
def test_every_number_is_in_its_place(size: tuple[int, int, int]) -> None:
    check(Native(default_schedule(packing(*size), default())[1]), *size, {})


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (1, 12), (7, 0), (30, 50)])
def test_sizes_that_are_not_known(rows: int, columns: int) -> None:
    nest = default_schedule(packing(D.sym("m", 0, 64), D.sym("n", 0, 64), 12), default())[1]
    check(Native(nest), rows, columns, 12, {"m": rows, "n": columns})


def check(native: Native, rows: int, columns: int, width: int, dims: dict[str, int]) -> None:
    x = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    want = np.zeros((-(-columns // width), rows, width), np.float32)
    for j in range(columns):
        want[j // width, :, j % width] = x[:, j]
    np.testing.assert_array_equal(native({"a0": x}, dims)["y0"], want)
    assert native.strays({"a0": x}, dims) is None


@pytest.mark.parametrize("target", ["arm64", "x86-64-v3", "x86-64-v4"])
def test_four_rows_go_through_all_panels(target: str) -> None:
    """No loop is the quotient of another, and all panels but the last are read as they are."""
    trace, nest = default_schedule(packing(401, 307, 48), get(target))
    assert not any(isinstance(s, Fuse) for s in trace)
    found = [(s, p) for s, p in walk(nest.body) if isinstance(s, Store)]
    (store, path), *_ = found
    names = [x.name for x in path]
    assert names.index("y0.i1.0") < names.index("y0.i0.1") < names.index("y0.i1.1")
    assert path[0].kind == "parallel" and path[-1].kind == "lane"
    assert [x.extent for x in path if x.name == "y0.i1.1"] == [4]
    whole = D.bounds(store.index[0])[1] * 48 + 47
    assert whole < 307  # the condition always holds


@pytest.mark.parametrize(
    ("rows", "width", "together"), [(1576, 16, 16), (1576, 32, 8), (1576, 12, 4), (40, 16, 4)]
)
def test_pieces_of_whole_lines_are_long_where_threads_have_enough(
    rows: int, width: int, together: int
) -> None:
    target = replace(get("x86-64-v4"), cores=2)
    _, nest = default_schedule(packing(rows, 96 * width, width), target)
    paths = [p for s, p in walk(nest.body) if isinstance(s, Store)]
    assert {x.extent for p in paths for x in p if x.name == "y0.i1.1"} >= {together}
