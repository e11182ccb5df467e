"""What a linker has to know about a machine: its relocations as data.

An object leaves places open that depend on where its parts will lie. A relocation names such a
place (P), a symbol (S), a number to add (A), and a type. The type says what the value is computed
of (`Of`), and which bits take it (`Field`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto


class Of(Enum):
    """What the value of a relocation is computed of. A slot is the word of the global offset table
    that holds the symbol's address."""

    NOTHING = auto()  # a hint; the bytes are right as they are
    WORD = auto()  # S + A, in a word of data: the loader adds where it placed the file
    DISTANCE = auto()  # S + A - P
    CALL = auto()  # the same; a symbol of another library is reached through a stub
    PAGE = auto()  # the same between the 4 KB pages of both
    LOW = auto()  # S + A within its page
    SLOT = auto()  # slot + A - P
    SLOT_PAGE = auto()
    SLOT_LOW = auto()
    PAIR = auto()  # the value of the relocation at the place that the symbol names
    SUM = auto()  # S + A, as a term of a difference of two symbols
    ALIGN = auto()  # A bytes of padding, of which as many stay as alignment takes


SLOTS = frozenset((Of.SLOT, Of.SLOT_PAGE, Of.SLOT_LOW))


def _no_addend(word: int) -> int:
    return 0


@dataclass(frozen=True)
class Field:
    """`size` bytes, of which `put` gives the new number for the old one and a value. `bits`: the
    value is a signed number of as many (0: any, cut to what fits), moved by `offset` for fields
    that round; `align`: it is a multiple. `get` is the addend that the old number holds, in objects
    that have no other place for it."""

    size: int
    put: Callable[[int, int], int]
    bits: int = 0
    align: int = 1
    offset: int = 0
    get: Callable[[int], int] = _no_addend
    low: int = field(init=False)  # the least value that it takes
    high: int = field(init=False)  # the least above that it does not

    def __post_init__(self):
        half = 1 << (self.bits or 128) - 1
        object.__setattr__(self, "low", -half - self.offset)
        object.__setattr__(self, "high", half - self.offset)


@dataclass(frozen=True)
class Kind:
    """A type of relocation. `opens_pair`: its value is kept for those that are `Of.PAIR`."""

    name: str
    of: Of
    into: Field
    opens_pair: bool = False
    uses_slot: bool = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "uses_slot", self.of in SLOTS)


def signed(value: int, bits: int) -> int:
    """The low bits of a number as a signed one."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def plain(size: int, *, checked: bool = True) -> Field:
    """A whole little-endian number; its old one is the addend where objects have no other."""
    bits = 8 * size
    mask = (1 << bits) - 1
    return Field(
        size,
        lambda word, value: value & mask,
        bits if checked else 0,
        get=lambda word: signed(word, bits),
    )


NOTHING = Field(0, lambda word, value: word)


@dataclass(frozen=True)
class Machine:
    """`number` is ELF's, `word` the bytes of an address, `page` the largest page that its systems
    use. `explicit`: relocations have addends of their own. The three types are those that a loader
    knows: a symbol's address in a word, the same in a slot, an address of the file itself."""

    number: int
    name: str
    word: int
    page: int
    explicit: bool
    symbolic: int
    slot: int
    relative: int
    kinds: Mapping[int, Kind]
    stub_size: int
    stub: Callable[[int, int], bytes]  # (its address, its slot's) -> code that jumps there
    flags: Callable[[Sequence[int]], int | None]  # of objects -> of all, None where they differ
    nops: Callable[[int], bytes] = bytes  # so many bytes that do nothing

    @property
    def wide(self) -> bool:
        return self.word == 8


def equal_flags(flags: Sequence[int]) -> int | None:
    return flags[0] if len(set(flags)) == 1 else None
