"""CTC's loss is captured and differentiated as a scan."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

import tilewright as tw


def test_loss_and_gradient() -> None:
    """Padding is no label; a target that is too long for its steps has no alignment."""

    def f(logits: Tensor, targets: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        probs = logits.log_softmax(2)
        return F.ctc_loss(probs, targets, steps, labels, reduction="sum", zero_infinity=True)

    torch.manual_seed(0)
    torch._dynamo.reset()
    targets = torch.tensor([[1, 1, 2], [3, -1, -1], [2, 2, 2]])
    steps, labels = torch.tensor([6, 4, 4]), torch.tensor([3, 1, 3])
    found = []
    for g in (f, tw.compile(f, strict=True)):
        x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        loss = g(x, targets, steps, labels)
        loss.backward()
        assert x.grad is not None
        found.append((loss.detach(), x.grad))
    torch.testing.assert_close(found[1], found[0])
