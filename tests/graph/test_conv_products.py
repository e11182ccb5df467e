"""Convolutions as products of windows: the same values, in one kernel with what follows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.random_convolutions import Convolution
from tests.graph.build import arg, arguments, build, graph, weight
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.fold import split_weights
from tilewright.graph.fuse import fuse
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node
from tilewright.ir.types import bf16, f32
from tilewright.ops.patches import Patches
from tilewright.targets import get

GPU = get("cuda:90")


def prepared(g: Graph) -> Graph:
    return passes(GPU).run(g, GPU, Log())


def same(before: Graph, after: Graph) -> None:
    values = arguments(before)
    for x, y in zip(evaluate(before, values), evaluate(after, values), strict=True):
        np.testing.assert_allclose(y, x, rtol=2e-2, atol=2e-2 * np.abs(x).max())


def windows(g: Graph) -> list[Patches]:
    return [n.op for n in g.nodes() if isinstance(n.op, Patches)]


@pytest.mark.parametrize(
    "c",
    [
        Convolution(),
        Convolution(2, (7, 5), 16, 24, (2, 3), stride=2, residual=True),
        Convolution(1, (9, 9), 8, 16, padding=2, dilation=2, dtype="f16"),
        Convolution(1, (9, 10), 3, 16, (5, 5), stride=2, padding=2),
        Convolution(2, (6, 6), 32, 16, (1, 1), stride=2, padding=0),
        Convolution(2, (6, 6), 32, 16, (1, 1), padding=1),
    ],
    ids=str,
)
def test_windows_are_multiplied(c: Convolution) -> None:
    g = c.graph()
    ready = prepared(g)
    (found,) = windows(ready)
    assert found.columns % 64 == 0
    same(g, ready)
    prologue, main = split_weights(ready, views=False)
    names = [o.op.name for o in prologue.outputs]
    assert sorted(names) in (["cast", "pad"], ["cast", "relayout"]), "filters are laid out once"
    clusters = fuse(main, GPU, Log()).clusters
    (sums,) = (x for x in clusters if x.kind == "contract")
    # The bias, the residual and the activation are done where the sums are; windows are not stored.
    assert {"relu", "patches"} <= {n.op.name for n in sums.nodes}
    assert all(n.op.name != "patches" for x in clusters for n in (*x.inputs, *x.outputs))


def test_single_pixels_are_rows_already() -> None:
    c = Convolution(2, (6, 6), 32, 16, (1, 1), padding=0)
    ready = prepared(c.graph())
    assert not windows(ready) and sum(n.op.name == "wide_matmul" for n in ready.nodes()) == 1
    same(c.graph(), ready)


def test_a_network_stores_no_image_twice() -> None:
    """Between convolutions images stay as they are: only the first is turned."""
    x = arg("x", 1, 16, 8, 8, dtype=bf16)

    def conv(x: Node, name: str, size: int) -> Node:
        w = weight(name, 16, 16, size, size, dtype=bf16)
        return build.relu(build.conv(x, w, 1, size // 2))

    a = conv(x, "u", 1)
    b = build.add(conv(conv(a, "v", 3), "w", 1), a)
    g = graph(build.sum(build.cast(b, f32), (2, 3), False))
    ready = prepared(g)
    same(g, ready)
    _, main = split_weights(ready, views=False)
    clusters = fuse(main, GPU, Log()).clusters
    assert [c.kind for c in clusters].count("contract") == 3
    assert len(clusters) == 5, [str(c) for c in clusters]


@pytest.mark.parametrize(
    "c",
    [
        Convolution(groups=2),
        Convolution(dtype="f32"),
        Convolution(filters=8),
        Convolution(1, (3, 3)),
    ],
    ids=str,
)
def test_others_are_left(c: Convolution) -> None:
    ready = prepared(c.graph())
    assert not windows(ready)
    same(c.graph(), ready)


def test_padding_with_other_numbers_is_stored() -> None:
    x = build.pad(arg("x", 1, 16, 6, 6, dtype=bf16), (0, 0, 1, 1), (0, 0, 1, 1), 1.0)
    g = graph(build.conv(x, weight("w", 16, 16, 3, 3, dtype=bf16), 1, 0))
    ready = prepared(g)
    (found,) = windows(ready)
    assert found.before == (0, 0)
    same(g, ready)
