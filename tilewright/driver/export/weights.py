"""The file of weights: everything that calls read and no input gives, one after the other, each at
a multiple of 64 bytes. What several levels have in common is there once.

Floats of 32 bits may be stored in 16. Then the file is not what calls read: code has a function
that writes that to memory, once, when a package is opened.

A file is these bytes, or these bytes as a file of safetensors. That has a header first, and no
gaps: what lies between two tensors is a tensor of its own there.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES, DType, f16, f32, to_memory
from tilewright.runtime.program_data import Stored

ALIGN = 64
STORED = ("same", "f16", "bf16")
LAYOUTS = {"flat": "weights.bin", "safetensors": "weights.safetensors"}
# How safetensors calls dtypes; those that it does not know are bytes there.
_NAMES = {d: d.upper() for d in "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool".split()}
_NAMES |= {"f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2"}
_FEWEST = 1024  # elements of a tensor that is stored in fewer bits


@dataclass(frozen=True)
class Placed:
    """A tensor: where it is in memory and in the file, and how the file has it."""

    name: str
    offset: int
    dtype: DType
    at: int
    stored: Stored

    @property
    def is_same(self) -> bool:
        return self.dtype is self.stored.dtype


@dataclass
class WeightsFile:
    how: str = "same"
    layout: str = "flat"
    placed: list[Placed] = field(default_factory=list)
    size: int = 0  # in memory
    file_size: int = 0
    _known: dict[tuple[str, tuple[int, ...], bytes], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.how not in STORED:
            raise Invalid(f"weights={self.how!r}", hint=f"one of {', '.join(map(repr, STORED))}")
        if self.layout not in LAYOUTS:
            known = ", ".join(map(repr, LAYOUTS))
            raise Invalid(f"layout={self.layout!r}", hint=f"one of {known}")

    @property
    def file(self) -> str:
        return LAYOUTS[self.layout]

    def add(self, name: str, value: Stored) -> int:
        """Where calls find a value."""
        array = np.ascontiguousarray(value.array)
        content = hashlib.blake2b(_bytes(array), digest_size=32).digest()
        key = value.dtype.name, array.shape, content
        if key not in self._known:
            self._known[key] = self.size
            stored = self._narrowed(Stored(value.dtype, array))
            self.placed.append(Placed(name, self.size, value.dtype, self.file_size, stored))
            self.size = _up(self.size + array.nbytes)
            self.file_size = _up(self.file_size + stored.size)
        return self._known[key]

    def _narrowed(self, x: Stored) -> Stored:
        """In fewer bits, where its numbers have room in them."""
        if self.how == "same" or x.dtype is not f32 or x.array.size < _FEWEST:
            return x
        narrow = DTYPES[self.how]
        if narrow is f16 and not float(np.abs(x.array).max()) <= float(np.finfo(np.float16).max):
            return x
        return Stored(narrow, to_memory(x.array, narrow))

    @property
    def unpacked(self) -> list[Placed]:
        """What a function has to write to memory; nothing where calls read the file itself."""
        return [] if all(p.is_same for p in self.placed) else self.placed

    def head(self) -> bytes:
        """What the file has before the tensors, once all are known: nothing, or the header of
        safetensors."""
        if self.layout == "flat":
            return b""
        entries: dict[str, dict[str, Any]] = {}
        at = 0
        for p in self.placed:
            if p.at > at:
                entries[_free(entries, "padding")] = _entry("U8", [p.at - at], at, p.at)
            at = p.at + p.stored.size
            kind, shape = _NAMES.get(p.stored.dtype.name, "U8"), list(p.stored.array.shape)
            entries[_free(entries, p.name)] = _entry(kind, shape, p.at, at)
        if self.file_size > at:
            end = _entry("U8", [self.file_size - at], at, self.file_size)
            entries[_free(entries, "padding")] = end
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (_up(8 + len(text)) - 8 - len(text))
        return len(text).to_bytes(8, "little") + text

    def described(self, checksum: str) -> dict[str, Any]:
        """The manifest's words. `unpacked`: bytes of memory, where that is not the file."""
        start = len(self.head())
        return {
            "file": self.file,
            "layout": self.layout,
            "bytes": start + self.file_size,
            "blake2b": checksum,
            **({"unpacked": self.size} if self.unpacked else {}),
            "table": [
                {
                    "name": p.name,
                    "offset": start + p.at,
                    "dtype": p.stored.dtype.name,
                    "shape": list(p.stored.array.shape),
                }
                for p in self.placed
            ],
        }

    def write(self, path: Path) -> str:
        """Writes the file; gives its checksum."""
        digest = hashlib.blake2b(digest_size=32)
        with path.open("wb") as file:
            head = self.head()
            file.write(head)
            digest.update(head)
            at = 0
            for p in self.placed:
                for piece in (bytes(p.at - at), _bytes(p.stored.array)):
                    file.write(piece)
                    digest.update(piece)
                at = p.at + p.stored.size
            end = bytes(self.file_size - at)
            file.write(end)
            digest.update(end)
        return digest.hexdigest()


def _entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def _free(taken: dict[str, dict[str, Any]], name: str) -> str:
    """A name that no tensor has: levels have such of the same name."""
    count, found = 0, name
    while found in taken or found == "__metadata__":
        count += 1
        found = f"{name}.{count}"
    return found


def _bytes(x: np.ndarray) -> memoryview:
    return x.reshape(-1).view(np.uint8).data


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
