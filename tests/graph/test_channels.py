"""Images are stored with channels last between convolutions; what is computed stays the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import TARGET, arg, arguments, build, graph, weight
from tilewright.base.events import Log
from tilewright.graph.channels import ChannelsLast
from tilewright.graph.classify import contraction, facts
from tilewright.graph.decompose import Decompose
from tilewright.graph.fuse import fuse
from tilewright.graph.winograd import Winograd
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, item
from tilewright.ir.text import parse_graph, print_graph
from tilewright.ops.layout import Relayout


def turned(*outputs: Node) -> tuple[Graph, Graph]:
    before = Decompose().apply(graph(*outputs), Log())
    return before, ChannelsLast().apply(before, Log())


def conv(x: Node, w: Node, stride: int = 1, padding: int = 0, groups: int = 1) -> Node:
    n = x.rank - 2
    padded = build.pad(x, (0, 0, *[padding] * n), (0, 0, *[padding] * n))
    return build.conv_valid(padded, w, (stride,) * n, (1,) * n, groups)


def same(before: Graph, after: Graph, tolerance: float = 1e-5) -> None:
    values = arguments(before)
    for x, y in zip(evaluate(before, values), evaluate(after, values), strict=True):
        np.testing.assert_allclose(y, x, rtol=tolerance, atol=tolerance * np.abs(x).max())


def count(g: Graph, name: str) -> int:
    return sum(n.op.name == name for n in g.nodes())


def test_conversions_stand_at_the_edges() -> None:
    x = arg("x", 1, 3, 9, 8)
    a = build.relu(conv(x, weight("u", 8, 3, 3, 3), padding=1))
    b = conv(a, weight("v", 8, 8, 1, 1))
    c = build.add(build.mul(b, weight("s", 1, 8, 1, 1)), a)
    d = conv(c, weight("w", 4, 8, 3, 3), stride=2, padding=1)
    before, after = turned(build.relu(d))
    same(before, after)
    # The image comes in, the scale of the channels is read, and the result goes out.
    assert count(after, "permute") == 3 and count(after, "relayout") == 0
    assert all(n.shape[-1] in (3, 4, 8) for n in after.nodes() if n.op.name == "arranged")


def test_contractions_sum_along_channels_last() -> None:
    _, after = turned(conv(arg("x", 1, 5, 6, 6), weight("w", 8, 5, 3, 3)))
    (n,) = (n for n in after.nodes() if facts(n).kind == "contract")
    assert facts(n).inner == (3, 3, 5)
    # Tiles read an image again and again: it is stored as they want it.
    assert count(after, "relayout") == 1


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_any_number_of_spatial_axes(rank: int) -> None:
    shape = (2, 4, 7, 6, 5)[:rank]
    y = conv(arg("x", *shape), weight("w", 6, 4, *(2,) * (rank - 2)), padding=1)
    before, after = turned(build.relu(y))
    same(before, after)
    assert count(after, "arranged") == 2


def test_images_of_fewer_axes_are_broadcast_in_torchs_order() -> None:
    """Their channels lie along another axis of the larger ones."""
    a = build.relu(conv(arg("x", 3, 4, 9), weight("u", 5, 4, 3), padding=1))
    b = build.relu(conv(arg("y", 2, 4, 5, 9), weight("v", 3, 4, 3, 3), padding=1))
    both = build.sub(b, a)
    before, after = turned(conv(both, weight("w", 2, 3, 1, 1)))
    same(before, after)


def test_one_filter_per_channel_has_adjacent_filters() -> None:
    a = conv(arg("x", 1, 4, 7, 7), weight("u", 8, 4, 1, 1))
    before, after = turned(conv(a, weight("v", 8, 1, 3, 3), padding=1, groups=8))
    same(before, after)
    maps = [str(n.op.map) for n in after.nodes() if isinstance(n.op, Relayout)]
    assert maps[-1:] == ["i0, i1, i2, i3 -> i1, i2, i3, i0"]


def test_a_result_with_channels_last_is_no_copy() -> None:
    y = conv(arg("x", 1, 4, 7, 7), weight("u", 8, 4, 1, 1))
    before, after = turned(build.permute(y, (0, 2, 3, 1)))
    same(before, after)
    assert after.outputs[0].op.name == "arranged"
    before, after = turned(build.permute(y, (0, 3, 2, 1)))
    same(before, after)


def test_groups() -> None:
    before, after = turned(conv(arg("x", 2, 6, 5, 5), weight("w", 9, 2, 3, 3), groups=3))
    same(before, after)


def test_pooling_and_means_follow() -> None:
    a = conv(arg("x", 1, 3, 12, 12), weight("w", 8, 3, 3, 3))
    pooled = item(build.max_pool(a, (3, 3), (2, 2), (1, 1), (1, 1), False), 0)
    before, after = turned(build.mean(pooled, (2, 3)))
    same(before, after)
    (window,) = (n for n in after.nodes() if n.op.name == "arranged" and n.shape[1:3] == (5, 5))
    assert window.shape == (1, 5, 5, 8)


def test_matrix_products_stay_as_they_are() -> None:
    """Attention over what a convolution gives: axes of heads and rows are no channels."""
    a = conv(arg("x", 2, 4, 6, 6), weight("w", 4, 4, 3, 3), padding=1)
    y = build.matmul(build.relu(a), arg("b", 2, 4, 6, 5))
    before, after = turned(y)
    same(before, after)
    assert count(after, "matmul") == 1


def test_graphs_without_images_are_left_alone() -> None:
    before, after = turned(build.matmul(arg("x", 2, 3, 4, 5), arg("y", 2, 3, 5, 6)))
    assert after is before


def test_text_round_trip() -> None:
    _, after = turned(build.relu(conv(arg("x", 1, 3, 6, 6), weight("w", 8, 3, 3, 3), padding=1)))
    text = print_graph(after)
    assert "op conv_valid{" in text and print_graph(parse_graph(text)) == text


@pytest.mark.parametrize(
    ("channels", "pixels", "tile"), [(64, 56, 4), (128, 28, 4), (512, 7, 2), (4, 5, None)]
)
def test_winograd_where_it_pays(channels: int, pixels: int, tile: int | None) -> None:
    w = weight("w", channels, channels, 3, 3)
    _, after = turned(conv(arg("x", 1, channels, pixels, pixels), w, padding=1))
    (n,) = (n for n in after.nodes() if facts(n).kind == "contract")
    assert Winograd().size_for(n, {w}) == tile


@pytest.mark.parametrize(
    ("batch", "channels", "pixels", "tile"),
    [(4, 64, 64, 2), (4, 256, 16, 2), (1, 512, 7, None), (4, 4, 64, None)],
)
def test_weights_that_change_take_small_tiles_where_their_transform_pays(
    batch: int, channels: int, pixels: int, tile: int | None
) -> None:
    w = arg("w", channels, channels, 3, 3)
    _, after = turned(conv(arg("x", batch, channels, pixels, pixels), w, padding=1))
    (n,) = (n for n in after.nodes() if facts(n).kind == "contract")
    assert Winograd(flops=64).size_for(n, set()) == tile  # AVX-512 with two pipes


def test_winograd_computes_a_convolution_with_weights_that_change() -> None:
    x, w = arg("x", 4, 32, 17, 15), arg("w", 32, 32, 3, 3)
    before, after = turned(build.relu(conv(x, w, padding=1)))
    tiled = Winograd().apply(after, Log())
    assert count(tiled, "winograd_weight") == 1
    same(before, tiled, 1e-5)


@pytest.mark.parametrize("changes", [{"stride": 2}, {"groups": 2}])
def test_winograd_is_for_plain_convolutions(changes: dict[str, int]) -> None:
    w = weight("w", 64, 64 // changes.get("groups", 1), 3, 3)
    _, after = turned(conv(arg("x", 1, 64, 20, 20), w, padding=1, **changes))
    (n,) = (n for n in after.nodes() if facts(n).kind == "contract")
    assert Winograd().size_for(n, {w}) is None


@pytest.mark.parametrize("pixels", [(8, 8), (9, 6), (7, 11)])
def test_winograd_computes_the_convolution(pixels: tuple[int, int]) -> None:
    x, w = arg("x", 2, 24, *pixels), weight("w", 32, 24, 3, 3)
    before, after = turned(build.relu(conv(x, w, padding=1)))
    tiled = Winograd().apply(after, Log())
    assert count(tiled, "winograd_output") == 1
    same(before, tiled, 1e-5)


def test_tiles_are_carried_back_in_a_kernel_of_their_own() -> None:
    """Not in the epilogue of the other branch's product, which would compute every case."""
    x = arg("x", 1, 64, 28, 28)
    sums = conv(x, weight("w", 64, 64, 3, 3), padding=1)
    _, after = turned(build.relu(build.add(sums, conv(x, weight("v", 64, 64, 1, 1)))))
    fused = fuse(Winograd().apply(after, Log()), TARGET, Log())
    (own,) = (c for c in fused.clusters if any(n.op.name == "winograd_output" for n in c.nodes))
    assert [n.op.name for n in own.nodes if contraction(n)] == ["winograd_products"]


@pytest.mark.parametrize("channels, stored", [(16, True), (3, False)])
def test_resized_images_stay_with_channels_last(channels: int, stored: bool) -> None:
    x = build.permute(arg("x", 2, 5, 6, channels), (0, 3, 1, 2))
    y = build.upsample_linear(build.exp(x), (9, 7), False)
    before, after = turned(build.permute(y, (0, 2, 3, 1)))
    assert (after.outputs[0].op.name != "permute") == stored
    assert (count(after, "arranged") > 0) == stored
    same(before, after)


@pytest.mark.parametrize("channels, stored", [(16, True), (3, False)])
def test_what_a_weights_gradient_sums_over_stays_with_channels_last(
    channels: int, stored: bool
) -> None:
    first = (0, 3, 1, 2)
    a, b = (build.permute(arg(n, 2, 5, 6, channels), first) for n in "ab")
    x = build.add(build.mul(a, arg("s", channels, 1, 1)), build.exp(b))  # a block and its input
    grad = build.permute(arg("g", 2, 5, 6, 24), first)
    before, after = turned(build.conv_weight_valid(grad, x, (1, 1), (1, 1), 1, (1, 1)))
    (sums,) = (n for n in after.nodes() if n.op.name == "conv_weight_valid")
    assert (sums.inputs[1].op.name == "permute") == stored
    same(before, after)


def test_what_a_weights_gradient_sums_over_in_torchs_order_stays_so() -> None:
    a, b = arg("a", 2, 16, 5, 6), build.permute(arg("b", 2, 5, 6, 16), (0, 3, 1, 2))
    grad = build.permute(arg("g", 2, 5, 6, 24), (0, 3, 1, 2))
    for x in (build.exp(a), build.add(a, b)):
        before, after = turned(build.conv_weight_valid(grad, x, (1, 1), (1, 1), 1, (1, 1)))
        assert after is before


def test_an_image_in_torchs_order_is_resized_as_it_lies() -> None:
    before, after = turned(build.upsample_linear(arg("x", 2, 16, 5, 6), (9, 7), False))
    assert after is before


def test_the_order_spreads_through_resizing_between_convolutions() -> None:
    x = conv(arg("x", 1, 3, 8, 8), weight("w", 16, 3, 3, 3))
    y = conv(build.upsample_linear(x, (12, 12), True), weight("v", 16, 16, 3, 3))
    before, after = turned(y)
    assert count(after, "take") == 0  # all of them are turned
    same(before, after)


def test_one_of_several_results_is_an_image() -> None:
    x = arg("x", 1, 8, 6, 6)
    before, after = turned(build.relu(item(build.cummax(x, 2), 0)))
    same(before, after)


def test_filters_of_single_pixels_alone_are_products() -> None:
    """Of images as they lie: nothing is turned, pixels are columns, also of what is fused."""
    x, w, v = arg("x", 2, 6, 5, 7), weight("w", 8, 6, 1, 1), weight("v", 3, 6, 1, 1)
    a = build.relu(build.add(conv(x, w), weight("b", 8, 1, 1)))
    b = build.add(conv(x, v), arg("row", 2, 1, 1, 7))
    before, after = turned(a, b, build.sum(a, (2, 3), True))
    same(before, after)
    assert count(after, "matmul") == 2 and count(after, "conv_valid") == 0
    assert count(after, "permute") == count(after, "arranged") == count(after, "relayout") == 0
    (relu,) = (n for n in after.nodes() if n.op.name == "relu")
    assert relu.shape == (2, 8, 35)


def test_images_between_many_filters_of_single_pixels_have_channels_last() -> None:
    """Two copies at the edges cost less than one for each product."""
    a = build.relu(conv(arg("x", 2, 6, 5, 7), weight("w", 8, 6, 1, 1)))
    before, after = turned(conv(a, weight("v", 3, 8, 1, 1)))
    same(before, after)
    assert count(after, "matmul") == 0 and count(after, "arranged") == 2


@pytest.mark.parametrize("rank", [3, 5])
def test_pixels_of_any_number_of_axes_are_columns(rank: int) -> None:
    shape = (2, 4, 30, 3, 2)[:rank]
    before, after = turned(conv(arg("x", *shape), weight("w", 5, 4, *[1] * (rank - 2))))
    same(before, after)
    assert count(after, "matmul") == 1


@pytest.mark.parametrize(
    "changes", [{"stride": 2}, {"padding": 1}, {"groups": 2}, {"pixels": 3}, {"last": True}]
)
def test_other_filters_of_single_pixels_have_channels_last(changes: dict[str, int]) -> None:
    """Strides, padding, groups, too few pixels for vectors, images that come so already."""
    given = {"stride": 1, "padding": 0, "groups": 1, "pixels": 6, "last": False} | changes
    size = given["pixels"]
    last = build.permute(arg("x", 2, size, size, 4), (0, 3, 1, 2))
    x = last if given["last"] else arg("x", 2, 4, size, size)
    w = weight("w", 6, 4 // given["groups"], 1, 1)
    before, after = turned(conv(x, w, given["stride"], given["padding"], given["groups"]))
    same(before, after)
    # (The zeros around stand in an operator of their own: the filter itself is one of pixels.)
    assert (count(after, "matmul") == 0) == (not given["padding"])
    assert (count(after, "arranged") == 0) == bool(given["padding"])


def test_a_larger_window_turns_the_pixels_around_it() -> None:
    a = conv(arg("x", 1, 4, 8, 8), weight("u", 8, 4, 1, 1))
    before, after = turned(conv(build.relu(a), weight("w", 4, 8, 3, 3)))
    same(before, after)
    assert count(after, "matmul") == 0 and count(after, "arranged") == 2
