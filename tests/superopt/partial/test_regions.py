"""Where programs agree: what is said equals what computing every element shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from tests.seeds import drawn
from tests.superopt.partial.samples import agree, convolution, product_of_matrices, tensor
from tilewright import ops
from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.node import Node
from tilewright.superopt.partial.layers import Layer
from tilewright.superopt.partial.mutants import rearranged, windowed
from tilewright.superopt.partial.regions import agreement, sampled
from tilewright.superopt.partial.sums import PRIME, sums_of

Pair = tuple[Node, Node]


def reversed_rows() -> Pair:
    x = tensor("x", 9, 3)
    return x, ops.flip(x, (0,))


def transposed() -> Pair:
    x = tensor("x", 5, 5)
    return x, ops.permute(x, (1, 0))


def symmetric() -> Pair:
    """At the first two positions of a row both sums are x[0] + x[1], and then never again."""
    x = tensor("x", 8)
    other = ops.concat([ops.flip(ops.slice(x, 0, 0, 2), (0,)), ops.slice(x, 0, 0, 6)], 0)
    both = ops.add(ops.slice(x, 0, 0, 1), ops.slice(x, 0, 1, 2))
    return ops.add(x, other), ops.expand(both, (8,))


def every_second() -> Pair:
    x = tensor("x", 12)
    return ops.slice(x, 0, 0, 6), ops.slice(x, 0, 0, 12, 2)


def folded() -> Pair:
    x = tensor("x", 24)
    return ops.reshape(x, (4, 6)), ops.permute(ops.reshape(x, (6, 4)), (1, 0))


def joined_images() -> Pair:
    """Two images as one: wrong where they meet."""
    a, b, w = tensor("a", 1, 2, 4, 5), tensor("b", 1, 2, 4, 5), tensor("w", 2, 2, 3, 3)
    apart = ops.concat([ops.conv(a, w, padding=1), ops.conv(b, w, padding=1)], 3)
    return apart, ops.conv(ops.concat([a, b], 3), w, padding=1)


def two_in_turn() -> Pair:
    """Two convolutions, and one of a larger kernel: padding comes twice."""
    x, v, w = tensor("x", 1, 1, 6), tensor("v", 1, 1, 3), tensor("w", 1, 1, 3)
    kernel = ops.conv(v, ops.flip(w, (2,)), padding=2)
    return ops.conv(ops.conv(x, v, padding=1), w, padding=1), ops.conv(x, kernel, padding=2)


def fewer_channels() -> Pair:
    """One channel of each says nothing: one sum has fewer."""
    a, b = tensor("a", 3, 4), tensor("b", 4, 2)
    return ops.matmul(a, b), ops.matmul(ops.slice(a, 1, 0, 3), ops.slice(b, 0, 0, 3))


def reversed_channels() -> Pair:
    a, b = tensor("a", 3, 4), tensor("b", 4, 2)
    return ops.matmul(a, b), ops.matmul(ops.flip(a, (1,)), ops.flip(b, (0,)))


def one_reversed() -> Pair:
    a, b = tensor("a", 3, 4), tensor("b", 4, 2)
    return ops.matmul(a, b), ops.matmul(a, ops.flip(b, (0,)))


def counted() -> Pair:
    """A sum that reads the same element again and again counts it."""
    b = tensor("b", 3, 1)
    return ops.sum(ops.expand(b, (3, 5)), (1,), True), b


def beyond_the_edges() -> Pair:
    """All that one reads is padding, however many channels there are."""
    x, w = tensor("x", 1, 9, 4), tensor("w", 2, 9, 1)
    nothing = ops.slice(ops.pad(x, (0, 0, 9), (0, 0, 0)), 2, 0, 4)
    return ops.conv(x, w), ops.conv(nothing, w)


def cubes() -> Pair:
    x = tensor("x", 6)
    square = ops.mul(x, x)
    return ops.mul(square, x), ops.mul(ops.mul(x, ops.roll(x, (0,), (0,))), ops.roll(x, (3,), (0,)))


PAIRS: dict[Callable[[], Pair], float | None] = {
    reversed_rows: 1 / 9,
    transposed: 1 / 5,
    symmetric: None,
    every_second: 1 / 6,
    folded: None,
    joined_images: 0.8,
    two_in_turn: None,
    fewer_channels: 0.0,
    reversed_channels: 1.0,
    one_reversed: 0.0,
    counted: 0.0,
    beyond_the_edges: 0.0,
    cubes: 0.0,
}


@pytest.mark.parametrize("build", PAIRS, ids=lambda f: f.__name__)
def test_pairs(build: Callable[[], Pair]) -> None:
    f, g = build()
    found, true = agreement(f, g), agree(f, g)
    np.testing.assert_array_equal(found.mask, true)
    assert found.part == pytest.approx(true.mean())
    wanted = PAIRS[build]
    assert wanted is None or found.part == pytest.approx(wanted)
    assert 0 <= found.chance < 1e-12
    assert agreement(f, f).agrees.all()


LAYERS: dict[str, Callable[[], Layer]] = {
    "3x3": lambda: convolution((2, 2, 5, 4), (2, 2, 3, 3), (1, 1)),
    "dilated": lambda: convolution((1, 2, 7, 6), (2, 2, 3, 3), (2, 2), dilation=2),
    "far apart": lambda: convolution((1, 1, 7, 5), (1, 1, 3, 3), (4, 4), dilation=4),
    "strided": lambda: convolution((2, 1, 7, 6), (2, 1, 3, 3), (1, 1), stride=2),
    "1x3": lambda: convolution((2, 2, 4, 5), (2, 2, 1, 3), (0, 1)),
    "depthwise": lambda: convolution((1, 2, 5, 5), (2, 1, 3, 3), (1, 1), groups=2),
    "rows": lambda: convolution((3, 2, 9), (2, 2, 3), (3,), dilation=3),
    "matrices": product_of_matrices,
}
SHARES = 40


@pytest.mark.parametrize("share", drawn(range(SHARES), 1))
@pytest.mark.parametrize("name", LAYERS)
def test_every_mutant(name: str, share: int) -> None:
    """The region that is found is the true one, for all programs that are generated."""
    layer = LAYERS[name]()
    every = (m for family in (windowed, rearranged) for m in family(layer))
    for m in islice(every, share, None, SHARES):
        found = agreement(layer.root, m.program)
        np.testing.assert_array_equal(found.mask, agree(layer.root, m.program), m.how)


def test_a_sample_of_positions() -> None:
    f, g = joined_images()
    assert sampled(f, f) == 1 and 0.4 < sampled(f, g, 200) < 1


def test_regions_of_boxes() -> None:
    f, g = joined_images()
    r = agreement(f, g)
    assert r.cuts(3) == [4, 6] and r.cuts(2) == []
    assert r.everywhere([(0, 1), (0, 2), (0, 4), (0, 4)])
    assert not r.everywhere([(0, 1), (0, 2), (0, 4), (3, 5)])


def test_one_channel_is_enough() -> None:
    """However many there are, an element is a sum of as many products as a window has."""
    x, w = tensor("x", 1, 512, 9, 9), tensor("w", 64, 512, 3, 3)
    (sums,) = sums_of((ops.conv(x, w, padding=1),))
    assert sums.terms == 9 and sums.degree == 2
    assert agreement(*reversed_channels()).chance <= 6 * (2 / PRIME) ** 2


def test_what_is_refused() -> None:
    x = tensor("x", 4, 4)
    with pytest.raises(Unsupported, match="is no sum of products"):
        agreement(x, ops.relu(x))
    with pytest.raises(Unsupported, match="exp is no sum"):
        zeros = ops.slice(ops.pad(x, (4, 0), (0, 0)), 0, 0, 4)
        agreement(x, ops.matmul(ops.exp(zeros), x))
    with pytest.raises(Invalid, match="different shapes"):
        agreement(x, ops.slice(x, 0, 0, 3))
    with pytest.raises(Unsupported, match="leaf"):
        agreement(x, ops.full((4, 4), 1.0, x.dtype))
    with pytest.raises(Unsupported, match="only floats"):
        agreement(x, ops.cast(ops.cast(x, sums_of((x,))[0].value.dtype), x.dtype))
    with pytest.raises(Unsupported, match="no axes"):
        agreement(ops.sum(x, (0, 1), False), ops.sum(x, (0, 1), False))
