"""Whole numbers are sorted by as few bits as their spread needs, found at the call."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver.running import call
from tests.graph.build import arg, build, graph
from tests.seeds import crossed, drawn
from tilewright.base.events import Log
from tilewright.driver.program.programs import compile_graph
from tilewright.graph.narrow_sorts import NarrowSorts
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, item
from tilewright.ir.types import DTYPES
from tilewright.ops.sorting import SortedPlaces

ROWS = 3
SPREADS = (0, 1, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63, 2**64 - 1)


def sorting(dtype: str, n: Dim, descending: bool) -> Graph:
    found = build.sort(arg("x", ROWS, n, dtype=DTYPES[dtype]), 1, descending)
    return graph(item(found, 0), item(found, 1))


def narrowed(g: Graph) -> Graph:
    return NarrowSorts().apply(g, Log())


def with_spread(rng: np.random.Generator, dtype: str, n: int, spread: int) -> np.ndarray:
    """The rows begin at different numbers; one has the whole spread, and the dtype's limits."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    spread = min(spread, most - least)
    x = np.zeros((ROWS, n), dtype)
    for k, start in enumerate((least, most - spread, least + (most - least - spread) // 2)):
        x[k] = [start + int(rng.random() * spread) for _ in range(n)]
        x[k, rng.permutation(n)[:2]] = start, start + spread
    return x


@pytest.mark.parametrize(("dtype", "descending"), crossed(["i32", "i64"], [False, True], 2))
@pytest.mark.parametrize("seed", drawn(range(8), quick=1))
def test_every_spread(seed: int, dtype: str, descending: bool) -> None:
    rng, n = np.random.default_rng(seed), 400
    g = sorting(dtype, n, descending)
    assert any(x.op.name == "cond" for x in narrowed(g).nodes())
    program = compile_graph(g)
    kind = {"i32": "int32", "i64": "int64"}[dtype]
    for spread in SPREADS:
        x = with_spread(rng, kind, n, spread)
        place = SortedPlaces(descending).reference(x)
        found = [call(program, (x,), {})]
        found += [evaluate(narrowed(g), [x])] if spread == 255 else []
        for a, b in found:
            np.testing.assert_array_equal(a, np.take_along_axis(x, place, 1), f"{spread=} {seed=}")
            np.testing.assert_array_equal(b, place, f"{spread=} {seed=}")


def test_a_length_that_the_call_has() -> None:
    rng, program = np.random.default_rng(0), compile_graph(sorting("i64", D.sym("n"), False))
    for n in (0, 2, 100, 230, 1000):
        x = rng.integers(-(2**40), 2**40, (ROWS, n)) if n % 3 else rng.integers(5, 90, (ROWS, n))
        value, place = call(program, (x,), {"n": n})
        np.testing.assert_array_equal(place, np.argsort(x, 1, kind="stable"))
        np.testing.assert_array_equal(value, np.sort(x, 1))


@pytest.mark.parametrize(("dtype", "n"), [("f32", 900), ("u8", 900), ("i64", 50)])
def test_others_stay_as_they_are(dtype: str, n: int) -> None:
    """Of floats, of bytes, and of short rows, which are sorted by counting."""
    g = sorting(dtype, n, False)
    assert NarrowSorts().apply(g, Log()) is g
