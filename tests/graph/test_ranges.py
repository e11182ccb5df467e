"""Which integers a node can hold: proofs that indices need no check."""

import numpy as np
import pytest

from tilewright import ops
from tilewright.graph.ranges import ANY, Range, Ranges
from tilewright.ir import dim as D
from tilewright.ir.node import Node, constant, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType, b1, f32, i8, i32, i64, u8
from tilewright.ops.sorting import sorted_places

S = D.sym("s0", 2)
X = input("x", TensorType(i64, (6,)))
FLOATS = input("f", TensorType(f32, (6, 9)))
IMAGE = input("i", TensorType(f32, (1, 1, 4, 4)))
LONG = input("l", TensorType(f32, (S,)))


def _number(v: int) -> Node:
    return ops.full((), v, i64)


def _inside(x: Node) -> Node:
    """Is a float at least 0 and below 6?"""
    low, high = (ops.full((), v, f32) for v in (0.0, 6.0))
    return ops.logical_and(ops.ge(x, low), ops.lt(x, high))


KNOWN: dict[str, tuple[Node, Range]] = {
    "anything": (X, ANY),
    "constant": (constant(np.array([3, -2, 5]), i64), Range(-2, 5)),
    "positions": (ops.iota(7, 2, 3, i64), Range(2, 20)),
    "positions, downwards": (ops.iota(4, 3, -1, i64), Range(0, 3)),
    "positions of a symbolic number": (ops.iota(S), Range(0, S - 1)),
    "arg-maximum": (ops.argmax(FLOATS, 1), Range(0, 8)),
    "arg-maximum of a symbolic number": (ops.argmax(LONG, 0), Range(0, S - 1)),
    "order": (outputs_of(ops.sort(FLOATS, 0))[1], Range(0, 5)),
    "order of a row": (sorted_places(FLOATS, False), Range(0, 8)),
    "the largest": (outputs_of(ops.topk(FLOATS, 3, 1))[1], Range(0, 8)),
    "running extreme": (outputs_of(ops.cummax(FLOATS, 1))[1], Range(0, 8)),
    "positions of maxima in windows": (
        outputs_of(ops.max_pool(IMAGE, (2, 2)))[1],
        Range(-16, None),
    ),
    "clamped": (ops.minimum(ops.maximum(X, _number(0)), _number(4)), Range(0, 4)),
    "clamped above": (ops.minimum(X, _number(4)), Range(None, 4)),
    "remainder": (ops.mod(X, _number(5)), Range(0, 4)),
    "remainder of the dividend's sign": (ops.rem(X, _number(5)), Range(-4, 4)),
    "remainder by what may be 0": (ops.mod(X, X), ANY),
    "from bool": (ops.cast(ops.lt(X, _number(3)), i64), Range(0, 1)),
    "from bytes": (ops.cast(input("u", TensorType(u8, (6,))), i64), Range(0, 255)),
    "from float": (ops.cast(FLOATS, i64), ANY),
    "narrowed": (ops.cast(X, i8), Range(-128, 127)),
    "wrapped around": (ops.add(ops.cast(X, i8), ops.cast(X, i8)), Range(-128, 127)),
    "either": (
        ops.where(input("c", TensorType(b1, (6,))), ops.iota(6), _number(9)),
        Range(0, 9),
    ),
    "arithmetic": (ops.add(ops.mul(ops.iota(6), _number(3)), _number(-1)), Range(-1, 14)),
    "difference": (ops.sub(_number(5), ops.iota(6)), Range(0, 5)),
    "views": (ops.flip(ops.expand(ops.reshape(ops.iota(6), (1, 6)), (3, 6)), (0,)), Range(0, 5)),
    "joined": (ops.concat([ops.iota(6), ops.iota(3, 7)], 0), Range(0, 9)),
    "bits": (ops.bitwise_and(X, _number(7)), Range(0, 7)),
    "taken": (ops.take(ops.iota(6), X, 0), Range(0, 5)),
    "halved": (ops.floordiv(ops.iota(9), _number(2)), Range(0, 4)),
    "narrow positions": (ops.cast(ops.iota(6), i32), Range(0, 5)),
    "chosen where it was tested": (
        ops.where(_inside(FLOATS), ops.cast(FLOATS, i64), _number(0)),
        Range(0, 5),
    ),
    "chosen where another one was tested": (
        ops.where(_inside(FLOATS), ops.cast(ops.neg(FLOATS), i64), _number(0)),
        ANY,
    ),
    "largest": (ops.amax(ops.iota(6), (0,)), Range(0, 5)),
    "largest of perhaps nothing": (ops.amax(ops.iota(D.sym("n", 0)), (0,)), ANY),
}


@pytest.mark.parametrize("name", KNOWN)
def test_ranges(name: str) -> None:
    node, expected = KNOWN[name]
    assert Ranges().of(node) == expected


def test_a_range_is_found_without_recursion() -> None:
    x = ops.iota(6)
    for _ in range(600):
        x = ops.minimum(ops.add(x, _number(1)), _number(5))
    assert Ranges().of(x).within(0, 6)
