"""Sums over the same data become one where that costs nothing, and keeps digits that cancel."""

import random

import numpy as np
import pytest

from tests.graph.build import arg
from tests.seeds import drawn
from tilewright import ops
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.fuse import fuse
from tilewright.graph.joined_sums import JoinSums
from tilewright.graph.memory import plan
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node
from tilewright.ir.positions import static
from tilewright.ir.types import f32, i64
from tilewright.targets import get


def joined(inputs: tuple[Node, ...], *outputs: Node) -> Graph:
    return JoinSums().apply(Graph("g", inputs, outputs), Log())


def sums(g: Graph) -> int:
    return sum(n.op.name == "sum" for n in g.nodes())


def test_terms_cancel_before_they_are_added_up() -> None:
    x, y = arg("x", 500), arg("y", 500)
    near = ops.add(x, ops.mul(y, 1e-6))
    out = ops.sub(ops.sum(ops.mul(x, near)), ops.sum(ops.mul(x, x)))
    before = Graph("g", (x, y), (out,))
    after = joined((x, y), out)
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(500).astype(np.float32) for _ in "xy"]
    x32, near32 = args[0], args[0] + args[1] * np.float32(1e-6)
    exact = (x32.astype(float) * near32 - x32.astype(float) ** 2).sum()
    apart, together = (abs(float(evaluate(g, args)[0]) - exact) for g in (before, after))
    assert together < 0.5 * apart


@pytest.mark.parametrize("seed", drawn(range(8), 3))
def test_drawn_sums_are_one(seed: int) -> None:
    rng = random.Random(seed)
    shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
    axes = sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    x = arg("x", *shape)
    s = arg("s", *(1 if k in axes else d for k, d in enumerate(shape)))
    terms = [ops.mul(x, s), ops.square(x), ops.exp(ops.sub(s, x))]
    rng.shuffle(terms)
    kept = rng.random() < 0.5
    parts = [ops.sum(term, axes, kept) for term in terms]
    if rng.random() < 0.5:
        parts = [ops.reshape(p, (1, *p.shape)) for p in parts]
    total = parts[0]
    for part in parts[1:]:
        total = rng.choice([ops.add, ops.sub])(*rng.sample([total, part], 2))
    g = Graph("g", (x, s), (total,))
    made = JoinSums().apply(g, Log())
    assert sums(made) == 1
    numbers = np.random.default_rng(seed)
    args = [numbers.standard_normal(static(i.shape)).astype(np.float32) for i in (x, s)]
    np.testing.assert_allclose(evaluate(made, args)[0], evaluate(g, args)[0], 1e-4, 1e-4)


def test_three_sums_are_one() -> None:
    x, s = arg("x", 4, 5), arg("s", 1, 5)
    parts = [ops.sum(t, 0) for t in (ops.mul(x, s), ops.square(x), ops.exp(x))]
    assert sums(joined((x, s), ops.sub(ops.add(parts[0], parts[1]), parts[2]))) == 1
    flat = [ops.reshape(p, (5, 1)) for p in parts]
    assert sums(joined((x, s), ops.sub(ops.add(flat[0], flat[1]), flat[2]))) == 1


def test_sums_that_would_cost_more_stay() -> None:
    x, y, s = arg("x", 4, 4), arg("y", 4, 4), arg("s", 4, 1)
    a, b = ops.sum(ops.square(x), 0), ops.sum(ops.exp(x), 0)
    assert sums(joined((x, y), ops.add(a, b))) == 1
    # One of them is read besides, or is an output.
    assert sums(joined((x, y), ops.add(a, b), ops.neg(a))) == 2
    assert sums(joined((x, y), ops.add(a, b), b)) == 2
    # Of values that have nothing in common: one would be kept until the other is there.
    assert sums(joined((x, y), ops.add(a, ops.sum(ops.exp(y), 0)))) == 2
    # Over other axes.
    assert sums(joined((x, y), ops.add(a, ops.sum(ops.exp(x), 1)))) == 2
    # A product of columns and rows is a matrix product.
    wide = ops.reshape(x, (4, 4, 1))
    rows = ops.reshape(y, (1, 4, 4))
    product = ops.sum(ops.mul(wide, rows), 1)
    other = ops.sum(ops.mul(ops.exp(wide), rows), 1)
    assert sums(joined((x, y), ops.add(product, other))) == 2
    # So is the product of a vector and a matrix.
    assert sums(joined((x, s), ops.add(ops.sum(ops.mul(x, s), 0), b))) == 2
    # Reshaped in two ways, they are broadcast.
    across = ops.add(ops.reshape(a, (4, 1)), ops.reshape(b, (1, 4)))
    assert sums(joined((x, y), across)) == 2


def test_strict_precision_adds_up_apart() -> None:
    assert "JoinSums" in str(passes())
    assert "JoinSums" not in str(passes(precision="strict"))


@pytest.mark.parametrize("seed", drawn(range(6), 3))
def test_updates_of_zeros_add_to_the_other_term(seed: int) -> None:
    """As gradients of words whose weights are also a head's: no second matrix is stored."""
    rng = random.Random(seed)
    rows, width, count = rng.randint(2, 9), rng.randint(1, 6), rng.randint(1, 12)
    x, y, v = arg("x", rows, 7), arg("y", 7, width), arg("v", count, width)
    i = arg("i", count, dtype=i64)
    zeros = ops.full((rows, width), 0.0, f32)
    put = ops.index_put(zeros, v, [i], (0,), True)
    terms = [ops.matmul(x, y), put]
    rng.shuffle(terms)
    g = Graph("g", (x, y, v, i), (ops.add(*terms),))
    made = JoinSums().apply(g, Log())
    assert [n.op.name for n in made.nodes() if n.op.name in ("add", "full")] == []
    p = plan(fuse(made, get("x86-64-v4"), Log()))
    assert not p.offsets and len(p.in_place) == 1  # the product is updated where it lies
    numbers = np.random.default_rng(seed)
    shapes = ((rows, 7), (7, width), (count, width))
    args = [numbers.standard_normal(shape).astype(np.float32) for shape in shapes]
    at = numbers.integers(0, rows, count)
    exact = args[0].astype(float) @ args[1].astype(float)
    np.add.at(exact, at, args[2].astype(float))
    np.testing.assert_allclose(evaluate(made, [*args, at])[0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", drawn(range(6), 2))
def test_updates_of_the_same_zeros(seed: int) -> None:
    """As the gradient of an image that was read at several places: each update counts once."""
    rng = random.Random(seed)
    rows, count = rng.randint(2, 9), rng.randint(1, 12)
    zeros = ops.full((rows,), 0.0, f32)
    values = [arg(f"v{k}", count) for k in range(rng.randint(2, 4))]
    places = [arg(f"i{k}", count, dtype=i64) for k in range(len(values))]
    total, *others = (
        ops.index_put(zeros, v, [i], (0,), True) for v, i in zip(values, places, strict=True)
    )
    for put in others:
        total = ops.add(total, put) if rng.random() < 0.5 else ops.add(put, total)
    g = Graph("g", (*values, *places), (total,))
    made = JoinSums().apply(g, Log())
    assert not any(n.op.name == "add" for n in made.nodes())
    numbers = np.random.default_rng(seed)
    args = [numbers.standard_normal(count).astype(np.float32) for _ in values]
    at = [numbers.integers(0, rows, count) for _ in values]
    exact = np.zeros(rows)
    for index, value in zip(at, args, strict=True):
        np.add.at(exact, index, value.astype(float))
    np.testing.assert_allclose(evaluate(made, [*args, *at])[0], exact, rtol=1e-5, atol=1e-5)


def test_updates_stay_apart_where_they_are_not_of_zeros_or_read_again() -> None:
    x, v, i = arg("x", 5, 4), arg("v", 3, 4), arg("i", 3, dtype=i64)
    ones, row = ops.full((5, 4), 1.0, f32), ops.full((1, 4), 0.0, f32)
    zeros = ops.full((5, 4), 0.0, f32)
    put = ops.index_put(zeros, v, [i], (0,), True)
    for outputs in (
        [ops.add(x, ops.index_put(ones, v, [i], (0,), True))],
        [ops.add(x, ops.index_put(zeros, v, [i], (0,), False))],
        [ops.add(x, ops.index_put(row, v, [i], (0,), True))],
        [ops.add(x, put), put],
    ):
        made = joined((x, v, i), *outputs)
        assert any(n.op.name == "add" for n in made.nodes())
