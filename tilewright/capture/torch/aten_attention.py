"""Scaled dot-product attention, forward and backward."""

from __future__ import annotations

from tilewright import ops
from tilewright.capture.torch.context import Context, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import f64


def _no_dropout(p: float, mask: Node | None = None) -> None:
    if p or mask is not None:
        raise Untranslated("attention with dropout has no native form")


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
    _no_dropout(dropout_p)
    if not _second_is_used(c):
        return ops.attention(q, k, v, attn_mask, is_causal, scale), None
    out, log_total = parts(ops.attention_forward(q, k, v, attn_mask, is_causal, scale))
    want = c.out(1)
    if log_total.shape != want.shape:  # [batch, length, heads] in some versions of torch
        log_total = ops.transpose(log_total, -2, -1)
    return out, cast(log_total, want.dtype)


def _second_is_used(c: Context) -> bool:
    """The logarithm of the softmax's denominator: for the backward pass only."""
    return any(len(u.args) > 1 and u.args[1] == 1 and u.users for u in c.fx.users)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    c: Context,
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    log_total: Node,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Node | None = None,
    scale: float | None = None,
) -> tuple[Node, ...]:
    _no_dropout(dropout_p)
    if q.dtype is f64 and log_total.dtype is not f64:
        # Some versions of torch announce a float32: rounded to that it says too little.
        log_total = parts(ops.attention_forward(q, k, v, attn_mask, is_causal, scale))[1]
    if log_total.shape != q.shape[:-1]:
        log_total = ops.transpose(log_total, -2, -1)
    back = ops.attention_backward(grad, q, k, v, out, log_total, attn_mask, is_causal, scale)
    return tuple(cast(x, like.dtype) for x, like in zip(parts(back), (q, k, v), strict=True))


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
    _no_dropout(dropout_p)
    return ops.attention(q, k, v, attn_mask, is_causal, scale)
