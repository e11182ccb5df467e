"""Operators that eager computes in several steps and rounds after each, in 16 bits too.

Torch's decompositions of most of them go through float32, which gives other results there. In
wider floats the two are the same.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, Operand, axes_of, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import bf16, f16, f32

HALVES = (f16, bf16)


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlogy.default")
def xlogy(c: Context, x: Operand, y: Operand) -> Node:
    def product(a: Node, b: Node) -> Node:
        zero = c.number(0, a.dtype)
        out = ops.where(ops.eq(a, zero), zero, ops.mul(a, ops.log(b)))
        return ops.where(ops.isnan(b), c.number(math.nan, a.dtype), out)

    return c.compute(product, x, y, to_float=True)


@aten("special_entr.default")
def entropy(c: Context, x: Node) -> Node:
    def each(v: Node) -> Node:
        zero = c.number(0, v.dtype)
        inside = ops.mul(ops.neg(v), ops.log(v))
        rest = ops.where(ops.eq(v, zero), zero, c.number(-math.inf, v.dtype))
        return ops.where(ops.isnan(v), v, ops.where(ops.gt(v, zero), inside, rest))

    return c.compute(each, x, to_float=True)


@aten("logit.default")
def logit(c: Context, x: Node, eps: float | None = None) -> Node:
    def each(v: Node) -> Node:
        one = c.number(1, v.dtype)
        if eps is not None:
            low, high = c.number(eps, v.dtype), c.number(1 - eps, v.dtype)
            v = ops.where(ops.lt(v, low), low, ops.where(ops.gt(v, high), high, v))
        return ops.log(ops.div(v, ops.sub(one, v)))

    return c.compute(each, x, to_float=True)


@aten("logsumexp.default")
def logsumexp(c: Context, x: Node, dim: Any, keepdim: bool = False) -> Node:
    x = cast(x, c.out().dtype)
    if x.rank == 0:
        return x
    axes = axes_of(dim, x.rank)
    if x.dtype not in HALVES:
        return ops.logsumexp(x, axes, keepdim)
    top = ops.amax(x, axes, True)
    top = ops.where(ops.isinf(top), c.number(0, x.dtype), top)
    out = ops.log(ops.sum(ops.exp(ops.sub(x, top)), axes, keepdim))
    return ops.add(out, ops.reshape(top, out.shape))


def log_softmax_last(x: Node) -> Node:
    """Along the last axis: eager rounds the sum and its logarithm to 16 bits."""
    last = (x.rank - 1,)
    v = ops.cast(x, f32)
    centred = ops.sub(v, ops.amax(v, last, True))
    total = ops.log(ops.cast(ops.sum(ops.exp(centred), last, True), x.dtype))
    return ops.cast(ops.sub(centred, ops.cast(total, f32)), x.dtype)


# ---- losses


def _reduced(x: Node, reduction: int) -> Node:
    """0: as it is, 1: the mean, 2: the sum."""
    every = tuple(range(x.rank))
    return x if reduction == 0 else (ops.mean if reduction == 1 else ops.sum)(x, every, False)


@aten("mse_loss.default")
def mse_loss(c: Context, x: Node, y: Node, reduction: int = 1) -> Node:
    def squared(a: Node, b: Node) -> Node:
        difference = ops.sub(a, b)
        return ops.mul(difference, difference)

    return _reduced(c.compute(squared, x, y), reduction)


@aten("binary_cross_entropy.default")
def binary_cross_entropy(
    c: Context, x: Node, y: Node, weight: Node | None = None, reduction: int = 1
) -> Node:
    d = x.dtype
    if y.dtype is not d or (weight is not None and weight.dtype is not d):
        raise Untranslated("its operands differ in dtype")
    least, one = c.number(-100, d), c.number(1, d)
    fine = ops.logical_and(ops.ge(x, c.number(0, d)), ops.le(x, one))  # not so of a NaN
    words = "all elements of input should be between 0 and 1"
    c.checks.never(ops.logical_not(fine), words)
    off = ops.maximum(ops.log1p(ops.neg(x)), least)
    on = ops.maximum(ops.log(x), least)
    out = ops.sub(ops.mul(ops.sub(y, one), off), ops.mul(y, on))
    return _reduced(out if weight is None else ops.mul(out, weight), reduction)


# ---- sums of products


def _is_one(x: Any) -> bool:
    return isinstance(x, (int, float)) and x == 1


@aten("addcdiv.default")
def addcdiv(c: Context, x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    """x + value * a / b; of 16-bit floats in float32, as eager's kernel does."""
    d = c.promote(x, a, b)[1]
    if not d.is_float:
        raise Untranslated("integers are divided as floats by eager only")
    wide = f32 if d in HALVES else d
    top = cast(a, wide) if _is_one(value) else ops.mul(c.node(value, wide), cast(a, wide))
    return cast(ops.add(cast(x, wide), ops.div(top, cast(b, wide))), d)


@aten("addr.default")
def addr(c: Context, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node:
    d = c.out().dtype
    if d.is_bool:
        raise Untranslated("addr of bools runs in eager")
    column, row = ops.reshape(cast(a, d), (a.shape[0], 1)), cast(b, d)
    scaled = column if _is_one(alpha) else ops.mul(column, c.node(alpha, d))
    out = ops.mul(scaled, row)
    if isinstance(beta, (int, float)) and beta == 0:
        return out
    return ops.add(cast(x, d) if _is_one(beta) else ops.mul(cast(x, d), c.node(beta, d)), out)
