"""Orthogonal polynomials of a degree that is data, by the recurrence of three terms."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import ops
from tilewright.capture.torch.aten_special import double
from tilewright.capture.torch.context import Context, Operand, cast, parts
from tilewright.capture.torch.registry import aten
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.types import TensorType, f64

# The next polynomial of: its number less one (k), x, the two before it (of k - 1 and of k).
Next = Callable[[Node, Node, Node, Node], Node]


def _hermite(k: Node, x: Node, p: Node, q: Node) -> Node:
    return ops.mul(double(2), ops.sub(ops.mul(x, q), ops.mul(k, p)))


def _hermite_e(k: Node, x: Node, p: Node, q: Node) -> Node:
    return ops.sub(ops.mul(x, q), ops.mul(k, p))


def _laguerre(k: Node, x: Node, p: Node, q: Node) -> Node:
    factor = ops.sub(ops.add(ops.add(k, k), double(1)), x)
    return ops.div(ops.sub(ops.mul(factor, q), ops.mul(k, p)), ops.add(k, double(1)))


def _legendre(k: Node, x: Node, p: Node, q: Node) -> Node:
    factor = ops.mul(ops.add(ops.add(k, k), double(1)), x)
    return ops.div(ops.sub(ops.mul(factor, q), ops.mul(k, p)), ops.add(k, double(1)))


def _polynomial(c: Context, x: Operand, n: Operand, first: Node | None, following: Next) -> Node:
    """The n-th, from 1 and `first`. As many rounds as the largest degree asks for."""
    shape = c.out().shape
    x, n = (ops.expand(c.node(v, f64), shape) for v in (x, ops.trunc(c.node(n, f64))))
    one, zero = double(1), double(0)
    start = x if first is None else ops.expand(first, shape)
    if any(D.known_eq(d, 0) for d in shape):
        return cast(start, c.out().dtype)
    many, number = TensorType(f64, shape), TensorType(f64, ())
    names = {"k": number, "p": many, "q": many, "x": many, "n": many, "most": number}
    k, p, q, at, degree, most = inputs = tuple(input(a, t) for a, t in names.items())
    more = Graph("condition", inputs, (ops.lt(k, most),))
    below = ops.lt(k, degree)
    new = (ops.where(below, q, p), ops.where(below, following(k, at, p, q), q))
    body = Graph("body", inputs, (ops.add(k, one), *new))
    carried = one, ops.expand(one, shape), start
    largest = ops.amax(n, tuple(range(len(shape))))
    _, _, out = parts(ops.while_loop(more, body, carried, (x, n, largest)))
    out = ops.where(ops.eq(n, zero), one, ops.where(ops.lt(n, zero), zero, out))
    return cast(out, c.out().dtype)


def _limited(c: Context, n: Operand, out: Node) -> Node:
    """Beyond some degree eager gives none: values would be too large for the dtype."""
    limit = double(512 if out.dtype is f64 else 128)
    beyond = ops.gt(ops.trunc(c.node(n, f64)), limit)
    return ops.where(beyond, ops.full((), math.nan, out.dtype), out)


@aten("special_hermite_polynomial_h")
def hermite_h(c: Context, x: Operand, n: Operand) -> Node:
    first = ops.mul(double(2), c.node(x, f64))
    return _limited(c, n, _polynomial(c, x, n, first, _hermite))


@aten("special_hermite_polynomial_he")
def hermite_he(c: Context, x: Operand, n: Operand) -> Node:
    return _limited(c, n, _polynomial(c, x, n, None, _hermite_e))


@aten("special_laguerre_polynomial_l")
def laguerre(c: Context, x: Operand, n: Operand) -> Node:
    return _polynomial(c, x, n, ops.sub(double(1), c.node(x, f64)), _laguerre)


@aten("special_legendre_polynomial_p")
def legendre(c: Context, x: Operand, n: Operand) -> Node:
    return _polynomial(c, x, n, None, _legendre)
