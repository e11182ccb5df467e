"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright import ops
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.types import DType, bf16, f16, f32, i32


@aten("mm.default", "bmm.default", "matmul.default")
def mm(c: Context, a: Node, b: Node) -> Node:
    return _matmul(a, b)


@aten("_int_mm.default")
def int_mm(c: Context, a: Node, b: Node) -> Node:
    return ops.wide_matmul(a, b, i32)


def _matmul(a: Node, b: Node, product: Callable[[Node, Node], Node] = ops.matmul) -> Node:
    """torch's matmul: vectors become a row or a column, and lose the axis again."""
    if a.rank >= 2 and b.rank >= 2:
        return product(a, b)
    left = ops.reshape(a, (1, a.shape[0])) if a.rank == 1 else a
    right = ops.reshape(b, (b.shape[0], 1)) if b.rank == 1 else b
    out = product(left, right)
    shape = list(out.shape)
    if b.rank == 1:
        shape.pop()
    if a.rank == 1:
        shape.pop(-2 if b.rank > 1 else -1)
    return ops.reshape(out, shape)


@aten("mv.default", "dot.default")
def mv(c: Context, a: Node, b: Node) -> Node:
    return _matmul(a, b)


def _combined(c: Context, bias: Node, product: Node, beta: Any, alpha: Any, d: DType) -> Node:
    """beta * bias + alpha * product, rounded once; a beta of 0 ignores the bias, NaN included."""
    wide, out = product.dtype, product
    if alpha != 1:
        out = ops.mul(out, c.node(alpha, wide))
    if beta != 0:
        scaled = cast(bias, wide)
        scaled = scaled if beta == 1 else ops.mul(scaled, c.node(beta, wide))
        out = ops.add(out, scaled)
    return cast(out, d)


def _sums(a: Node, b: Node) -> Node:
    """A product to which something is added: sums of 16-bit floats are not rounded yet."""
    return ops.wide_matmul(a, b, f32) if a.dtype in (f16, bf16) else ops.matmul(a, b)


@aten("addmm.default", "baddbmm.default")
def addmm(c: Context, bias: Node, a: Node, b: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    return _combined(c, bias, _sums(a, b), beta, alpha, a.dtype)


@aten("addmv.default")
def addmv(c: Context, bias: Node, a: Node, b: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    return _combined(c, bias, _matmul(a, b, _sums), beta, alpha, a.dtype)


@aten("addbmm.default")
def addbmm(c: Context, bias: Node, a: Node, b: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    return _combined(c, bias, ops.sum(_sums(a, b), (0,)), beta, alpha, a.dtype)


@aten("_trilinear.default")
def trilinear(
    c: Context,
    i1: Node,
    i2: Node,
    i3: Node,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    sumdim: Any,
    unroll_dim: int = 1,
) -> Node:
    def opened(x: Node, at: Any) -> Node:
        for k in sorted(at):
            x = ops.unsqueeze(x, k)
        return x

    out = ops.mul(ops.mul(opened(i1, expand1), opened(i2, expand2)), opened(i3, expand3))
    return ops.sum(out, tuple(sumdim)) if sumdim else out


@aten("_scaled_mm.default")
def scaled_mm(
    c: Context,
    a: Node,
    b: Node,
    scale_a: Node,
    scale_b: Node,
    bias: Node | None = None,
    scale_result: Node | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Node:
    """Of floats of 8 bits, with one factor for each operand, or one for each row and column."""
    m, n = a.shape[0], b.shape[1]
    factors = []
    for scale, each in ((scale_a, (m, 1)), (scale_b, (1, n))):
        single = D.known_eq(scale.ttype.size, 1)
        if scale.dtype is not f32 or not (single or scale.shape == each):
            raise Untranslated("factors of blocks have no native form")
        factors.append(ops.reshape(scale, (1, 1)) if single else scale)
    if scale_result is not None:
        raise Untranslated("a factor of the result has no native form")
    out = ops.mul(ops.mul(ops.matmul(cast(a, f32), cast(b, f32)), factors[0]), factors[1])
    if bias is not None:
        out = ops.add(out, cast(bias, f32))
    return cast(out, c.out().dtype)
