"""Gradients of norms where exact results cancel."""

from __future__ import annotations

import torch
from torch import nn

import tilewright as tw


def test_gradients_of_two_opposite_rows_are_opposite() -> None:
    """As behind a rectifier that one of two rows passes: sums over both are 0, not nearly."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64, eps=1.0)
    half = torch.randn(1, 64, 1, 1)
    x = torch.cat((half, -half)).requires_grad_()
    grad = torch.cat((torch.randn(1, 64, 1, 1), torch.zeros(1, 64, 1, 1)))
    tw.compile(norm)(x).backward(grad)
    assert x.grad is not None and x.grad.abs().max() > 0
    assert torch.equal(x.grad[0], -x.grad[1])
