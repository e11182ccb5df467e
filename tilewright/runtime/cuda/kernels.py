"""A nest's kernels on a GPU: launched one after the other on a stream, with addresses and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.target import Target
from tilewright.llvm.bulk_copies import Box
from tilewright.llvm.launch import Kernels, Launch, blocks_of, scratch_bytes
from tilewright.llvm.objects import cached_ptx
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.memory import TensorMap, zero
from tilewright.runtime.cuda.module import Facts, Function, Launcher, MapOf, Module

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
    """The code of a nest, compiled by the driver. `ptx` is that of the kernels, where it is
    known."""

    def __init__(self, kernels: Kernels, target: Target, device: Device, ptx: str = "") -> None:
        self.kernels, self.device = kernels, device
        if target.grid is not None and target.grid.capability > device.capability:
            raise Unsupported(
                f"code for {target.name} does not run on {device.name}, which is of capability "
                f"{device.capability / 10}",
                hint=f"compile for cuda:{device.capability}",
            )
        self.ptx = ptx or cached_ptx(kernels.text, target)
        self.module = Module(self.ptx, device)
        self._launchers: list[Launcher] = []
        for x in kernels.launches:
            function = self.module.function(x.symbol, x.shared)
            self._launchers.append(launcher_of(function, x, kernels.dims))

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
            size = scratch_bytes(b, numbers)
            known[b.name], kept = allocate(size)
            held.append(kept)
            if b.scope == "counter":
                self.device.use()
                zero(self.device, known[b.name], size, stream)
        for p in self.planned(numbers):
            p.launch([*(known[a] for a in p.arguments), *p.dims], p.blocks, stream)
        return held


def launcher_of(function: Function, x: Launch, dims: Sequence[str]) -> Launcher:
    """Launches of a kernel that takes addresses, sizes, and tensor maps made of these."""
    count = len(x.arguments)
    make = partial(_map, function.device, x, dims)
    maps = [MapOf(x.arguments.index(b.buffer), partial(make, b)) for b in x.boxes]
    return Launcher(function, x.threads, count + len(dims), maps, len(dims))


def _map(
    device: Device, x: Launch, dims: Sequence[str], b: Box, parameters: Sequence[int]
) -> TensorMap:
    sizes = dict(zip(dims, parameters[len(x.arguments) :], strict=True))
    where = b.described(parameters[x.arguments.index(b.buffer)], sizes)
    return TensorMap(device, b.dtype, b.item, *where, b.box, b.swizzle)
