"""Scaled dot-product attention, forward and backward."""

from __future__ import annotations

import math
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import bf16, f16, f32, i64


def _scale(q: Node, scale: float | None) -> float:
    if scale is not None:
        return float(scale)
    width = q.shape[-1]
    if not isinstance(width, int):
        raise Untranslated("the width of the heads is not known")
    return 1.0 / math.sqrt(width) if width else 1.0


def _grouped(x: Node, heads: Any) -> Node:
    """Keys or values repeated so that every query head has its own."""
    have = x.shape[-3]
    if have == heads:
        return x
    times = heads // have
    lead = x.shape[:-3]
    opened = ops.reshape(x, (*lead, have, 1, *x.shape[-2:]))
    wide = ops.expand(opened, (*lead, have, times, *x.shape[-2:]))
    return ops.reshape(wide, (*lead, heads, *x.shape[-2:]))


def _scores(c: Context, q: Node, k: Node, mask: Node | None, causal: bool, scale: float) -> Node:
    """Scaled and masked products, in float32 for 16-bit operands."""
    wide = f32 if q.dtype in (f16, bf16) else q.dtype
    s = ops.matmul(cast(q, wide), ops.transpose(cast(k, wide), -2, -1))
    s = ops.mul(s, c.number(scale, wide))
    low = c.number(float("-inf"), wide)
    if causal:
        rows = ops.reshape(ops.iota(q.shape[-2], 0, 1, i64), (q.shape[-2], 1))
        cols = ops.reshape(ops.iota(k.shape[-2], 0, 1, i64), (1, k.shape[-2]))
        s = ops.where(ops.ge(rows, cols), s, low)
    if mask is not None:
        s = ops.where(mask, s, low) if mask.dtype.is_bool else ops.add(s, cast(mask, wide))
    return s


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Node | None = None,
    scale: float | None = None,
) -> tuple[Node, Node | None]:
    if dropout_p:
        raise Untranslated("attention with dropout has no native form")
    s = _scale(q, scale)
    out = ops.attention(q, k, v, attn_mask, is_causal, s)
    # The logarithm of the softmax's denominator is for the backward pass only.
    return out, _log_denominator(c, q, k, attn_mask, is_causal, s) if _second_is_used(c) else None


def _second_is_used(c: Context) -> bool:
    return any(
        str(u.target).endswith("getitem>") and u.args[1] == 1 and u.users for u in c.fx.users
    )


def _log_denominator(
    c: Context, q: Node, k: Node, mask: Node | None, causal: bool, scale: float
) -> Node:
    s = _scores(c, q, _grouped(k, q.shape[-3]), mask, causal, scale)
    want = c.out(1)
    lse = ops.logsumexp(s, (s.rank - 1,), False)
    if lse.shape != want.shape:  # torch keeps it as [batch, length, heads] in some versions
        lse = ops.transpose(lse, -2, -1)
    return cast(lse, want.dtype)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    c: Context,
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    logsumexp: Node,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Node | None = None,
    scale: float | None = None,
) -> tuple[Node, Node, Node]:
    if dropout_p:
        raise Untranslated("attention with dropout has no native form")
    factor = _scale(q, scale)
    heads = q.shape[-3]
    k_all, v_all = _grouped(k, heads), _grouped(v, heads)
    s = _scores(c, q, k_all, attn_mask, is_causal, factor)
    d = s.dtype
    p = ops.softmax(s, s.rank - 1)
    g, o = cast(grad, d), cast(out, d)
    dv = ops.matmul(ops.transpose(p, -2, -1), g)
    dp = ops.matmul(g, ops.transpose(cast(v_all, d), -2, -1))
    along = ops.sum(ops.mul(g, o), (g.rank - 1,), True)
    ds = ops.mul(ops.mul(p, ops.sub(dp, along)), c.number(factor, d))
    dq = ops.matmul(ds, cast(k_all, d))
    dk = ops.matmul(ops.transpose(ds, -2, -1), cast(q, d))
    return cast(dq, q.dtype), _ungrouped(cast(dk, k.dtype), k), _ungrouped(cast(dv, v.dtype), v)


def _ungrouped(x: Node, like: Node) -> Node:
    """Gradients of shared keys or values add up over the query heads that read them."""
    have, heads = like.shape[-3], x.shape[-3]
    if have == heads:
        return x
    lead = x.shape[:-3]
    split = ops.reshape(x, (*lead, have, heads // have, *x.shape[-2:]))
    return ops.sum(split, (len(lead) + 1,), False)


@aten("_scaled_dot_product_attention_math.default", "_scaled_dot_product_attention_math_for_mps")
def math_attention(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Node | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Node, Node]:
    if dropout_p or dropout_mask is not None:
        raise Untranslated("attention with dropout has no native form")
    s = _scores(c, q, _grouped(k, q.shape[-3]), attn_mask, is_causal, _scale(q, scale))
    p = cast(ops.softmax(s, s.rank - 1), q.dtype)
    return ops.matmul(p, _grouped(v, q.shape[-3])), p


@aten("scaled_dot_product_attention.default")
def attention(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    if dropout_p:
        raise Untranslated("attention with dropout has no native form")
    return ops.attention(q, k, v, attn_mask, is_causal, _scale(q, scale))
