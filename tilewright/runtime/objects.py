"""The symbols of a relocatable object, whatever its format."""

from __future__ import annotations

from tilewright.link import macho, pe
from tilewright.link.wasm_object import LOCAL, read_wasm_object
from tilewright.runtime import elf
from tilewright.runtime.elf import ObjectSymbols


def read_symbols(image: bytes) -> ObjectSymbols:
    """What an object defines for others, and what it needs from them."""
    if image[:4] == b"\0asm":
        return _wasm(image)
    if image[:4] == macho.MAGIC:
        return ObjectSymbols(*macho.macho_symbols(image))
    return ObjectSymbols(*pe.coff_symbols(image)) if pe.is_coff(image) else elf.read_symbols(image)


def _wasm(image: bytes) -> ObjectSymbols:
    found = [s for s in read_wasm_object(image, "the object image").symbols if s.name]
    defined = tuple(s.name for s in found if s.chunk is not None and not s.flags & LOCAL)
    return ObjectSymbols("wasm32", defined, tuple(s.name for s in found if s.chunk is None))
