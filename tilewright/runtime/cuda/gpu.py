"""A GPU behind the interface that all devices have (runtime/device.py), without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import scratch_bytes
from tilewright.llvm.objects import cached_ptx
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.kernels import Loaded
from tilewright.runtime.cuda.memory import Memory, zero
from tilewright.runtime.cuda.stream import Stream
from tilewright.runtime.device import DeviceMemory, require_fits

ALIGNMENT = 16  # bytes that addresses are multiples of, unless a caller's own are not


class GpuKernel:
    """A nest on a GPU. Code for addresses that are not multiples of 16 bytes is made when there are
    such. `code` is what `nest_ptx` made of the nest before, perhaps on another machine."""

    def __init__(self, nest: Nest, target: Target, on: Device, code: bytes = b"") -> None:
        self.nest, self.target, self.device, self._ptx = nest, target, on, code.decode()
        self.arguments: list[Buffer] = [b for b in nest.buffers if b.scope in ("in", "out")]
        self._loaded: dict[int, Loaded] = {}

    def loaded(self, alignment: int = ALIGNMENT) -> Loaded:
        found = self._loaded.get(alignment)
        if found is None:
            made = emit_kernels(legalise(self.nest, self.target), self.target, alignment)
            ptx = self._ptx if alignment == ALIGNMENT else ""
            found = self._loaded[alignment] = Loaded(made, self.target, self.device, ptx)
        return found

    def fitting(self, addresses: Mapping[str, int]) -> Loaded:
        """The code for arguments at these addresses."""
        code = self.loaded()
        return code if code.fits(addresses) else self.loaded(self.least_alignment)

    @property
    def least_alignment(self) -> int:
        """What the addresses of all arguments are multiples of in any case."""
        return min(b.dtype.bytes for b in self.arguments)

    def prepared(
        self, addresses: Sequence[int], sizes: Mapping[str, int], stream: int = 0
    ) -> Callable[[], None]:
        known = {b.name: a for b, a in zip(self.arguments, addresses, strict=True)}
        code = self.fitting(known)
        numbers = {s.name: sizes[s.name] for s in self.nest.dims}
        held = [Memory(self.device, scratch_bytes(b, numbers)) for b in code.kernels.scratch]
        known |= {b.name: m.address for b, m in zip(code.kernels.scratch, held, strict=True)}
        for b, m in zip(code.kernels.scratch, held, strict=True):
            if b.scope == "counter":
                zero(self.device, m.address, m.size, stream)
        planned = code.planned(numbers)
        launches = [(p, [*(known[a] for a in p.arguments), *p.dims]) for p in planned]

        def launch(keeps: object = held) -> None:
            for p, parameters in launches:
                p.launch(parameters, p.blocks, stream)

        return launch

    def close(self) -> None:
        self._loaded.clear()


class Gpu:
    """One GPU. Launches on a stream run in order, later than they are enqueued."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._streams: list[Stream] = []  # as long as their numbers may be used

    @property
    def title(self) -> str:
        return self.device.name

    def allocate(self, size: int) -> Memory:
        return Memory(self.device, size)

    def write(self, to: DeviceMemory, data: np.ndarray) -> None:
        plain = np.ascontiguousarray(data)
        require_fits(plain.nbytes, to.size)
        self.device.use()
        self.device.driver.call("cuMemcpyHtoD_v2", to.address, plain.ctypes.data, plain.nbytes)

    def read(self, source: DeviceMemory, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like, order="C")
        require_fits(out.nbytes, source.size)
        self.device.use()
        self.device.driver.call("cuMemcpyDtoH_v2", out.ctypes.data, source.address, out.nbytes)
        return out

    def stream(self) -> int:
        self._streams.append(Stream(self.device))
        return self._streams[-1].handle

    def synchronise(self) -> None:
        self.device.synchronise()

    def kernel(self, nest: Nest, target: Target, code: bytes = b"") -> GpuKernel:
        return GpuKernel(nest, target, self.device, code)


def nest_ptx(nest: Nest, target: Target) -> bytes:
    """The code of a nest for addresses that memory of a GPU begins at. No GPU is needed for it."""
    made = emit_kernels(legalise(nest, target), target, ALIGNMENT)
    return cached_ptx(made.text, target).encode()
