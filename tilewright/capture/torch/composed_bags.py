"""Gradients of bags of an embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed

_MEAN, _MAX = 1, 2


def _bag_of_each(indices: Tensor, offsets: Tensor, found: Tensor) -> Tensor:
    """The bag of each index, which the forward operator gives for some kinds of bags only."""
    if found.shape[0] == indices.shape[0]:
        return found
    places = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, places, right=True) - 1


@composed("_embedding_bag_dense_backward.default")
def dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if scale_grad_by_freq:  # torch divides by the count of another index than documented
        return NotImplemented
    zeros = grad.new_zeros((num_weights, grad.shape[1]))
    if mode == _MAX:
        kept = torch.where((bag_size > 0).unsqueeze(1), grad, 0.0)
        return zeros.scatter_add(0, maximum_indices.to(torch.int64), kept)
    rows = grad.index_select(0, offset2bag)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if mode == _MEAN:
        rows = rows / bag_size.index_select(0, offset2bag).clamp(min=1).to(grad.dtype).unsqueeze(1)
    if padding_idx >= 0:
        rows = torch.where((indices != padding_idx).unsqueeze(1), rows, 0.0)
    return zeros.index_add(0, indices, rows)


@composed("_embedding_bag_backward.default")
def backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if sparse or scale_grad_by_freq:
        return NotImplemented
    bags = _bag_of_each(indices, offsets, offset2bag)
    rest = num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    return dense_backward(grad, indices, bags, bag_size, maximum_indices, *rest)


@composed("_embedding_bag_per_sample_weights_backward.default")
def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    bags = _bag_of_each(indices, offsets, offset2bag)
    out = (grad.index_select(0, bags) * weight.index_select(0, indices)).sum(1)
    return torch.where(indices != padding_idx, out, 0.0) if padding_idx >= 0 else out
