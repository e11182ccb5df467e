"""Memory behind pointers, for the interpreter: the caller's own arrays, read and written in place.

A pointer is given as an array, whose first element it points to, or as an array and the element to
which it points. An access outside the array is an error, which no native code would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.types import DType, from_memory, to_memory
from tilewright.kernel.group import Buffer


class Region:
    """The elements that a pointer reaches. `find` gives the cell of an index, -1 where there is
    none."""

    def __init__(self, b: Buffer, given: Any) -> None:
        array, origin = given if isinstance(given, tuple) else (given, 0)
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise Invalid(
                f"{b.name} is a pointer: it is given as a contiguous array, or as (array, element)"
            )
        if array.dtype not in (b.dtype.numpy, b.dtype.memory):
            raise Invalid(f"{b.name} points to {b.dtype}, not to {array.dtype}")
        self.dtype, self.array, self.origin = b.dtype, array.reshape(-1), int(origin)

    @property
    def size(self) -> int:
        return self.array.size

    def find(self, index: np.ndarray) -> np.ndarray:
        at = index + self.origin
        return np.where((at >= 0) & (at < self.array.size), at, -1)

    def get(self, cells: np.ndarray) -> np.ndarray:
        if not self.array.size:
            return np.zeros(cells.shape, self.dtype.numpy)
        found = self.array[cells]
        return found if self._plain else from_memory(found, self.dtype)

    def put(self, cells: np.ndarray, values: np.ndarray) -> None:
        self.array[cells] = values if self._plain else to_memory(values, self.dtype)

    @property
    def _plain(self) -> bool:
        return self.array.dtype == self.dtype.numpy

    def overlaps(self, other: Region | Everything) -> bool:
        """May both reach one place?"""
        if isinstance(other, Everything):
            return True
        return np.may_share_memory(self.array, other.array)


class Everything:
    """Some arrays, by the addresses of their bytes. A cell is such an address."""

    size = 0

    def __init__(self, dtype: DType, arrays: Sequence[np.ndarray]) -> None:
        self.dtype = dtype
        self.bytes = [x.reshape(-1).view(np.uint8) for x in arrays]

    def find(self, index: np.ndarray) -> np.ndarray:
        inside = np.zeros(index.shape, np.bool_)
        for x in self.bytes:
            begin = x.ctypes.data
            inside |= (index >= begin) & (index + self.dtype.bytes <= begin + x.size)
        return np.where(inside, index, -1)

    def get(self, cells: np.ndarray) -> np.ndarray:
        raw = np.zeros((cells.size, self.dtype.bytes), np.uint8)
        for k, cell in enumerate(cells.reshape(-1)):
            if cell >= 0:
                raw[k] = self._at(int(cell))
        return from_memory(raw.view(self.dtype.memory), self.dtype).reshape(cells.shape)

    def put(self, cells: np.ndarray, values: np.ndarray) -> None:
        raw = to_memory(np.broadcast_to(values, cells.shape), self.dtype)
        for cell, x in zip(cells.reshape(-1), raw.reshape(-1), strict=True):
            self._at(int(cell))[:] = np.frombuffer(x.tobytes(), np.uint8)

    def _at(self, address: int) -> np.ndarray:
        x = next(x for x in self.bytes if 0 <= address - x.ctypes.data < x.size)
        begin = address - x.ctypes.data
        return x[begin : begin + self.dtype.bytes]

    def overlaps(self, other: Region | Everything) -> bool:
        return True
