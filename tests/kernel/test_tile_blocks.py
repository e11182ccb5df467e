"""Convolutions by tiles, and gradients of their weights, a block of tiles at a time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import build
from tests.kernel.fuzz import Judge
from tests.kernel.native import Native
from tests.seeds import drawn, every_run
from tilewright.base.events import Log
from tilewright.graph.fuse import fuse
from tilewright.graph.pack import PackOperands
from tilewright.ir import dim as D
from tilewright.ir import passes
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.positions import static
from tilewright.ir.register_tile import (
    Block,
    RegisterTile,
    block_of_tiles,
    rows_of_block,
    shares_of_blocks,
)
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import group_text, parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.ops.conv_gradients import ConvWeightValid
from tilewright.ops.convolution import ConvValid
from tilewright.ops.winograd import WinogradSums, WinogradTaps, WinogradWeight
from tilewright.targets import default, get

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
LANES = default().lanes(32)
Sizes = tuple[int, int, int, int, int]  # images, height, width, channels, results
Known = tuple[Dim, Dim, Dim, int, int]  # the same, some of which only a call decides


def image(label: str, *shape: Dim) -> Node:
    return input(label, TensorType(f32, shape))


def kernel(inputs: tuple[Node, ...], out: Node, target: Target) -> Group:
    """The one kernel that the graph becomes, but for what packs weights."""
    graph = passes.run([PackOperands.of(target)], Graph("test", inputs, (out,)), Log())
    (c,) = (c for c in fuse(graph, target, Log()).clusters if c.kind == "chain")
    return build_group("tiles", c.nodes, c.inputs, c.outputs, roles=c.roles)


def convolution(sizes: Known, m: int, target: Target) -> Group:
    n, h, w, channels, results = sizes
    x, weight = (
        image("x", n, h, w, channels),
        image("w", m + 2, m + 2, channels, results),
    )
    after = (0, *(D.ceildiv(d, m) * m - d + 1 for d in (h, w)), 0)
    points = build.winograd_input(build.pad(x, (0, 1, 1, 0), after), m)
    sums = build.winograd_products(points, weight, -(-channels // 2))
    return kernel((x, weight), build.relu(build.winograd_output(sums, m, h, w)), target)


def gradient(sizes: Sizes, m: int, target: Target) -> Group:
    n, h, w, channels, results = sizes
    dy, x = image("dy", n, h, w, results), image("x", n, h, w, channels)
    after = -h % m, -w % m
    changes = build.winograd_gradient(build.pad(dy, (0, 0, 0, 0), (0, *after, 0)), m)
    around = (0, 1, 1, 0), (0, after[0] + 1, after[1] + 1, 0)
    points = build.winograd_input(build.pad(x, *around), m)
    return kernel((dy, x), build.winograd_taps(build.winograd_sums(changes, points, 64), m), target)


def taps(tiles: int, channels: int, results: int, m: int, target: Target) -> Group:
    """The gradient whose points are there, those of all tiles."""
    points = (m + 2) ** 2
    dy, x = image("dy", points, tiles, results), image("x", points, tiles, channels)
    sums = build.reshape(build.winograd_sums(dy, x, 64), (m + 2, m + 2, results, channels))
    return kernel((dy, x), build.winograd_taps(sums, m), target)


def is_scheduled(g: Group, target: Target) -> bool:
    """Does a block of tiles go through all steps, in register tiles?"""
    text = print_trace(default_schedule(g, target)[0])
    sums = "Tensorize" in text or "Unroll(loop='t" in text
    return "ComputeAt(stage='t" in text and "SetScope" in text and "Parallel" in text and sums


def close(found: np.ndarray, right: np.ndarray, ulps: float) -> bool:
    return float(np.abs(found - right).max()) <= ulps * 2**-23 * float(np.abs(right).max())


def random_sizes(rng: np.random.Generator, whole: bool) -> Sizes:
    n, h, w = (int(k) for k in rng.integers(1, (4, 20, 20)))
    channels, results = (int(k) for k in rng.integers((2, 1), 40))
    return n, h, w, channels * LANES // 8 if whole else channels, results


def check_convolution(g: Group, sizes: Sizes, m: int, rng: np.random.Generator) -> bool:
    """Is what the kernel gives near the sums in float64, whatever the sizes?"""
    n, h, w, channels, results = sizes
    x = rng.standard_normal((n, h, w, channels)).astype(np.float32)
    weight = rng.standard_normal((results, channels, 3, 3)).astype(np.float32)
    points = WinogradWeight(m).reference(weight).swapaxes(2, 3)
    layout = g.buffer("a1").layout
    given = {"a0": x, "a1": points if layout is None else layout.pack(points)}
    dims = {k: v for k, v in zip("nhw", sizes) if k in g.dims()}
    found = Native(default_schedule(g, default())[1])(given, dims)["y0"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    conv = ConvValid((1, 1), (1, 1), 1).reference(
        padded.transpose(FIRST), weight.astype(np.float64)
    )
    return close(found, np.maximum(conv.transpose(LAST), 0), 40)


@pytest.mark.parametrize("seed", drawn(range(24), quick=4))
def test_a_convolution_of_any_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, m = random_sizes(rng, False), int(rng.choice([2, 4]))
    g = convolution(sizes, m, default())
    n, h, w, *_ = sizes
    assert is_scheduled(g, default()) or (n == 1 and max(h, w) <= m)  # one tile has no rows
    assert check_convolution(g, sizes, m, rng), (seed, sizes, m)


@pytest.mark.parametrize("seed", drawn(range(24), quick=4))
def test_a_convolution_whose_sizes_a_call_decides(seed: int) -> None:
    """Some or all of images, height and width; the same kernel for several sizes, 1 x 1 too."""
    rng = np.random.default_rng(seed)
    n, h, w, channels, results = random_sizes(rng, False)
    unknown = rng.integers(0, 2, 3) if seed % 2 else (1, 1, 1)
    known = [D.sym(x, 1, 4096) if u else v for x, u, v in zip("nhw", unknown, (n, h, w))]
    m = int(rng.choice([2, 4]))
    g = convolution((known[0], known[1], known[2], channels, results), m, default())
    assert is_scheduled(g, default())
    for more in ((n, h, w), (1, 1, 1), tuple(int(k) for k in rng.integers(1, (6, 40, 40)))):
        one, two, three = (k if u else v for u, v, k in zip(unknown, (n, h, w), more))
        sizes = one, two, three, channels, results
        assert check_convolution(g, sizes, m, rng), (seed, known, sizes, m)


@pytest.mark.parametrize("seed", drawn(range(24), quick=4))
def test_a_gradient_of_any_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, h, w, _, results = random_sizes(rng, True)
    channels, m = int(rng.integers(1, 4)) * LANES, int(rng.choice([2, 4]))
    g = gradient((n, h, w, channels, results), m, default())
    assert is_scheduled(g, default()) or n * h < 8 * m
    dy = rng.standard_normal((n, h, w, results)).astype(np.float32)
    x = rng.standard_normal((n, h, w, channels)).astype(np.float32)
    names = {b.shape: b.name for b in g.inputs}
    given = {names[dy.shape]: dy, names[x.shape]: x} if dy.shape != x.shape else {"a0": x, "a1": dy}
    found = Native(default_schedule(g, default())[1])(given)["y0"]
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    op = ConvWeightValid((1, 1), (1, 1), 1, (3, 3))
    right = op.reference(dy.astype(np.float64).transpose(FIRST), padded.transpose(FIRST))
    assert close(found, right, 40), (seed, dy.shape, x.shape, m)


@pytest.mark.parametrize("seed", drawn(range(16), quick=4))
def test_taps_of_any_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles, results = (int(k) for k in rng.integers(1, (150, 70)))
    channels, m = int(rng.integers(1, 8)) * LANES, int(rng.choice([2, 4]))
    results += results == channels  # operands are told apart by their shapes
    g = taps(tiles, channels, results, m, default())
    assert is_scheduled(g, default())
    dy, x = (rng.standard_normal(static(b.shape)).astype(np.float32) for b in g.inputs)
    if dy.shape[2] != results:
        dy, x = x, dy
    names = [b.name for b in g.inputs]
    given = dict(zip(names if g.inputs[0].shape == dy.shape else names[::-1], (dy, x)))
    found = Native(default_schedule(g, default())[1])(given)["y0"]
    sums = WinogradSums(64).reference(dy.astype(np.float64), x.astype(np.float64))
    right = WinogradTaps(m).reference(sums.reshape(m + 2, m + 2, results, channels))
    assert close(found, right, 40), (seed, dy.shape, x.shape, m)


@every_run(1)
@pytest.mark.parametrize("what", [convolution, gradient])
def test_every_prefix_computes_the_same(what: object) -> None:
    sizes = (2, 7, 6, LANES, LANES + 1)
    g = convolution(sizes, 2, default()) if what is convolution else gradient(sizes, 2, default())
    assert parse_group(group_text(g)) == g
    judge = Judge(g, [{}])
    judge.exact = False
    trace, final = default_schedule(g, default())
    n = start(g)
    for k, step in enumerate(trace):
        n = step.apply(n)
        if k % 16 == 15:
            judge.nest(n)
    assert n == final
    judge.native(n)


@pytest.mark.parametrize("name", drawn(["x86-64-v3", "arm64", "wasm32", "x86-64-v4", "x86-64"], 3))
def test_other_machines(name: str) -> None:
    target = get(name)
    for g in (
        convolution((2, 16, 16, 32, 32), 2, target),
        gradient((4, 16, 16, 32, 24), 2, target),
        taps(20, 64, 40, 4, target),
    ):
        assert is_scheduled(g, target)
        nest = default_schedule(g, target)[1]
        assert compile_object(emit(legalise(nest, target), target), target)


def test_blocks_divide_rows_and_suit_threads() -> None:
    assert rows_of_block(8, 1, 32, 4, 2) == 8  # as many as there is room for
    assert rows_of_block(8, 3, 32, 4, 2) == 2
    assert rows_of_block(100, 1, 32, 1, 2) == 16  # but each thread has one
    assert rows_of_block(100, 1, 7, 1, 2) == 1  # seven blocks, for want of another divisor
    assert rows_of_block(1, 1, 28, 8, 2, least=3) == 4  # more than there is room for
    assert rows_of_block(1, 1, 7, 1, 1, least=9) == 1  # no more are possible
    tile = RegisterTile(6, 16, 6, 8)
    assert block_of_tiles(100, 1, 784, 2, 24, tile) == Block(98, 7)  # eight, of whole tiles
    assert block_of_tiles(30, 1, 64, 2, 24, tile).tiles == 32  # two: of four each would be small
    assert block_of_tiles(1, 1, 64, 1, 24, tile).tiles == 32  # more than there is room for
    few = block_of_tiles(100, 1, D.sym("n"), 2, 24, tile)
    assert (few.tiles % few.rows, few.rows) == (0, 3)  # less is left over of any number
    for threads in (1, 2, 3, 16):
        for blocks in range(1, 70):
            shares = shares_of_blocks(blocks, threads)
            assert blocks % shares == 0 and (shares == 1 or threads <= shares <= 4 * threads)
