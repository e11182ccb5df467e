"""Sums of many numbers lose as little to rounding as eager's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.driver.running import call
from tests.seeds import drawn
from tilewright import ops
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32
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


ANY_NUMBER = [  # the lengths that a call decides are None
    ((None,), (0,), (1_003, 70_001, 1_000_003)),
    ((None, 33), (0,), (1_000, 30_011)),
    ((3, None), (1,), (1_025, 300_007)),
    ((1, None, None, 64), (1, 2), (36, 144)),
    ((1, 8, None, None), (2, 3), (36, 700)),
    ((2, None, 3), (1,), (7_001, 36_000)),
]


@pytest.mark.parametrize(("shape", "over", "lengths"), ANY_NUMBER)
def test_of_a_number_that_a_call_decides(
    shape: tuple[int | None, ...], over: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    """One program for all lengths, in which no chain of additions grows with the length."""
    sizes: list[Dim] = [D.sym(f"n{k}", 0) if n is None else n for k, n in enumerate(shape)]
    x = input("x", TensorType(f32, tuple(sizes)))
    program = compile_graph(Graph("sums", (x,), (ops.sum(x, over),)))
    draw = np.random.default_rng(8)
    for n in (0, 1, *lengths):
        given = draw.random([n if k is None else k for k in shape], np.float32)
        (got,) = call(program, [given], dict.fromkeys(program.dims, n))
        want = given.sum(over, dtype=np.float64)
        eager = torch.from_numpy(given).sum(over).numpy()
        unit = np.finfo(np.float32).eps * np.abs(want).max(initial=0)
        assert np.all(np.abs(got - want) <= 2 * np.abs(eager - want).max(initial=0) + 4 * unit), n
