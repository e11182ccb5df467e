"""Native code that Python calls: objects, loaded, with one function that takes addresses.

Every compiled kernel and every program is one of these. A kernel's function takes the addresses of
its arguments and its sizes, `void kernel(ptr arguments, ptr sizes)`; a program's entry takes more
(runtime/program.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.runtime import pool
from tilewright.runtime.library import Function, Library


def callback_address(function: Any) -> int:
    """The address of a ctypes callback, which its owner has to keep alive."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, "a callback has an address"
    return address


class NativeKernel:
    """Compiled objects in this process, and the function `name` of them.

    `symbols` are addresses that the code may call besides the thread pool's. `function` may be
    called as long as it exists, also when this object is gone.
    """

    def __init__(
        self,
        objects: Sequence[bytes],
        name: str,
        symbols: Mapping[str, int] | None = None,
        pointers: int = 2,
    ) -> None:
        known = {"tw_parallel": pool.address(), **(symbols or {})}
        self.name, self.library = name, Library(objects, known)
        self.function: Function = self.library.function(name, *[ctypes.c_void_p] * pointers)

    @property
    def address(self) -> int:
        """Of the function."""
        return self.library.address(self.name)

    def __call__(self, addresses: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """One call of a kernel."""
        arguments = address_array(addresses)
        self.function(arguments, size_array(sizes))

    def close(self) -> None:
        """Unload the code now."""
        self.library.close()


def address_array(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses as native code takes them; never an empty array."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def size_array(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Sizes as native code takes them; never an empty array."""
    return (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
