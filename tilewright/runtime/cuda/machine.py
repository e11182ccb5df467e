"""A GPU as programs see it: where memory comes from, and which stream is in use. With torch
(driver/torch/) these are its allocator and its streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.target import Target
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import OUT_OF_MEMORY, CudaError
from tilewright.runtime.cuda.memory import Memory


@dataclass(frozen=True, eq=False)
class Machine:
    """`allocate` gives memory for work on the current stream: its address, and what owns it. When
    that is freed, later work on the stream may use the memory. `release` gives back what is
    cached for later allocations."""

    device: Device
    target: Target
    allocate: Callable[[int], tuple[int, object]]
    stream: Callable[[], int]
    capturing: Callable[[], bool]  # is work on the stream now being recorded?
    release: Callable[[], None]
    blocking: bool = False  # does every call wait until its work is done?

    def lasting(self, size: int) -> tuple[int, object]:
        """Memory that no stream owns."""
        try:
            made = Memory(self.device, size)
        except CudaError as problem:
            if problem.code != OUT_OF_MEMORY:
                raise
            self.release()
            made = Memory(self.device, size)
        return made.address, made

    @property
    def name(self) -> str:
        return f"cuda:{self.device.number}"
