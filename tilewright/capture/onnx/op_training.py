"""Steps of optimisers, of the domain ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright import ops
from tilewright.capture.onnx.context import Context, translation
from tilewright.ir.node import Node
from tilewright.ir.types import f32, f64

DOMAIN = "ai.onnx.preview.training"
step = partial(translation, domain=DOMAIN)


def _each(
    c: Context, tensors: tuple[Node, ...], lists: int, one: Callable[..., tuple[Node, ...]]
) -> tuple[Node, ...]:
    """Lists of tensors lie behind each other; results do too."""
    count = len(tensors) // lists
    rows = [one(*(tensors[k * count + i] for k in range(lists))) for i in range(count)]
    return tuple(row[k] for k in range(lists - 1) for row in rows)


def _decayed(x: Node, gradient: Node, factor: float) -> Node:
    return ops.add(gradient, ops.mul(x, ops.number(factor, x.dtype))) if factor else gradient


@step("Momentum")
def momentum(c: Context, rate: Node, count: Node, *tensors: Node) -> tuple[Node, ...]:
    alpha, beta, decay = c.get("alpha", 0.0), c.get("beta", 0.0), c.get("norm_coefficient", 0.0)
    nesterov = c.get("mode", "standard") == "nesterov"
    first = ops.eq(count, ops.number(0, count.dtype))

    def one(x: Node, gradient: Node, velocity: Node) -> tuple[Node, ...]:
        g, dtype = _decayed(x, gradient, decay), x.dtype
        share = ops.where(first, ops.number(1.0, dtype), ops.number(beta, dtype))
        v = ops.add(ops.mul(velocity, ops.number(alpha, dtype)), ops.mul(g, share))
        move = ops.add(g, ops.mul(v, ops.number(alpha, dtype))) if nesterov else v
        return ops.sub(x, ops.mul(move, ops.cast(rate, dtype))), v

    return _each(c, tensors, 3, one)


@step("Adagrad")
def adagrad(c: Context, rate: Node, count: Node, *tensors: Node) -> tuple[Node, ...]:
    decay, eps = c.get("norm_coefficient", 0.0), c.get("epsilon", 1e-6)
    slower = ops.mul(ops.cast(count, f32), ops.number(c.get("decay_factor", 0.0), f32))
    r = ops.div(ops.cast(rate, f32), ops.add(slower, ops.number(1, f32)))

    def one(x: Node, gradient: Node, squares: Node) -> tuple[Node, ...]:
        g = _decayed(x, gradient, decay)
        h = ops.add(squares, ops.square(g))
        root = ops.add(ops.sqrt(h), ops.number(eps, x.dtype))
        return ops.sub(x, ops.div(ops.mul(ops.cast(r, x.dtype), g), root)), h

    return _each(c, tensors, 3, one)


@step("Adam")
def adam(c: Context, rate: Node, count: Node, *tensors: Node) -> tuple[Node, ...]:
    alpha, beta, eps = c.get("alpha", 0.9), c.get("beta", 0.999), c.get("epsilon", 1e-6)
    before, after = c.get("norm_coefficient", 0.0), c.get("norm_coefficient_post", 0.0)
    times, one64 = ops.cast(count, f64), ops.number(1, f64)

    def left(base: float) -> Node:
        return ops.sub(one64, ops.pow(ops.number(base, f64), times))

    corrected = ops.div(ops.mul(ops.cast(rate, f64), ops.sqrt(left(beta))), left(alpha))
    r = ops.where(ops.gt(times, ops.number(0, f64)), corrected, ops.cast(rate, f64))

    def one(x: Node, gradient: Node, v: Node, h: Node) -> tuple[Node, ...]:
        g, d = _decayed(x, gradient, before), x.dtype
        v = ops.add(ops.mul(v, ops.number(alpha, d)), ops.mul(g, ops.number(1 - alpha, d)))
        h = ops.add(
            ops.mul(h, ops.number(beta, d)), ops.mul(ops.square(g), ops.number(1 - beta, d))
        )
        root = ops.add(ops.sqrt(h), ops.number(eps, d))
        new = ops.sub(x, ops.div(ops.mul(ops.cast(r, d), v), root))
        return ops.mul(new, ops.number(1 - after, d)) if after else new, v, h

    return _each(c, tensors, 4, one)
