"""A layer of a transformer's encoder, which torch computes as one operator in inference."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tilewright.capture.torch.composed import composed

_OF_PAIRS, _OF_KEYS = 0, 1  # kinds of masks: [queries, keys], [batch, keys]; else one for each head


def _attended(
    x: Tensor,
    heads: int,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    mask: Tensor | None,
    kind: int | None,
) -> Tensor:
    batch, length, width = x.shape
    qkv_weight, qkv_bias, weight, bias = weights
    qkv = F.linear(x, qkv_weight, qkv_bias).view(batch, length, 3, heads, width // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    allowed = None
    if mask is not None:  # true, or any number but 0, where nothing is to be seen
        shape = {_OF_PAIRS: (1, 1, length, length), _OF_KEYS: (batch, 1, 1, length)}
        kept = mask.to(torch.bool).logical_not()
        allowed = kept if kind not in shape else kept.view(shape[kind])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return F.linear(out.transpose(1, 2).reshape(batch, length, width), weight, bias)


@composed("_transformer_encoder_layer_fwd.default")
def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    if src.dim() != 3 or src.layout is not torch.strided:
        return NotImplemented

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    def attended(x: Tensor) -> Tensor:
        weights = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attended(x, num_heads, weights, mask, mask_type)

    def fed(x: Tensor) -> Tensor:
        inside = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inside) if use_gelu else F.relu(inside), ffn_weight_2, ffn_bias_2)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attended(normed(src, *first))
        return x + fed(normed(x, *second))
    x = normed(src + attended(src), *first)
    return normed(x + fed(x), *second)
