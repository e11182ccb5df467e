"""A stand-in for a GPU, for tests of programs that run on one."""

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.fake import FakeLibrary, fake_machine, texts_are_known
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.machine import Machine


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeLibrary, Machine]]:
    torch.manual_seed(0)
    monkeypatch.setattr(program, "FEWEST", 0)
    with texts_are_known(monkeypatch):
        yield fake_machine()
