"""Boxes that do not overlap, in torch's own operators."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops import while_loop


def kept(boxes: Tensor, scores: Tensor, classes: Tensor, overlap: float, score: float) -> Tensor:
    """Which boxes (x, y, x, y) are kept, the best first: those with more than `score` that overlap
    no better one of their class, which is kept, by more than `overlap` of both."""
    order = scores.argsort(descending=True, stable=True)
    b, c = boxes[order], classes[order]
    low, high = b[:, :2], b[:, 2:]
    shared = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0)
    area, both = (high - low).prod(1), shared.prod(2)
    close = (both > overlap * (area[:, None] + area - both)) & (c[:, None] == c)
    places = torch.arange(len(b))
    later = close & (places > places[:, None])

    def more(at: Tensor, left: Tensor) -> Tensor:
        return at < len(left)

    def round(at: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        row = later.index_select(0, at.reshape(1))[0]
        mine = left.index_select(0, at.reshape(1))
        return at + 1, left & ~(row & mine)

    start = torch.zeros((), dtype=torch.int64), scores[order] > score
    _, left = while_loop(more, round, start)
    return order[left.nonzero()[:, 0]]
