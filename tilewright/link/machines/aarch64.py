"""AArch64: an address is that of its 4 KB page (adrp) and twelve bits in the next instruction."""

from __future__ import annotations

import struct

from tilewright.link.relocation import NOTHING, Field, Kind, Machine, Of, equal_flags, plain


def _split(word: int, value: int) -> int:
    """21 bits, the two lowest apart from the others."""
    return word & 0x9F00001F | (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5


def _low(shift: int) -> Field:
    """The address within its page, in units of what the instruction loads or stores."""
    return Field(
        4,
        lambda word, value: word & ~(0xFFF << 10) | (value & 0xFFF) >> shift << 10,
        align=1 << shift,
    )


def _branch(bits: int, at: int) -> Field:
    """A distance in instructions: so many bits from bit `at` on."""
    mask = (1 << bits) - 1
    return Field(
        4,
        lambda word, value: word & ~(mask << at) & 0xFFFFFFFF | (value >> 2 & mask) << at,
        bits + 2,
        align=4,
    )


_ADR = Field(4, _split, 21)
_ADRP = Field(4, lambda word, value: _split(word, value >> 12), 33, align=4096)


def _stub(at: int, slot: int) -> bytes:
    """adrp x16, slot; ldr x17, [x16, slot]; br x17; nop."""
    page = (slot & ~0xFFF) - (at & ~0xFFF)
    code = (
        _ADRP.put(0x90000010, page),
        _low(3).put(0xF9400211, slot),
        0xD61F0220,
        0xD503201F,
    )
    return struct.pack("<4I", *code)


_KINDS = {
    0: Kind("R_AARCH64_NONE", Of.NOTHING, NOTHING),
    257: Kind("R_AARCH64_ABS64", Of.WORD, plain(8, checked=False)),
    260: Kind("R_AARCH64_PREL64", Of.DISTANCE, plain(8, checked=False)),
    261: Kind("R_AARCH64_PREL32", Of.DISTANCE, plain(4)),
    262: Kind("R_AARCH64_PREL16", Of.DISTANCE, plain(2)),
    273: Kind("R_AARCH64_LD_PREL_LO19", Of.DISTANCE, _branch(19, 5)),
    274: Kind("R_AARCH64_ADR_PREL_LO21", Of.DISTANCE, _ADR),
    275: Kind("R_AARCH64_ADR_PREL_PG_HI21", Of.PAGE, _ADRP),
    277: Kind("R_AARCH64_ADD_ABS_LO12_NC", Of.LOW, _low(0)),
    278: Kind("R_AARCH64_LDST8_ABS_LO12_NC", Of.LOW, _low(0)),
    279: Kind("R_AARCH64_TSTBR14", Of.CALL, _branch(14, 5)),
    280: Kind("R_AARCH64_CONDBR19", Of.CALL, _branch(19, 5)),
    282: Kind("R_AARCH64_JUMP26", Of.CALL, _branch(26, 0)),
    283: Kind("R_AARCH64_CALL26", Of.CALL, _branch(26, 0)),
    284: Kind("R_AARCH64_LDST16_ABS_LO12_NC", Of.LOW, _low(1)),
    285: Kind("R_AARCH64_LDST32_ABS_LO12_NC", Of.LOW, _low(2)),
    286: Kind("R_AARCH64_LDST64_ABS_LO12_NC", Of.LOW, _low(3)),
    299: Kind("R_AARCH64_LDST128_ABS_LO12_NC", Of.LOW, _low(4)),
    311: Kind("R_AARCH64_ADR_GOT_PAGE", Of.SLOT_PAGE, _ADRP),
    312: Kind("R_AARCH64_LD64_GOT_LO12_NC", Of.SLOT_LOW, _low(3)),
    314: Kind("R_AARCH64_PLT32", Of.CALL, plain(4)),
    315: Kind("R_AARCH64_GOTPCREL32", Of.SLOT, plain(4)),
}

AARCH64 = Machine(
    number=183,
    name="AArch64",
    word=8,
    page=0x10000,
    explicit=True,
    symbolic=257,
    slot=1025,
    relative=1027,
    kinds=_KINDS,
    stub_size=16,
    stub=_stub,
    flags=equal_flags,
)
