"""Gradients of weights of single pixels become products of matrices, of the same values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.running import run_graph
from tests.graph.build import arg, arguments, build, graph
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.channels import ChannelsLast
from tilewright.graph.decompose import Decompose
from tilewright.graph.pixel_gradients import PixelGradients
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node
from tilewright.ir.positions import static

FIRST = (0, 3, 1, 2)  # channels, of images that have them last


def gradient(
    pixels: tuple[Dim, int, int],
    results: int,
    channels: int,
    stride: int = 1,
    more: int = 0,
    kernel: int = 1,
    groups: int = 1,
) -> Node:
    """Of images with channels last; with `more` pixels than windows reach."""
    n, *sides = pixels
    own = [(s - 1) * stride + kernel + more for s in sides]
    grad, x = arg("g", *pixels, results), arg("x", n, *own, channels)
    return build.conv_weight_valid(
        build.permute(grad, FIRST),
        build.permute(x, FIRST),
        (stride, stride),
        (1, 1),
        groups,
        (kernel, kernel),
    )


def changed(*outputs: Node) -> tuple[Graph, Graph]:
    before = graph(*outputs)
    return before, PixelGradients().apply(before, Log())


def names(g: Graph) -> list[str]:
    return [n.op.name for n in g.nodes()]


@pytest.mark.parametrize("seed", drawn(range(8), quick=3))
def test_any_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, h, w, results, channels = (int(x) for x in rng.integers(1, 20, 5))
    stride, more = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    before, after = changed(gradient((n, h, w), results, channels, stride, more))
    assert names(after).count("matmul") == 1 and "conv_weight_valid" not in names(after)
    values = arguments(before)
    (right,) = evaluate(before, values)
    (found,) = evaluate(after, values)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
    wide = [v.astype(np.float64) for v in arguments(before)]
    grad, x = wide if before.inputs[0].shape[-1] == results else wide[::-1]
    reached = x[:, : (h - 1) * stride + 1 : stride, : (w - 1) * stride + 1 : stride]
    exact = np.einsum("nhwo,nhwc->oc", grad, reached)[:, :, None, None]
    (native,) = run_graph(before, [v.astype(np.float32) for v in arguments(before)])
    np.testing.assert_allclose(native, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_the_wider_operand_is_the_right_one() -> None:
    def right(found: Graph) -> int:
        (product,) = (n for n in found.nodes() if n.op.name == "matmul")
        return static(product.shape)[-1]

    assert right(changed(gradient((8, 14, 14), 64, 8))[1]) == 64
    assert right(changed(gradient((8, 14, 14), 8, 64))[1]) == 64
    # With few pixels the result is as large as what is copied, and pixels that are left out are
    # not copied whole.
    assert right(changed(gradient((1, 2, 2), 64, 8))[1]) == 8
    assert right(changed(gradient((8, 14, 14), 64, 8, stride=2))[1]) == 8


def test_a_number_of_images_that_is_not_known() -> None:
    before = graph(gradient((D.sym("n"), 5, 4), 6, 7))
    after = PixelGradients().apply(before, Log())
    assert "matmul" in names(after)
    rng = np.random.default_rng(0)
    for n in (1, 3):
        values = [rng.normal(size=(n, *static(x.shape[1:]))).astype("f") for x in before.inputs]
        (right,), (found,) = evaluate(before, values), evaluate(after, values)
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


def test_others_stay() -> None:
    for other in (
        gradient((2, 5, 5), 6, 7, kernel=3),
        gradient((2, 5, 5), 6, 6, groups=2),
        build.conv_weight_valid(  # channels are not innermost
            arg("g", 2, 6, 5, 5), arg("x", 2, 7, 5, 5), (1, 1), (1, 1), 1, (1, 1)
        ),
    ):
        before, after = changed(other)
        assert after is before


def test_of_a_net() -> None:
    """Between convolutions images lie with channels last, so the gradient is a product there."""
    x, w = arg("x", 2, 8, 6, 6), arg("w", 16, 8, 3, 3)
    inner = build.conv_valid(x, w, (1, 1), (1, 1), 1)
    grad = build.conv_valid(arg("y", 2, 8, 6, 6), arg("v", 12, 8, 3, 3), (1, 1), (1, 1), 1)
    wanted = build.conv_backward_weight(grad, inner, (12, 16, 1, 1))
    made = Decompose().apply(graph(wanted, inner, grad), Log())
    turned = ChannelsLast().apply(made, Log())
    after = PixelGradients().apply(turned, Log())
    assert names(turned).count("conv_weight_valid") == 1
    assert names(after).count("matmul") == 1 and "conv_weight_valid" not in names(after)


def test_where_it_stands() -> None:
    assert "PixelGradients" in [p.name for p in passes()]
    assert "PixelGradients" not in [p.name for p in passes(precision="strict")]
