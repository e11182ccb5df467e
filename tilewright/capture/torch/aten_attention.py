"""Scaled dot-product attention, forward and backward."""

from __future__ import annotations

import torch

from tilewright import ops
from tilewright.capture.torch.context import Context, cast, parts
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.dim import Dim
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
    if not _is_used(c, 1):
        return ops.attention(q, k, v, attn_mask, is_causal, scale), None
    out, log_total = parts(ops.attention_forward(q, k, v, attn_mask, is_causal, scale))
    want = c.out(1)
    if log_total.shape != want.shape:  # [batch, length, heads] in some versions of torch
        log_total = ops.transpose(log_total, -2, -1)
    return out, cast(log_total, want.dtype)


def _is_used(c: Context, k: int) -> bool:
    """Is the k-th result? The second, the logarithm of the softmax's denominator, is for the
    backward pass only."""
    return any(len(u.args) > 1 and u.args[1] == k and u.users for u in c.fx.users)


# ---- a GPU's: torch has three, which compute the same


@aten("_scaled_dot_product_flash_attention.default")
def gpu_flash_attention(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    return _on_gpu(c, q, k, v, None, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_efficient_attention.default")
def efficient_attention(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    attn_bias: Node | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    return _on_gpu(c, q, k, v, attn_bias, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_cudnn_attention.default")
def cudnn_attention(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    attn_bias: Node | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    return _on_gpu(c, q, k, v, attn_bias, dropout_p, is_causal, scale)


def _on_gpu(
    c: Context,
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> tuple[object, ...]:
    """Attention, the logarithm of the denominator where it is used, and what dropout would need."""
    _no_dropout(dropout_p)
    log_total: Node | None = None
    if _is_used(c, 1):
        out, found = parts(ops.attention_forward(q, k, v, mask, causal, scale))
        log_total = _padded(cast(found, c.out(1).dtype), c.out(1).shape)
    else:
        out = ops.attention(q, k, v, mask, causal, scale)
    rest = (_unimportant(c, j) for j in range(2, len(c.val)))
    return out, log_total, *rest


def _padded(x: Node, shape: tuple[Dim, ...]) -> Node:
    """With the shape that torch announces: rows are rounded up by some kernels, and cuDNN's have an
    axis of one more."""
    if len(shape) == x.rank + 1:
        return ops.reshape(x, (*x.shape, 1))
    more = tuple(b - a for a, b in zip(x.shape, shape, strict=True))
    return ops.pad(x, (0,) * x.rank, more)


def _unimportant(c: Context, k: int) -> object:
    """A result that only says how random numbers were drawn: there were none."""
    v = c.val[k]
    if not isinstance(v, torch.Tensor):
        return c.shapes.dim(v) if isinstance(v, (int, torch.SymInt)) else v
    if not _is_used(c, k):
        return None
    t = c.out(k)
    return ops.full(t.shape, 0, t.dtype)


@aten("_scaled_dot_product_flash_attention_backward.default")
def gpu_flash_attention_backward(
    c: Context,
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    log_total: Node,
    cum_seq_q: object,
    cum_seq_k: object,
    max_q: object,
    max_k: object,
    dropout_p: float,
    is_causal: bool,
    philox_seed: object,
    philox_offset: object,
    *,
    scale: float | None = None,
) -> tuple[Node, ...]:
    return _gradients(grad, q, k, v, out, log_total, None, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_efficient_attention_backward.default")
def efficient_attention_backward(
    c: Context,
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    attn_bias: Node | None,
    out: Node,
    log_total: Node,
    philox_seed: object,
    philox_offset: object,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Node | None, ...]:
    if grad_input_mask[3]:
        raise Untranslated("the gradient of attention's mask has no native form")
    return *_gradients(grad, q, k, v, out, log_total, attn_bias, dropout_p, is_causal, scale), None


@aten("_scaled_dot_product_cudnn_attention_backward.default")
def cudnn_attention_backward(
    c: Context,
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    log_total: Node,
    philox_seed: object,
    philox_offset: object,
    attn_bias: Node | None,
    cum_seq_q: object,
    cum_seq_k: object,
    max_q: object,
    max_k: object,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Node, ...]:
    return _gradients(grad, q, k, v, out, log_total, attn_bias, dropout_p, is_causal, scale)


def _gradients(
    grad: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    log_total: Node,
    mask: Node | None,
    dropout_p: float,
    causal: bool,
    scale: float | None,
) -> tuple[Node, ...]:
    _no_dropout(dropout_p)
    if log_total.rank == q.rank:  # cuDNN's
        log_total = ops.reshape(log_total, log_total.shape[:-1])
    log_total = ops.slice(log_total, -1, 0, q.shape[-2])
    back = ops.attention_backward(grad, q, k, v, out, log_total, mask, causal, scale)
    return tuple(cast(x, like.dtype) for x, like in zip(parts(back), (q, k, v), strict=True))


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
