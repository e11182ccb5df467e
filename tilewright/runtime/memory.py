"""Memory that programs allocate: aligned; too large requests are errors before the system fails."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

import numpy as np

from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.base.machine import available_memory

ALIGN = 64
LARGE_PAGE = 2 << 20
# May code give pages back to the system, by a function and a number of Linux?
GIVES_BACK = sys.platform == "linux" and sys.maxsize > 1 << 32
# Below this nothing is checked: reading what is available takes longer than a small call.
_ALWAYS = 64 << 20


class OutOfMemory(TilewrightError, MemoryError):
    """A program needs more memory than there is."""


def aligned(size: int) -> tuple[np.ndarray, int]:
    """Memory of `size` bytes (never none) and its aligned address.

    Much memory comes in large pages where the system has them: a kernel that walks through an
    image in tiles touches more small pages than a processor has translations for.
    """
    if size >= LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        room = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        raw = np.frombuffer(room, np.uint8)
        address = -(-raw.ctypes.data // LARGE_PAGE) * LARGE_PAGE
        # The last page is large only if most of it is used.
        pages = (size + LARGE_PAGE // 2) // LARGE_PAGE
        with suppress(OSError):  # a system without them
            room.madvise(mmap.MADV_HUGEPAGE, address - raw.ctypes.data, pages * LARGE_PAGE)
        return raw, address
    raw = np.empty(max(size, 1) + ALIGN, np.uint8)
    return raw, (raw.ctypes.data + ALIGN - 1) // ALIGN * ALIGN


def require_room(size: int, purpose: str) -> None:
    """Raise before anything is allocated: a system that gives memory it does not have ends the
    process when it is used."""
    limit = knobs.memory_mb.get()
    if limit is None and size < _ALWAYS:
        return
    room = available_memory() if limit is None else limit << 20
    if room is not None and size > room:
        raise OutOfMemory(
            f"{purpose} would take {_gib(size)}, and {_gib(room)} are available",
            hint="use a smaller batch, a narrower dtype or own_weights=True, or free memory first"
            + (" (the limit is TILEWRIGHT_MEMORY_MB)" if limit is not None else ""),
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
