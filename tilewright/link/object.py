"""Reading a relocatable ELF object: its sections, symbols and relocations.

Objects may come from anywhere. Whatever is wrong with one becomes an error that names it; nothing
here trusts a size or an index that the object states.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.base.errors import Invalid, Unsupported, require
from tilewright.link.machines import MACHINES
from tilewright.link.relocation import Machine, Of

# Types and flags of sections, and numbers that stand for no section.
NO_BITS, INIT_ARRAY, FINI_ARRAY = 8, 14, 15
PROGRAM, _SYMBOLS, _STRINGS, _EXPLICIT, _IMPLICIT, _GROUP = 1, 2, 3, 4, 9, 17
WRITE, ALLOCATED, EXECUTED, _OF_THREAD = 1, 2, 4, 0x400
_RETAINED = 0x200000
_UNDEFINED, _COMMON, _ESCAPE = 0, 0xFFF2, 0xFFFF
_SPECIAL = 0xFF00  # sections have lower numbers

# Of symbols.
LOCAL, GLOBAL, WEAK = 0, 1, 2
NO_TYPE, DATA, FUNCTION = 0, 1, 2
_BINDINGS = (LOCAL, GLOBAL, WEAK)
_UNSUPPORTED_TYPES = {6: "a variable of each thread", 10: "a function chosen while loading"}

# What no program needs while it runs: unwinding tables and notes for tools.
_DROPPED = (".eh_frame", ".ARM.exidx", ".ARM.extab", ".note")

# Larger sections are damage: no machine here reaches so far.
_MOST = 1 << 31


@dataclass(eq=False, slots=True)
class Section:
    """A piece of the file to be written. `relocations` are (offset, type, symbol, addend), and
    `symbols` those of its object. `part` is where it goes, `address` and `offset` its place."""

    object: str
    name: str
    type: int
    flags: int
    align: int
    size: int
    data: bytes | bytearray
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    kept: bool = True  # not one of several equal copies
    live: bool = False
    part: str = ""
    address: int = 0
    offset: int = 0

    @property
    def retained(self) -> bool:
        """Is it used although nothing refers to it?"""
        return self.type in (INIT_ARRAY, FINI_ARRAY) or bool(self.flags & _RETAINED)

    def __str__(self) -> str:
        return f"section {self.name} of {self.object}"


@dataclass(eq=False, slots=True)
class Symbol:
    """A name for a place in a section; without one, for something that others define. `common`
    is the alignment of a variable that several objects may declare and one has to make.
    `library` is set where a library defines it. `slot`, `stub` are places in their tables."""

    name: str
    object: str
    binding: int
    type: int
    section: Section | None
    value: int
    size: int
    common: int = 0
    absolute: bool = False  # defined as a number
    problem: str = ""  # what it is, where that cannot be linked
    library: str = ""
    slot: int = -1
    stub: int = -1
    number: int = 0  # in the table for loaders

    @property
    def address(self) -> int:
        return self.section.address + self.value if self.section is not None else 0

    def __str__(self) -> str:
        if self.name:
            return self.name
        return f"{self.section.name} + {self.value}" if self.section is not None else "no symbol"


@dataclass(eq=False, slots=True)
class ElfObject:
    """`groups` are sections of which one of several objects' equal copies is taken, by name."""

    name: str
    machine: Machine
    flags: int
    sections: list[Section]
    symbols: list[Symbol]
    groups: list[tuple[str, list[Section]]]


def up(value: int, align: int) -> int:
    return -(-value // align) * align


def read_object(image: bytes, name: str) -> ElfObject:
    """`name` is what errors call it."""
    try:
        return _Reader(bytes(image), name).read()
    except (struct.error, IndexError, ValueError, OverflowError) as problem:
        if isinstance(problem, Invalid):
            raise
        raise Invalid(
            f"{name} is damaged: {problem}", hint="compile it again; it may be cut off"
        ) from None


class _Reader:
    def __init__(self, image: bytes, name: str):
        self.image, self.name = image, name

    def want(self, condition: object, what: str) -> None:
        require(condition, f"{self.name} is damaged: {what}", hint="compile it again")

    def read(self) -> ElfObject:
        image, name = self.image, self.name
        require(
            image[:4] == b"\x7fELF",
            f"{name} is not an ELF object",
            hint="compile for a target whose objects are ELF: Linux, Android",
        )
        require(
            len(image) > 5 and image[4] in (1, 2) and image[5] == 1,
            f"{name} is not a little-endian ELF object",
        )
        wide = image[4] == 2
        header = struct.unpack_from("<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH", image, 16)
        kind, number, _, _, _, at, flags, _, _, _, entry, count, names = header
        require(
            kind == 1,
            f"{name} is an ELF file of kind {kind}, not a relocatable object",
            hint="pass the objects that a compiler makes, before they are linked",
        )
        machine = MACHINES.get(number)
        known = ", ".join(m.name for m in MACHINES.values())
        if machine is None:
            raise Unsupported(f"{name} is for machine {number}; linked are {known}")
        self.want(machine.wide == wide, f"{machine.name} has no objects of this width")
        record = struct.Struct("<IIQQQQIIQQ" if wide else "<IIIIIIIIII")
        self.want(entry == record.size, "odd section headers")
        self.want(count, "it has no sections")
        self.machine, self.wide = machine, wide
        self.headers = [record.unpack_from(image, at + k * entry) for k in range(count)]
        titles = self.bytes_of(names)
        self.sections = [self.section(k, titles) for k in range(count)]
        self.symbols = self.read_symbols()
        for header in self.headers:
            if header[1] in (_EXPLICIT, _IMPLICIT):
                self.read_relocations(header)
        groups = [self.group(k) for k, h in enumerate(self.headers) if h[1] == _GROUP]
        for section in self.sections:
            if section.part != "dropped":
                section.symbols = self.symbols
                _keep_alignment(section, machine)
                _as_array(section, machine)
        kept = [s for s in self.sections if s.part != "dropped"]
        return ElfObject(name, machine, flags, kept, self.symbols, groups)

    def bytes_of(self, index: int) -> bytes:
        _, kind, _, _, start, size, *_ = self.headers[index]
        inside = kind != NO_BITS and start + size <= len(self.image)
        self.want(inside, f"section {index} lies beyond its end")
        return self.image[start : start + size]

    def section(self, index: int, titles: bytes) -> Section:
        title, kind, flags, _, _, size, _, _, align, _ = self.headers[index]
        name = _text(titles, title)
        dropped = not flags & ALLOCATED or name.startswith(_DROPPED)
        if dropped:
            return Section(self.name, name, kind, flags, 1, size, b"", part="dropped")
        align = max(align, 1)
        self.want(size < _MOST, f"section {name} has {size} bytes")
        self.want(align & (align - 1) == 0, f"section {name} is aligned to {align}")
        if align > self.machine.page:
            raise Unsupported(
                f"section {name} of {self.name} is aligned to {align} bytes, more than a page "
                f"({self.machine.page})"
            )
        if flags & _OF_THREAD:
            raise Unsupported(
                f"section {name} of {self.name} has variables of each thread",
                hint="pass such values as arguments",
            )
        require(
            not (flags & WRITE and flags & EXECUTED),
            f"section {name} of {self.name} is both written and executed",
        )
        if name.startswith((".ctors", ".dtors")) and kind == PROGRAM:
            kind = INIT_ARRAY if name.startswith(".ctors") else FINI_ARRAY
        data = b"" if kind == NO_BITS else self.bytes_of(index)
        return Section(self.name, name, kind, flags, align, size, data)

    def read_symbols(self) -> list[Symbol]:
        tables = [k for k, h in enumerate(self.headers) if h[1] == _SYMBOLS]
        self.want(len(tables) == 1, "it has no table of symbols, or several")
        link = self.headers[tables[0]][6]
        self.want(self.headers[link][1] == _STRINGS, "symbols without names")
        names = self.bytes_of(link)
        record = struct.Struct("<IBBHQQ" if self.wide else "<IIIBBH")
        symbols = []
        for found in record.iter_unpack(self.bytes_of(tables[0])):
            if self.wide:
                name, info, _, number, value, size = found
            else:
                name, value, size, info, _, number = found
            symbols.append(self.symbol(_text(names, name), info, number, value, size))
        return symbols

    def symbol(self, name: str, info: int, number: int, value: int, size: int) -> Symbol:
        binding, kind = info >> 4, info & 15
        if binding not in _BINDINGS:
            raise ValueError(f"symbol {name} has binding {binding}")
        found = Symbol(name, self.name, binding, kind, None, value, size)
        found.problem = _UNSUPPORTED_TYPES.get(kind, "")
        if number == _COMMON:
            found.common = max(value, 1)
            self.want(value & (value - 1) == 0, f"symbol {name} is aligned to {value}")
            self.want(value <= self.machine.page, f"symbol {name} is aligned to {value}")
            self.want(size < _MOST, f"symbol {name} has {size} bytes")
        elif number == _ESCAPE:
            raise Unsupported(f"{self.name} has more than {_SPECIAL} sections")
        elif number >= _SPECIAL:
            found.absolute, found.problem = True, "a number, not a place,"
        elif number != _UNDEFINED:
            found.section = self.sections[number]
            if value > found.section.size:
                raise ValueError(f"symbol {name} lies beyond its section {found.section.name}")
        return found

    def read_relocations(self, header: tuple[int, ...]) -> None:
        target = header[7]
        self.want(0 < target < len(self.sections), f"relocations of section {target}")
        section = self.sections[target]
        if section.part == "dropped":
            return
        explicit = header[1] == _EXPLICIT
        self.want(explicit == self.machine.explicit, f"{section} has odd relocations")
        self.want(section.data, f"{section} has relocations but no bytes")
        table = self.bytes_of(self.headers.index(header))
        shift = 32 if self.wide else 8
        mask = (1 << shift) - 1
        record = struct.Struct(("<QQ" if self.wide else "<II") + ("q" if explicit else ""))
        count, add = len(self.symbols), section.relocations.append
        for offset, info, *addend in record.iter_unpack(table):
            symbol = info >> shift
            if symbol >= count:
                raise ValueError(f"{section} refers to symbol {symbol} of {count}")
            if offset > section.size:
                raise ValueError(
                    f"{section} has {section.size} bytes, and a relocation at {offset}"
                )
            add((offset, info & mask, symbol, addend[0] if explicit else 0))

    def group(self, index: int) -> tuple[str, list[Section]]:
        words = [w for (w,) in struct.iter_unpack("<I", self.bytes_of(index))]
        self.want(words, "a group of sections is empty")
        signature = self.symbols[self.headers[index][7]]
        # Without the flag of a group that others may have too, it is this object's own.
        name = signature.name if words[0] & 1 else f"{self.name} {index}"
        return name, [self.sections[k] for k in words[1:]]


def _text(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if end < 0:
        raise ValueError("a name lies beyond its end")
    return strings[start:end].decode()


def _keep_alignment(section: Section, machine: Machine) -> None:
    """Where code may have become shorter, compilers pad by the most that alignment may need and
    ask for the rest to be removed. Everything after it moves."""
    kinds = machine.kinds
    asks = [r for r in section.relocations if r[1] in kinds and kinds[r[1]].of is Of.ALIGN]
    if not asks:
        return
    data, done, removed = bytearray(), 0, 0
    cuts: list[tuple[int, int]] = [(0, 0)]  # (offset, bytes removed up to there)
    for offset, _, _, padding in sorted(asks):
        align = 1 << padding.bit_length() if padding >= 0 else 0
        good = 0 < align <= machine.page and done <= offset and offset + padding <= section.size
        require(good, f"{section} is damaged: {padding} bytes of padding at {offset}")
        data += section.data[done:offset]
        needed = -len(data) % align
        require(needed <= padding, f"{section} is damaged: too little padding at {offset}")
        data += machine.nops(needed)
        section.align = max(section.align, align)
        done, removed = offset + padding, removed + padding - needed
        cuts.append((offset + needed, removed))
    data += section.data[done:]
    offsets = [at for at, _ in cuts]

    def moved(at: int) -> int:
        # A place at a cut is what follows it.
        return at - cuts[bisect_right(offsets, at) - 1][1]

    for symbol in section.symbols:
        if symbol.section is section:
            end = moved(symbol.value + symbol.size)
            symbol.value = moved(symbol.value)
            symbol.size = max(end - symbol.value, 0)
    section.relocations = [
        (moved(offset), kind, symbol, addend)
        for offset, kind, symbol, addend in section.relocations
        if kind not in kinds or kinds[kind].of is not Of.ALIGN
    ]
    section.data, section.size = bytes(data), len(data)


def _as_array(section: Section, machine: Machine) -> None:
    """Older tables of functions to call (.ctors) are read from their end: turned round, they are
    the newer ones. Their numbers count from the other end, too."""
    if not section.name.startswith((".ctors", ".dtors")):
        return
    word, size = machine.word, section.size
    require(size % word == 0, f"{section} is damaged: {size} bytes are no table of functions")
    whole = all(r[0] % word == 0 and r[0] < size for r in section.relocations)
    require(whole, f"{section} is damaged: a relocation in the middle of a word")
    words = [section.data[k : k + word] for k in range(0, size, word)]
    section.data = b"".join(reversed(words))
    section.relocations = [
        (size - word - offset, kind, symbol, addend)
        for offset, kind, symbol, addend in section.relocations
    ]
    head, _, number = section.name[1:].partition(".")
    name = ".init_array" if head == "ctors" else ".fini_array"
    section.name = f"{name}.{65535 - int(number)}" if number.isdecimal() else name


def array_order(sections: Sequence[Section]) -> list[Section]:
    """Tables of functions in the order of their numbers; those without one come last."""

    def number(section: Section) -> int:
        last = section.name.rpartition(".")[2]
        return int(last) if last.isdecimal() else 65536

    return sorted(sections, key=number)
