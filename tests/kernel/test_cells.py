"""Places of many points: the quick ways agree with the plain ones."""

import numpy as np
import pytest

from tests.seeds import drawn
from tilewright.kernel.cells import MANY, beyond, flat_cells, outside, repeated


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 3 * MANY])
def test_one_place_outside_is_found(count: int) -> None:
    rng = np.random.default_rng(count)
    x = rng.integers(0, 7, count)
    assert not beyond(x, 7) and not outside(x, 7).any()
    assert beyond(x, 6) == bool((x == 6).any())
    for wrong in (-1, 7, -(2**62), 2**62):
        x[count // 2] = wrong
        assert beyond(x, 7) and np.flatnonzero(outside(x, 7)).tolist() == [count // 2]


def test_one_number_is_a_place() -> None:
    assert beyond(np.asarray(5), 5) and beyond(np.asarray(-1), 5) and not beyond(np.asarray(4), 5)
    assert not beyond(np.zeros(0, np.int64), 0)


@pytest.mark.parametrize("seed", drawn(range(20), 8))
def test_cells_are_numpys(seed: int) -> None:
    """Of numbers and arrays that broadcast, along any number of axes."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 6, rng.integers(0, 5)).tolist())
    index = [
        int(rng.integers(n)) if rng.random() < 0.4 else rng.integers(0, n, rng.choice([1, 9]))
        for n in shape
    ]
    want = np.ravel_multi_index(tuple(np.broadcast_arrays(*index)), shape) if shape else 0
    np.testing.assert_array_equal(flat_cells(index, shape), want)


@pytest.mark.parametrize("seed", drawn(range(10), 4))
def test_points_of_one_cell(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 12, rng.integers(0, 30))
    before = [k for k, c in enumerate(cells) if c in cells[:k]]
    assert repeated(cells, 12).tolist() == before
