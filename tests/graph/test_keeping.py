"""What is kept and what is computed again: against all choices that there are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.seeds import drawn
from tilewright.graph.keeping import Kept, Value, cheapest, within

NEITHER, KEPT, AGAIN = range(3)


def random_values(r: random.Random) -> list[Value]:
    found = []
    for k in range(r.randint(1, 7)):
        operands = tuple(r.sample(range(k), r.randint(0, min(k, 2))))
        again = None if not operands or r.random() < 0.2 else r.choice((0.0, 1e-3, 3e-3, 2e-2))
        size = r.choice((0, 1000, 5000))
        keep = None if again is not None and r.random() < 0.1 else size * r.choice((1e-7, 2e-7))
        found.append(Value(operands, size, keep, again, r.random() < 0.4))
    return found


def choices(values: Sequence[Value]) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of every choice that gives the gradient what it needs."""
    for states in itertools.product((NEITHER, KEPT, AGAIN), repeat=len(values)):
        seconds, size = 0.0, 0
        for state, v in zip(states, values, strict=True):
            if state == NEITHER and not v.needed:
                continue
            if state == KEPT and v.keep is not None:
                seconds, size = seconds + v.keep, size + v.bytes
            elif (
                state == AGAIN
                and v.again is not None
                and all(states[x] != NEITHER for x in v.operands)
            ):
                seconds += v.again
            else:
                break
        else:
            yield seconds, size


def is_among(found: Kept, every: Sequence[tuple[float, int]]) -> bool:
    return any(abs(found.seconds - s) < 1e-9 and found.bytes == size for s, size in every)


@pytest.mark.parametrize("seed", drawn(range(300), quick=12))
def test_no_choice_is_cheaper(seed: int) -> None:
    values = random_values(random.Random(seed))
    every = list(choices(values))
    if not every:
        return
    found = cheapest(values)
    least = min(seconds for seconds, _ in every)
    assert found.seconds <= least + 1e-6  # one more value costs the host something
    assert is_among(found, every)


@pytest.mark.parametrize("seed", drawn(range(300), quick=12))
def test_a_limit_is_met_where_it_can_be(seed: int) -> None:
    r = random.Random(seed)
    values = random_values(r)
    every = list(choices(values))
    if not every:
        return
    limit = int(cheapest(values).bytes * r.random())
    found = within(values, limit)
    fewest = min(size for _, size in every)
    assert found.bytes <= limit or found.bytes == fewest
    assert is_among(found, every)


def test_of_equal_layers_only_as_many_are_computed_again_as_needed() -> None:
    """Ten layers of a value that is cheap and one that is not: half of the bytes are left, and no
    product is computed twice for that."""
    values = [Value((), 0, 1e-6, None, needed=True)]
    for _ in range(10):
        last = len(values) - 1
        values.append(Value((last,), 1000, 1e-6, 5e-2, needed=True))
        values.append(Value((last + 1,), 1000, 1e-6, 1e-4, needed=True))
    assert cheapest(values).bytes == 20000
    for limit in (10000, 14000, 17500):
        found = within(values, limit)
        assert limit - 1000 < found.bytes <= limit
        assert all(k % 2 == 0 for k in found.again)
    first = within(values, 17500).again
    assert max(first) < len(values) / 2  # the first layers: their values are used last
