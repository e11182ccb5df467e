"""Sizes as Python source give what walking them gives."""

import random

import pytest

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.dim_code import SizeCode, size_function
from tilewright.ir.expr import load
from tilewright.ir.types import i64


def _drawn(rng: random.Random, symbols: list[D.Int], depth: int) -> Dim:
    if depth == 0:
        return rng.choice([*symbols, rng.randint(-3, 9)])
    a, b = (_drawn(rng, symbols, depth - 1) for _ in range(2))
    return rng.choice(
        [
            lambda: a + b,
            lambda: a * b,
            lambda: a - b,
            lambda: D.floordiv(a, rng.randint(1, 7)),
            lambda: D.mod(a, rng.randint(1, 7)),
            lambda: D.minimum(a, b),
            lambda: D.maximum(a, b),
        ]
    )()


@pytest.mark.parametrize("seed", range(40))
def test_a_function_of_symbols_agrees_with_evaluation(seed: int) -> None:
    rng = random.Random(seed)
    names = ["n", "m", "k"]
    x = _drawn(rng, [D.sym(name) for name in names], 4)
    found = size_function(x, names)
    for _ in range(5):
        values = [rng.randint(0, 50) for _ in names]
        assert found(values) == D.evaluate(x, dict(zip(names, values, strict=True)))


def test_what_quotients_share_is_written_once() -> None:
    n, x = D.sym("n"), D.as_int(D.the_sym(D.sym("n")))
    for k in range(40):  # written out, this would be 2**40 terms
        x = D.minimum(x + 7 * k + 1, D.maximum(x, 3 * n - k)) + x
    code = SizeCode({"n": "n"})
    code.of(x)
    assert len(code.lines) <= 3 * 40


def test_a_size_that_is_read_from_memory_has_no_code() -> None:
    with pytest.raises(Unsupported, match="depends on data"):
        SizeCode({}).of(D.data(load("x", (0,), i64)))
