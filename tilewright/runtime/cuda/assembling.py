"""PTX assembled without a GPU, in any process, by nvJitLink, which comes with torch for CUDA.

The driver assembles PTX too, where it is loaded: one module after the other, in the process that
runs the program, again in every process. So this is done where the library is found, and left to
the driver where it is not, or where the driver refuses what the library made.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_MAJORS = (13, 12)  # versions of the library, the newest first
_PTX = 2  # the kind of input


@dataclass(frozen=True)
class _Library:
    """The functions of one version, which is part of their names."""

    loaded: ctypes.CDLL
    major: int

    def call(self, name: str, *args: object) -> int:
        return getattr(self.loaded, f"__nvJitLink{name}_{self.major}_0")(*args)


@cache
def _library() -> _Library | None:
    for major in _MAJORS:
        name = f"libnvJitLink.so.{major}"
        folders = (Path(folder) for folder in sys.path if folder)
        own = (str(path) for folder in folders for path in folder.glob(f"nvidia/*/lib/{name}"))
        for path in (name, *own):
            try:
                return _Library(ctypes.CDLL(path), major)
            except OSError:
                continue
    return None


def available() -> bool:
    return _library() is not None


def assembled(ptx: bytes, cpu: str) -> bytes:
    """The machine code of a module for a GPU such as sm_90a; nothing where there is no library, or
    where it does not know what is in the PTX."""
    library = _library()
    if library is None:
        return b""
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(f"-arch={cpu}".encode())
    if library.call("Create", ctypes.byref(handle), ctypes.c_uint32(1), options):
        return b""
    try:
        size = ctypes.c_size_t()
        given = ctypes.c_size_t(len(ptx) + 1)  # with the zero behind the text
        if (
            library.call("AddData", handle, ctypes.c_int(_PTX), ptx, given, b"kernel")
            or library.call("Complete", handle)
            or library.call("GetLinkedCubinSize", handle, ctypes.byref(size))
        ):
            return b""
        code = ctypes.create_string_buffer(size.value)
        return b"" if library.call("GetLinkedCubin", handle, code) else code.raw
    finally:
        library.call("Destroy", ctypes.byref(handle))
