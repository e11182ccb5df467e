"""GPUs of this machine and the context that all users in a process share, torch among them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tilewright.base.errors import Invalid
from tilewright.runtime.cuda.driver import NO_CONTEXT, Driver, available, driver

# The driver's numbers of the attributes of a device.
_ATTRIBUTES = {
    "block_threads": 1,
    "warp": 10,
    "registers": 82,
    "multiprocessors": 16,
    "threads": 39,
    "shared": 81,
    "block_shared": 97,
    "blocks": 106,
    "l2": 38,
    "clock_khz": 13,
    "memory_khz": 36,
    "bus_bits": 37,
    "major": 75,
    "minor": 76,
}

# The driver's numbers of what it says of an address, and of a kind of memory.
_KIND_OF_MEMORY, _WHICH_DEVICE = 2, 9
_OF_A_GPU = 2


@dataclass(frozen=True)
class Device:
    """One GPU; `number` is CUDA's, which torch uses too."""

    number: int
    name: str
    capability: int  # major * 10 + minor
    facts: tuple[tuple[str, int], ...]
    memory: int
    context: int
    driver: Driver

    def use(self) -> None:
        """Makes this device the one of the calling thread."""
        # Others change it too, so it is read every time.
        now = ctypes.c_void_p()
        self.driver.call("cuCtxGetCurrent", ctypes.byref(now))
        if now.value != self.context:
            self.driver.call("cuCtxSetCurrent", self.context)

    def enter(self) -> int:
        """Makes this device the one of the calling thread until `leave`, which takes what this
        returns: torch takes the thread's context for its current device."""
        now = ctypes.c_void_p()
        self.driver.call("cuCtxGetCurrent", ctypes.byref(now))
        before = now.value or 0
        if before != self.context:
            self.driver.call("cuCtxSetCurrent", self.context)
        return before

    def leave(self, before: int) -> None:
        if before and before != self.context:
            self.driver.call("cuCtxSetCurrent", before)

    def within(self, call: Callable[[int], None], stream: int) -> None:
        """A call while this device is the calling thread's."""
        before = self.enter()
        try:
            call(stream)
        finally:
            self.leave(before)

    def numbers(self) -> dict[str, int]:
        """What a target's grid says of a machine (ir/target.py)."""
        names = "multiprocessors warp block_threads threads blocks registers block_shared shared"
        return {k: v for k, v in self.facts if k in names.split() and v > 0}

    def synchronise(self) -> None:
        """Waits until all work of the device is done."""
        self.use()
        self.driver.call("cuCtxSynchronize")


def count(by: Driver | None = None) -> int:
    found = ctypes.c_int()
    (by or driver()).call("cuDeviceGetCount", ctypes.byref(found))
    return found.value


@cache
def _driver_if_any() -> Driver | None:
    return driver() if available() else None


def gpu_at(address: int, by: Driver | None = None) -> int | None:
    """The GPU in whose memory an address is; None: it is the processor's."""
    by = by or _driver_if_any()
    if by is None:
        return None
    kind, which = ctypes.c_int(), ctypes.c_int()
    place, ask = ctypes.c_uint64(address), by.function("cuPointerGetAttribute")
    code = ask(ctypes.byref(kind), _KIND_OF_MEMORY, place)
    if code == NO_CONTEXT:  # the thread has used no GPU so far
        device(0).use()
        code = ask(ctypes.byref(kind), _KIND_OF_MEMORY, place)
    if code or kind.value != _OF_A_GPU:
        return None  # the driver knows nothing of memory that it did not allocate
    by.call("cuPointerGetAttribute", ctypes.byref(which), _WHICH_DEVICE, place)
    return which.value


@cache
def device(number: int = 0) -> Device:
    """A GPU by number."""
    return describe(number, driver())


def describe(number: int, by: Driver) -> Device:
    total = count(by)
    if not 0 <= number < total:
        raise Invalid(f"there is no GPU {number}", hint=f"{total} are there, counted from 0")
    handle = ctypes.c_int()
    by.call("cuDeviceGet", ctypes.byref(handle), number)
    name = ctypes.create_string_buffer(256)
    by.call("cuDeviceGetName", name, 256, handle)
    facts: list[tuple[str, int]] = []
    for what, which in _ATTRIBUTES.items():
        value = ctypes.c_int()
        by.call("cuDeviceGetAttribute", ctypes.byref(value), which, handle)
        facts.append((what, value.value))
    known = dict(facts)
    memory = ctypes.c_size_t()
    by.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
    context = ctypes.c_void_p()
    by.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    capability = known["major"] * 10 + known["minor"]
    title = name.value.decode(errors="replace")
    return Device(number, title, capability, tuple(facts), memory.value, context.value or 0, by)
