"""CTC's loss is captured and differentiated as a scan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tilewright as tw

# Padding is no label; the last target is too long for its steps, so it has no alignment.
TARGETS = torch.tensor([[1, 1, 2], [3, -1, -1], [2, 2, 2]])
STEPS, LABELS = torch.tensor([6, 4, 4]), torch.tensor([3, 1, 3])


def f(logits: Tensor, targets: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
    probs = logits.log_softmax(2)
    return F.ctc_loss(probs, targets, steps, labels, reduction="sum", zero_infinity=True)


def logits() -> Tensor:
    return torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))


def test_loss() -> None:
    torch._dynamo.reset()
    fast = tw.compile(f, strict=True, executor="interpreter")
    given = logits(), TARGETS, STEPS, LABELS
    torch.testing.assert_close(fast(*given), f(*given))


@pytest.mark.slow
def test_gradient() -> None:
    def gradient(g: Any) -> tuple[Tensor, Tensor | None]:
        x = logits().requires_grad_()
        loss = g(x, TARGETS, STEPS, LABELS)
        loss.backward()
        return loss.detach(), x.grad

    torch._dynamo.reset()
    torch.testing.assert_close(gradient(tw.compile(f, strict=True)), gradient(f))
