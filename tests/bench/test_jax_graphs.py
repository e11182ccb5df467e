"""Graphs in JAX's terms, computed by numpy in its place: JAX itself is optional."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

from tilewright.bench.catalog import GPU_MODELS
from tilewright.bench.jax_graphs import Unspelled, captured, function_of


def by_torch(f: Any) -> Any:
    """A function of torch's on numpy's arrays."""
    return lambda x, *more, **named: f(torch.from_numpy(np.asarray(x)), *more, **named).numpy()


def convolution(x: Any, w: Any, stride: Any, padding: Any, **more: Any) -> Any:
    sides = [p for p, _ in padding]
    groups, dilation = more["feature_group_count"], more["rhs_dilation"]
    tensors = (torch.from_numpy(np.asarray(v)) for v in (x, w))
    return F.conv2d(*tensors, None, stride, sides, dilation, groups).numpy()


def windows(x: Any, first: float, f: Any, size: Any, steps: Any, room: Any) -> Any:
    assert f is LAX.max and first == -np.inf
    return by_torch(F.max_pool2d)(x, size[2:], steps[2:], [p for p, _ in room[2:]])


LAX = SimpleNamespace(
    erf=by_torch(torch.erf),
    rsqrt=by_torch(torch.rsqrt),
    max=np.maximum,
    conv_general_dilated=convolution,
    reduce_window=windows,
)
NN = SimpleNamespace(
    sigmoid=by_torch(torch.sigmoid),
    softmax=by_torch(torch.softmax),
    log_softmax=by_torch(torch.log_softmax),
    gelu=lambda x, approximate: by_torch(F.gelu)(x, approximate="tanh" if approximate else "none"),
)
STAND_IN = SimpleNamespace(numpy=np, lax=LAX, nn=NN)


class Net(nn.Module):
    """Convolutions, norms, pools, a table, attention and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8)
        self.pool, self.table = nn.MaxPool2d(3, 2, 1), nn.Embedding(17, 8)
        self.heads, self.last = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, image: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.pool(F.relu(self.norm(self.first(image)))).flatten(2).transpose(1, 2)
        x = x + self.table(at).unsqueeze(1)
        q, k, v = self.heads(x).view(2, 9, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(9, 9, dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(2, 9, 8)
        y = self.last(x + F.gelu(y) + F.silu(y) * torch.arange(8)[None].float().cos())
        return y.mean((1, 2)), torch.cat([y, x], -1).log_softmax(-1)[:, 1:3], y.var(-1)


def compare(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        graph, given = captured(module, inputs)
        found = function_of(STAND_IN, graph)(*(x.detach().numpy() for x in given))
        want = module(*inputs)
    want = [want] if isinstance(want, torch.Tensor) else want
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y.numpy(), rtol=2e-4, atol=2e-5)


def test_a_graph_computes_the_same() -> None:
    torch.manual_seed(0)
    compare(Net().eval(), (torch.randn(2, 3, 11, 11), torch.tensor([3, 16])))


def test_what_is_not_spelled_has_a_name() -> None:
    graph, given = captured(nn.ConvTranspose2d(2, 2, 3), (torch.randn(1, 2, 4, 4),))
    with pytest.raises(Unspelled, match="transposed"):
        function_of(STAND_IN, graph)(*(x.detach().numpy() for x in given))

    class Products(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumprod(0)

    graph, _ = captured(Products(), (torch.randn(3),))
    with pytest.raises(Unspelled, match=r"aten\.cumprod\.default is not spelled in JAX"):
        function_of(STAND_IN, graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", GPU_MODELS)
def test_models_compute_the_same(name: str) -> None:
    from tilewright.bench.models import build

    torch._dynamo.reset()
    example = build(name, tiny=True)
    compare(example.module, example.inputs)
