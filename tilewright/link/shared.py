"""What a shared object says of itself to loaders, read without loading it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.base.errors import Invalid, require
from tilewright.link.machines import MACHINES

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _SYMBOLS, _NAME, _HASH = 1, 5, 6, 14, 4


@dataclass(frozen=True)
class Shared:
    """`rights`: of each part that is mapped, such as "r-x"."""

    machine: str
    name: str
    needed: tuple[str, ...]
    exports: tuple[str, ...]
    imports: tuple[str, ...]
    rights: tuple[str, ...]


def read_shared(image: bytes, name: str) -> Shared:
    """The dynamic tables of a little-endian shared object; `name` is what messages call it."""
    try:
        return _read(image, name)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as problem:
        raise Invalid(f"{name} is damaged: {problem}") from None


def _read(image: bytes, title: str) -> Shared:
    known = image[:4] == b"\x7fELF" and image[4:5] in (b"\1", b"\2") and image[5:6] == b"\1"
    require(known, f"{title} is not a little-endian ELF file")
    wide = image[4] == 2
    header = struct.unpack_from("<16sHHIQQQIHHHHHH" if wide else "<16sHHIIIIIHHHHHH", image)
    kind, machine, start, size, count = header[1], header[2], header[5], header[9], header[10]
    require(kind == 3, f"{title} is no shared object")
    rows = [
        struct.unpack_from("<IIQQQQ" if wide else "<IIIIIIII", image, start + k * size)
        for k in range(count)
    ]
    if wide:
        parts = [(t, f, offset, address, length) for t, f, offset, address, _, length in rows]
    else:
        parts = [(t, f, offset, address, n) for t, offset, address, _, n, _, f, _ in rows]
    loaded = [p for p in parts if p[0] == _LOAD]
    whole = all(offset + length <= len(image) for _, _, offset, _, length in loaded)
    require(whole, f"{title} is truncated")

    def place(address: int) -> int:
        for _, _, offset, first, length in loaded:
            if first <= address < first + length:
                return address - first + offset
        raise ValueError(f"nothing is at {address:#x}")

    entries: list[tuple[int, int]] = []
    word = struct.Struct("<QQ" if wide else "<II")
    for t, _, offset, _, length in parts:
        if t == _DYNAMIC:
            entries += word.iter_unpack(image[offset : offset + length])
    table = dict(reversed(entries))
    strings = place(table[_STRINGS])

    def text(at: int) -> str:
        begin = strings + at
        return image[begin : image.index(b"\0", begin)].decode()

    symbols = struct.Struct("<IBBHQQ" if wide else "<IIIBBH")
    (total,) = struct.unpack_from("<I", image, place(table[_HASH]) + 4)
    exports, imports = [], []
    for k in range(1, total):
        fields = symbols.unpack_from(image, place(table[_SYMBOLS]) + k * symbols.size)
        section = fields[3] if wide else fields[5]
        (exports if section else imports).append(text(fields[0]))
    found = next((m.name for m in MACHINES.values() if m.number == machine), f"ELF {machine}")
    return Shared(
        found,
        text(table[_NAME]) if _NAME in table else "",
        tuple(text(v) for tag, v in entries if tag == _NEEDED),
        tuple(sorted(exports)),
        tuple(sorted(imports)),
        tuple(_rights(p[1]) for p in loaded),
    )


def _rights(flags: int) -> str:
    return "".join(c if flags & bit else "-" for c, bit in (("r", 4), ("w", 2), ("x", 1)))
