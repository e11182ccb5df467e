"""Passes that rewrite: what they make has the normal form of what was there, for all sizes."""

from __future__ import annotations

import pytest

from tests.graph.build import arg, build, graph, weight
from tilewright import targets
from tilewright.base.events import Log
from tilewright.graph.align import SinkReshapes
from tilewright.graph.channels import ChannelsLast, order_of
from tilewright.graph.decompose import Decompose
from tilewright.graph.dots import DotProducts
from tilewright.graph.long_concats import LongConcats
from tilewright.graph.pack import PackOperands
from tilewright.graph.pixel_gradients import PixelGradients
from tilewright.graph.weight_sums import WeightSums
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.passes import Pass
from tilewright.ir.types import DType, f64, i8, u8
from tilewright.ops.arranged import Arranged
from tilewright.ops.conv_gradients import ConvWeightValid
from tilewright.ops.convolution import ConvValid
from tilewright.rewrites.proofs.equality import nodes_equal

N, H = D.sym("N"), D.sym("H", 4)


def proved(before: Graph, step: Pass, reading: str = "bits") -> bool:
    """Did the pass change something, and is what it made equal?"""
    after = step.apply(before, Log())
    pairs = list(zip(before.outputs, after.outputs, strict=True))
    return any(a is not b for a, b in pairs) and all(nodes_equal(*p, reading) for p in pairs)


@pytest.mark.parametrize("dtypes", [(i8, i8), (u8, i8), (i8, u8), (u8, u8)], ids=str)
def test_products_of_bytes_are_exact(dtypes: tuple[DType, DType]) -> None:
    """Whatever a target multiplies: shifted by 128, widened, with zeros for a whole group."""
    a, b = dtypes
    before = graph(build.wide_matmul(arg("x", N, 37, dtype=a), weight("w", 37, 50, dtype=b)))
    changed = 0
    for name in targets.names():
        (after,) = DotProducts.of(targets.get(name)).apply(before, Log()).outputs
        changed += after is not before.outputs[0]
        assert nodes_equal(before.outputs[0], after), name
    assert changed


def test_packed_operands() -> None:
    product = build.relu(build.matmul(arg("x", N, 37), weight("w", 37, 50)))
    assert proved(graph(product), PackOperands.of(targets.get("arm64")))


def test_concats_in_parts() -> None:
    parts = [arg(f"x{k}", N, k % 3 + 1) for k in range(7)]
    assert proved(graph(build.concat(parts, 1)), LongConcats(most=3))


def test_reshapes_after_products() -> None:
    flat = build.matmul(arg("x", N * 7, 5), weight("w", 5, 6))
    assert proved(graph(build.gelu(build.reshape(flat, (N, 7, 6)))), SinkReshapes())


def test_reshapes_after_rows_with_their_sums() -> None:
    x = arg("x", N, 3, 4)
    rows = build.reshape(build.sub(x, build.sum(x, (2,), True)), (N, 12))
    after = build.add(build.relu(rows), arg("y", N, 12))
    assert proved(graph(after), SinkReshapes())


def test_weights_in_sums() -> None:
    x, y = arg("x", N, 5), arg("y", N, 5)
    c, d = weight("c", 5), weight("d", 1, 5)
    before = graph(build.add(build.add(x, c), build.add(y, d)))
    assert proved(before, WeightSums(), "reals")
    (after,) = WeightSums().apply(before, Log()).outputs
    assert {n.op.name for n in after.inputs[1].inputs} == {"input"}, "c + d, computed once"


def test_channels_last_is_another_order_of_the_same_sums() -> None:
    y = build.conv(arg("x", N, 3, H, H), weight("w", 16, 3, 3, 3), padding=1)
    before = Decompose().apply(graph(build.relu(y)), Log())
    assert proved(before, ChannelsLast(), "reals")
    assert not proved(before, ChannelsLast())


def test_gradients_of_single_pixels_are_the_same_sums() -> None:
    grad, x = arg("g", N, H, H, 6), arg("x", N, H, H, 7)
    first = (0, 3, 1, 2)
    y = build.conv_weight_valid(
        build.permute(grad, first), build.permute(x, first), (1, 1), (1, 1), 1, (1, 1)
    )
    assert proved(graph(y), PixelGradients(), "reals")


def tiles(x: Node, w: Node, m: int, size: int) -> Node:
    """A convolution of 3x3 windows by Winograd's tiles."""
    batch, channels, columns = x.shape[0], x.shape[3], w.shape[0]
    t, count = m + 2, size // m
    points = build.reshape(build.winograd_input(x, m), (t * t, batch * count**2, channels))
    weights = build.permute(build.winograd_weight(w, m), (0, 1, 3, 2))
    weights = build.reshape(weights, (t * t, channels, columns))
    sums = build.winograd_products(points, weights, 8)
    products = build.reshape(sums, (t, t, batch, count, count, columns))
    return build.winograd_output(products, m, size, size)


def test_gradients_of_weights_by_tiles_of_2() -> None:
    results, channels, size = D.sym("O"), D.sym("C"), 4
    dy = arg("dy", 2, size, size, results, dtype=f64)
    x = arg("x", 2, size + 2, size + 2, channels, dtype=f64)
    plain = ConvWeightValid((1, 1), (1, 1), 1, (3, 3))
    direct = node(plain, build.permute(dy, (0, 3, 1, 2)), build.permute(x, (0, 3, 1, 2)))
    sums = build.winograd_sums(build.winograd_gradient(dy, 2), build.winograd_input(x, 2), 8)
    assert nodes_equal(direct, build.winograd_taps(sums, 2), "reals")


def test_winograd_of_tiles_of_2() -> None:
    """(The numbers of tiles of 4 are rounded: 1/(11/16 · 3/2) is no binary fraction.)"""
    channels, columns, size = D.sym("C"), D.sym("O"), 4
    x = arg("x", N, size + 2, size + 2, channels, dtype=f64)
    w = weight("w", columns, channels, 3, 3, dtype=f64)
    last = order_of(4)
    direct = node(Arranged(ConvValid((1, 1), (1, 1), 1, False), (last, (0, 1, 2, 3)), last), x, w)
    assert nodes_equal(direct, tiles(x, w, 2, size), "reals")
    assert not nodes_equal(direct, tiles(x, w, 2, size), "bits")
