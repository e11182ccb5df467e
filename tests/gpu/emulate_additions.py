"""Additions of shared memory to memory that the emulated copy engine does (cp.reduce.async.bulk).

The engine reads when it is asked to, and again as late as it may: when a thread waits for that.
Both have to be the same. What threads store it sees after a fence; so what they store for it stays
with them until then.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Callable

import numpy as np

ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
STORE = "st.shared.v4.f32"
NAMES = {ADD: "nvvm_bulk_add", STORE: "nvvm_staged"}
_ALONE = {
    r"cp\.async\.bulk\.commit_group;": "call void @nvvm_bulk_commit()",
    r"cp\.async\.bulk\.wait_group\.read (\d+);": r"call void @nvvm_bulk_wait(i32 \1)",
    r"fence\.proxy\.async\.shared::cta;": "call void @nvvm_bulk_fence()",
}
_DECLARES = "\n".join(
    f"declare void @nvvm_bulk_{name}" for name in ("commit()", "wait(i32)", "fence()")
)
_LOCK = threading.Lock()


def with_additions(text: str) -> str:
    """Instructions without operands as calls, in a module that has such additions."""
    if ADD not in text:
        return text
    for pattern, call in _ALONE.items():
        text = re.sub(rf'call void asm sideeffect "{pattern}", "[^"]*"\(\)', call, text)
    return f"{_DECLARES}\n{text}"


class Additions:
    """Those of one thread. `look` says whether memory may be touched."""

    def __init__(self, look: Callable[[int, int, int], None]) -> None:
        self.look = look
        self.stored: list[tuple[int, bytes]] = []
        self.groups: list[list[tuple[int, int, bytes]]] = [[]]

    def store(self, at: int, *numbers: float) -> None:
        self.look(at, 4 * len(numbers), 4 * len(numbers))
        self.stored.append((at, struct.pack(f"{len(numbers)}f", *numbers)))

    def fence(self) -> None:
        for at, raw in self.stored:
            ctypes.memmove(at, raw, len(raw))
        self.stored.clear()

    def add(self, to: int, of: int, size: int) -> None:
        assert size % 16 == 0, f"{size} bytes are no multiple of 16"
        for at in (to, of):
            self.look(at, size, 16)
        self.groups[-1].append((to, of, ctypes.string_at(of, size)))

    def commit(self) -> None:
        self.groups.append([])

    def wait(self, pending: int) -> None:
        while len(self.groups) - 1 > pending:
            for to, of, first in self.groups.pop(0):
                same = ctypes.string_at(of, len(first)) == first
                assert same, "memory is written that the copy engine still reads"
                floats = (ctypes.c_float * (len(first) // 4)).from_address(to)
                with _LOCK:
                    np.frombuffer(memoryview(floats), np.float32)[:] += np.frombuffer(
                        first, np.float32
                    )

    def end(self) -> None:
        assert self.groups == [[]], "a thread ends before the copy engine has read its memory"
