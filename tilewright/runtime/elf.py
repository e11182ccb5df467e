"""Reading the symbol table of an ELF object before it is passed to LLVM's loader.

The loader aborts the process on some damaged images and names no missing symbol, so both are
checked here, where they can become a sentence.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.base.errors import Invalid, require

_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SYMBOL_TABLE, _STRING_TABLE, _NO_BITS = 2, 3, 8
_LOCAL = 0
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class ObjectSymbols:
    """What an object defines for others, and what it needs from them."""

    arch: str
    defined: tuple[str, ...]
    needed: tuple[str, ...]


def read_symbols(image: bytes) -> ObjectSymbols:
    """The global symbols of a 64-bit little-endian relocatable object."""
    require(image[:6] == b"\x7fELF\x02\x01", "the object image is not a 64-bit ELF object")
    try:
        return _read(image)
    except (struct.error, IndexError, ValueError) as problem:
        raise Invalid(f"the object image is damaged: {problem}", hint="compile it again") from None


def _read(image: bytes) -> ObjectSymbols:
    header = _HEADER.unpack_from(image)
    machine, offset, size, count = header[2], header[6], header[11], header[12]
    require(size == _SECTION.size, "the object image is damaged: odd section headers")
    sections = [_SECTION.unpack_from(image, offset + i * size) for i in range(count)]
    for _, kind, _, _, start, length, *_ in sections:
        fits = kind == _NO_BITS or start + length <= len(image)
        require(fits, "the object image is damaged: a section lies beyond its end")
    tables = [section for section in sections if section[1] == _SYMBOL_TABLE]
    require(len(tables) == 1, "the object image is damaged: it has no symbol table")
    _, _, _, _, start, length, link, *_ = tables[0]
    names = sections[link]
    require(names[1] == _STRING_TABLE, "the object image is damaged: symbols without names")
    strings = image[names[4] : names[4] + names[5]]

    defined: list[str] = []
    needed: list[str] = []
    for position in range(start, start + length, _SYMBOL.size):
        name, info, _, section, _, _ = _SYMBOL.unpack_from(image, position)
        if info >> 4 == _LOCAL or not name:
            continue
        text = strings[name : strings.index(b"\0", name)].decode()
        (defined if section else needed).append(text)
    return ObjectSymbols(_MACHINES.get(machine, f"ELF {machine}"), tuple(defined), tuple(needed))
