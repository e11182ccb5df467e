"""Memory as a kernel sees it: addresses, read and written where an argument of the launch lies.

Elements are represented as ir/types.py says: float16 as itself, bfloat16 and floats of 8 bits as
float32 that was rounded. `to_bits` and `from_bits` convert between that and the bits in memory.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES, LONG_NAMES, DType, bf16, from_memory, to_memory

# ---- bits


def to_bits(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The bits in memory of elements represented as `x`, as unsigned integers."""
    if dtype is bf16:  # exact: the upper half has all bits, of a NaN too
        return (np.asarray(x, np.float32, order="C").view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(to_memory(x, dtype), order="C").view(f"u{dtype.bytes}")


def from_bits(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """The representation of elements whose bits in memory are `bits`."""
    bits = np.asarray(bits, order="C")
    if dtype.is_bool:
        return bits != 0
    return from_memory(bits.view(dtype.memory), dtype)


# ---- what a launch is given

_NAMES = {
    **LONG_NAMES,
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float8_e4m3fnuz": "f8e4b8",
    "float8_e5m2fnuz": "f8e5b16",
}


def is_array(x: Any) -> bool:
    """Does it stand for memory?"""
    return any(hasattr(x, a) for a in ("data_ptr", "__array_interface__", "__dlpack__"))


def element_of(x: Any) -> DType:
    """The element of a torch tensor, a numpy array or anything that says a dtype so."""
    dtype = getattr(x, "dtype", None)
    own = getattr(dtype, "ir", None)  # a dtype of the language: memory seen as something else
    if isinstance(own, DType):
        return own
    found = DTYPES.get(_NAMES.get(str(dtype).removeprefix("torch."), ""))
    if found is None:
        raise Invalid(
            f"tiles have no elements of {dtype}",
            hint=f"pass an array of one of {', '.join(_NAMES)}",
        )
    return found


@dataclass
class Region:
    """One array of a launch: where its elements lie, and the allocation they lie in."""

    name: str
    start: int  # the address that the kernel is given
    low: int
    high: int
    allocated: tuple[int, int]
    element: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    owner: Any  # a reference, so that the memory stays alive
    writable: bool = True

    @property
    def size(self) -> int:
        return (self.high - self.low) // self.element.bytes

    def index(self, address: int) -> str:
        """`x[3, 5]`, or `x + 131` for an address that no index reaches."""
        away = (address - self.start) // self.element.bytes
        rest, index = away, []
        for n, s in sorted(zip(self.shape, self.strides, strict=True), key=lambda p: -abs(p[1])):
            k = min(max(rest // s, 0), n - 1) if s > 0 else 0
            index.append((s, k))
            rest -= k * s
        if rest or not self.shape or any(s <= 0 for s in self.strides):
            return f"{self.name} {'-' if away < 0 else '+'} {abs(away)}"
        order = sorted(range(len(self.shape)), key=lambda a: -abs(self.strides[a]))
        by_axis = dict(zip(order, (k for _, k in index), strict=True))
        return f"{self.name}[{', '.join(str(by_axis[a]) for a in range(len(self.shape)))}]"

    def miss(self, address: int, width: int) -> str:
        """By how much an access misses it."""
        size = self.element.bytes
        what = f"{self.name} ({self.size} elements of {self.element})"
        if address < self.low:
            n = -(-(self.low - address) // size)
            return f"{_elements(n)} before {what}"
        if address + width > self.high:
            n = -(-(address + width - self.high) // size)
            return f"{_elements(n)} past the end of {what}"
        return f"inside {what}"


def _elements(n: int) -> str:
    return f"{n} element" if n == 1 else f"{n} elements"


def region_of(name: str, x: Any) -> Region:
    """Where an array lies. Tensors of other devices, and freed ones, are refused."""
    element = element_of(x)
    base = getattr(x, "base", x) if hasattr(getattr(x, "dtype", None), "ir") else x
    device = getattr(getattr(base, "device", None), "type", "cpu")
    if device != "cpu":
        raise Invalid(
            f"{name} lies on {getattr(base, 'device', device)}, kernels here run on the CPU",
            hint=f"pass {name}.cpu()",
        )
    if hasattr(base, "untyped_storage"):
        return _torch_region(name, base, element)
    if not hasattr(base, "__array_interface__"):
        if not hasattr(base, "__dlpack__"):
            raise Invalid(f"{name} is a {type(base).__name__}, which has no memory to point to")
        base = np.from_dlpack(base)
    if not isinstance(base, np.ndarray):
        base = np.asarray(base)
    whole = base
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    low, high = _bounds(base.ctypes.data, base.shape, base.strides, base.itemsize)
    allocated = _bounds(whole.ctypes.data, whole.shape, whole.strides, whole.itemsize)
    strides = tuple(s // base.itemsize for s in base.strides)
    allocated = (min(low, allocated[0]), max(high, allocated[1]))
    return Region(
        name,
        base.ctypes.data,
        low,
        high,
        allocated,
        element,
        base.shape,
        strides,
        x,
        bool(base.flags.writeable),
    )


def _torch_region(name: str, x: Any, element: DType) -> Region:
    storage = x.untyped_storage()
    first, n = storage.data_ptr(), storage.nbytes()
    start, width = x.data_ptr(), x.element_size()
    if x.numel() and not (n and start):
        raise Invalid(
            f"the memory of {name} was freed",
            hint="keep the tensor's storage alive until the kernel has run",
        )
    shape, strides = tuple(x.shape), tuple(x.stride())
    low, high = _bounds(start, shape, tuple(s * width for s in strides), width)
    return Region(name, start, low, high, (first, first + n), element, shape, strides, x)


def _bounds(
    start: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int
) -> tuple[int, int]:
    if 0 in shape:
        return start, start
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return start + sum(min(e, 0) for e in ends), start + sum(max(e, 0) for e in ends) + width


# ---- access

FOREIGN = -1  # the origin of an address that was computed from no argument: loaded, or a number


class Memory:
    """What a launch may touch. An address has an origin: the argument that it was computed from,
    or `FOREIGN`; the first has to stay within its allocation, the other has to hit any."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._segments: list[tuple[int, int, np.ndarray]] = []
        self._starts = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        self._searched: set[int] = set()

    def add(self, name: str, x: Any) -> int:
        """Another array; its number, which is the origin of its address."""
        self.regions.append(region_of(name, x))
        self._merge()
        return len(self.regions) - 1

    def _merge(self) -> None:
        spans = sorted(r.allocated for r in self.regions if r.allocated[1] > r.allocated[0])
        joined: list[list[int]] = []
        for low, high in spans:
            if joined and low <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], high)
            else:
                joined.append([low, high])
        self._segments = [(low, high, _bytes_at(low, high - low)) for low, high in joined]
        self._starts = np.array([s[0] for s in joined], np.int64)
        self._ends = np.array([s[1] for s in joined], np.int64)

    def spans(self) -> list[tuple[int, int]]:
        """Stretches of memory, none of which touches another."""
        return [(low, high) for low, high, _ in self._segments]

    def outside(
        self, at: np.ndarray, width: int, origin: np.ndarray, exact: bool = False
    ) -> np.ndarray:
        """Which accesses are not within what they may touch: the allocation of their origin, or
        with `exact` its elements only."""
        result = np.zeros(at.shape, bool)
        if not at.size:
            return result
        first = origin.flat[0]
        for k in [first] if np.all(origin == first) else np.unique(origin):
            mine = origin == k
            if k == FOREIGN:
                bad = self._homeless(at, width)
                if np.any(bad & mine) and self._look_around(
                    at[np.broadcast_to(bad & mine, at.shape)]
                ):
                    bad = self._homeless(at, width)
            else:
                r = self.regions[int(k)]
                low, high = (r.low, r.high) if exact else r.allocated
                bad = (at < low) | (at + width > high)
            result |= bad & mine
        return result

    def _homeless(self, at: np.ndarray, width: int) -> np.ndarray:
        if not len(self._starts):
            return np.ones(at.shape, bool)
        k = np.searchsorted(self._starts, at, "right") - 1
        return (k < 0) | (at + width > self._ends[np.maximum(k, 0)])

    def _look_around(self, at: np.ndarray) -> bool:
        """A kernel may load addresses (a grouped product does). The arrays that they belong to are
        no arguments, but they live in this process: find them."""
        wanted = [int(a) for a in np.unique(at) if int(a) not in self._searched]
        if not wanted:
            return False
        self._searched.update(wanted)
        torch = sys.modules.get("torch")
        kinds = (np.ndarray,) if torch is None else (np.ndarray, torch.Tensor)
        found = False
        for x in gc.get_objects():
            if not issubclass(type(x), kinds) or not _is_plain(x):
                continue
            try:
                r = region_of(f"a {type(x).__name__} that is no argument", x)
            except (Invalid, RuntimeError):
                continue
            if any(r.allocated[0] <= a < r.allocated[1] for a in wanted):
                self.regions.append(r)
                found = True
        if found:
            self._merge()
        return found

    def read(self, at: np.ndarray, dtype: DType) -> np.ndarray:
        """The elements at addresses of one axis, each of which lies inside."""
        bits = np.empty(at.shape, f"u{dtype.bytes}")
        for lanes, view, offset in self._parts(at):
            bits[lanes] = _gather(view, offset, dtype.bytes)
        return from_bits(bits, dtype)

    def write(self, at: np.ndarray, dtype: DType, x: np.ndarray) -> None:
        bits = to_bits(x, dtype)
        for lanes, view, offset in self._parts(at):
            _scatter(view, offset, bits[lanes])

    def _parts(self, at: np.ndarray) -> list[tuple[Any, np.ndarray, np.ndarray]]:
        if not at.size:
            return []
        k = np.searchsorted(self._starts, at, "right") - 1
        first = int(k.flat[0])
        if np.all(k == first):
            low, _, view = self._segments[first]
            return [(slice(None), view, at - low)]
        return [
            (k == s, self._segments[int(s)][2], at[k == s] - self._segments[int(s)][0])
            for s in np.unique(k)
        ]

    def nearest(self, address: int) -> Region | None:
        def distance(r: Region) -> int:
            return max(r.low - address, address - r.high, 0)

        return min(self.regions, key=distance, default=None)

    def describe(self, address: int, width: int, origin: int) -> str:
        """Where an address that nothing may touch lies."""
        r = self.regions[origin] if origin >= 0 else self.nearest(address)
        if r is None:
            return f"address {address:#x}, and the launch has no arrays"
        where = r.miss(address, width)
        return f"address {address:#x}, {where}"


def _is_plain(x: Any) -> bool:
    """Arrays whose memory can be found without running foreign code."""
    return type(x).__module__ in ("numpy", "torch", "torch.nn.parameter")


def _bytes_at(start: int, n: int) -> np.ndarray:
    return np.frombuffer(memoryview((ctypes.c_uint8 * n).from_address(start)), np.uint8)


def _gather(view: np.ndarray, offset: np.ndarray, width: int) -> np.ndarray:
    if width == 1:
        return view[offset]
    if not np.any(offset % width):
        return view[: len(view) // width * width].view(f"u{width}")[offset // width]
    return np.ascontiguousarray(view[offset[:, None] + np.arange(width)]).view(f"u{width}")[:, 0]


def _scatter(view: np.ndarray, offset: np.ndarray, bits: np.ndarray) -> None:
    width = bits.dtype.itemsize
    if width == 1:
        view[offset] = bits
    elif not np.any(offset % width):
        view[: len(view) // width * width].view(f"u{width}")[offset // width] = bits
    else:
        view[offset[:, None] + np.arange(width)] = np.ascontiguousarray(bits)[:, None].view(
            np.uint8
        )
