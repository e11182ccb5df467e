"""Random numbers: the published test vectors, the distributions, and independence of the shape."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr, interpret
from tilewright.ir.node import Graph, constant, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType, bf16, f16, f32, f64, i64
from tilewright.ops.random import _philox


def draw_all(n, sizes=None):
    return interpret.evaluate(Graph("g", (), outputs_of(n)), (), sizes)


def draw(n, sizes=None) -> np.ndarray:
    return draw_all(n, sizes)[0]


def at(seed: int, offset: int = 0):
    return constant(seed, i64), constant(offset, i64)


# Counter and key in, four words out: of the known answers that come with Random123.
KNOWN = [
    (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: int, key: int, words: tuple[int, ...]) -> None:
    for k, want in enumerate(words):
        t = expr.compute((), lambda k=k: _philox(expr.const(key, i64), expr.const(counter, i64))[k])
        np.testing.assert_array_equal(interpret.tensor(t, {}, {}), want)


def test_a_part_is_the_same_wherever_it_is_drawn() -> None:
    whole = draw(ops.rand(*at(5, 100), (4, 6)))
    np.testing.assert_array_equal(whole.ravel(), draw(ops.rand(*at(5, 100), (24,))))
    np.testing.assert_array_equal(whole[2:].ravel(), draw(ops.rand(*at(5, 112), (12,))))
    n = D.sym("n", 1)
    np.testing.assert_array_equal(whole, draw(ops.rand(*at(5, 100), (n, 6)), {"n": 4}))
    assert not np.array_equal(whole, draw(ops.rand(*at(6, 100), (4, 6))))


@pytest.mark.parametrize("dtype", [f64, f32, f16, bf16])
def test_uniform(dtype) -> None:
    u = draw(ops.rand(*at(1), (20000,), dtype)).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.005
    counts = np.histogram(u, 10, (0, 1))[0]
    assert np.abs(counts - 2000).max() < 250


@pytest.mark.parametrize("dtype", [f64, f32, bf16])
def test_normal(dtype) -> None:
    z = draw(ops.randn(*at(2), (20000,), dtype)).astype(np.float64)
    assert abs(z.mean()) < 0.03 and abs(z.std() - 1) < 0.03
    assert abs((z**3).mean()) < 0.1 and abs((z**4).mean() - 3) < 0.25
    assert np.isfinite(z).all() and z.max() > 3.2


def test_integers_cover_their_range() -> None:
    k = draw(ops.randint(*at(3), (5000,), -3, 4, i64))
    assert set(k.tolist()) == set(range(-3, 4))
    assert np.abs(np.bincount(k + 3) - 5000 / 7).max() < 120
    with pytest.raises(Invalid, match="no integer"):
        ops.randint(*at(3), (2,), 4, 4)


def test_dropout_keeps_the_mean() -> None:
    x = constant(np.ones(20000), f32)
    y, kept = draw_all(ops.dropout(x, *at(4), 0.25))
    assert abs(kept.mean() - 0.75) < 0.01
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    with pytest.raises(Invalid, match="not a probability"):
        ops.dropout(x, *at(4), 1.5)


def test_bernoulli_follows_its_probabilities() -> None:
    p = constant(np.repeat([0.0, 0.1, 0.9, 1.0], 5000), f32)
    rate = draw(ops.bernoulli(p, *at(5))).reshape(4, -1).mean(1)
    assert rate[0] == 0 and rate[3] == 1
    assert abs(rate[1] - 0.1) < 0.02 and abs(rate[2] - 0.9) < 0.02


def test_the_seed_is_one_integer() -> None:
    with pytest.raises(Invalid, match="the seed is"):
        ops.rand(input("s", TensorType(f32, ())), constant(0, i64), (3,))
