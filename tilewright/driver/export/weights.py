"""The file of weights: everything that calls read and no input gives, one after the other, each at
a multiple of 64 bytes. What several levels have in common is there once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.program_data import Stored

ALIGN = 64


@dataclass(frozen=True)
class Placed:
    name: str
    offset: int
    value: Stored


@dataclass
class WeightsFile:
    placed: list[Placed] = field(default_factory=list)
    size: int = 0
    _known: dict[tuple[str, tuple[int, ...], bytes], int] = field(default_factory=dict)

    def add(self, name: str, value: Stored) -> int:
        """Where a value lies."""
        array = np.ascontiguousarray(value.array)
        content = hashlib.blake2b(memoryview(array).cast("B"), digest_size=32).digest()
        key = value.dtype.name, array.shape, content
        if key not in self._known:
            self._known[key] = self.size
            self.placed.append(Placed(name, self.size, Stored(value.dtype, array)))
            self.size = -(-(self.size + array.nbytes) // ALIGN) * ALIGN
        return self._known[key]

    def table(self) -> list[dict[str, Any]]:
        return [
            {
                "name": p.name,
                "offset": p.offset,
                "dtype": p.value.dtype.name,
                "shape": list(p.value.array.shape),
            }
            for p in self.placed
        ]

    def write(self, path: Path) -> str:
        """Writes the file; gives its checksum."""
        digest = hashlib.blake2b(digest_size=32)
        with path.open("wb") as file:
            at = 0
            for p in self.placed:
                for piece in (bytes(p.offset - at), memoryview(p.value.array.reshape(-1)).cast("B")):
                    file.write(piece)
                    digest.update(piece)
                at = p.offset + p.value.size
            end = bytes(self.size - at)
            file.write(end)
            digest.update(end)
        return digest.hexdigest()
