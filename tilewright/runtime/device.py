"""Machines that hold memory and run kernels: this processor, and others behind the same interface.

How code is compiled for a device, how memory is laid out and when a launch has ended is up to the
device; callers that run kernels on it (tune/measure.py, tests) use this interface only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest
from tilewright.runtime.memory import aligned, require_room
from tilewright.runtime.nests import NestKernel


class DeviceMemory(Protocol):
    """Bytes of a device; they are freed with the last reference to this object."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...


class DeviceKernel(Protocol):
    """A nest's code on a device."""

    @property
    def arguments(self) -> Sequence[Buffer]:
        """What it takes, in order."""
        ...

    def prepared(
        self, addresses: Sequence[int], sizes: Mapping[str, int], stream: int = 0
    ) -> Callable[[], None]:
        """A launch with these arguments, to be called as often as one likes."""
        ...

    def close(self) -> None:
        """Unload the code now."""
        ...


class Device(Protocol):
    """A machine: its memory, its kernels, and the order in which it runs launches."""

    @property
    def title(self) -> str:
        """Its name, for people."""
        ...

    def allocate(self, size: int) -> DeviceMemory: ...

    def write(self, to: DeviceMemory, data: np.ndarray) -> None:
        """Copies an array to the beginning of some memory."""
        ...

    def read(self, source: DeviceMemory, like: np.ndarray) -> np.ndarray:
        """What lies at the beginning of some memory, as a fresh array of that dtype and shape."""
        ...

    def stream(self) -> int:
        """A new stream for launches; 0, the device's default stream, where there are none."""
        ...

    def synchronise(self) -> None:
        """Waits until all launches have ended."""
        ...

    def kernel(self, nest: Nest, target: Target, code: bytes = b"") -> DeviceKernel:
        """A nest as code of this device; `code` is that code, where it was made before."""
        ...


@dataclass(frozen=True, eq=False)
class HostMemory:
    """Memory of this process."""

    address: int
    size: int
    owner: np.ndarray


class Host:
    """This processor. A launch is over when it returns."""

    title = "this processor"

    def allocate(self, size: int) -> HostMemory:
        require_room(size, "memory for a kernel's arguments")
        owner, address = aligned(size)
        return HostMemory(address, size, owner)

    def write(self, to: DeviceMemory, data: np.ndarray) -> None:
        plain = np.ascontiguousarray(data)
        require_fits(plain.nbytes, to.size)
        ctypes.memmove(to.address, plain.ctypes.data, plain.nbytes)

    def read(self, source: DeviceMemory, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like, order="C")
        require_fits(out.nbytes, source.size)
        ctypes.memmove(out.ctypes.data, source.address, out.nbytes)
        return out

    def stream(self) -> int:
        return 0

    def synchronise(self) -> None:
        return None

    def kernel(self, nest: Nest, target: Target, code: bytes = b"") -> NestKernel:
        return NestKernel(nest, target, code=code)


def require_fits(wanted: int, there: int) -> None:
    if wanted > there:
        raise Invalid(f"{wanted:,} bytes do not fit into {there:,}")


HOST = Host()
