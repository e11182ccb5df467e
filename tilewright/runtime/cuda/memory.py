"""Memory of a GPU without torch, and descriptions of tensors for the copy engine."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import CudaError


class Memory:
    """Some bytes of a GPU; they are given back when nothing refers to them any more."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size
        device.use()
        address = ctypes.c_void_p()
        count = max(size, 1)
        where = f"{count:,} bytes of {device.memory:,}"
        device.driver.call("cuMemAlloc_v2", ctypes.byref(address), count, where=where)
        self.address = address.value or 0
        weakref.finalize(self, _free, device, self.address)

    @classmethod
    def of(cls, device: Device, array: np.ndarray) -> Memory:
        """A copy of an array."""
        plain = np.ascontiguousarray(array)
        made = cls(device, plain.nbytes)
        device.driver.call("cuMemcpyHtoD_v2", made.address, plain.ctypes.data, plain.nbytes)
        return made

    def fill(self, byte: int) -> None:
        self.device.use()
        self.device.driver.call("cuMemsetD8_v2", self.address, byte, self.size)

    def read(self, like: np.ndarray) -> np.ndarray:
        """What is there, as an array of that dtype and shape."""
        out = np.empty_like(like, order="C")
        if out.nbytes > self.size:
            raise Invalid(f"{out.nbytes:,} bytes are requested, {self.size:,} are there")
        self.device.use()
        self.device.driver.call("cuMemcpyDtoH_v2", out.ctypes.data, self.address, out.nbytes)
        return out


def zero(device: Device, address: int, size: int, stream: int) -> None:
    """Some bytes of a GPU are zero for what follows on a stream."""
    if size:
        device.driver.call("cuMemsetD8Async", address, 0, size, stream)


class HostWords:
    """64-bit integers in memory of this process that a GPU can write; zero at first. Both know them
    by the same address."""

    def __init__(self, device: Device, count: int) -> None:
        device.use()
        address = ctypes.c_void_p()
        every_context, on_the_gpu = 1, 2
        device.driver.call(
            "cuMemHostAlloc", ctypes.byref(address), 8 * count, every_context | on_the_gpu
        )
        self.address = address.value or 0
        self.values = (ctypes.c_int64 * count).from_address(self.address)
        self.values[:] = [0] * count
        weakref.finalize(self, _free_host, device, self.address)


def _free_host(device: Device, address: int) -> None:
    try:
        device.use()
        device.driver.call("cuMemFreeHost", address)
    except CudaError:
        return  # the context is gone, and its memory


def _free(device: Device, address: int) -> None:
    try:
        device.use()
        device.driver.call("cuMemFree_v2", address)
    except CudaError:
        return  # the context is gone, and its memory


# ---- tensor maps

_TYPES = {
    "u8": 0,
    "i8": 0,
    "f8e4m3": 0,
    "f8e5m2": 0,
    "u16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_BYTES = 128
# What the cache gets of memory around a row that is missing there: 128 bytes (3: 256).
PROMOTED = 2


class TensorMap:
    """A tensor as the copy engine sees it: 128 bytes, which a kernel takes by value."""

    def __init__(
        self,
        device: Device,
        dtype: str,
        item: int,
        address: int,
        shape: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int = 0,
    ) -> None:
        """`shape`, `strides` (in bytes, without the last one) and `box` outermost first; rows of a
        box are swizzled over so many bytes."""
        _check(dtype, item, address, shape, strides, box, swizzle)
        rank = len(shape)
        room = ctypes.create_string_buffer(_BYTES + 64)
        start = (ctypes.addressof(room) + 63) // 64 * 64
        self._room, self.address = room, start
        sizes = (ctypes.c_uint64 * rank)(*reversed(shape))
        steps = (ctypes.c_uint64 * max(1, rank - 1))(*reversed(strides))
        boxes = (ctypes.c_uint32 * rank)(*reversed(box))
        ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        device.use()
        device.driver.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(start),
            _TYPES[dtype],
            rank,
            ctypes.c_void_p(address),
            sizes,
            steps,
            boxes,
            ones,
            0,
            _SWIZZLES[swizzle],
            PROMOTED,
            0,
        )

    @property
    def bytes(self) -> bytes:
        return ctypes.string_at(self.address, _BYTES)


def _check(
    dtype: str,
    item: int,
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int,
) -> None:
    """The copy engine's rules, with messages: the driver only says that some value is wrong."""
    if dtype not in _TYPES:
        raise Invalid(f"the copy engine does not know {dtype}", hint=", ".join(_TYPES))
    if len(shape) != len(box) or not 1 <= len(shape) <= 5:
        raise Invalid(f"a box {tuple(box)} of a tensor {tuple(shape)}: 1 to 5 axes each")
    if address % 16:
        raise Invalid("the copy engine takes addresses that are multiples of 16 bytes")
    if len(strides) != len(shape) - 1:
        raise Invalid(f"{len(strides)} strides of a tensor {tuple(shape)}: all but the last one")
    for step in strides:
        if step % 16:
            raise Invalid(f"rows of {step} bytes: the copy engine takes multiples of 16")
    if any(not 1 <= n <= 256 for n in box):
        raise Invalid(f"a box {tuple(box)}: axes have 1 to 256 elements")
    if swizzle not in _SWIZZLES:
        raise Invalid(f"rows are swizzled over 32, 64 or 128 bytes, not {swizzle}")
    if swizzle and box[-1] * item > swizzle:
        raise Invalid(f"rows of {box[-1] * item} bytes are longer than the {swizzle} of a swizzle")
