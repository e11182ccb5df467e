"""Elements of a rank: by counting, as a stable sort would find them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.running import run_graph
from tests.graph.build import arg, build, graph
from tests.seeds import drawn
from tilewright.ir.node import item
from tilewright.ir.types import DTYPES


def drawn_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Some numbers are equal; of floats, some are NaN, infinite or zeros of either sign."""
    kind = DTYPES[dtype].numpy
    if dtype[0] != "f":
        return rng.integers(0 if dtype[0] == "u" else -40, 40, shape).astype(kind)
    x = rng.standard_normal(shape).round(1).astype(kind)
    x[rng.random(shape) < 0.1] = rng.choice([np.inf, -np.inf, 0.0, -0.0])
    return x


@pytest.mark.parametrize("seed", drawn(range(20), quick=3))
def test_ranks_are_those_of_a_stable_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = ("f32", "i64", "u8", "f64", "i32")[seed % 5]
    n, axis = int(rng.integers(64, 300)), int(rng.integers(0, 2))
    shape = (n, 3) if axis == 0 else (3, n)
    x, rank = drawn_array(rng, dtype, shape), int(rng.integers(0, n))
    found = build.kth(arg("x", *shape, dtype=DTYPES[dtype]), rank, axis)
    value, place = run_graph(graph(item(found, 0), item(found, 1)), (x,))
    places = np.take(np.argsort(x, axis, kind="stable"), rank, axis)
    np.testing.assert_array_equal(place, places)
    np.testing.assert_array_equal(
        value, np.take_along_axis(x, np.expand_dims(places, axis), axis).squeeze(axis)
    )


def test_a_row_with_nan_has_it_as_its_median() -> None:
    x = np.random.default_rng(0).standard_normal((3, 101)).astype(np.float32)
    x[1, [40, 7]] = np.nan
    found = build.median(arg("x", 3, 101), 1)
    value, place = run_graph(graph(item(found, 0), item(found, 1)), (x,))
    assert np.isnan(value[1]) and place[1] == 7
    np.testing.assert_array_equal(value[[0, 2]], np.median(x[[0, 2]], 1))
