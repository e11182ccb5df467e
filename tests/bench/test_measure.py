"""The bench's own arithmetic, and one measurement from end to end."""

import math
import time

import torch

from bench.measure import MIN_ROUNDS, geometric_mean, interleaved, peak_allocated, ratio
from bench.models import ask


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
    assert rounds[:4] == ["a", "b", "b", "a"]


def test_ratios() -> None:
    assert ratio([2.0, 4.0, 90.0], [1.0, 2.0, 2.0]) == 2.0
    assert math.isclose(geometric_mean([0.5, 2.0]), 1.0)


def test_peak_sees_what_a_call_frees_again() -> None:
    size = 2**20
    assert peak_allocated(lambda: torch.ones(size // 4).sum()) in range(size, size + 4096)
    two = peak_allocated(lambda: (torch.ones(size // 4) + 1).sum())
    assert two in range(2 * size, 2 * size + 4096)


def test_a_child_measures() -> None:
    request = {
        "kind": "steady",
        "model": "bert",
        "tiny": True,
        "dtype": "float32",
        "threads": 1,
        "rounds": 7,
        "contenders": ["eager", "counting"],
    }
    ticks: list[None] = []
    found = ask(request, tick=lambda: ticks.append(None))["seconds"]
    assert len(ticks) == len(found["eager"]) == len(found["counting"]) == 7
    assert all(second > 0 for seconds in found.values() for second in seconds)
