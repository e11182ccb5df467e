"""PTX assembled without a GPU, in any process, by nvJitLink, which comes with torch for CUDA.

The driver assembles PTX too, where it is loaded: one module after the other, in the process that
runs the program, again in every process. So this is done where the library is found, and left to
the driver where it is not, or where the driver refuses what the library made. It is left to the
driver too where the library says that its code is slow: it makes code that can be linked with other
code, in which threads keep the registers that they begin with (`setmaxnreg` is left out), while the
driver makes a program of its own.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_MAJORS = (13, 12)  # versions of the library, the newest first
_PTX = 2  # the kind of input
_SLOW = b"Potential Performance Loss"  # as the library says it, with the instructions left out


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
    """The machine code of a module for a GPU such as sm_90a; nothing where there is no library,
    where it does not know what is in the PTX, or where it does worse than the driver."""
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
            or _SLOW in _said(library, handle)
            or library.call("GetLinkedCubinSize", handle, ctypes.byref(size))
        ):
            return b""
        code = ctypes.create_string_buffer(size.value)
        return b"" if library.call("GetLinkedCubin", handle, code) else code.raw
    finally:
        library.call("Destroy", ctypes.byref(handle))


def _said(library: _Library, handle: ctypes.c_void_p) -> bytes:
    """What the library noticed of code that it made."""
    size = ctypes.c_size_t()
    if library.call("GetInfoLogSize", handle, ctypes.byref(size)) or not size.value:
        return b""
    text = ctypes.create_string_buffer(size.value)
    return b"" if library.call("GetInfoLog", handle, text) else text.value
