"""How large sizes may be, compared with all values of their symbols."""

from itertools import product

import pytest

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.extremes import greatest

B = D.sym("b", 1, 4)
N, M = D.sym("n", 0), D.sym("m", 0)
MOST = {D.the_sym(N): 3 * B, D.the_sym(M): 5}
SIZES: list[Dim] = [
    7,
    B * 2,
    N,
    N * M + B,
    D.ceildiv(4 * N, 64) * 64 + D.ceildiv(N * M * 4, 64) * 64,
    3 * B - N + 2 * M,
    D.maximum(3 * B - N, 0) * M,
    D.minimum(N, 4) + D.maximum(N, M),
    D.mod(N, 3) + D.floordiv(20, D.maximum(M, 1)),
    D.mod(B + N, M + 1) * 2,
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_value_is_larger(size: Dim) -> None:
    most = greatest(size, MOST)
    assert not set(MOST) & set(() if isinstance(most, int) else D.symbols(most))
    for b in range(1, 5):
        values = {"b": b}
        found = [
            D.evaluate(size, {**values, "n": n, "m": m})
            for n, m in product(range(3 * b + 1), range(6))
        ]
        bound = D.evaluate(most, values)
        assert bound >= max(found)
        if size in (N, N * M + B):
            assert bound == max(found)


def test_factors_that_may_be_negative() -> None:
    with pytest.raises(Unsupported, match="it is not known how large"):
        greatest(D.minimum(N - 9, M) * N, MOST)
