"""Where the elements of shared memory lie: addresses with some of their bits exchanged.

Shared memory has 32 banks of 4 bytes; threads that touch different words of one bank wait for each
other. A swizzle changes where elements lie, and nothing else: the `bits` bits of an element's
place from bit `base` on are combined by exclusive or with those `shift` bits further up,

    row 0: 0 1 2 3      place // 8 % 4 of rows of 32 elements, by Swizzle(t, 2, 3, 2)
    row 1: 1 0 3 2
    row 2: 2 3 0 1

Blocks of 2**base elements stay together. The bits that are combined with are not changed
(shift >= bits), so that doing it again takes it back: no two elements get one place, and where the
changed bits count whole (the size is a multiple of 2**(base+bits)) none leaves the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim


@dataclass(frozen=True)
class Swizzled:
    bits: int
    base: int
    shift: int

    def __str__(self) -> str:
        return f"{self.bits},{self.base},{self.shift}"

    @staticmethod
    def parse(text: str) -> Swizzled:
        bits, base, shift = (int(x) for x in text.split(","))
        return Swizzled(bits, base, shift)

    @property
    def block(self) -> int:
        """Elements that stay together."""
        return 1 << self.base

    @property
    def period(self) -> int:
        """Places so far apart are moved alike."""
        return 1 << (self.base + self.shift + self.bits)

    def place(self, at: Any) -> Any:
        """Where the element at a place lies: of an int, or of an array of them."""
        other = (at >> (self.base + self.shift)) & ((1 << self.bits) - 1)
        return at ^ (other << self.base)

    def faults(self, size: Dim) -> Iterator[str]:
        """Why not every element of a buffer of this size has a place of its own in it."""
        if not (1 <= self.bits <= 8 and 0 <= self.base <= 16 and self.shift <= 16):
            yield f"{self.bits} bits from bit {self.base} on, {self.shift} further up"
        elif self.shift < self.bits:
            yield f"bits {self.shift} further up are among the {self.bits} that are changed"
        elif not isinstance(size, int) or size % (1 << (self.base + self.bits)):
            whole = 1 << (self.base + self.bits)
            yield f"its size {size} is not known to be a multiple of {whole}"


def multiple(lin: Dim, of: int) -> bool:
    """Is every term of a place a multiple of a number?"""
    if isinstance(lin, int):
        return lin % of == 0
    for mono, c in lin.terms:
        term: Dim = c
        for atom in mono:
            term = term * D.from_atom(atom)
        if c % of and D.bounds(term) != (0, 0):
            return False
    return True
