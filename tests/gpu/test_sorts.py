"""Sorts take the way of a GPU on the stand-in of tests/gpu/fake.py."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.fake import FakeLibrary, on_fake_gpu
from tests.seeds import every_run
from tilewright.runtime.cuda.machine import Machine


@every_run(0)
@pytest.mark.parametrize("k", [0, 3])
def test_sorts_and_first_ones(gpu: tuple[FakeLibrary, Machine], k: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, k).indices if k else torch.sort(x, 1, True).indices

    with torch.no_grad():
        x = torch.randint(-5, 5, (2, 100), dtype=torch.int8)
        found = on_fake_gpu(f, gpu[1], strict=True)(x)
        assert torch.equal(
            found, torch.sort(x, stable=True, dim=1, descending=True).indices[:, : k or 100]
        )
