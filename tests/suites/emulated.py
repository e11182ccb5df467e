"""Kernels that are launched on the processor run as the code of a GPU that is not there, emulated
(tests/gpu/fake.py): a suite that runs here says what that code computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from tests.gpu.fake_tiles import tile_gpu
from tilewright.base.events import Log
from tilewright.driver.tile import gpu, jit
from tilewright.driver.tile.launch import Executor, Launchable
from tilewright.driver.tile.request import Request
from tilewright.targets.nvptx import for_capability


@dataclass
class Emulator:
    """An executor: a GPU's, in the memory of this process."""

    capability: int = 90
    made: list[str] = field(default_factory=list)  # names of kernels

    name = "cuda:0"  # options of a launch are given to `prepare`
    wants_given = False

    def prepare(self, wanted: Request, log: Log) -> Launchable:
        self.made.append(wanted.function.name)
        return gpu.cached_gpu_tile(wanted, 0, log)

    @contextmanager
    def installed(self) -> Iterator[None]:
        target, replaced = for_capability(self.capability), patch.object(jit, "executor", self.own)
        with pytest.MonkeyPatch.context() as patches, tile_gpu(patches, target), replaced:
            yield

    def own(self) -> Executor:
        return self
