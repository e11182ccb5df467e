"""Sorting by counting, by passes and by blocks: as a stable sort would find it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.running import call, run_graph
from tests.graph.build import arg, build, graph
from tests.ops.test_selection import drawn_array
from tests.seeds import crossed, drawn
from tilewright.driver.program.programs import compile_graph
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import item
from tilewright.ir.types import DTYPES
from tilewright.ops.words import first_words, longest_counted, sorted_words

SHAPES = ((3, 50, 3), (2, 100, 10), (2, 129, 7), (1, 300, 40), (2, 700, 20), (1, 230, 1))


@pytest.mark.parametrize(("shape", "dtype"), crossed(SHAPES, ["f32", "i64"], 2))
def test_the_first_of_rows(shape: tuple[int, int, int], dtype: str) -> None:
    rows, n, k = shape
    x = drawn_array(np.random.default_rng(n), dtype, (rows, n))
    found = build.topk(arg("x", rows, n, dtype=DTYPES[dtype]), k, 1, True)
    value, place = run_graph(graph(item(found, 0), item(found, 1)), (x,))
    order = n - 1 - np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(place, order[:, :k])
    np.testing.assert_array_equal(value, np.take_along_axis(x, order[:, :k], 1))


@pytest.mark.parametrize("seed", drawn(range(12), quick=4))
def test_the_length_of_a_call_chooses_how_rows_are_sorted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = ("f32", "i64", "u8", "f64")[seed % 4]
    axis, descending = int(rng.integers(0, 2)), bool(rng.integers(0, 2))
    n = D.sym("n")
    shape = (n, 5) if axis == 0 else (5, n)
    found = build.sort(arg("x", *shape, dtype=DTYPES[dtype]), axis, descending)
    program = compile_graph(graph(item(found, 0), item(found, 1)))
    longest = longest_counted(DTYPES[dtype].bits)
    for count in (0, 1, 2, longest - 1, longest, longest + 1, *rng.integers(3, 700, 4)):
        count = int(count)
        x = drawn_array(rng, dtype, (count, 5) if axis == 0 else (5, count))
        value, place = call(program, (x,), {"n": count})
        lines = np.flip(x, axis) if descending else x
        order = np.argsort(lines, axis, kind="stable")
        order = np.flip(count - 1 - order, axis) if descending else order
        np.testing.assert_array_equal(place, order)
        np.testing.assert_array_equal(value, np.take_along_axis(x, order, axis))


def test_how_rows_are_sorted() -> None:
    """Short rows by counting whatever the dtype, long ones by passes; of a few among many, only
    blocks are looked at."""

    def operators(dtype: str, n: Dim, k: int | None = None) -> set[str]:
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
    both = operators("f32", D.sym("n"))
    assert {"word_ranks", "radix_pass"} <= both
    assert "radix_pass" not in operators("f32", D.sym("few", 0, 100))
    assert "word_ranks" not in operators("f32", D.sym("many", 1000))
