"""Long sums of columns: threads share pieces of the rows, and several sums share the loops."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tests.kernel.fuzz import Judge
from tests.kernel.native import Native
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.graph.cluster import Cluster
from tilewright.graph.fuse import fuse
from tilewright.ir.dim import Dim
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Loop, Nest, Store, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.targets import default, get

TWO = replace(default(), cores=2)


def sums(*shape: Dim, target: str = "x86-64-v4") -> list[Group]:
    """Kernels of three sums over all axes but the last, and what is made of them."""
    x, y, m = arg("x", *shape), arg("y", *shape), arg("m", shape[-1])
    axes = tuple(range(len(shape) - 1))
    away = build.sub(x, m)
    first, second = build.sum(y, axes), build.sum(build.mul(y, away), axes)
    outs = build.mul(first, m), build.add(second, first), build.sum(build.abs(x), axes)
    found = fuse(graph(*outs), get(target), Log())
    return [kernel(c) for c in found.clusters]


def kernel(c: Cluster) -> Group:
    return build_group("kernel", c.nodes, c.inputs, c.outputs)


def updates(nest: Nest) -> list[tuple[str, ...]]:
    """The stages that are added to, by the loop that they are in."""
    found: dict[int, list[str]] = {}
    for x, path in walk(nest.body):
        if isinstance(x, Store) and x.combine is not None and path:
            found.setdefault(id(path[-1]), []).append(x.stage)
    return [tuple(v) for v in found.values()]


def test_sums_that_read_the_same_rows_share_the_loops() -> None:
    (group,) = sums(8, 32, 32, 64)
    _, nest = default_schedule(group, TWO)
    (shared,) = [x for x in updates(nest) if len(x) > 1]
    assert len(shared) == 3
    loops = [x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "parallel"]
    assert max(x.extent for x in loops if isinstance(x.extent, int)) >= 16


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((8, 4, 4, 64), "so few are in a cache"),
        ((8, 64, 64, 3), "lanes run along rows, too"),
    ],
)
def test_others_are_apart(shape: tuple[int, ...], why: str) -> None:
    assert len(sums(*shape)) > 1, why


@pytest.mark.parametrize("columns, pieces", [(24, True), (31, True), (16, False), (12, False)])
def test_threads_share_rows_of_one_sum_of_more_columns_than_a_vector(
    columns: int, pieces: bool
) -> None:
    x, m = arg("x", 8, 56, 56, columns), arg("m", columns)
    away = build.square(build.sub(x, m))
    (c,) = fuse(graph(build.sum(away, (0, 1, 2))), get("x86-64-v4"), Log()).clusters
    _, nest = default_schedule(kernel(c), replace(get("x86-64-v4"), cores=2))
    loops = [x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "parallel"]
    most = max((x.extent for x in loops if isinstance(x.extent, int)), default=1)
    # One vector of columns is as good as rows; of more, there are too few for threads to share.
    assert (most >= 64) == pieces


def test_a_sum_that_needs_another_one_is_apart() -> None:
    x = arg("x", 8, 32, 32, 64)
    mean = build.mul(build.sum(x, (0, 1, 2), True), 1 / 8192)
    g = graph(mean, build.sum(build.square(build.sub(x, mean)), (0, 1, 2)))
    assert len(fuse(g, get("x86-64-v4"), Log()).clusters) == 2


@pytest.mark.parametrize("seed", drawn(range(12), 4))
def test_drawn_sums_are_right(seed: int) -> None:
    """Any number of rows, also such that no piece divides them, and any of columns."""
    draw = random.Random(seed)
    columns = draw.choice([16, 20, 33, 64, 96, 130])
    rows = draw.choice([1 << 10, 4099, 23 * 29, 2 * 7 * 7 * 13]) * draw.randint(1, 3)
    rows = max(rows, (1 << 16) // columns + 1)
    shape = draw.choice([(rows, columns), (1, rows, columns), (rows // 2, 2, columns)])
    for group in sums(*shape):
        judge = Judge(group, [{}], seed)
        judge.exact = False  # the order of additions differs
        nest = default_schedule(group, TWO)[1]
        verify(nest)
        native = Native(nest)
        judge.compare(native(judge.inputs[0], {}), 0, "native code")
        assert native.strays(judge.inputs[0], {}) is None


def test_rounding_is_that_of_sums_of_sums() -> None:
    """Of very many rows no chain of additions is long."""
    x = arg("x", 1 << 18, 32)
    (c,) = fuse(graph(build.sum(x, (0,))), get("x86-64-v4"), Log()).clusters
    native = Native(default_schedule(kernel(c), TWO)[1])
    values = np.random.default_rng(0).uniform(0.5, 1.5, (1 << 18, 32)).astype(np.float32)
    got = native({"a0": values}, {})["y0"]
    want = values.astype(np.float64).sum(0)
    assert np.abs(got - want).max() <= 8 * 2.0**-23 * want.max()
