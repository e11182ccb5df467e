"""Statistics of batches by sums that read them once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.build import arg, build
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.fuse import fuse
from tilewright.graph.one_pass_norms import OnePassNorms
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import DType, bf16, f32, from_memory, to_memory
from tilewright.ops.norms import BatchNormTrain
from tilewright.targets import get


def norm(*shape: int, dtype: DType = f32) -> Graph:
    x, w = arg("x", *shape, dtype=dtype), [arg(name, shape[1]) for name in "wbmv"]
    found = outputs_of(build.batch_norm_train(x, *w, eps=1e-5, momentum=0.1))
    return Graph("norm", (x, *w), found)


def errors(values: np.ndarray, seed: int, dtype: DType = f32) -> list[tuple[float, float, float]]:
    """Of each result: the error in two passes, that in one, and a unit of its last place."""
    draw = np.random.default_rng(seed)
    given = [values, *(draw.uniform(0.5, 2.0, values.shape[1]).astype(np.float32) for _ in "wbmv")]
    exact = BatchNormTrain(1e-5, 0.1).reference(*(a.astype(np.float64) for a in given))
    two = norm(*values.shape, dtype=dtype)
    one = OnePassNorms(large=True).apply(two, Log())
    assert one is not two
    first, second = (evaluate(g, given) for g in (two, one))

    def off(got: np.ndarray, want: np.ndarray) -> float:
        return float(np.abs(got - want).max())

    return [
        (off(a, want), off(b, want), 2.0**-23 * float(np.abs(want).max()))
        for a, b, want in zip(first, second, exact, strict=True)
    ]


@pytest.mark.parametrize("seed", drawn(range(12), 4))
def test_drawn_batches(seed: int) -> None:
    """No worse than by two passes, also where the mean is far from zero."""
    draw = np.random.default_rng(seed)
    n, c = int(draw.integers(1, 13)), int(draw.integers(1, 9))
    side = int((270000 / n / c) ** 0.5) + 1
    apart = float(draw.choice([0.0, 3.0, 100.0]))
    values = draw.normal(apart, draw.uniform(0.1, 3.0), (n, c, side, side)).astype(np.float32)
    dtype = f32
    if draw.random() < 0.25:
        dtype, values = bf16, from_memory(to_memory(values, bf16), bf16)
    for k, (first, second, unit) in enumerate(errors(values, seed, dtype)):
        assert second <= 2 * first + 4 * unit * max(1.0, apart), (seed, k)


@pytest.mark.parametrize("n", [4, 8])
def test_the_first_elements_may_be_unlike_the_others(n: int) -> None:
    """An eighth of all is so large a part that little cancels: by the first element alone all
    digits would be lost."""
    draw = np.random.default_rng(n)
    values = draw.normal(0.0, 1.0, (n, 2, 192, 192)).astype(np.float32)
    values[0] += 1000.0
    for first, second, unit in errors(values, 0):
        assert second <= 2 * first + 64 * unit


def test_equal_elements_have_no_negative_variance() -> None:
    values = np.full((4, 2, 192, 192), 3.7, np.float32)
    two = norm(*values.shape)
    given = [values, *(np.zeros(2, np.float32) for _ in "wbmv")]
    variance = evaluate(OnePassNorms(large=True).apply(two, Log()), given)[4]
    assert (variance >= 0).all()


def test_both_statistics_are_one_kernel() -> None:
    target = get("x86-64-v4")
    g = norm(8, 64, 56, 56)
    kinds = [c.kind for c in fuse(passes(target).run(g, target, Log()), target, Log()).clusters]
    assert kinds.count("column") == 2  # of an eighth, and of all
    strict = passes(target, precision="strict")
    assert all(p.name != "OnePassNorms" for p in strict)


def test_small_batches_are_looked_at_twice() -> None:
    g = norm(8, 64, 7, 7)
    assert OnePassNorms(large=True).apply(g, Log()) is g
