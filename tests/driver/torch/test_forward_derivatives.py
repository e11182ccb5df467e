"""Derivatives taken forward inside of what is compiled, with gradients of them."""

from __future__ import annotations

import copy

import torch
import torch._dynamo
from torch import Tensor, nn


class Curvature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        second = torch.func.vmap(torch.func.hessian(lambda p: self.net(p).squeeze(-1)))(x)
        return second.diagonal(dim1=-2, dim2=-1).sum(-1).square().mean()


def test_a_zero_that_a_second_derivative_keeps_for_a_gradient() -> None:
    """In eager it has no memory."""
    torch._dynamo.reset()
    net, x = Curvature(), torch.rand(5, 2)
    wide = copy.deepcopy(net).double()
    fast = torch.compile(net, backend="tilewright", fullgraph=True)
    found = torch.autograd.grad(fast(x), list(net.parameters()))
    wanted = torch.autograd.grad(wide(x.double()), list(wide.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)
