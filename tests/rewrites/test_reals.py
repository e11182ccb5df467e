"""Laws of real numbers: sums in parts, exponentials in sums, roots, sizes as numbers, maxima."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, input, item
from tilewright.ir.types import TensorType, f64
from tilewright.rewrites.proofs.equality import nodes_equal

M, N, K = (D.sym(name, 1) for name in "mnk")


def tensor(name: str, *shape: Dim) -> Node:
    return input(name, TensorType(f64, shape))


def row(v: Node) -> Node:
    return ops.sum(v, (1,), True)


def top(v: Node) -> Node:
    return ops.amax(v, (1,), True)


def cut(v: Node, start: Dim, stop: Dim) -> Node:
    return ops.slice(v, 1, start, stop)


def soft(v: Node) -> Node:
    return ops.softmax(v, 1)


add, sub, mul, div, exp, log, relu = (
    ops.add,
    ops.sub,
    ops.mul,
    ops.div,
    ops.exp,
    ops.log,
    ops.relu,
)
x, y, z = (tensor(name, M, N) for name in "xyz")
r, s, p = tensor("r", M, 1), tensor("s"), tensor("p", M, N)
long, empty = tensor("l", M, N + K), tensor("e", M, D.sym("o", 0))
twice = tensor("t", M, 2 * K)
some = tensor("a", M, K)

square, other = tensor("q", M, M), tensor("u", M, M)
turned = ops.permute(square, (1, 0))
image = tensor("i", M, K, N, N)


def window(v: Node, padding: int = 1) -> Node:
    """The maximum of windows of 3x3."""
    return item(ops.max_pool(v, (3, 3), (1, 1), (padding, padding)), 0)


def halves(v: Node, first: float) -> Node:
    """The maximum over a row where something is compared, and the first number elsewhere."""
    return top(ops.where(ops.lt(x, y), v, ops.full((), first, f64)))


def inside(v: Node) -> Node:
    """A sum of functions of sums."""
    return ops.sum(ops.tanh(ops.sum(v, (1,), False)), (0,), False)


TRUE = {
    "sums of functions of sums": (
        inside(add(square, turned)),
        inside(add(turned, square)),
    ),
    "functions of more sums or fewer": (
        top(ops.tanh(ops.matmul(square, add(square, other)))),
        top(ops.tanh(add(ops.matmul(square, square), ops.matmul(square, other)))),
    ),
    "a sum in parts": (row(long), add(row(cut(long, 0, N)), row(cut(long, N, N + K)))),
    "parts in the other order": (row(long), add(row(cut(long, 0, K)), row(cut(long, K, N + K)))),
    "a maximum in parts": (
        top(long),
        ops.maximum(top(cut(long, 0, N)), top(cut(long, N, N + K))),
    ),
    "equal parts": (row(twice), add(row(cut(twice, 0, K)), row(cut(twice, K, 2 * K)))),
    "a sum over two axes as one": (
        ops.sum(ops.reshape(x, (M * N,)), (0,), False),
        ops.sum(x, (0, 1), False),
    ),
    "softmax": (soft(x), div(exp(x), row(exp(x)))),
    "shifted": (soft(add(x, r)), soft(x)),
    "a common exponent": (div(exp(add(x, r)), row(exp(add(y, r)))), div(exp(x), row(exp(y)))),
    "a common factor": (div(x, row(mul(y, r))), div(div(x, r), row(y))),
    "a logarithm": (log(row(exp(add(x, r)))), add(r, log(row(exp(x))))),
    "of an exponential": (log(exp(x)), x),
    "a root of a square": (ops.sqrt(mul(x, x)), ops.abs(x)),
    "a square of a root": (ops.square(ops.sqrt(p)), p),
    "a root of a product": (ops.sqrt(mul(p, exp(x))), mul(ops.sqrt(p), ops.sqrt(exp(x)))),
    "a mean of one number": (ops.mean(add(x, r), (1,), True), add(ops.mean(x, (1,), True), r)),
    "sigmoid": (ops.sigmoid(x), div(1.0, add(1.0, exp(ops.neg(x))))),
    "a maximum of shifted": (top(add(x, r)), add(top(x), r)),
    "maxima by the positive part": (ops.maximum(x, y), add(y, relu(sub(x, y)))),
    "maxima and minima": (add(ops.maximum(x, y), ops.minimum(x, y)), add(x, y)),
    "three, shifted": (
        ops.maximum(ops.maximum(add(x, s), add(y, s)), add(z, s)),
        add(ops.maximum(x, ops.maximum(z, y)), s),
    ),
    "a maximum of a positive part": (
        ops.maximum(x, relu(y)),
        add(relu(y), relu(sub(x, relu(y)))),
    ),
    "the maximum of positive parts": (top(relu(x)), relu(top(x))),
    "the maximum of scaled positive parts": (top(mul(relu(x), exp(r))), mul(relu(top(x)), exp(r))),
    "windows of positive parts": (window(relu(image)), relu(window(image))),
    "windows inside, of positive parts": (window(relu(image), 0), relu(window(image, 0))),
    "the square of a sum": (relu(ops.square(add(x, y))), ops.square(add(x, y))),
    "the square of a product": (
        relu(ops.square(ops.matmul(x, tensor("w", N, K)))),
        ops.square(ops.matmul(x, tensor("w", N, K))),
    ),
    "what is compared": (ops.where(ops.lt(exp(x), 0.0), y, z), z),
}
FALSE = {
    "sums within sums": (inside(square), inside(turned)),
    "products within sums": (
        row(ops.tanh(ops.matmul(square, square))),
        row(ops.tanh(ops.matmul(square, turned))),
    ),
    "parts that overlap": (row(long), add(row(cut(long, 0, N)), row(cut(long, N - 1, N + K)))),
    "parts that are swapped": (row(mul(twice, twice)), add(row(mul(some, some)), row(some))),
    "one part": (row(long), row(cut(long, 0, N))),
    "a maximum of one part": (top(long), top(cut(long, 0, N))),
    "scaled": (soft(mul(x, r)), soft(x)),
    "shifted along the row": (soft(add(x, y)), soft(x)),
    "a sum of exponents": (div(exp(x), row(exp(y))), exp(sub(x, row(y)))),
    "a logarithm of a sum": (log(add(exp(x), exp(y))), add(x, y)),
    "of any number": (exp(log(x)), x),
    "a square of any root": (ops.square(ops.sqrt(x)), x),
    "a root of any product": (ops.sqrt(mul(x, y)), mul(ops.sqrt(x), ops.sqrt(y))),
    "a root with its sign": (ops.sqrt(mul(x, x)), x),
    "a mean of nothing": (
        ops.mean(add(empty, r), (1,), True),
        add(ops.mean(empty, (1,), True), r),
    ),
    "a maximum of other shifts": (top(add(x, y)), add(top(x), y)),
    "a maximum with the other sign": (ops.maximum(x, y), add(x, relu(sub(x, y)))),
    "positive parts of sums": (ops.maximum(add(x, y), z), add(ops.maximum(x, z), y)),
    "the maximum of nothing's positive parts": (top(relu(empty)), relu(top(empty))),
    "positive parts that may all be left out": (
        halves(relu(x), float("-inf")),
        relu(halves(x, float("-inf"))),
    ),
    "the least of positive parts, as the largest": (ops.amin(relu(x), (1,), True), relu(top(x))),
    "a sum of positive parts": (row(relu(x)), relu(row(x))),
    "positive parts of other windows": (
        window(relu(image)),
        relu(window(ops.permute(image, (0, 1, 3, 2)))),
    ),
    "a product of two": (relu(mul(add(x, y), add(x, z))), mul(add(x, y), add(x, z))),
    "positive where it is not": (ops.where(ops.lt(x, 0.0), y, z), z),
    "more than nothing": (ops.where(ops.lt(0.0, row(exp(empty))), r, relu(r)), r),
}


@pytest.mark.parametrize("name", TRUE)
def test_proved(name: str) -> None:
    assert nodes_equal(*TRUE[name], "reals", frozenset("p"))


@pytest.mark.parametrize("name", FALSE)
def test_refused(name: str) -> None:
    assert not nodes_equal(*FALSE[name], "reals", frozenset("p"))


@pytest.mark.parametrize("name", TRUE)
def test_not_bit_for_bit(name: str) -> None:
    if name not in ("what is compared", "a maximum in parts", "sums of functions of sums"):
        assert not nodes_equal(*TRUE[name], "bits")
