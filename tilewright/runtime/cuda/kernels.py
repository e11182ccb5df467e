"""A nest's kernels on a GPU: launched one after the other on a stream, with addresses and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.llvm.bulk_copies import Box
from tilewright.llvm.grid import Kernels, Launch, blocks_of, scratch_bytes
from tilewright.llvm.objects import cached_ptx
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.memory import TensorMap
from tilewright.runtime.cuda.module import Facts, Launcher, MapOf, Module

# Gives memory of so many bytes: its address, and what keeps it.
Allocate = Callable[[int], tuple[int, object]]


@dataclass(frozen=True)
class Planned:
    """A launch for given sizes: what is left open are the addresses of its arguments."""

    launch: Launcher
    arguments: tuple[str, ...]
    dims: list[int]
    blocks: tuple[int, int, int]


class Loaded:
    """The code of a nest, compiled by the driver."""

    def __init__(self, kernels: Kernels, target: Target, device: Device) -> None:
        self.kernels, self.device = kernels, device
        if target.grid is not None and target.grid.capability > device.capability:
            raise Unsupported(
                f"code for {target.name} does not run on {device.name}, which is of capability "
                f"{device.capability / 10}",
                hint=f"compile for cuda:{device.capability}",
            )
        self.ptx = cached_ptx(kernels.text, target)
        self.module = Module(self.ptx, device)
        self._launchers: list[Launcher] = []
        for x in kernels.launches:
            function = self.module.function(x.symbol, x.shared)
            count = len(x.arguments) + len(kernels.dims)
            maps = [self._map(x, box) for box in x.boxes]
            made = Launcher(function, x.threads, count, maps, len(kernels.dims))
            self._launchers.append(made)

    def _map(self, x: Launch, box: Box) -> MapOf:
        """How a tensor map of a launch is made of the launch's parameters."""
        at = x.arguments.index(box.buffer)
        dtype = next(b.dtype for b in self.kernels.arguments if b.name == box.buffer)

        def make(parameters: Sequence[int]) -> TensorMap:
            sizes = dict(zip(self.kernels.dims, parameters[len(x.arguments) :], strict=True))
            shape = [int(D.evaluate(d, sizes)) for d in box.shape]
            address = parameters[at]
            return TensorMap(
                self.device, address, str(dtype), dtype.bytes, shape, box.box, box.swizzle
            )

        return MapOf(at, make)

    def facts(self) -> list[Facts]:
        """What each kernel takes."""
        found = zip(self._launchers, self.kernels.launches, strict=True)
        return [f.function.facts(x.threads[0] * x.threads[1] * x.threads[2]) for f, x in found]

    def planned(self, sizes: dict[str, int]) -> list[Planned]:
        """The launches for given sizes."""
        dims = [sizes[d] for d in self.kernels.dims]
        found = zip(self._launchers, self.kernels.launches, strict=True)
        return [Planned(f, x.arguments, dims, blocks_of(x, sizes)) for f, x in found]

    def fits(self, addresses: Mapping[str, int]) -> bool:
        """Are the addresses multiples of what the code was made for?"""
        return not any(a % self.kernels.alignment for a in addresses.values())

    def run(
        self,
        addresses: Mapping[str, int],
        sizes: Mapping[str, int],
        stream: int = 0,
        allocate: Allocate | None = None,
    ) -> list[object]:
        """Asks for all launches. What keeps memory between them is returned: it may be used again
        by what follows on the stream."""
        held: list[object] = []
        known = dict(addresses)
        numbers = dict(sizes)
        for b in self.kernels.scratch:
            if allocate is None:
                raise Invalid(f"{b.name} lies between launches and needs memory")
            known[b.name], kept = allocate(scratch_bytes(b, numbers))
            held.append(kept)
        for p in self.planned(numbers):
            p.launch([*(known[a] for a in p.arguments), *p.dims], p.blocks, stream)
        return held
