"""Sums of many numbers lose as little to rounding as eager's."""

from __future__ import annotations

import random

import pytest
import torch

import tilewright as tw
from tests.seeds import drawn
from tilewright.kernel.defaults.cascades import CHAIN

SUMS = [
    ((3_000_000,), 0),
    ((60_000, 64), 0),
    ((8, 300_000), 1),
    ((1, 200, 200, 16), (1, 2)),
    ((2, 8, 200, 200), (2, 3)),
    ((3, 50_000, 3), 1),
    ((3, 100_003, 3), 1),
    ((CHAIN + 1, 20), 0),
    ((2, CHAIN * 16 + 7), 1),
]


@pytest.mark.parametrize(("shape", "over"), SUMS)
def test_of_positive_numbers(shape: tuple[int, ...], over: int | tuple[int, ...]) -> None:
    torch.manual_seed(5)
    x = torch.rand(shape)  # errors of one sign do not cancel
    fast = tw.compile(lambda x: x.sum(over), x)
    got, eager, want = fast(x), x.sum(over), x.double().sum(over)
    unit = torch.finfo(torch.float32).eps * want.abs().max()
    bound = 2 * (eager - want).abs().max() + 4 * unit
    assert (got - want).abs().max() <= bound


def test_of_squares() -> None:
    """No number is part of two products, so nothing is gained by one long chain per tile."""
    torch.manual_seed(6)
    x = torch.randn(3, 50_003, 3)
    got = tw.compile(lambda x: (x * x).sum(1), x)(x)
    eager, want = (x * x).sum(1), (x.double() * x.double()).sum(1)
    unit = torch.finfo(torch.float32).eps * want.abs().max()
    assert (got - want).abs().max() <= 2 * (eager - want).abs().max() + 4 * unit


@pytest.mark.parametrize("seed", drawn(range(40), 3))
def test_over_an_axis_before_a_short_one(seed: int) -> None:
    draw = random.Random(seed)
    rows, length = draw.choice([(1, 40_009), (3, 9_000), (50, 301)])
    x = torch.randint(-9, 9, (rows, length, draw.randint(2, 20)))
    x = x.to(draw.choice([torch.float32, torch.float64, torch.int8, torch.int32]))
    for name in ("sum", "amax", "amin"):
        got = tw.compile(lambda x, name=name: getattr(x, name)(1), x)(x)
        assert torch.equal(got, getattr(x, name)(1)), name


def test_of_equal_distances_where_the_last_axis_is_short() -> None:
    """An axis of one element keeps the others from being one walk, so no lanes share them."""
    x = torch.zeros(40, 30, 1, 16)
    x[::2] = 2.3  # each distance is rounded the same way
    got, want = tw.compile(lambda x: x.var(correction=0), x)(x), x.double().var(correction=0)
    assert (got - want).abs() <= 1e-6 * want


def test_whole_numbers_and_strict_sums_stay_one_chain() -> None:
    x = torch.arange(40_000, dtype=torch.int64).reshape(5_000, 8)
    assert torch.equal(tw.compile(lambda x: x.sum(0), x)(x), x.sum(0))
    y = torch.rand(5_000, 8)
    one = torch.zeros(8)
    for row in y:
        one += row
    assert torch.equal(tw.compile(lambda x: x.sum(0), y, precision="strict")(y), one)
