"""Which convolutions are computed by tiles, and which of these as one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tests.kernel.test_tile_blocks import convolution, gradient, is_scheduled, taps
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.graph.cluster import Cluster
from tilewright.graph.decompose import Decompose
from tilewright.graph.fuse import fuse
from tilewright.graph.pack import PackOperands
from tilewright.graph.winograd import Winograd
from tilewright.ir import dim as D
from tilewright.ir import passes
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.positions import static
from tilewright.ir.types import TensorType, f16, f32
from tilewright.kernel.group import build_group
from tilewright.ops.arranged import arranged
from tilewright.ops.convolution import ConvValid
from tilewright.targets import get

TARGET = replace(get("x86-64-v4"), cores=2)
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def conv(x: Node, w: Node) -> Node:
    plain = ConvValid((1, 1), (1, 1), 1, x.dtype is not f32)
    padded = build.pad(x, (0, 1, 1, 0), (0, 1, 1, 0))
    return arranged(plain, (LAST, (0, 1, 2, 3)), LAST, padded, w)


def weight_gradient(n: int, side: int, channels: int, results: int, pad: int = 1) -> Node:
    dy = build.permute(arg("dy", n, side, side, results), FIRST)
    x = build.permute(arg("x", n, side + 2 - 2 * pad, side + 2 - 2 * pad, channels), FIRST)
    x = build.pad(x, (0, 0, pad, pad), (0, 0, pad, pad))
    return build.conv_weight_valid(dy, x, (1, 1), (1, 1), 1, (3, 3))


def by_tiles(*outputs: Node) -> Graph:
    return Winograd.of(TARGET).apply(graph(*outputs), Log())


def names(g: Graph) -> set[str]:
    return {n.op.name for n in g.nodes()}


def clusters(g: Graph) -> Sequence[Cluster]:
    table = [Decompose(), PackOperands.of(TARGET)]
    return fuse(passes.run(table, g, Log()), TARGET, Log()).clusters


def kinds(g: Graph) -> list[str]:
    return [c.kind for c in clusters(g)]


def test_a_convolution_is_one_kernel() -> None:
    g = by_tiles(build.relu(conv(arg("x", 4, 64, 64, 64), arg("w", 64, 64, 3, 3))))
    assert "winograd_output" in names(g)
    assert sorted(kinds(g)) == ["chain", "map"]  # and one that transforms weights


@pytest.mark.parametrize("unknown", [(0,), (1, 2), (0, 1, 2)])
def test_a_convolution_of_unknown_sizes_is_one_kernel(unknown: tuple[int, ...]) -> None:
    shape = [D.sym("nhw"[k], 1, 4096) if k in unknown else (4, 64, 64)[k] for k in range(3)]
    x = input("x", TensorType(f32, (*shape, 64)))
    g = by_tiles(build.relu(conv(x, arg("w", 64, 64, 3, 3))))
    assert sorted(kinds(g)) == ["chain", "map"]


def test_results_beside_pixels_are_of_the_same_kernel() -> None:
    """As a value that a gradient computes again, with what it is compared for."""
    y = build.relu(arg("y", 4, 64, 64, 64))
    pixels = conv(arg("x", 4, 64, 64, 64), arg("w", 64, 64, 3, 3))
    masked = build.where(build.le(y, 0.0), build.full((), 0.0, f32), pixels)
    other = build.add(y, pixels)
    for outputs in ((y, masked), (masked, y), (pixels, y, masked), (masked, other, y)):
        g = by_tiles(*outputs)
        assert sorted(kinds(g)) == ["chain", "map"]
        (chain,) = (c for c in clusters(g) if c.kind == "chain")
        group = build_group("k", chain.nodes, chain.inputs, chain.outputs, roles=chain.roles)
        assert is_scheduled(group, TARGET)


@pytest.mark.parametrize("seed", drawn(range(60), quick=12))
def test_what_is_chosen_for_blocks_is_scheduled(seed: int) -> None:
    """Whatever the pass says goes through blocks of tiles does, in register tiles."""
    rng = np.random.default_rng(seed)
    target = replace(TARGET, cores=int(rng.choice([1, 2, 16])))
    taken = Winograd.of(target)
    while True:
        n, h, w = (int(k) for k in rng.integers(1, (9, 80, 100)))
        channels, results, m = *(int(k) for k in rng.integers(16, 140, 2)), int(rng.choice([2, 4]))
        if taken.blocks(m, n, h, w, channels, results):
            break
    g = convolution((n, h, w, channels, results), m, target)
    assert is_scheduled(g, target), (n, h, w, channels, results, m, target.cores)
    n, side, whole = int(rng.integers(1, 9)), int(rng.integers(3, 60)), 16 * (channels // 16)
    blocks = taken.sums_of_blocks(2, n, side, side, whole, results)
    tiles = n * -((-side // 2) ** 2)
    sizes = (n, side, side, whole, results)
    g = gradient(sizes, 2, target) if blocks else taps(tiles, whole, results, 2, target)
    assert is_scheduled(g, target), (blocks, sizes, target.cores)


def test_few_tiles_are_rows_of_matrices() -> None:
    """Images of 8 x 8 pixels have too few tiles to read all weights for."""
    g = by_tiles(conv(arg("x", 5, 8, 8, 256), arg("w", 256, 256, 3, 3)))
    assert "winograd_output" in names(g) and "chain" not in kinds(g)
    (products,) = (n for n in g.nodes() if n.op.name == "winograd_products")
    assert products.rank == 3


@pytest.mark.parametrize("height", [64, D.sym("h", 1, 4096)])
def test_each_of_two_convolutions_makes_its_points(height: D.Dim) -> None:
    x = build.relu(input("x", TensorType(f32, (4, height, 64, 64))))
    g = by_tiles(conv(x, arg("v", 64, 64, 3, 3)), conv(x, arg("w", 96, 64, 3, 3)))
    assert sorted(kinds(g)) == ["chain", "chain", "map", "map"]


def test_points_that_something_else_reads_are_stored() -> None:
    x = arg("x", 4, 64, 64, 64)
    y = by_tiles(conv(x, arg("v", 64, 64, 3, 3)), conv(x, arg("w", 64, 64, 3, 3)))
    points = next(n for n in y.nodes() if n.op.name == "winograd_input")
    assert "chain" not in kinds(graph(*y.outputs, build.relu(points)))


def test_a_gradient_is_one_kernel() -> None:
    g = by_tiles(weight_gradient(4, 64, 64, 64))
    assert {"winograd_gradient", "winograd_sums", "winograd_taps"} <= names(g)
    assert kinds(g) == ["chain"]


@pytest.mark.parametrize(
    ("sizes", "sums"),
    [
        ((4, 64, 64, 64), True),
        ((4, 64, 36, 64), False),  # channels that are no whole vectors
        ((8, 7, 256, 512), False),  # sums that no cache holds
    ],
)
def test_which_gradients_go_through_blocks(sizes: tuple[int, int, int, int], sums: bool) -> None:
    """Of tiles; elsewhere points of all tiles are stored first, or sums stay direct."""
    found = by_tiles(weight_gradient(*sizes))
    ranks = [n.inputs[0].rank for n in found.nodes() if n.op.name == "winograd_sums"]
    assert (ranks == [6]) == sums
    if not sums and ranks:
        assert sorted(kinds(found)) == ["chain", "map", "map"]


def test_narrow_images_stay_direct() -> None:
    """Their sums are float32, their points would not be."""
    x, w = arg("x", 4, 64, 64, 64, dtype=f16), arg("w", 64, 64, 3, 3, dtype=f16)
    g = by_tiles(build.add(conv(x, w), 1.0))
    assert "winograd_input" not in names(g)


def test_few_channels_stay_direct() -> None:
    assert "winograd_taps" not in names(by_tiles(weight_gradient(4, 64, 3, 64)))


def test_images_with_channels_first_stay_direct() -> None:
    dy, x = arg("dy", 4, 64, 64, 64), arg("x", 4, 64, 66, 66)
    n = build.conv_weight_valid(dy, x, (1, 1), (1, 1), 1, (3, 3))
    assert "winograd_taps" not in names(by_tiles(n))


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 8, 16, 32), (1, 9, 32, 16)])
def test_gradients_keep_their_values(sizes: tuple[int, int, int, int], pad: int) -> None:
    rng = np.random.default_rng(0)
    before = graph(weight_gradient(*sizes, pad=pad))
    everywhere = replace(Winograd.of(TARGET), moved=1 << 20, near=1 << 20, far=1 << 20)
    after = everywhere.apply(before, Log())
    assert "winograd_taps" in names(after)
    given = [rng.standard_normal(static(x.shape)).astype(np.float32) for x in before.inputs]
    (want,), (got,) = (evaluate(g, given) for g in (before, after))
    np.testing.assert_allclose(got, want, atol=2e-6 * float(np.abs(want).max()), rtol=0)


def test_turned_weights_are_read_as_they_lie() -> None:
    """The gradient of an image convolves with a weight that is turned and flipped."""
    rng = np.random.default_rng(0)
    x, v = arg("x", 4, 64, 64, 32), arg("v", 32, 64, 3, 3)
    before = graph(conv(x, build.flip(build.permute(v, (1, 0, 2, 3)), (2, 3))))
    after = by_tiles(*before.outputs)
    (points,) = (n for n in after.nodes() if n.op.name == "winograd_weight")
    assert points.inputs[0].op.name == "flip" and points.inputs[0].inputs[0] is v
    given = [rng.standard_normal(static(x.shape)).astype(np.float32) for x in before.inputs]
    (want,), (got,) = (evaluate(g, given) for g in (before, after))
    np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()), rtol=0)
