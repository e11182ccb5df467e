"""Windows' files: the symbols of objects (COFF), and what a library (PE) says of itself."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from tilewright.base.errors import Invalid, require
from tilewright.link.shared import Shared

MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
_EXTERNAL, _WEAK = 2, 105
_ENTRY = struct.Struct("<8sIhHBB")
_EXECUTE, _READ, _WRITE = 1 << 29, 1 << 30, 1 << 31


def is_coff(image: bytes) -> bool:
    """Such objects begin with the number of their machine, and nothing else."""
    return int.from_bytes(image[:2], "little") in MACHINES


def coff_symbols(image: bytes) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The machine of an object, what it defines for others, and what it needs from them."""
    try:
        found = list(_symbols(image))
        defined = tuple(name for name, section, value in found if section or value)
        needed = tuple(name for name, section, value in found if not section and not value)
        return _machine(image, 0), defined, needed
    except (struct.error, ValueError) as problem:
        raise Invalid(f"the object image is damaged: {problem}") from None


def _symbols(image: bytes) -> Iterator[tuple[str, int, int]]:
    """Names, sections and values of what other objects see."""
    start, count = struct.unpack_from("<II", image, 8)
    strings = start + count * _ENTRY.size
    k = 0
    while k < count:
        short, value, section, _, kind, more = _ENTRY.unpack_from(image, start + k * _ENTRY.size)
        if kind in (_EXTERNAL, _WEAK):
            zero, offset = struct.unpack("<II", short)
            name = short.rstrip(b"\0").decode() if zero else _text(image, strings + offset)
            yield name, section, value
        k += 1 + more


def _machine(image: bytes, at: int) -> str:
    (number,) = struct.unpack_from("<H", image, at)
    return MACHINES.get(number, f"PE {number:#x}")


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


def read_dll(image: bytes, title: str) -> Shared:
    """What a library says of itself; `title` is what messages call it."""
    try:
        return _dll(image, title)
    except (struct.error, IndexError, ValueError) as problem:
        raise Invalid(f"{title} is damaged: {problem}") from None


def _dll(image: bytes, title: str) -> Shared:
    require(image[:2] == b"MZ", f"{title} is no file of Windows")
    (start,) = struct.unpack_from("<I", image, 60)
    require(image[start : start + 4] == b"PE\0\0", f"{title} is no library of Windows")
    sections, _, _, _, header, flags = struct.unpack_from("<HIIIHH", image, start + 6)
    require(bool(flags & 0x2000), f"{title} is no library")
    first = start + 24
    (kind,) = struct.unpack_from("<H", image, first)
    require(kind == 0x20B, f"{title} is not of 64 bits")
    rows = [
        struct.unpack_from("<8sIIIIIIHHI", image, first + header + 40 * k) for k in range(sections)
    ]

    def place(address: int) -> int:
        for _, size, begin, stored, offset, *_ in rows:
            if begin <= address < begin + max(size, stored):
                return address - begin + offset
        raise ValueError(f"nothing is at {address:#x}")

    for _, _, _, stored, offset, *_ in rows:
        require(offset + stored <= len(image), f"{title} is truncated")
    name, exports = "", []
    (address,) = struct.unpack_from("<I", image, first + 112)
    if address:
        at = place(address)
        own, _, _, count, _, names = struct.unpack_from("<IIIIII", image, at + 12)
        name = _text(image, place(own))
        for k in range(count):
            exports.append(
                _text(image, place(struct.unpack_from("<I", image, place(names) + 4 * k)[0]))
            )
    imports = dict(_imports(image, first, place))
    rights = tuple(_rights(row[-1]) for row in rows if row[1])
    taken = sorted({x for names in imports.values() for x in names})
    return Shared(
        _machine(image, start + 4),
        name,
        tuple(imports),
        tuple(sorted(exports)),
        tuple(taken),
        rights,
    )


def _imports(
    image: bytes, first: int, place: Callable[[int], int]
) -> Iterator[tuple[str, list[str]]]:
    """The libraries that one needs, and what it takes of each."""
    (address,) = struct.unpack_from("<I", image, first + 120)
    at = place(address) if address else 0
    while address:
        table, _, _, name, slots = struct.unpack_from("<IIIII", image, at)
        if not name:
            return
        names = []
        entry = place(table or slots)
        while number := struct.unpack_from("<Q", image, entry)[0]:
            by_number = number >> 63
            names.append(f"#{number & 0xFFFF}" if by_number else _text(image, place(number) + 2))
            entry += 8
        yield _text(image, place(name)), names
        at += 20


def _rights(flags: int) -> str:
    bits = (("r", _READ), ("w", _WRITE), ("x", _EXECUTE))
    return "".join(c if flags & bit else "-" for c, bit in bits)
