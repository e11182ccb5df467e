"""A GPU as programs see it: where memory comes from, and which stream is in use. With torch
(driver/torch/) these are its allocator and its streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.ir.target import Target
from tilewright.ir.types import DType
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import OUT_OF_MEMORY, CudaError
from tilewright.runtime.cuda.memory import Memory


@dataclass(frozen=True)
class Matrix:
    """Memory as a library sees it: the dtype, and elements at constant distances along axes."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class GivenCall:
    """A library call (kernel/library.py) for given sizes; what is left open are addresses."""

    function: str
    operands: tuple[Matrix, ...]  # the result last
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1


class Recorded(Protocol):
    """A library call as a CUDA graph, with the memory that it works in."""

    @property
    def graph(self) -> int: ...


class Libraries(Protocol):
    """Who calls libraries: with torch, its operators."""

    @property
    def name(self) -> str:
        """What chose it, in keys of caches: another version may have other kernels."""
        ...

    def run(self, call: GivenCall, addresses: Sequence[int]) -> None:
        """Enqueues a call on the current stream."""
        ...

    def room(self) -> object:
        """Working memory for the calls of one stream, which run one after the other."""
        ...

    def recorded(self, call: GivenCall, addresses: Sequence[int], room: object) -> Recorded:
        """What a call would enqueue."""
        ...


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
    libraries: Libraries | None = None
    assembles: bool = False  # is PTX assembled before it is loaded?

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

    def key(self) -> str:
        """What a choice by measuring depends on, besides the target."""
        by = "" if self.libraries is None else f" with {self.libraries.name}"
        return f"{self.device.name}{by}"
