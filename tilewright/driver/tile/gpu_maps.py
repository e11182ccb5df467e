"""Tensor maps that a launch of a tile kernel takes, one for each array that the copy engine reads.
Loaded for kernels that have some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir import dim as D
from tilewright.llvm.bulk_copies import Box
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.image import from_bytes, to_bytes
from tilewright.runtime.cuda.memory import TensorMap

_MOST = 256  # maps of one box that are remembered


@dataclass(frozen=True)
class TileMaps:
    """The boxes of a kernel, the slots of the launch that have their addresses, and the names of
    the sizes, in the order of the launch."""

    boxes: tuple[Box, ...]
    slots: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def text(self) -> str:
        return to_bytes(TileMaps, self).hex()

    def known(self, on: Device) -> list[tuple[int, KnownMaps]]:
        """By box, the slot of its address, and its maps."""
        made = [KnownMaps(on, b, self.dims) for b in self.boxes]
        return list(zip(self.slots, made, strict=True))


def read_maps(text: str) -> TileMaps:
    return from_bytes(TileMaps, bytes.fromhex(text))


class KnownMaps(dict[tuple[int, ...], TensorMap]):
    """The maps of one box, by the address of its memory and the sizes that it depends on."""

    def __init__(self, on: Device, box: Box, dims: tuple[str, ...]) -> None:
        super().__init__()
        self.on, self.box = on, box
        used = {s.name for d in (*box.shape, *box.strides, box.first) for s in D.symbols(d)}
        self.used = [k for k, name in enumerate(dims) if name in used]
        self.names = [dims[k] for k in self.used]

    def __missing__(self, key: tuple[int, ...]) -> Any:
        if len(self) >= _MOST:
            self.clear()
        address, *sizes = key
        b = self.box
        where = b.described(address, dict(zip(self.names, sizes, strict=True)))
        made = self[key] = TensorMap(self.on, b.dtype, b.item, *where, b.box, b.swizzle)
        return made
