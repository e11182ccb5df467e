"""The bench's own arithmetic."""

import math
import time
from itertools import pairwise

import pytest
import torch
from torch import nn

from tilewright.base.medians import median_interval
from tilewright.bench.machine import Peak, Traffic
from tilewright.bench.measure import (
    MIN_ROUNDS,
    geometric_mean,
    in_turn,
    interleaved,
    ratio,
    ratio_interval,
)
from tilewright.bench.memory import peak_allocated, weight_bytes
from tilewright.bench.resident import ResidentPeak
from tilewright.targets import default


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def contender(name: str):
        def call() -> None:
            order.append(name)
            time.sleep(0.06)  # longer than a round has to be, so that a round is one call

        return call

    times = interleaved({"a": contender("a"), "b": contender("b")}, rounds=1)
    assert {name: len(list_) for name, list_ in times.items()} == {"a": MIN_ROUNDS, "b": MIN_ROUNDS}
    rounds = order[4:]  # two calls of each to see how long one takes
    assert all(set(pair) == {"a", "b"} for pair in zip(rounds[::2], rounds[1::2], strict=True))


def test_nobody_always_follows_the_same_one() -> None:
    names = ["a", "b", "c", "d"]
    order = [name for k in range(40) for name in in_turn(names, k)]
    assert all(sorted(order[k : k + 4]) == names for k in range(0, len(order), 4))
    followed = {(x, y) for x, y in pairwise(order) if x != y}
    assert len(followed) == 12


def test_ratios() -> None:
    assert ratio([2.0, 4.0, 90.0], [1.0, 2.0, 2.0]) == 2.0
    assert math.isclose(geometric_mean([0.5, 2.0]), 1.0)


@pytest.mark.parametrize(("count", "low"), [(3, 0), (6, 0), (7, 0), (8, 0), (9, 1), (12, 2)])
def test_intervals_of_medians_are_those_of_the_binomial(count: int, low: int) -> None:
    """The outermost order statistics that together leave out less than 5 %."""
    values = [float(k) for k in range(count)]
    assert median_interval(values[::-1]) == (values[low], values[-1 - low])
    outside = 2 * sum(math.comb(count, k) for k in range(low + 1)) / 2**count
    assert count < 6 or outside <= 0.05


def test_intervals_of_ratios() -> None:
    ours = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 0.8, 1.0, 1.1]
    assert ratio_interval([2 * x for x in ours], ours) == (2.0, 2.0), "what slows both is no noise"
    low, high = ratio_interval([2.0, 3.0, 1.0, 2.0, 2.5, 2.0, 1.5, 2.0, 1.0], ours)
    assert low < ratio([2.0] * 9, ours) < high


def test_peak_sees_what_a_call_frees_again() -> None:
    size = 2**20
    assert peak_allocated(lambda: torch.ones(size // 4).sum()) in range(size, size + 4096)
    two = peak_allocated(lambda: (torch.ones(size // 4) + 1).sum())
    assert two in range(2 * size, 2 * size + 4096)


def test_shared_weights_count_once() -> None:
    one, two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    assert weight_bytes(nn.Sequential(one, two)) == 2 * 8 * 8 * 4
    two.weight = one.weight
    assert weight_bytes(nn.Sequential(one, two)) == 8 * 8 * 4


def test_growth_of_a_process() -> None:
    grown = ResidentPeak()
    size = 64 * 2**20
    block = torch.ones(size // 4)
    assert grown.grown() > size // 2
    del block


def test_the_machines_limits() -> None:
    target = default()
    assert Peak(target, 2)() > 0
    small, large = Traffic(target, 2**16, 2**16), Traffic(target, 2**22, 2**20)
    assert small.copied == 2**16 and small.read == small.written == 0
    assert (large.copied, large.read) == (2**20, 3 * 2**20)
    assert 0 < small() < large()
    assert Traffic(target, 100, 3, 2)() > 0, "sizes that fill no vector are rounded up"
