"""Tile kernels on the GPU that is not there: launched on tensors that say they are on one, they
take the way that they take on a GPU, and run as emulated code (tests/gpu/fake.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tests.gpu.fake import FakeLibrary, texts_are_known
from tilewright.driver.tile import gpu
from tilewright.ir.target import Target
from tilewright.runtime.cuda.device import describe
from tilewright.runtime.cuda.driver import Driver
from tilewright.targets.nvptx import for_capability

# Tensors that say that they are on a GPU.
_SAYS = {"is_cpu": False, "device": SimpleNamespace(type="cuda", index=0)}
OnGpu: type[torch.Tensor] = type("OnGpu", (torch.Tensor,), _SAYS)


def there(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(OnGpu)


@contextmanager
def tile_gpu(
    monkeypatch: pytest.MonkeyPatch, target: Target | None = None
) -> Iterator[FakeLibrary]:
    """Launches of tile kernels on tensors that are `there` run as emulated code for a target."""
    library = FakeLibrary()
    on = describe(0, Driver(library))
    with texts_are_known(monkeypatch), monkeypatch.context() as m:
        m.setattr(gpu, "device", lambda number: on)
        m.setattr(gpu, "target_of", lambda number: target or for_capability(90))
        m.setattr(torch._C, "_cuda_getCurrentRawStream", lambda number: 0, raising=False)
        yield library
