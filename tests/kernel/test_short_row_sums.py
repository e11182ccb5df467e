"""Sums of rows about as long as a vector: a row is one vector, whose lanes are added up. Where a
row has a number that takes long, such as the logarithm of its sum, lanes run along rows for it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import arg, build, graph, softmax
from tests.kernel.native import Native
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.graph.fuse import fuse
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.types import DType, bf16, f32, f64
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.ops.layout import as_strided
from tilewright.targets import default, get

VECTORS = get("x86-64-v4")


def group(*outputs: Node) -> Group:
    (c,) = fuse(graph(*outputs), default(), Log()).clusters
    return build_group("rows", c.nodes, c.inputs, c.outputs)


def log_sum(x: Node) -> tuple[Node, Node]:
    """The logarithm of a row's sum, and the row less it: a log-softmax."""
    total = build.log(build.sum(build.exp(x), (x.rank - 1,), True))
    return total, build.sub(x, total)


def lanes(nest: Nest, function: str = "", combine: str | None = None) -> set[int]:
    """How many lanes the stores have that call this function, or combine their values so."""
    found = set()
    for x, path in walk(nest.body):
        if not isinstance(x, Store) or (combine is not None and x.combine != combine):
            continue
        if f"{function}(" in str(x.value) or combine is not None:
            extents = [D.bounds(p.extent)[1] for p in path if p.kind == "lane"]
            found.add(int(extents[-1]) if extents else 1)
    return found


@pytest.mark.parametrize("seed", drawn(range(24), 6))
@pytest.mark.parametrize("d", [f32, f64, bf16], ids=str)
def test_numbers_of_short_rows(seed: int, d: DType) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.integers(1, most)) for most in (4, 70, 40))
    total, less = log_sum(arg("x", *shape, dtype=d))
    outputs = [(total,), (less,), (total, less)][seed % 3]
    a = rng.standard_normal(shape).astype(d.numpy)
    native = Native(default_schedule(group(*outputs), default())[1])
    got = native({"a0": a})
    wide = a.astype("f8")
    sums = np.log(np.exp(wide).sum(-1, keepdims=True))
    close = {f32: 1e-5, f64: 1e-13, bf16: 0.05}[d]
    for k, n in enumerate(outputs):
        want = sums if n is total else wide - sums
        y = got[f"y{k}"].astype("f8").reshape(want.shape)
        np.testing.assert_allclose(y, want, close, close, err_msg=f"seed {seed}, {shape}")
    assert native.strays({"a0": a}) is None


def test_of_an_unknown_number_of_rows() -> None:
    n = D.sym("n", 0, 100)
    native = Native(default_schedule(group(*log_sum(arg("x", n, 9))), default())[1])
    for rows in (0, 1, 15, 16, 50):
        a = np.random.default_rng(rows).standard_normal((rows, 9)).astype(np.float32)
        got = native({"a0": a}, {"n": rows})
        want = np.log(np.exp(a.astype("f8")).sum(-1, keepdims=True))
        np.testing.assert_allclose(got["y0"], want, 1e-5, 1e-5)


@pytest.mark.parametrize(("machine", "columns"), [("x86-64-v4", 16), ("arm64", 8)])
def test_a_short_row_is_one_vector(machine: str, columns: int) -> None:
    _, nest = default_schedule(group(softmax(arg("x", 500, columns))), get(machine))
    assert lanes(nest, combine="max") == lanes(nest, combine="add") == {columns}


@pytest.mark.parametrize("rows", [512, 519])
def test_costly_numbers_of_rows_are_lanes(rows: int) -> None:
    _, nest = default_schedule(group(*log_sum(arg("x", rows, 16))), VECTORS)
    rest = {rows % 16} - {0}
    assert lanes(nest, "log") == {16, *rest}
    assert lanes(nest, "exp") == {16}
    # What a block holds does not grow with the number of rows.
    assert all(D.bounds(b.shape[0])[1] <= 16 for b in nest.buffers if b.scope == "local")


def test_costly_numbers_take_as_many_lanes_as_suit_the_target() -> None:
    """Two vectors, of which each needs half of the registers; what is left is one under a mask."""
    _, nest = default_schedule(group(*log_sum(arg("x", 525, 8, dtype=f64))), get("x86-64-v3"))
    assert lanes(nest, "log") == {8}


def test_rows_of_two_axes() -> None:
    _, nest = default_schedule(group(*log_sum(arg("x", 40, 100, 16))), VECTORS)
    assert lanes(nest, "log") == {16, 4}
    for b in nest.buffers:
        assert b.scope != "local" or b.shape[:2] in ((1, 16), (1, 1))


def test_numbers_at_equal_distances_are_gathered() -> None:
    """One of three channels, summed over all pixels."""
    channel = build.slice(arg("x", 8, 400, 3), 2, 1, 2)
    g = group(build.sum(build.exp(channel), (1, 2)))
    _, nest = default_schedule(g, VECTORS)
    assert lanes(nest, "exp") != {1}
    a = np.random.default_rng(0).standard_normal((8, 400, 3)).astype(np.float32)
    native = Native(default_schedule(g, default())[1])
    want = np.exp(a[:, :, 1].astype("f8")).sum(1)
    np.testing.assert_allclose(native({"a0": a})["y0"], want, 1e-5)
    assert native.strays({"a0": a}) is None


def test_long_rows_are_no_blocks() -> None:
    _, nest = default_schedule(group(*log_sum(arg("x", 512, 500))), VECTORS)
    assert lanes(nest, "log") == {1}
    outer = [x for x in nest.body if isinstance(x, Loop)]
    assert [x.extent for x in outer] == [512]


@pytest.mark.parametrize("rows", [3, 37])
def test_several_results_of_each_short_sum(rows: int) -> None:
    """Overlaps of boxes, and whether each is a number."""
    x, z = arg("x", rows, 1, 2), arg("z", 1, 50, 2)
    both = build.sum(build.maximum(build.sub(x, z), 0.0), (2,))
    share = build.div(both, build.sub(both, 0.5))
    g = group(share, build.ne(share, share))
    native = Native(default_schedule(g, default())[1])
    kinds = {
        p.kind for x, path in walk(native.nest.body) if isinstance(x, Store) for p in path[-1:]
    }
    assert kinds == {"lane"}
    rng = np.random.default_rng(rows)
    a, b = (rng.integers(-2, 3, s).astype(np.float32) / 2 for s in ((rows, 1, 2), (1, 50, 2)))
    got = native({"a0": a, "a1": b})
    sums = np.maximum(a - b, 0).sum(2)
    with np.errstate(divide="ignore", invalid="ignore"):
        want = sums / (sums - np.float32(0.5))
    np.testing.assert_array_equal(got["y0"], want)
    np.testing.assert_array_equal(got["y1"], np.isnan(want))
    assert native.strays({"a0": a, "a1": b}) is None


@pytest.mark.parametrize("rows, length, width", [(3, 60, 7), (5, 41, 24), (1, 200, 3)])
def test_deviations_of_windows(rows: int, length: int, width: int) -> None:
    """A sum of squares of what is left of a mean: both are of a tile of results, in registers."""
    count = length - width + 1
    x = arg("x", rows, length)
    windows = as_strided(x, (rows, count, width), (length, 1, 1))
    mean = build.div(build.sum(windows, (2,), True), float(width))
    left = build.sub(windows, mean)
    g = group(build.sqrt(build.sum(build.mul(left, left), (2,))))
    native = Native(default_schedule(g, default())[1])
    assert {b.scope for b in native.nest.buffers} == {"in", "out", "register"}
    a = np.random.default_rng(rows).standard_normal((rows, length)).astype(np.float32)
    seen = np.lib.stride_tricks.sliding_window_view(a, width, 1).astype("f8")
    want = np.sqrt(((seen - seen.mean(-1, keepdims=True)) ** 2).sum(-1))
    np.testing.assert_allclose(native({"a0": a})["y0"], want, rtol=1e-5)
    assert native.strays({"a0": a}) is None
