"""A nest as a native function on numpy arrays, with canaries around what it writes, and a way to
see that it touches nothing else: memory that ends (or begins) at a page which may not be touched.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.ir.types import DType, from_memory, to_memory
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest
from tilewright.runtime.nests import NestKernel
from tilewright.targets import default

# Bytes before and after each output that no kernel may touch.
MARGIN = 1024
CANARY = 0xA5


def fatal_side(call: Callable[[bool], None]) -> str | None:
    """On which side of its arguments a call touches memory that it must not: it is made with
    arguments at the end of what may be touched, then at the beginning. One child process makes both
    calls: to fork a process that has torch takes tens of milliseconds."""
    sides = ("after the end", "before the beginning")
    reached = mmap.mmap(-1, 1)  # shared with the child
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # it is this process that says what happened
        status = 1
        try:
            for k in range(len(sides)):
                reached[0] = k
                call(k == 0)
            status = 0
        finally:
            os._exit(status)
    return sides[reached[0]] if os.waitpid(child, 0)[1] else None


def _as_declared(a: np.ndarray, b: Buffer) -> np.ndarray:
    return a if b.packed_as is None else b.packed_as.map.pack(a)


class Native:
    """A compiled nest; call it like the interpreter's `run`."""

    def __init__(self, nest: Nest, target: Target | None = None) -> None:
        target = target or default()
        self.nest = nest
        self.kernel = NestKernel(nest, target)
        self.text = self.kernel.text

    def __call__(
        self, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
    ) -> dict[str, np.ndarray]:
        sizes = dict(dims or {})
        references: list[np.ndarray] = []
        addresses: list[int] = []
        outs: dict[str, tuple[np.ndarray, np.ndarray, DType]] = {}
        for b in self.nest.buffers:
            if b.scope == "in":
                references.append(to_memory(_as_declared(arrays[b.name], b), b.dtype))
                addresses.append(references[-1].ctypes.data)
            elif b.scope == "out":
                shape = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
                item = b.dtype.memory
                size = int(np.prod(shape)) * item.itemsize
                raw = np.full(size + 2 * MARGIN, CANARY, np.uint8)
                view = raw[MARGIN : MARGIN + size].view(item).reshape(shape)
                if b.name in arrays:
                    view[...] = to_memory(arrays[b.name], b.dtype)
                outs[b.name] = raw, view, b.dtype
                addresses.append(view.ctypes.data)
        self.call(addresses, sizes)
        for name, (raw, _, _) in outs.items():
            edges = np.concatenate([raw[:MARGIN], raw[len(raw) - MARGIN :]])
            assert (edges == CANARY).all(), f"native code writes outside {name}"
        return {name: from_memory(view, d) for name, (_, view, d) in outs.items()}

    def call(self, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        self.kernel(addresses, self.kernel.sizes(sizes))

    def strays(
        self, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
    ) -> str | None:
        """What becomes of a process in which touching memory outside the arguments is fatal."""
        sizes = dict(dims or {})

        def call(at_end: bool) -> None:
            memory = [self._guarded(b, arrays, sizes, at_end) for b in self.arguments]
            self.call([address for _, address in memory], sizes)

        side = fatal_side(call)
        return None if side is None else f"native code touches memory {side} of an argument"

    @property
    def arguments(self) -> list[Buffer]:
        return self.kernel.arguments

    def _guarded(
        self, b: Buffer, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], at_end: bool
    ) -> tuple[mmap.mmap, int]:
        """The buffer next to a page that must not be touched, and its address."""
        shape = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
        item = b.dtype.bytes
        size = int(np.prod(shape)) * item
        pages = -(-max(size, 1) // mmap.PAGESIZE)
        memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        first = start + mmap.PAGESIZE
        address = first + pages * mmap.PAGESIZE - size if at_end else first
        if b.name in arrays:
            data = to_memory(_as_declared(arrays[b.name], b), b.dtype).tobytes()
            ctypes.memmove(address, data, len(data))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for page in (start, first + pages * mmap.PAGESIZE):
            assert protect(page, mmap.PAGESIZE, 0) == 0
        return memory, address
