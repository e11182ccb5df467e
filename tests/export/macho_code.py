"""Code of macOS in a process of Linux: a library's segments mapped, its addresses filled in, its
functions called. The calling conventions are the same for the functions of packages; nothing of
macOS itself is there."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.link.macho import MAGIC

_SEGMENT, _SYMBOLS, _INFO = 0x19, 0x2, 0x80000022
_EXTERNAL, _KIND = 0x1, 0xE


class MachO:
    """A library that is loaded. `given`: addresses of functions that it takes, by name; others are
    those of this process."""

    def __init__(self, image: bytes, given: Mapping[str, int]):
        assert image[:4] == MAGIC
        self.segments: list[tuple[int, int]] = []  # addresses and sizes, before they are mapped
        tables: tuple[int, ...] = ()
        parts: list[tuple[int, bytes]] = []
        self.defined: dict[str, int] = {}
        for command, at in _commands(image):
            if command == _SEGMENT:
                address, size, start, stored = struct.unpack_from("<QQQQ", image, at + 24)
                self.segments.append((address, size))
                parts.append((address, image[start : start + stored]))
            elif command == _INFO:
                tables = struct.unpack_from("<8I", image, at + 8)
            elif command == _SYMBOLS:
                self.defined = dict(_defined(image, *struct.unpack_from("<III", image, at + 8)))
        page = mmap.PAGESIZE
        size = max(address + size for address, size in self.segments)
        content = bytearray(-(-size // page) * page)
        for address, part in parts:
            content[address : address + len(part)] = part
        # Code comes out of a file, so that the system takes care of the processor's caches.
        fd = os.memfd_create("macho")
        os.write(fd, content)
        rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        self.memory = mmap.mmap(fd, len(content), mmap.MAP_PRIVATE, rights)
        os.close(fd)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for address, _ in self._places(image, tables[0], tables[1], False):
            (held,) = struct.unpack_from("<Q", self.memory, address)
            struct.pack_into("<Q", self.memory, address, held + self.base)
        for k in (2, 6):  # bound while loading, and when first called
            for address, name in self._places(image, tables[k], tables[k + 1], True):
                if name != "dyld_stub_binder":
                    found = given.get(name) or _of_process(name)
                    struct.pack_into("<Q", self.memory, address, found)

    def address(self, name: str) -> int:
        return self.base + self.defined[name]

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(name))

    def _places(
        self, image: bytes, start: int, size: int, binds: bool
    ) -> Iterator[tuple[int, str]]:
        """Where an address has to be filled in, and whose: what the bytes of a table say."""
        at, end, address, name = start, start + size, 0, ""
        while at < end:
            word, low = image[at] & 0xF0, image[at] & 0x0F
            at += 1
            if word == 0x40 and binds:
                stop = image.index(b"\0", at)
                name, at = image[at:stop].decode().removeprefix("_"), stop + 1
            elif word == (0x70 if binds else 0x20):
                offset, at = _number(image, at)
                address = self.segments[low][0] + offset
            elif word == (0x90 if binds else 0x50):
                for _ in range(1 if binds else low):
                    yield address, name
                    address += 8
            elif word == 0x60 and not binds:
                count, at = _number(image, at)
                for _ in range(count):
                    yield address, name
                    address += 8
            elif word == (0x80 if binds else 0x30):
                offset, at = _number(image, at)
                address = (address + offset) % 2**64
            else:  # of a library, a type, an end
                assert word in (0x00, 0x10, 0x20, 0x30, 0x50), hex(word)


def _commands(image: bytes) -> Iterator[tuple[int, int]]:
    (count,) = struct.unpack_from("<I", image, 16)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", image, at)
        yield command, at
        at += size


def _defined(image: bytes, start: int, count: int, strings: int) -> Iterator[tuple[str, int]]:
    for k in range(count):
        name, kind, _, _, value = struct.unpack_from("<IBBHQ", image, start + 16 * k)
        if kind & _EXTERNAL and kind & _KIND:
            begin = strings + name
            yield image[begin : image.index(b"\0", begin)].decode().removeprefix("_"), value


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _of_process(name: str) -> int:
    found = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert found is not None
    return found
