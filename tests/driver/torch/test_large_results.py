"""What is kept for gradients, and gradients, have the memory of the last step's."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.base import knobs
from tilewright.runtime.room import LEAST, Piece

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such memory is reserved on Linux")
CASES = (torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float32, 1e-9)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each piece of memory."""
    found: list[int] = []
    monkeypatch.setattr(Piece, "__array_finalize__", lambda self, _: found.append(1))
    return found


@pytest.mark.parametrize("dtype, chance", CASES, ids=str)
def test_steps_share_memory_and_what_is_held_stays(
    dtype: torch.dtype, chance: float, made: list[int]
) -> None:
    """By a plain call, and by one that draws a seed first."""
    torch._dynamo.reset()
    first, last = nn.Linear(256, 512), nn.Linear(512, 256)
    net = nn.Sequential(first, nn.GELU(), nn.Dropout(chance), last).to(dtype)
    x = torch.randn(128, 256, dtype=dtype)
    weight = first.weight

    def loss(x: torch.Tensor) -> torch.Tensor:
        return net(x).float().square().mean()

    fast = tw.compile(loss)
    loss(x).backward()
    right = _gradient(weight)
    assert right.nbytes >= LEAST
    found = []
    for _ in range(3):
        net.zero_grad(set_to_none=True)
        fast(x).backward()
        found.append(_gradient(weight).data_ptr())
        torch.testing.assert_close(weight.grad, right, rtol=2e-2, atol=1e-4)
    assert found[1] == found[2] and len(made) >= 9
    held = _gradient(weight)
    copied = held.clone()
    net.zero_grad(set_to_none=True)
    fast(2 * x).backward()
    assert _gradient(weight).data_ptr() != held.data_ptr()
    assert torch.equal(held, copied)
    weight.grad = None
    graph = fast(x)
    graph.backward(retain_graph=True)
    graph.backward()
    torch.testing.assert_close(weight.grad, 2 * right, rtol=2e-2, atol=2e-4)


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def test_without_pages_that_stay(made: list[int]) -> None:
    for keep in (True, False):
        torch._dynamo.reset()
        net, x = nn.Linear(256, 256), torch.randn(16, 256)
        made.clear()
        with knobs.keep_pages.override(keep):
            tw.compile(lambda x, net=net: net(x).square().sum())(x).backward()
        assert bool(made) is keep
