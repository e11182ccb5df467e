"""Layers in boxes: right everywhere, with less arithmetic, and as a pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tests.seeds import drawn
from tests.superopt.partial.samples import agree, convolution, product_of_matrices, tensor
from tilewright import ops, targets
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.programs import compile_graph
from tilewright.graph.classify import facts, flops
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, topological
from tilewright.ir.operator import outputs_of
from tilewright.ir.passes import parse_passes
from tilewright.ir.positions import static
from tilewright.ops.convolution import ConvValid
from tilewright.superopt.corrected_pass import Corrected
from tilewright.superopt.partial.corrected import Candidate, candidates, layers_of, live_part
from tilewright.superopt.partial.layers import Box, Layer, narrowed, on_nodes, part_of
from tilewright.superopt.partial.mutants import Move, rearranged

X86 = targets.get("x86-64-v3")


def spread(size: int, dilation: int, channels: int = 64) -> Layer:
    """Taps so far apart that many are always beyond the edges."""
    image, weight = (1, channels, size, size), (channels, channels, 3, 3)
    return convolution(image, weight, (dilation, dilation), dilation=dilation)


def products(n: Node) -> int:
    """Multiplications of all contractions."""
    return sum(flops(x) for x in topological((n,)) if facts(x).kind == "contract")


@cache
def taken() -> tuple[Layer, Candidate]:
    """A layer, and the program that is best by the estimate."""
    layer = spread(17, 12)
    return layer, candidates(layer, X86)[0]


def test_sums_without_what_is_beyond_the_edges() -> None:
    layer, best = taken()
    assert live_part(layer) < 0.4 and best.boxes > 1 and "windows" in best.how
    assert products(best.program) < 0.4 * products(layer.root)


def test_a_dilated_convolution_by_images_of_neighbours() -> None:
    """An odd size: what is left over is computed by the layer itself."""
    found = candidates(spread(33, 2, 32), X86)
    whole, part = (next(c for c in found if (c.boxes == 1) == one) for one in (True, False))
    dilations = [
        {n.op.dilation for n in topological((c.program,)) if isinstance(n.op, ConvValid)}
        for c in (whole, part)
    ]
    assert dilations == [{(1, 1)}, {(1, 1), (2, 2)}]
    assert "the layer itself" in part.how and "the layer itself" not in whole.how


@pytest.mark.parametrize("build", [lambda: spread(9, 6, 4), lambda: spread(7, 2, 4)])
def test_every_element(build: Callable[[], Layer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are no gain are right too."""
    monkeypatch.setattr("tilewright.superopt.partial.corrected.WORTH", 100.0)
    monkeypatch.setattr("tilewright.superopt.partial.corrected.LOOKED_AT", 9)
    layer = build()
    found = candidates(layer, X86)
    assert max(c.boxes for c in found) > 1
    for c in found:
        assert agree(layer.root, c.program).all(), c.how


def test_nothing_to_gain() -> None:
    assert candidates(product_of_matrices(), X86) == ()
    assert candidates(convolution((1, 64, 28, 28), (64, 64, 3, 3), (1, 1)), X86) == ()


BOXES: dict[str, tuple[Layer, Box, Box]] = {
    "rows": (spread(7, 2, 3), ((0, 1), (0, 3), (2, 4), (0, 7)), ((0, 3), (0, 3), (0, 3))),
    "a corner": (spread(7, 2, 3), ((0, 1), (1, 2), (5, 7), (6, 7)), ((0, 3), (0, 3), (0, 3))),
    "strided": (
        convolution((2, 2, 9, 9), (2, 2, 3, 3), (1, 1), stride=2),
        ((1, 2), (0, 2), (1, 3), (2, 5)),
        ((0, 2), (0, 3), (0, 3)),
    ),
    "matrices": (product_of_matrices(), ((0, 1), (2, 5), (1, 3)), ((0, 4),)),
}


@pytest.mark.parametrize("name", BOXES)
def test_parts_of_layers(name: str) -> None:
    layer, box, windows = BOXES[name]
    made = narrowed(layer.root, box, windows)
    assert made is not None
    assert agree(part_of(layer.root, box), made).all()
    assert products(made) < products(layer.root)


def test_larger_windows_are_filled_with_zeros() -> None:
    layer = convolution((1, 2, 5, 5), (2, 2, 1, 3), (0, 1))
    made = narrowed(layer.root, layer.whole, ((0, 2), (-1, 2), (0, 3)))
    assert made is not None and made.inputs[1].shape == (2, 2, 3, 3)
    assert agree(layer.root, made).all()


def test_groups_have_no_part_of_their_channels() -> None:
    layer = convolution((1, 4, 5, 5), (4, 2, 3, 3), (1, 1), groups=2)
    box = ((0, 1), (0, 2), (0, 5), (0, 5))
    assert narrowed(layer.root, box, ((0, 2), (0, 3), (0, 3))) is None


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize(("size", "up"), [(6, True), (7, True), (7, False)])
def test_moves_there_and_back(size: int, up: bool, inner: bool) -> None:
    x = tensor("x", 2, 3, size)
    move = Move(2, 0, 3, inner, up)
    there = move.there(x)
    assert there.shape == (6, 3, -(-size // 3) if up else size // 3)
    back = move.back(there)
    kept = min(static(back.shape)[2], size)
    assert agree(ops.slice(back, 2, 0, kept), ops.slice(x, 2, 0, kept)).all()


def test_images_side_by_side_are_among_the_mutants() -> None:
    layer = convolution((4, 2, 5, 5), (2, 2, 3, 3), (1, 1))
    shapes = {
        x.shape
        for m in rearranged(layer)
        for x in topological((m.program,))
        if x.op.name == "conv_valid"
    }
    assert {(1, 2, 5, 20), (1, 2, 20, 5), (2, 2, 5, 10)} <= shapes


# ---- in the compiler


def network(size: int = 17, dilation: int = 12) -> Graph:
    x, w = tensor("image", 1, 64, size, size), tensor("kernel", 64, 64, 3, 3, role="weight")
    around = (0, 0, dilation, dilation)
    y = ops.conv_valid(ops.pad(x, around, around), w, (1, 1), (dilation, dilation), 1)
    return Graph("network", (x, w), (ops.relu(y),))


def test_a_pass_of_the_compiler() -> None:
    graph = network()
    (layer,) = layers_of(graph, X86)
    same, best = taken()
    assert same == layer
    pair = Graph("layer", layer.inputs, (layer.root, best.program))
    made = Corrected((pair,))
    assert parse_passes(str(made)) == (made,)
    changed = made.apply(graph, Log())
    assert products(changed.outputs[0]) < 0.6 * products(graph.outputs[0])
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(static(n.shape)) for n in graph.inputs]
    (want,), (got,) = evaluate(graph, args), evaluate(changed, args)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    other = network(16)
    assert made.apply(other, Log()) is other  # a layer of another size


def test_a_pass_with_a_wrong_program_is_refused() -> None:
    (layer,) = layers_of(network(), X86)
    wrong = narrowed(layer.root, layer.whole, ((0, 64), (1, 2), (1, 2)))
    assert wrong is not None
    pair = Graph("layer", layer.inputs, (layer.root, wrong))
    with pytest.raises(Invalid, match="differ"):
        Corrected((pair,)).apply(network(), Log())
    with pytest.raises(Invalid, match="return a layer and what takes its place"):
        Corrected((Graph("layer", layer.inputs, (layer.root,)),))


def test_layers_stand_for_nodes() -> None:
    graph = network()
    (layer,) = layers_of(graph, X86)
    conv = graph.outputs[0].inputs[0]
    assert on_nodes(layer.root, layer.inputs, graph.inputs) is conv


NATIVE: dict[str, Callable[[], Layer]] = {
    "1x3": lambda: convolution((2, 16, 4, 6), (16, 16, 1, 3), (0, 1)),
    "rows": lambda: convolution((3, 16, 13), (16, 16, 3), (3,), dilation=3),
    "dilated": lambda: spread(9, 2, 16),
    "far apart": lambda: spread(9, 6, 16),
    "several images": lambda: convolution((4, 16, 5, 5), (16, 16, 3, 3), (1, 1)),
    "depthwise": lambda: convolution((1, 16, 7, 7), (16, 1, 3, 3), (4, 4), dilation=4, groups=16),
}


@pytest.mark.parametrize("name", drawn(list(NATIVE), 2))
def test_native_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are no gain too: what reads a layer joins its boxes."""
    monkeypatch.setattr("tilewright.superopt.partial.corrected.WORTH", 100.0)
    monkeypatch.setattr("tilewright.superopt.partial.corrected.LOOKED_AT", 6)
    layer = NATIVE[name]()
    arrays = random_inputs(layer.graph)
    (want,) = evaluate(layer.graph, [a.astype(np.float64) for a in arrays])
    found = candidates(layer, X86, 3)
    assert found
    for c in found:
        graph = Graph("boxes", layer.inputs, (ops.relu(c.program),))
        (got,) = run_arrays(compile_graph(graph), arrays)
        error = np.abs(got - np.maximum(want, 0)).max()
        assert error <= 1e-5 * np.abs(want).max(), c.how


def test_what_reads_a_layer_joins_its_boxes() -> None:
    """An activation and a sum behind a layer in boxes are no kernel more than the boxes alone."""
    layer = convolution((1, 16, 6, 6), (16, 16, 3, 3), (1, 1))
    windows = tuple((0, n) for n in layer.windows)
    boxes = ((*layer.whole[:2], rows, layer.whole[3]) for rows in ((0, 2), (2, 6)))
    made = [narrowed(layer.root, box, windows) for box in boxes]
    joined = ops.concat([x for x in made if x is not None], 2)
    behind = ops.relu(ops.add(joined, joined))
    counts = [
        sum(k.calls for k in compile_graph(Graph("boxes", layer.inputs, (n,))).kernels)
        for n in (joined, behind)
    ]
    assert counts[0] == counts[1]


def test_results_of_branches_are_no_layers() -> None:
    x = tensor("x", 4)
    branch = Graph("branch", (x,), (ops.neg(x),))
    flag = ops.gt(ops.sum(x, (0,), False), ops.full((), 0.0, x.dtype))
    both = ops.cond(flag, branch, branch, (x,))
    assert not layers_of(Graph("g", (x,), outputs_of(both)), X86)
