"""RISC-V with 64 bits: a distance is twenty bits (auipc) and twelve signed ones in a later
instruction, whose relocation names the place of the first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tilewright.link.relocation import NOTHING, Field, Kind, Machine, Of, plain

_COMPRESSED = 1  # the flag of objects with instructions of two bytes
_NOP, _SHORT_NOP = b"\x13\0\0\0", b"\x01\0"


def _high(word: int, value: int) -> int:
    """Rounded to the nearest, since the twelve bits are signed."""
    return word & 0xFFF | (value + 0x800 >> 12 & 0xFFFFF) << 12


def _low_load(word: int, value: int) -> int:
    return word & 0xFFFFF | (value & 0xFFF) << 20


def _low_store(word: int, value: int) -> int:
    return word & 0x1FFF07F | (value >> 5 & 0x7F) << 25 | (value & 0x1F) << 7


def _call(word: int, value: int) -> int:
    """auipc and jalr."""
    return _high(word & 0xFFFFFFFF, value) | _low_load(word >> 32, value) << 32


def _bits(value: int, *moves: tuple[int, int, int]) -> int:
    """Pieces of a value: (from bit, how many bits, to bit)."""
    return sum((value >> at & (1 << count) - 1) << to for at, count, to in moves)


def _branch(word: int, value: int) -> int:
    return word & 0x1FFF07F | _bits(value, (12, 1, 31), (5, 6, 25), (1, 4, 8), (11, 1, 7))


def _jump(word: int, value: int) -> int:
    return word & 0xFFF | _bits(value, (20, 1, 31), (1, 10, 21), (11, 1, 20), (12, 8, 12))


def _short_branch(word: int, value: int) -> int:
    moves = (8, 1, 12), (3, 2, 10), (6, 2, 5), (1, 2, 3), (5, 1, 2)
    return word & 0xE383 | _bits(value, *moves)


def _short_jump(word: int, value: int) -> int:
    moves = ((11, 1, 12), (4, 1, 11), (8, 2, 9), (10, 1, 8))
    moves += ((6, 1, 7), (7, 1, 6), (1, 3, 3), (5, 1, 2))
    return word & 0xE003 | _bits(value, *moves)


def _add(size: int) -> Field:
    mask = (1 << 8 * size) - 1
    return Field(size, lambda word, value: word + value & mask)


def _subtract(size: int) -> Field:
    mask = (1 << 8 * size) - 1
    return Field(size, lambda word, value: word - value & mask)


_HIGH = Field(4, _high, 32, offset=0x800)

_KINDS = {
    0: Kind("R_RISCV_NONE", Of.NOTHING, NOTHING),
    2: Kind("R_RISCV_64", Of.WORD, plain(8, checked=False)),
    16: Kind("R_RISCV_BRANCH", Of.CALL, Field(4, _branch, 13, align=2)),
    17: Kind("R_RISCV_JAL", Of.CALL, Field(4, _jump, 21, align=2)),
    18: Kind("R_RISCV_CALL", Of.CALL, Field(8, _call, 32, offset=0x800)),
    19: Kind("R_RISCV_CALL_PLT", Of.CALL, Field(8, _call, 32, offset=0x800)),
    20: Kind("R_RISCV_GOT_HI20", Of.SLOT, _HIGH, opens_pair=True),
    23: Kind("R_RISCV_PCREL_HI20", Of.DISTANCE, _HIGH, opens_pair=True),
    24: Kind("R_RISCV_PCREL_LO12_I", Of.PAIR, Field(4, _low_load)),
    25: Kind("R_RISCV_PCREL_LO12_S", Of.PAIR, Field(4, _low_store)),
    33: Kind("R_RISCV_ADD8", Of.SUM, _add(1)),
    34: Kind("R_RISCV_ADD16", Of.SUM, _add(2)),
    35: Kind("R_RISCV_ADD32", Of.SUM, _add(4)),
    36: Kind("R_RISCV_ADD64", Of.SUM, _add(8)),
    37: Kind("R_RISCV_SUB8", Of.SUM, _subtract(1)),
    38: Kind("R_RISCV_SUB16", Of.SUM, _subtract(2)),
    39: Kind("R_RISCV_SUB32", Of.SUM, _subtract(4)),
    40: Kind("R_RISCV_SUB64", Of.SUM, _subtract(8)),
    41: Kind("R_RISCV_GOT32_PCREL", Of.SLOT, plain(4)),
    43: Kind("R_RISCV_ALIGN", Of.ALIGN, NOTHING),
    44: Kind("R_RISCV_RVC_BRANCH", Of.CALL, Field(2, _short_branch, 9, align=2)),
    45: Kind("R_RISCV_RVC_JUMP", Of.CALL, Field(2, _short_jump, 12, align=2)),
    # Instructions may be replaced by shorter ones here. They stay.
    51: Kind("R_RISCV_RELAX", Of.NOTHING, NOTHING),
    52: Kind("R_RISCV_SUB6", Of.SUM, Field(1, lambda w, v: w & 0xC0 | (w - v) & 0x3F)),
    53: Kind("R_RISCV_SET6", Of.SUM, Field(1, lambda w, v: w & 0xC0 | v & 0x3F)),
    54: Kind("R_RISCV_SET8", Of.SUM, plain(1, checked=False)),
    55: Kind("R_RISCV_SET16", Of.SUM, plain(2, checked=False)),
    56: Kind("R_RISCV_SET32", Of.SUM, plain(4, checked=False)),
    57: Kind("R_RISCV_32_PCREL", Of.DISTANCE, plain(4)),
    59: Kind("R_RISCV_PLT32", Of.CALL, plain(4)),
}


def _stub(at: int, slot: int) -> bytes:
    """auipc t3, slot; ld t3, slot(t3); jalr t1, t3; nop."""
    far = slot - at
    return struct.pack("<4I", _high(0xE17, far), _low_load(0xE3E03, far), 0x000E0367, 0x13)


def _flags(flags: Sequence[int]) -> int | None:
    """How functions are called has to agree; one object with short instructions makes the whole
    one that has them."""
    if len({f & ~_COMPRESSED for f in flags}) > 1:
        return None
    return flags[0] | max(f & _COMPRESSED for f in flags)


def _nops(count: int) -> bytes:
    return _SHORT_NOP * (count % 4 // 2) + _NOP * (count // 4)


RISCV64 = Machine(
    number=243,
    name="RISC-V 64",
    word=8,
    page=0x1000,
    explicit=True,
    symbolic=2,
    slot=2,
    relative=3,
    kinds=_KINDS,
    stub_size=16,
    stub=_stub,
    flags=_flags,
    nops=_nops,
)
