"""What is kept for gradients, and gradients, have the memory of the last step's."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.seeds import every_run
from tilewright.base import knobs
from tilewright.driver.api import history_of
from tilewright.runtime.arenas import ARENAS, SHARED
from tilewright.runtime.room import LEAST, Piece

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such memory is reserved on Linux")
CASES = (torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float32, 1e-9)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each piece of memory."""
    found: list[int] = []
    monkeypatch.setattr(Piece, "__array_finalize__", lambda self, _: found.append(1))
    return found


@every_run(0, 2)
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


def test_large_arenas_lie_beside_results_where_pages_stay() -> None:
    for keep in (True, False):
        torch._dynamo.reset()
        ARENAS.trim()
        net = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024))
        x = torch.randn(256, 1024)
        net(x).square().mean().backward()
        right = {n: _gradient(p).clone() for n, p in net.named_parameters()}
        with knobs.keep_pages.override(keep):
            fast = tw.compile(lambda x, net=net: net(x).square().mean())
            for _ in range(2):
                net.zero_grad(set_to_none=True)
                fast(x).backward()
        (sessions, *_), largest = history_of(fast), 0
        for p in (p for s in sessions for u in s.units for p in u.programs):
            largest = max(largest, p.arena_size())
            assert (p.room is not None) == keep
        assert largest >= SHARED
        assert (ARENAS.held == 0) == keep
        for n, p in net.named_parameters():
            torch.testing.assert_close(p.grad, right[n], rtol=2e-2, atol=1e-5)
