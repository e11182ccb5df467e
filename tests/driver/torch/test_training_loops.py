"""What belongs to a training loop besides the model: autocast, scaled losses, accumulation,
checkpoints, compiled autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

import tilewright as tw

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def model(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)
    return nn.Sequential(*layers).to(dtype)


def judge(ours: nn.Module, loss: Loss, dtype: torch.dtype = torch.float32, calls: int = 1) -> None:
    """Gradients against float64: the error is at most twice eager's and four units in the last
    place."""
    eager, exact = model(), model(torch.float64)
    for _ in range(calls):
        loss(eager, X).backward()
        loss(exact, X.double()).backward()
    for p, q, r in zip(*(m.parameters() for m in (ours, eager, exact)), strict=True):
        assert p.grad is not None and q.grad is not None and r.grad is not None
        error, own = ((g.double() - r.grad).abs().max().item() for g in (p.grad, q.grad))
        assert error <= 2 * own + 4 * torch.finfo(dtype).eps * r.grad.abs().max().item()


def plain(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return m(x).square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, inside: bool) -> None:
    def loss(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=x.dtype is torch.float32):
            y = m(x)
        return y.to(x.dtype).square().mean()

    ours = model()
    if inside:
        tw.compile(loss, strict=True)(ours, X).backward()
    else:
        loss(tw.compile(ours, strict=True), X).backward()
    judge(ours, loss, dtype)


@pytest.mark.slow
def test_a_scaled_loss() -> None:
    scales, every = [], []
    for compiled in (True, False):
        m = model()
        call = tw.compile(m, strict=True) if compiled else m
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = call(X).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
        every.append([p.detach() for p in m.parameters()])
    assert scales[0] == scales[1]
    for p, q in zip(*every, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_accumulated_gradients_stay_where_they_are() -> None:
    ours = model()
    fast = tw.compile(ours, strict=True)
    fast(X).square().mean().backward()
    places = [p.grad.data_ptr() for p in ours.parameters()]
    for _ in range(2):
        fast(X).square().mean().backward()
    assert places == [p.grad.data_ptr() for p in ours.parameters()]
    judge(ours, plain, calls=3)


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    def loss(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m[3](checkpoint(m[:3], x, use_reentrant=reentrant)).square().mean()

    ours = model()
    fast = tw.compile(loss, strict=True)
    fast(ours, X.clone().requires_grad_()).backward()
    eager = lambda m, x: loss(m, x.clone().requires_grad_())  # noqa: E731
    judge(ours, eager)


@pytest.mark.slow
def test_compiled_autograd() -> None:
    ours = model()
    fast = tw.compile(ours)
    with compiled_autograd._enable(torch.compile(backend="tilewright")):
        fast(X).square().mean().backward()
    judge(ours, plain)


@pytest.mark.slow
def test_compiled_autograd_of_a_whole_step() -> None:
    def step(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = m(x).square().mean()
        loss.backward()
        return loss

    ours = model()
    with torch._dynamo.config.patch(compiled_autograd=True):
        tw.compile(step)(ours, X)
    judge(ours, plain)
