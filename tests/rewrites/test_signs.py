"""Maxima of real numbers: what may leave them and what may not."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.node import Node, input
from tilewright.ir.types import TensorType, f32
from tilewright.rewrites.proofs.equality import nodes_equal

SHAPE = D.sym("m", 1), D.sym("n", 1)
x, y = (input(name, TensorType(f32, SHAPE)) for name in "xy")
s = input("s", TensorType(f32, ()))
EXACT = ops.exp(y)


def largest(v: Node) -> Node:
    return ops.amax(v, (1,), True)


def smallest(v: Node) -> Node:
    return ops.amin(v, (1,), True)


add, mul, sub, neg, relu = ops.add, ops.mul, ops.sub, ops.neg, ops.relu
XX, YY = mul(x, x), mul(y, y)
TRUE = {
    "a number": (relu(add(x, x)), add(relu(x), relu(x))),
    "an exponential": (relu(mul(x, EXACT)), mul(relu(x), EXACT)),
    "a square": (relu(mul(x, YY)), mul(relu(x), YY)),
    "what is never negative": (relu(mul(x, s)), mul(relu(x), s)),
    "it twice": (relu(relu(x)), relu(x)),
    "its square": (mul(relu(x), relu(x)), mul(x, relu(x))),
    "the other sign": (relu(neg(x)), sub(relu(x), x)),
    "differences": (relu(sub(x, y)), add(relu(sub(y, x)), sub(x, y))),
    "a sum that is never negative": (relu(add(XX, YY)), add(XX, YY)),
    "the largest": (largest(mul(x, s)), mul(largest(x), s)),
    "of negated numbers": (largest(neg(x)), neg(smallest(x))),
    "of scaled ones": (largest(add(x, x)), add(largest(x), largest(x))),
}
FALSE = {
    "any factor": (relu(mul(x, y)), mul(relu(x), y)),
    "sums": (relu(add(x, y)), add(relu(x), relu(y))),
    "a product of two": (relu(mul(x, y)), mul(x, y)),
    "the wrong sign": (relu(neg(x)), add(relu(x), x)),
    "a sum of signs": (relu(sub(XX, YY)), sub(XX, YY)),
    "the largest of negated ones": (largest(neg(x)), neg(largest(x))),
    "a factor along the row": (largest(mul(x, EXACT)), mul(largest(x), EXACT)),
}


@pytest.mark.parametrize("name", TRUE)
def test_proved(name: str) -> None:
    assert nodes_equal(*TRUE[name], "reals", frozenset("s"))


@pytest.mark.parametrize("name", FALSE)
def test_refused(name: str) -> None:
    assert not nodes_equal(*FALSE[name], "reals", frozenset("s"))


@pytest.mark.parametrize("name", ["what is never negative", "the largest"])
def test_signs_have_to_be_known(name: str) -> None:
    assert not nodes_equal(*TRUE[name], "reals")
