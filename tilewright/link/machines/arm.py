"""ARMv7 with 32 bits, its ARM instructions (not Thumb). Addends are in the bytes to be changed."""

from __future__ import annotations

import struct

from tilewright.link.relocation import (
    NOTHING,
    Field,
    Kind,
    Machine,
    Of,
    equal_flags,
    plain,
    signed,
)


def _branch(word: int, value: int) -> int:
    # A call of Thumb code (condition 15) becomes one of ARM code: there is nothing else here.
    head = 0xEB000000 if word >> 28 == 15 else word & 0xFF000000
    return head | value >> 2 & 0xFFFFFF


def _half(shift: int) -> Field:
    """movw and movt: sixteen bits in two pieces."""
    return Field(
        4,
        lambda w, v: w & 0xFFF0F000 | (v >> shift & 0xF000) << 4 | v >> shift & 0xFFF,
        get=lambda w: signed(w >> 4 & 0xF000 | w & 0xFFF, 16),
    )


_BRANCH = Field(4, _branch, 26, align=4, get=lambda w: signed(w, 24) << 2)
_WORD = plain(4, checked=False)
_31_BITS = Field(
    4,
    lambda w, v: w & 0x80000000 | v & 0x7FFFFFFF,
    31,
    get=lambda w: signed(w, 31),
)

_KINDS = {
    0: Kind("R_ARM_NONE", Of.NOTHING, NOTHING),
    2: Kind("R_ARM_ABS32", Of.WORD, _WORD),
    3: Kind("R_ARM_REL32", Of.DISTANCE, _WORD),
    28: Kind("R_ARM_CALL", Of.CALL, _BRANCH),
    29: Kind("R_ARM_JUMP24", Of.CALL, _BRANCH),
    38: Kind("R_ARM_TARGET1", Of.WORD, _WORD),
    40: Kind("R_ARM_V4BX", Of.NOTHING, NOTHING),
    42: Kind("R_ARM_PREL31", Of.CALL, _31_BITS),
    45: Kind("R_ARM_MOVW_PREL_NC", Of.DISTANCE, _half(0)),
    46: Kind("R_ARM_MOVT_PREL", Of.DISTANCE, _half(16)),
    96: Kind("R_ARM_GOT_PREL", Of.SLOT, _WORD),
}


def _stub(at: int, slot: int) -> bytes:
    """ldr ip, [pc, #4]; add ip, pc, ip; ldr pc, [ip]; the distance from the second's pc."""
    far = slot - (at + 12) & 0xFFFFFFFF
    return struct.pack("<4I", 0xE59FC004, 0xE08FC00C, 0xE59CF000, far)


ARM = Machine(
    number=40,
    name="ARM",
    word=4,
    page=0x10000,
    explicit=False,
    symbolic=2,
    slot=21,
    relative=23,
    kinds=_KINDS,
    stub_size=16,
    stub=_stub,
    flags=equal_flags,
)
