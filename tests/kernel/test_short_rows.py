"""Maps whose rows are much shorter than a vector: lanes run along the rows, all elements of a
vector of rows are stored at once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tests.kernel.native import Native
from tilewright.base.events import Log
from tilewright.graph.fuse import fuse
from tilewright.ir import dim as D
from tilewright.ir.types import DType, bf16, f32, f64, i8
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Loop, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.targets import default, get


def scaled(rows: D.Dim, columns: int, dtype: DType) -> Group:
    """Each row times a number of its own."""
    x, t = arg("x", rows, columns, dtype=dtype), arg("t", rows, 1, dtype=dtype)
    (c,) = fuse(graph(build.mul(x, t)), default(), Log()).clusters
    return build_group("scaled", c.nodes, c.inputs, c.outputs)


@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("dtype", [i8, f32, f64], ids=str)
def test_rows_of_few(columns: int, dtype: DType) -> None:
    for rows in (16, 37, 64):
        _check(
            Native(default_schedule(scaled(rows, columns, dtype), default())[1]),
            rows,
            columns,
            dtype,
        )


def test_rows_of_unknown_number() -> None:
    native = Native(default_schedule(scaled(D.sym("n", 0, 100), 3, f32), default())[1])
    for rows in (0, 1, 40):
        _check(native, rows, 3, f32, {"n": rows})


def _check(
    native: Native, rows: int, columns: int, dtype: DType, dims: dict[str, int] | None = None
) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (rows, columns)).astype(dtype.numpy)
    t = rng.integers(-9, 9, (rows, 1)).astype(dtype.numpy)
    got = native({"a0": x, "a1": t}, dims or {})["y0"]
    np.testing.assert_array_equal(got.reshape(rows, columns), x * t)
    assert native.strays({"a0": x, "a1": t}, dims or {}) is None


@pytest.mark.parametrize("target", ["arm64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_lanes_run_along_rows(target: str, dtype: DType) -> None:
    most = 2 if target == "arm64" else 3
    for columns in range(2, most + 1):
        _, nest = default_schedule(scaled(1000, columns, dtype), get(target))
        inside = {
            path[-1].kind
            for s, path in walk(nest.body)
            if isinstance(s, Loop) and s.kind == "unroll" and s.extent == columns
        }
        assert "lane" in inside, (target, columns)
