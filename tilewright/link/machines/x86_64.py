"""x86-64: fields are whole numbers."""

from __future__ import annotations

import struct

from tilewright.link.relocation import NOTHING, Kind, Machine, Of, equal_flags, plain


def _stub(at: int, slot: int) -> bytes:
    """jmp *slot(%rip), and two bytes that trap."""
    return struct.pack("<HiH", 0x25FF, slot - (at + 6), 0xCCCC)


_KINDS = {
    0: Kind("R_X86_64_NONE", Of.NOTHING, NOTHING),
    1: Kind("R_X86_64_64", Of.WORD, plain(8, checked=False)),
    2: Kind("R_X86_64_PC32", Of.DISTANCE, plain(4)),
    4: Kind("R_X86_64_PLT32", Of.CALL, plain(4)),
    9: Kind("R_X86_64_GOTPCREL", Of.SLOT, plain(4)),
    13: Kind("R_X86_64_PC16", Of.DISTANCE, plain(2)),
    15: Kind("R_X86_64_PC8", Of.DISTANCE, plain(1)),
    24: Kind("R_X86_64_PC64", Of.DISTANCE, plain(8, checked=False)),
    28: Kind("R_X86_64_GOTPCREL64", Of.SLOT, plain(8, checked=False)),
    41: Kind("R_X86_64_GOTPCRELX", Of.SLOT, plain(4)),
    42: Kind("R_X86_64_REX_GOTPCRELX", Of.SLOT, plain(4)),
    43: Kind("R_X86_64_CODE_4_GOTPCRELX", Of.SLOT, plain(4)),
}

X86_64 = Machine(
    number=62,
    name="x86-64",
    word=8,
    page=0x1000,
    explicit=True,
    symbolic=1,
    slot=6,
    relative=8,
    kinds=_KINDS,
    stub_size=8,
    stub=_stub,
    flags=equal_flags,
)
