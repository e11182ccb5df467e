"""Reading the symbol table of an ELF object, as before it is passed to LLVM's loader.

The loader aborts the process on some damaged images and names no missing symbol, so both are
checked here, where they can become a sentence.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.base.errors import Invalid, require

_MACHINES = {40: "armv7", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SYMBOL_TABLE, _STRING_TABLE, _NO_BITS = 2, 3, 8
_LOCAL = 0


@dataclass(frozen=True)
class _Layout:
    """The records of one class of files. Those of 32 bits have the same fields, narrower, and in
    symbols in another order."""

    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    names: tuple[int, int, int]  # where a symbol has its name, its kind and its section


_LAYOUTS = {
    1: _Layout(
        struct.Struct("<16sHHIIIIIHHHHHH"),
        struct.Struct("<10I"),
        struct.Struct("<IIIBBH"),
        (0, 3, 5),
    ),
    2: _Layout(
        struct.Struct("<16sHHIQQQIHHHHHH"),
        struct.Struct("<IIQQQQIIQQ"),
        struct.Struct("<IBBHQQ"),
        (0, 1, 3),
    ),
}


@dataclass(frozen=True)
class ObjectSymbols:
    """What an object defines for others, and what it needs from them."""

    arch: str
    defined: tuple[str, ...]
    needed: tuple[str, ...]


def read_symbols(image: bytes) -> ObjectSymbols:
    """The global symbols of a little-endian relocatable object."""
    known = image[:4] == b"\x7fELF" and image[4:5] in (b"\x01", b"\x02") and image[5:6] == b"\x01"
    require(known, "the object image is not a little-endian ELF object")
    try:
        return _read(image, _LAYOUTS[image[4]])
    except (struct.error, IndexError, ValueError) as problem:
        raise Invalid(f"the object image is damaged: {problem}", hint="compile it again") from None


def _read(image: bytes, of: _Layout) -> ObjectSymbols:
    header = of.header.unpack_from(image)
    machine, offset, size, count = header[2], header[6], header[11], header[12]
    require(size == of.section.size, "the object image is damaged: odd section headers")
    sections = [of.section.unpack_from(image, offset + i * size) for i in range(count)]
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
    for position in range(start, start + length, of.symbol.size):
        symbol = of.symbol.unpack_from(image, position)
        name, info, section = (symbol[k] for k in of.names)
        if info >> 4 == _LOCAL or not name:
            continue
        text = strings[name : strings.index(b"\0", name)].decode()
        (defined if section else needed).append(text)
    return ObjectSymbols(_MACHINES.get(machine, f"ELF {machine}"), tuple(defined), tuple(needed))
