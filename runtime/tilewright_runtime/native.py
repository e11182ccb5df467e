"""Memory, and code in it: what is needed of the C library."""

from __future__ import annotations

import _ctypes
import ctypes
import os

from tilewright_runtime.sentences import PackageError

_process = ctypes.CDLL(None, use_errno=True)
LINE = 64  # bytes: the alignment of workspaces and weights
_LARGE = 2 << 20  # bytes of a large page
_READ, _EXECUTE, _PRIVATE, _HUGE = 1, 4, 2, 14

_mmap = _process.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_munmap = _process.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_aligned = _process.posix_memalign
_aligned.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
_madvise = _process.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
free = _process.free
free.argtypes = (ctypes.c_void_p,)
_FAILED = ctypes.c_void_p(-1).value


class Mapped:
    """Bytes of a file, mapped to be read: at `address`."""

    def __init__(self, fd: int, offset: int, size: int, executable: bool = False):
        page = os.sysconf("SC_PAGESIZE")
        first = offset // page * page
        self.size = size
        self._bytes = offset - first + size
        kind = _READ | (_EXECUTE if executable else 0)
        found = _mmap(None, self._bytes, kind, _PRIVATE, fd, first)
        if found is None or found == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._start = found
        self.address = found + offset - first

    @property
    def content(self) -> memoryview:
        return memoryview((ctypes.c_char * self.size).from_address(self.address)).cast("B")

    def close(self) -> None:
        if self._start:
            _munmap(self._start, self._bytes)
            self._start = 0


def allocate(size: int) -> int:
    """The address of memory aligned to a line, in large pages where it is large."""
    memory = ctypes.c_void_p()
    large = size >= _LARGE
    if _aligned(ctypes.byref(memory), _LARGE if large else LINE, max(size, 1)) or not memory.value:
        raise PackageError("MEMORY", size)
    if large:  # the last page is large only if most of it is used
        _madvise(memory.value, (size + _LARGE // 2) // _LARGE * _LARGE, _HUGE)
    return memory.value


class Library:
    """Code from memory: what was checked is what is loaded, whatever becomes of the file.

    The loader knows a library by its path, which here is that of a descriptor: it stays open as
    long as the library is loaded, or another one could get the same path.
    """

    def __init__(self, content: bytes, everywhere: bool = False):
        self.fd = _written(content)
        mode = os.RTLD_NOW | (ctypes.RTLD_GLOBAL if everywhere else ctypes.RTLD_LOCAL)
        try:
            self._library = ctypes.CDLL(f"/proc/self/fd/{self.fd}", mode)
        except OSError:
            os.close(self.fd)
            raise

    def function(self, name: str, result: object, *arguments: object) -> ctypes._CFuncPtr:
        return _typed(self._library, name, result, *arguments)

    def close(self) -> None:
        _ctypes.dlclose(self._library._handle)
        os.close(self.fd)


def _written(content: bytes) -> int:
    """A descriptor of memory without a name, or where there is none of a file without one, with
    this in it."""
    try:
        # 16: it may be executed, where that has to be said.
        fd = os.memfd_create("tilewright", os.MFD_CLOEXEC | 16)
    except OSError:
        fd = os.memfd_create("tilewright", os.MFD_CLOEXEC)
    except AttributeError:
        fd = _nameless_file()
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    return fd


def _nameless_file() -> int:
    import tempfile

    fd, path = tempfile.mkstemp(prefix="tilewright-")
    os.unlink(path)
    return fd


def _typed(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> ctypes._CFuncPtr:
    found = getattr(library, name)
    found.restype = result
    found.argtypes = arguments
    return found


def of_process(name: str, result: object, *arguments: object) -> ctypes._CFuncPtr | None:
    """A function that the process has loaded for everyone, or None."""
    if not hasattr(_process, name):
        return None
    return _typed(_process, name, result, *arguments)


class Code:
    """Some instructions of our own, as a function."""

    def __init__(self, instructions: bytes, result: type | None, *arguments: type):
        fd = _written(instructions)
        try:
            self._memory = Mapped(fd, 0, len(instructions), executable=True)
        finally:
            os.close(fd)
        self.call = ctypes.CFUNCTYPE(result, *arguments)(self._memory.address)
        self.close = self._memory.close
