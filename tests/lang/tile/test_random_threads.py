"""Random kernels do on the threads of a block (kernel/simt.py) what they do step by step."""

from __future__ import annotations

import pytest

from tests.lang.tile.random_kernels import kernel
from tests.lang.tile.random_running import described, failure, shrunk
from tests.seeds import drawn

ALL, WAY = 400, ("threads",)


def check(seed: int) -> None:
    made = kernel(seed)
    found = failure(made, WAY)
    if found is not None:
        small = shrunk(made, found.kind, 60, WAY)
        raise AssertionError(described(small, failure(small, WAY) or found))


# Seed 621: a product that threads add up by themselves, of operands that would fit in registers;
# 446: what is read of memory that is stored to has no known divisor; 364: a sum from the end on
# reads the elements of other threads.
@pytest.mark.parametrize("seed", drawn([0, 621, 446, 364, 807, *range(1, 364)], quick=4))
def test_random_kernels_on_threads(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [5, 690, 990])
def test_code_of_a_random_kernel(seed: int) -> None:
    """Seed 5: a product of doubles, whose lanes are longer than what a swizzle leaves together;
    690: lanes that begin elsewhere than it does; 990: memory that is read by another view."""
    found = failure(kernel(seed), ("lowered",))
    assert found is None, found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, 50))
def test_many_random_kernels_on_threads(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed)
