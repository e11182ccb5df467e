"""Which slots, stubs and words for the loader a program needs, and the values of relocations."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.link.object import EXECUTED, WRITE, Section, Symbol
from tilewright.link.relocation import SLOTS, Kind, Machine, Of

_PAGE = ~0xFFF


class Relocator:
    """Made before anything has its place, it says how much room the tables need: `slots` are
    symbols whose addresses stand in words of the global offset table, `stubs` those that calls
    reach through a stub, `imports` those of libraries. `apply` is for when everything has one."""

    def __init__(self, machine: Machine, sections: Sequence[Section]):
        self.machine, self.sections = machine, sections
        self.slots: list[Symbol] = []
        self.stubs: list[Symbol] = []
        self.imports: list[Symbol] = []
        self.got = self.plt = 0
        self._known: set[int] = set()
        own = given = 0  # words for the loader: addresses of this file, of others
        for section in sections:
            more_own, more_given = self._scan(section)
            own, given = own + more_own, given + more_given
        self.relative = own + sum(s.section is not None for s in self.slots)
        self.count = self.relative + given + sum(bool(s.library) for s in self.slots)

    def _scan(self, section: Section) -> tuple[int, int]:
        """How many words the loader has to fill in with addresses of this file, and of others."""
        kinds, symbols, own, given = self.machine.kinds, section.symbols, 0, 0
        for relocation in section.relocations:
            offset, number, index, _ = relocation
            kind = kinds.get(number)
            symbol = symbols[index]
            if kind is None:
                raise self._refused(section, relocation, f"of type {number} is not known")
            if offset + kind.into.size > section.size:
                raise self._refused(section, relocation, f"({kind.name}) lies beyond its section")
            of = kind.of
            if of is Of.WORD:
                if symbol.section is None and not symbol.library:
                    continue
                self._allow_word(section, relocation, kind)
                if symbol.section is None:
                    self._import(symbol)
                    given += 1
                else:
                    own += 1
            elif kind.uses_slot:
                self._need_slot(symbol)
            elif symbol.section is None and of not in (Of.NOTHING, Of.ALIGN):
                if of is not Of.CALL:
                    hint = "declare it as external, and compile position independent"
                    what = f"({kind.name}) needs the place of {symbol}, which is not in this file"
                    raise self._refused(section, relocation, what, hint)
                if symbol.stub < 0:
                    symbol.stub = len(self.stubs)
                    self.stubs.append(symbol)
                    self._need_slot(symbol)
        return own, given

    def _allow_word(self, section: Section, relocation: tuple[int, ...], kind: Kind) -> None:
        """Constants that hold addresses are protected after the loader wrote them. Code is never
        written."""
        if section.flags & EXECUTED:
            hint = "compile position independent"
            what = f"({kind.name}) is an address inside code"
            raise self._refused(section, relocation, what, hint)
        if not section.flags & WRITE and not section.part:
            section.part = ".data.rel.ro"

    def _need_slot(self, symbol: Symbol) -> None:
        if symbol.slot < 0:
            symbol.slot = len(self.slots)
            self.slots.append(symbol)
            if symbol.library:
                self._import(symbol)

    def _import(self, symbol: Symbol) -> None:
        if id(symbol) not in self._known:
            self._known.add(id(symbol))
            self.imports.append(symbol)

    def _refused(
        self, section: Section, relocation: tuple[int, ...], what: str, hint: str | None = None
    ) -> TilewrightError:
        offset, number, index, _ = relocation
        symbol = section.symbols[index]
        error = Unsupported if number not in self.machine.kinds else Invalid
        return error(
            f"a relocation {what}: in {section}, at byte {offset}, for {symbol}", hint=hint
        )

    def stub_code(self) -> bytes:
        size, stub = self.machine.stub_size, self.machine.stub
        places = ((self.plt + k * size, self._slot_of(s)) for k, s in enumerate(self.stubs))
        return b"".join(stub(at, slot) for at, slot in places)

    def slot_words(self) -> bytes:
        return b"".join(s.address.to_bytes(self.machine.word, "little") for s in self.slots)

    def _slot_of(self, symbol: Symbol) -> int:
        return self.got + self.machine.word * symbol.slot

    def apply(self, image: bytearray) -> list[tuple[int, int, int, int]]:
        """Puts every value into the image. Gives what is left to the loader, as (address, type,
        number of a symbol, addend): the file's own addresses first, as loaders like it."""
        rows: list[tuple[int, int, int, int]] = []
        for symbol in self.slots:
            if symbol.section is not None:
                rows.append((self._slot_of(symbol), self.machine.relative, 0, symbol.address))
            elif symbol.library:
                rows.append((self._slot_of(symbol), self.machine.slot, symbol.number, 0))
        for section in self.sections:
            if section.relocations:
                self._section(image, section, rows)
        relative = self.machine.relative
        rows.sort(key=lambda row: (row[1] != relative, row[2], row[0]))
        return rows

    def _section(
        self, image: bytearray, section: Section, rows: list[tuple[int, int, int, int]]
    ) -> None:
        machine, symbols = self.machine, section.symbols
        kinds, explicit = machine.kinds, machine.explicit
        pairs: dict[int, int] = {}
        later: list[tuple[int, int, int, int]] = []
        for relocation in section.relocations:
            offset, number, index, addend = relocation
            kind = kinds[number]
            of, field = kind.of, kind.into
            if of is Of.NOTHING:
                continue
            if of is Of.PAIR:
                later.append(relocation)
                continue
            at = section.offset + offset
            end = at + field.size
            word = int.from_bytes(image[at:end], "little")
            if not explicit:
                addend = field.get(word)
            value = self._value(section, relocation, of, symbols[index], addend)
            if kind.opens_pair:
                pairs[offset] = value
            if of is Of.WORD:
                self._word(section.address + offset, symbols[index], value, addend, rows)
            if not field.low <= value < field.high or value & (field.align - 1):
                raise self._too_far(section, relocation, kind, value)
            image[at:end] = field.put(word, value).to_bytes(field.size, "little")
        for relocation in later:
            offset, number, index, _ = relocation
            symbol, field = symbols[index], kinds[number].into
            if symbol.section is not section or symbol.value not in pairs:
                what = f"({kinds[number].name}) has no first half"
                raise self._refused(section, relocation, what)
            at = section.offset + offset
            word = int.from_bytes(image[at : at + field.size], "little")
            new = field.put(word, pairs[symbol.value])
            image[at : at + field.size] = new.to_bytes(field.size, "little")

    def _value(
        self, section: Section, relocation: tuple[int, ...], of: Of, symbol: Symbol, addend: int
    ) -> int:
        place = section.address + relocation[0]
        if of is Of.CALL and symbol.stub >= 0:
            return self.plt + self.machine.stub_size * symbol.stub + addend - place
        if of is Of.DISTANCE or of is Of.CALL:
            return symbol.address + addend - place
        if of is Of.PAGE:
            return (symbol.address + addend & _PAGE) - (place & _PAGE)
        if of is Of.SLOT:
            return self._slot_of(symbol) + addend - place
        if of in SLOTS:
            if addend:
                raise self._refused(section, relocation, f"of a slot and {addend} bytes more")
            slot = self._slot_of(symbol)
            return slot if of is Of.SLOT_LOW else (slot & _PAGE) - (place & _PAGE)
        return symbol.address + addend

    def _word(
        self,
        place: int,
        symbol: Symbol,
        value: int,
        addend: int,
        rows: list[tuple[int, int, int, int]],
    ) -> None:
        if symbol.section is not None:
            mask = (1 << 8 * self.machine.word) - 1
            low = value & mask
            # As the signed number that the table holds.
            rows.append((place, self.machine.relative, 0, low - (mask + 1) * (low >> 63)))
        elif symbol.library:
            rows.append((place, self.machine.symbolic, symbol.number, addend))

    def _too_far(
        self, section: Section, relocation: tuple[int, ...], kind: Kind, value: int
    ) -> TilewrightError:
        if value & (kind.into.align - 1):
            what = f"({kind.name}) needs a multiple of {kind.into.align}, not {value:#x}"
        else:
            what = f"({kind.name}) reaches {value:#x} bytes, more than its {kind.into.bits} bits"
        return self._refused(section, relocation, what)
