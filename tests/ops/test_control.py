"""cond: one branch runs, and branches that do not fit are refused with a sentence."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType, b1, f32, i64

X = input("x", TensorType(f32, (3,)))
FLAG = input("flag", TensorType(b1, ()))


def branch(*outputs) -> Graph:
    return Graph("branch", (X,), outputs)


@pytest.mark.parametrize("flag", [True, False])
def test_branches(flag: bool) -> None:
    n = ops.cond(FLAG, branch(ops.neg(X), X), branch(ops.exp(X), ops.add(X, X)), (X,))
    a = np.array([1, 2, 3], np.float32)
    got = evaluate(Graph("g", (FLAG, X), outputs_of(n)), (np.array(flag), a))
    want = (-a, a) if flag else (np.exp(a), a + a)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_equal_branches_are_one_node() -> None:
    make = lambda: ops.cond(FLAG, branch(ops.neg(X)), branch(X), (X,))  # noqa: E731
    assert make() is make()


def test_what_does_not_fit() -> None:
    with pytest.raises(Invalid, match="the predicate is"):
        ops.cond(X, branch(X), branch(X), (X,))
    with pytest.raises(Invalid, match="the branches give"):
        ops.cond(FLAG, branch(X), branch(ops.cast(X, i64)), (X,))
    with pytest.raises(Invalid, match="branch then takes"):
        ops.cond(FLAG, branch(X), branch(X), ())
