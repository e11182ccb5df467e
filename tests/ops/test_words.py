"""Sorting by counting, by passes and by blocks: as a stable sort would find it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.running import run_graph
from tests.graph.build import arg, build, graph
from tests.ops.test_selection import drawn_array
from tilewright.ir.node import item
from tilewright.ir.types import DTYPES
from tilewright.ops.words import first_words, sorted_words

SHAPES = ((3, 50, 3), (2, 100, 10), (2, 129, 7), (1, 300, 40), (2, 700, 20), (1, 230, 1))


@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_the_first_of_rows(rows: int, n: int, k: int, dtype: str) -> None:
    x = drawn_array(np.random.default_rng(n), dtype, (rows, n))
    found = build.topk(arg("x", rows, n, dtype=DTYPES[dtype]), k, 1, True)
    value, place = run_graph(graph(item(found, 0), item(found, 1)), (x,))
    order = n - 1 - np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(place, order[:, :k])
    np.testing.assert_array_equal(value, np.take_along_axis(x, order[:, :k], 1))


def test_how_rows_are_sorted() -> None:
    """Short rows by counting whatever the dtype, long ones by passes; of a few among many, only
    blocks are looked at."""

    def operators(dtype: str, n: int, k: int | None = None) -> set[str]:
        x = arg("x", 2, n, dtype=DTYPES[dtype])
        words = sorted_words(x, False)
        if k is not None:
            words = first_words(build.sort_words(x, False), k, 32)
        seen, todo = set(), [words]
        while todo:
            node = todo.pop()
            seen.add(node.op.name)
            todo += node.inputs
        return seen

    assert "radix_pass" not in operators("f32", 100) | operators("i64", 100)
    assert "radix_pass" in operators("f32", 1000) & operators("i64", 1000)
    assert "amin" in operators("f32", 100, 5) and "amin" not in operators("f32", 100, 60)
