"""Loops take the way of a GPU on the stand-in of tests/gpu/fake.py."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.gpu.fake import FakeLibrary, on_fake_gpu
from tilewright.runtime.cuda.machine import Machine

Gpu = tuple[FakeLibrary, Machine]


def test_rounds_of_a_known_number_are_part_of_one_graph(gpu: Gpu) -> None:
    """Slices of 12 bytes are padded: kernels expect aligned memory."""
    library, machine = gpu
    w = torch.randn(3, 3)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(lambda c, s: (torch.tanh(c @ w + s), c * s), torch.ones(3), x, dim=0)

    with torch.no_grad():
        fast = on_fake_gpu(f, machine, strict=True)
        for k in range(3):
            x = torch.randn(5, 3)
            torch.testing.assert_close(fast(x), f(x), rtol=1e-5, atol=1e-5)
            assert library.replays == k


def test_rounds_as_long_as_a_condition_holds(gpu: Gpu) -> None:
    _, machine = gpu

    def f(n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def body(k: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return k + 1, torch.cos(y) * x

        return while_loop(lambda k, y: k < n, body, (torch.tensor(0), x + 1))

    with torch.no_grad():
        fast = on_fake_gpu(f, machine, strict=True)
        for count in (0, 1, 4):
            given = torch.tensor(count), torch.randn(3)
            torch.testing.assert_close(fast(*given), f(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_updates_in_place(gpu: Gpu, known: bool) -> None:
    """A row of a table in each round, of a known number or not."""
    _, machine = gpu

    def put(t: torch.Tensor, k: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return t.index_copy(0, k.reshape(1), (row * t.sum(0)).reshape(1, 4))

    def f(n: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if known:
            done, _ = scan(lambda c, k: (put(c, k, t[0]), k + 1), t + 1, torch.arange(3), dim=0)
            return (done,)
        start = torch.tensor(0), t + 1
        return while_loop(lambda k, c: k < n, lambda k, c: (k + 1, put(c, k, t[0])), start)

    with torch.no_grad():
        fast = on_fake_gpu(f, machine, strict=True)
        for _ in range(2):
            given = torch.tensor(3), torch.rand(5, 4)
            torch.testing.assert_close(fast(*given), f(*given), rtol=1e-5, atol=1e-5)
