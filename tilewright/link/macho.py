"""Mach-O: the symbols of objects, which of them are exported, and what a library says of itself.

Names have an underscore before them in these files, which is left out here.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tilewright.base.errors import Invalid, require
from tilewright.link.shared import Shared

MAGIC = b"\xcf\xfa\xed\xfe"
_OBJECT, _LIBRARY = 1, 6
_SYMBOLS, _LOADED, _OWN_NAME, _SEGMENT = 0x2, 0xC, 0xD, 0x19
_INFO, _TRIE = 0x80000022, 0x80000033
_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
# Of a symbol's type: seen by other objects; by those of the same library only; what it is.
_EXTERNAL, _PRIVATE, _KIND, _STABS = 0x1, 0x10, 0xE, 0xE0
_ENTRY = struct.Struct("<IBBHQ")


@dataclass(frozen=True)
class _Symbol:
    name: str
    type: int
    at: int  # of its entry in the file

    @property
    def defined(self) -> bool:
        return bool(self.type & _KIND)


def macho_symbols(image: bytes) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The machine of an object, what it defines for others, and what it needs from them."""
    try:
        found = [s for s in _symbols(image) if s.type & _EXTERNAL]
        defined = tuple(s.name for s in found if s.defined)
        return _machine(image), defined, tuple(s.name for s in found if not s.defined)
    except (struct.error, ValueError) as problem:
        raise Invalid(f"the object image is damaged: {problem}") from None


def with_exports(image: bytes, exports: Collection[str]) -> bytes:
    """The object, whose other symbols no library shows."""
    made = bytearray(image)
    for s in _symbols(image):
        if s.type & _EXTERNAL and s.defined and s.name not in exports:
            made[s.at + 4] |= _PRIVATE
    return bytes(made)


def read_dylib(image: bytes, title: str) -> Shared:
    """What a library says of itself; `title` is what messages call it."""
    try:
        return _dylib(image, title)
    except (struct.error, IndexError, ValueError) as problem:
        raise Invalid(f"{title} is damaged: {problem}") from None


def _dylib(image: bytes, title: str) -> Shared:
    require(image[:4] == MAGIC, f"{title} is no Mach-O file of 64 bits")
    (kind,) = struct.unpack_from("<I", image, 12)
    require(kind == _LIBRARY, f"{title} is no library")
    name, needed, rights, exports = "", [], [], []
    for command, at in _commands(image):
        if command in (_OWN_NAME, _LOADED):
            text = _text(image, at + struct.unpack_from("<I", image, at + 8)[0])
            if command == _OWN_NAME:
                name = text
            else:
                needed.append(text)
        elif command == _SEGMENT:
            offset, length, _, allowed = struct.unpack_from("<QQII", image, at + 40)
            require(offset + length <= len(image), f"{title} is truncated")
            if allowed:
                rights.append("".join(c if allowed & b else "-" for c, b in zip("rwx", (1, 2, 4))))
        elif command in (_INFO, _TRIE):
            place = at + (40 if command == _INFO else 8)
            start, size = struct.unpack_from("<II", image, place)
            exports += _exported(image[start : start + size])
    taken = [s.name for s in _symbols(image) if s.type & _EXTERNAL and not s.defined]
    shown = tuple(sorted(x.removeprefix("_") for x in exports))
    return Shared(_machine(image), name, tuple(needed), shown, tuple(sorted(taken)), tuple(rights))


def _machine(image: bytes) -> str:
    (number,) = struct.unpack_from("<I", image, 4)
    return _MACHINES.get(number, f"Mach-O {number:#x}")


def _commands(image: bytes) -> Iterator[tuple[int, int]]:
    """The load commands: numbers, and where they are."""
    (count,) = struct.unpack_from("<I", image, 16)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", image, at)
        if size < 8:
            raise ValueError(f"a load command has {size} bytes")
        yield command, at
        at += size


def _symbols(image: bytes) -> Iterator[_Symbol]:
    for command, at in _commands(image):
        if command != _SYMBOLS:
            continue
        start, count, strings, _ = struct.unpack_from("<IIII", image, at + 8)
        for k in range(count):
            place = start + k * _ENTRY.size
            name, type_, _, _, _ = _ENTRY.unpack_from(image, place)
            if not type_ & _STABS:
                yield _Symbol(_text(image, strings + name).removeprefix("_"), type_, place)


def _exported(trie: bytes) -> list[str]:
    """The names of a trie: nodes with a length of what is said of a name, that, the number of
    edges, and edges of letters and the place of another node."""
    found: list[str] = []
    left = [("", 0)] if trie else []
    seen: set[int] = set()
    while left:
        name, at = left.pop()
        if at in seen:
            raise ValueError("the exports run in a circle")
        seen.add(at)
        size, at = _number(trie, at)
        if size:
            found.append(name)
        at += size
        for _ in range(trie[at]):
            begin = at + 1
            at = trie.index(b"\0", begin)
            letters = trie[begin:at].decode()
            place, at = _number(trie, at + 1)
            at -= 1
            left.append((name + letters, place))
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()
