"""Objects → a shared object that a loader of ELF takes: Linux and Android, without a linker.

The file has four kinds of pages, none of them both written and executed:

    read      tables for the loader, constants
    execute   code, stubs for functions of other libraries
    relro     addresses, which the loader fills in and then protects: slots, tables of functions
    write     variables

and one more for each of `data`: mapped from the file when touched, never copied. Everything is
bound while loading; what is not exported is seen by nobody.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.base.errors import Invalid, require
from tilewright.link import dynamic
from tilewright.link.object import (
    ALLOCATED,
    DATA,
    EXECUTED,
    FINI_ARRAY,
    GLOBAL,
    INIT_ARRAY,
    NO_BITS,
    PROGRAM,
    WRITE,
    ElfObject,
    Section,
    Symbol,
    array_order,
    read_object,
    up,
)
from tilewright.link.relocate import Relocator
from tilewright.link.relocation import Machine
from tilewright.link.resolve import resolve

Data = bytes | bytearray | memoryview | Path

# In the place of a library's name: whatever the process has loaded by then, such as its C library,
# whose name differs between systems.
PROCESS = "<process>"

_STRINGS, _EXPLICIT, _HASH, _DYNAMIC, _IMPLICIT, _SYMBOLS = 3, 4, 5, 6, 9, 11
_GNU_HASH, _VERSIONS_NEEDED, _VERSIONS = 0x6FFFFFF6, 0x6FFFFFFE, 0x6FFFFFFF
_READ, _WRITE, _EXECUTE = 4, 2, 1
_LOAD, _DYNAMIC_SEGMENT, _STACK, _RELRO = 1, 2, 0x6474E551, 0x6474E552

# The parts of the file, in its order: name, type and flags of the section; what it is linked to.
_PARTS = {
    "read": {
        ".gnu.hash": (_GNU_HASH, ALLOCATED),
        ".hash": (_HASH, ALLOCATED),
        ".dynsym": (_SYMBOLS, ALLOCATED),
        ".gnu.version": (_VERSIONS, ALLOCATED),
        ".gnu.version_r": (_VERSIONS_NEEDED, ALLOCATED),
        ".dynstr": (_STRINGS, ALLOCATED),
        ".rel.dyn": (_IMPLICIT, ALLOCATED),
        ".rela.dyn": (_EXPLICIT, ALLOCATED),
        ".rodata": (PROGRAM, ALLOCATED),
    },
    "execute": {
        ".text": (PROGRAM, ALLOCATED | EXECUTED),
        ".plt": (PROGRAM, ALLOCATED | EXECUTED),
    },
    "relro": {
        ".dynamic": (_DYNAMIC, ALLOCATED | WRITE),
        ".got": (PROGRAM, ALLOCATED | WRITE),
        ".init_array": (INIT_ARRAY, ALLOCATED | WRITE),
        ".fini_array": (FINI_ARRAY, ALLOCATED | WRITE),
        ".data.rel.ro": (PROGRAM, ALLOCATED | WRITE),
    },
    "write": {
        ".data": (PROGRAM, ALLOCATED | WRITE),
        ".bss": (NO_BITS, ALLOCATED | WRITE),
    },
}
_RIGHTS = {"read": _READ, "execute": _READ | _EXECUTE, "relro": _READ | _WRITE}
_LINKS = {
    ".gnu.hash": ".dynsym",
    ".hash": ".dynsym",
    ".gnu.version": ".dynsym",
    ".dynsym": ".dynstr",
    ".gnu.version_r": ".dynstr",
    ".dynamic": ".dynstr",
    ".rel.dyn": ".dynsym",
    ".rela.dyn": ".dynsym",
}


@dataclass(eq=False)
class _Part:
    """One section of the file, made of sections of objects."""

    name: str
    type: int
    flags: int
    pieces: list[Section] = field(default_factory=list)
    address: int = 0
    offset: int = 0
    size: int = 0
    number: int = 0

    @property
    def align(self) -> int:
        return max((p.align for p in self.pieces), default=1)


@dataclass(eq=False)
class _Segment:
    """What is mapped with the same rights. `padded`: to whole pages, which are then protected."""

    rights: int
    parts: list[_Part]
    padded: bool = False
    address: int = 0
    offset: int = 0
    in_file: int = 0
    in_memory: int = 0


@dataclass(frozen=True)
class _Linked:
    """The file: its head, and what follows from given places on."""

    head: bytes
    tail: tuple[tuple[int, Data], ...]


def shared_object(
    objects: Sequence[bytes],
    exports: Sequence[str],
    *,
    name: str,
    needs: Mapping[str, Sequence[str]] | None = None,
    data: Mapping[str, Data] | None = None,
) -> bytes:
    """The bytes of a shared object. `objects` are relocatable ELF objects of one machine, `exports`
    the names to be found in the result, `name` its own (DT_SONAME).

    `needs`: of each library that may be used, the names that are taken from it, such as
    `{"libc.so.6": ["malloc", "memcpy@GLIBC_2.14"]}`. Only those that are used get into the file.
    Names of `PROCESS` make no library needed. Any other name that no object defines is an error.

    `data`: large constants by the name that objects refer to and users find them by, as bytes or
    as the path of a file. Each begins on a page of its own, and is mapped rather than copied.
    """
    linked = _link(objects, exports, name, needs or {}, data or {})
    pieces, at = [linked.head], len(linked.head)
    for offset, content in linked.tail:
        payload = content.read_bytes() if isinstance(content, Path) else content
        pieces += [bytes(offset - at), payload]
        at = offset + memoryview(payload).nbytes
    return b"".join(pieces)


def write_shared_object(
    path: Path,
    objects: Sequence[bytes],
    exports: Sequence[str],
    *,
    name: str,
    needs: Mapping[str, Sequence[str]] | None = None,
    data: Mapping[str, Data] | None = None,
) -> int:
    """The same into a file, without holding `data` in memory. Gives the size of the file."""
    linked = _link(objects, exports, name, needs or {}, data or {})
    with path.open("wb") as file:
        file.write(linked.head)
        for offset, content in linked.tail:
            file.seek(offset)
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(content)
        return file.tell()


def _link(
    objects: Sequence[bytes],
    exports: Sequence[str],
    name: str,
    needs: Mapping[str, Sequence[str]],
    data: Mapping[str, Data],
) -> _Linked:
    require(objects, "there are no objects to link")
    require(name and "\0" not in name, f"a shared object needs a name, not {name!r}")
    total = len(objects)
    read = [read_object(image, f"object {k} of {total}") for k, image in enumerate(objects, 1)]
    machine, flags = _machine_of(read)
    libraries, versions = _libraries(needs)
    blobs = {n: _blob(n, content, machine) for n, content in data.items()}
    exported = list(dict.fromkeys((*exports, *blobs)))
    sections, roots = resolve(read, exported, libraries, blobs)
    mapped = [(blob.section, data[n]) for n, blob in blobs.items() if blob.section is not None]
    writer = _Writer(machine, flags, name, sections, roots, versions)
    return writer.write(mapped)


def _machine_of(objects: Sequence[ElfObject]) -> tuple[Machine, int]:
    first = objects[0]
    for o in objects:
        require(
            o.machine is first.machine,
            f"{first.name} is for {first.machine.name}, and {o.name} for {o.machine.name}",
            hint="compile all of them for the same target",
        )
    flags = first.machine.flags([o.flags for o in objects])
    if flags is None:
        other = next(o for o in objects if first.machine.flags([first.flags, o.flags]) is None)
        raise Invalid(
            f"{first.name} and {other.name} call functions in different ways "
            f"(flags {first.flags:#x} and {other.flags:#x})",
            hint="compile all of them with the same features of the target",
        )
    return first.machine, flags


def _libraries(needs: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Which library has a name, and which version of it is meant."""
    libraries: dict[str, str] = {}
    versions: dict[str, str] = {}
    for library, names in needs.items():
        require(not isinstance(names, str), f"{library}: a list of names is needed, not {names!r}")
        for name in names:
            plain, _, version = name.partition("@")
            require(plain, f"{library}: {name!r} is no name")
            libraries.setdefault(plain, library)
            if version:
                versions[plain] = version.lstrip("@")
    return libraries, versions


def _blob(name: str, content: Data, machine: Machine) -> Symbol:
    if isinstance(content, Path):
        require(content.is_file(), f"{name}: there is no file {content}")
        size = os.stat(content).st_size
    else:
        size = memoryview(content).nbytes
    section = Section("data", f".data.{name}", PROGRAM, ALLOCATED, machine.page, size, b"")
    return Symbol(name, "the data that is added", GLOBAL, DATA, section, 0, size)


class _Writer:
    """The layout of one file."""

    def __init__(
        self,
        machine: Machine,
        flags: int,
        name: str,
        sections: Sequence[Section],
        exports: Sequence[Symbol],
        versions: Mapping[str, str],
    ):
        self.machine, self.flags, self.name = machine, flags, name
        self.relocator = Relocator(machine, sections)
        self.segments = {
            title: _Segment(
                _RIGHTS.get(title, _READ | _WRITE),
                [_Part(n, t, f) for n, (t, f) in parts.items()],
                padded=title == "relro",
            )
            for title, parts in _PARTS.items()
        }
        self.parts = {p.name: p for s in self.segments.values() for p in s.parts}
        for section in sections:
            self.parts[_part_of(section)].pieces.append(section)
        for title in (".init_array", ".fini_array"):
            self.parts[title].pieces = array_order(self.parts[title].pieces)

        by_name = {s.name: s for s in exports}
        self.exports = [by_name[n] for n in dynamic.hash_order(list(by_name))]
        self.imports = self.relocator.imports
        self.symbols = [*self.imports, *self.exports]
        for number, symbol in enumerate(self.symbols, 1):
            symbol.number = number
        self.strings = dynamic.Strings()
        used = dict.fromkeys(s.library for s in self.imports)
        self.libraries = [library for library in used if library != PROCESS]
        self.versions = versions

    def write(self, mapped: Sequence[tuple[Section, Data]]) -> _Linked:
        self._tables()
        own = list(self.segments.values())
        for segment in own:
            segment.parts = [p for p in segment.parts if p.pieces]
        own = [s for s in own if s.parts]
        added = [_Segment(_READ, [_Part(s.name, PROGRAM, ALLOCATED, [s])]) for s, _ in mapped]
        present = [p for s in (*own, *added) for p in s.parts]
        for number, part in enumerate(present, 1):
            part.number = number
        wide, count = self.machine.wide, len(own) + len(added) + 3
        start, program, section = (64, 56, 64) if wide else (52, 32, 40)
        address, titles_at = self._place(own, 0, start + count * program)
        titles = dynamic.Strings()
        names = [titles.add(p.name) for p in present]
        last_name = titles.add(".shstrtab")
        sections_at = up(titles_at + len(titles.data), 8)
        end = sections_at + (len(present) + 2) * section
        address, last = self._place(added, address, end)
        require(
            max(address, last) < 1 << (47 if wide else 31),
            f"{self.name} would take more memory than {self.machine.name} has addresses",
        )

        image = bytearray(end)
        self._fill(image, present)
        headers = self._header(count, sections_at, len(present) + 2)
        headers += b"".join(self._program_headers([*own, *added]))
        image[: len(headers)] = headers
        image[titles_at : titles_at + len(titles.data)] = titles.data
        rows = [bytes(section)]
        rows += [self._section_header(p, n) for p, n in zip(present, names)]
        titles_part = _Part(".shstrtab", _STRINGS, 0, [], 0, titles_at, len(titles.data))
        rows.append(self._section_header(titles_part, last_name))
        image[sections_at:end] = b"".join(rows)
        return _Linked(bytes(image), tuple((s.offset, content) for s, content in mapped))

    def _tables(self) -> None:
        """The tables for the loader, as pieces whose sizes are known and whose contents are filled
        in when everything has its place."""
        machine, relocator = self.machine, self.relocator
        names = [s.name for s in self.symbols]
        exported = [s.name for s in self.exports]
        table = dynamic.gnu_table(exported, len(self.imports) + 1, machine)
        self._piece(".gnu.hash", table, machine.word)
        self._piece(".hash", dynamic.elf_table(["", *names]), 4)
        symbols = dynamic.symbol_table(self.symbols, self.strings, machine, lambda s: 0)
        self._piece(".dynsym", symbols, 8)
        versions, needed, self.versioned = dynamic.version_tables(
            self.symbols, self.versions, self.strings
        )
        if self.versioned:
            self._piece(".gnu.version", versions, 2)
            self._piece(".gnu.version_r", needed, 4)
        for text in (*self.libraries, self.name):
            self.strings.add(text)
        self._piece(".dynstr", bytes(self.strings.data), 1)
        self.relocations = ".rela.dyn" if machine.explicit else ".rel.dyn"
        size = (24 if machine.explicit else 8) * relocator.count
        if size:
            self._piece(self.relocations, bytes(size), machine.word)
        if relocator.stubs:
            self._piece(".plt", bytes(machine.stub_size * len(relocator.stubs)), 16)
        if relocator.slots:
            self._piece(".got", bytes(machine.word * len(relocator.slots)), machine.word)
        self._piece(".dynamic", self._dynamic(), machine.word)

    def _piece(self, part: str, data: bytes, align: int) -> None:
        self.parts[part].pieces.append(
            Section("the linker", part, PROGRAM, ALLOCATED, align, len(data), data, part=part)
        )

    def _dynamic(self) -> bytes:
        parts, add = self.parts, self.strings.add
        entries = [(1, add(library)) for library in self.libraries]
        entries.append((14, add(self.name)))
        for address, size, title in ((25, 27, ".init_array"), (26, 28, ".fini_array")):
            if parts[title].pieces:
                entries += [(address, parts[title].address), (size, parts[title].size)]
        entries += [
            (0x6FFFFEF5, parts[".gnu.hash"].address),
            (4, parts[".hash"].address),
            (5, parts[".dynstr"].address),
            (10, parts[".dynstr"].size),
            (6, parts[".dynsym"].address),
            (11, 24 if self.machine.wide else 16),
        ]
        table = parts[self.relocations]
        if table.pieces:
            explicit = self.machine.explicit
            kinds = (7, 8, 9, 0x6FFFFFF9) if explicit else (17, 18, 19, 0x6FFFFFFA)
            values = (table.address, table.size, 24 if explicit else 8, self.relocator.relative)
            entries += list(zip(kinds, values))
        if self.versioned:
            entries += [
                (0x6FFFFFF0, parts[".gnu.version"].address),
                (0x6FFFFFFE, parts[".gnu.version_r"].address),
                (0x6FFFFFFF, self.versioned),
            ]
        # Bind everything while loading, so that slots can be protected.
        entries += [(30, 8), (0x6FFFFFFB, 1), (0, 0)]
        record = struct.Struct("<QQ" if self.machine.wide else "<II")
        return b"".join(record.pack(*entry) for entry in entries)

    def _place(self, segments: Sequence[_Segment], address: int, offset: int) -> tuple[int, int]:
        """Addresses from `address` on, and places in the file from `offset` on. The file has no
        gaps for pages: a page that two segments share in the file is mapped twice."""
        page = self.machine.page
        for k, segment in enumerate(segments):
            first = not address and not k
            align = max(p.align for p in segment.parts)
            offset = offset if first else up(offset, align)
            address = offset if first else up(address, page) + offset % page
            segment.address, segment.offset = (0, 0) if first else (address, offset)
            in_file = offset
            for part in segment.parts:
                step = -address % part.align
                address, offset = address + step, offset + step
                part.address, part.offset = address, offset
                for piece in part.pieces:
                    step = -address % piece.align
                    piece.address, piece.offset = address + step, offset + step
                    address, offset = address + step + piece.size, offset + step + piece.size
                part.size = address - part.address
                if part.type != NO_BITS:
                    in_file = offset
            segment.in_file = in_file - segment.offset
            offset = in_file
            if segment.padded:
                address = up(address, page)
            segment.in_memory = address - segment.address
        return address, offset

    def _fill(self, image: bytearray, present: Sequence[_Part]) -> None:
        machine, parts, relocator = self.machine, self.parts, self.relocator
        if parts[".got"].pieces:
            relocator.got = parts[".got"].pieces[0].address
        if parts[".plt"].pieces:
            relocator.plt = parts[".plt"].pieces[0].address
        of_piece = {id(p): part.number for part in present for p in part.pieces}
        contents = {
            ".dynsym": lambda: dynamic.symbol_table(
                self.symbols, self.strings, machine, lambda s: of_piece.get(id(s.section), 0)
            ),
            ".dynamic": self._dynamic,
            ".plt": relocator.stub_code,
            ".got": relocator.slot_words,
            self.relocations: lambda: b"",
        }
        for title, make in contents.items():
            for piece in parts[title].pieces:
                piece.data = make()
        for part in present:
            for piece in part.pieces:  # what is zero or added behind has no bytes here
                if piece.data:
                    image[piece.offset : piece.offset + len(piece.data)] = piece.data
        rows = relocator.apply(image)
        for piece in parts[self.relocations].pieces:
            table = dynamic.relocation_table(rows, machine)
            image[piece.offset : piece.offset + len(table)] = table

    def _header(self, headers: int, sections_at: int, sections: int) -> bytes:
        wide = self.machine.wide
        identity = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
        size, program, section = (64, 56, 64) if wide else (52, 32, 40)
        form = "<16sHHIQQQIHHHHHH" if wide else "<16sHHIIIIIHHHHHH"
        fields = (3, self.machine.number, 1, 0, size, sections_at, self.flags)
        counts = (size, program, headers, section, sections, sections - 1)
        return struct.pack(form, identity, *fields, *counts)

    def _program_headers(self, segments: Sequence[_Segment]) -> list[bytes]:
        page, word = self.machine.page, self.machine.word
        rows = []
        for s in segments:
            rows.append((_LOAD, s.rights, s.offset, s.address, s.in_file, s.in_memory, page))
        d, relro = self.parts[".dynamic"], self.segments["relro"]
        rows.append((_DYNAMIC_SEGMENT, 6, d.offset, d.address, d.size, d.size, word))
        ends = (relro.in_file, relro.in_memory)
        rows.append((_RELRO, _READ, relro.offset, relro.address, *ends, 1))
        rows.append((_STACK, _READ | _WRITE, 0, 0, 0, 0, 16))
        return [self._program_header(*row) for row in rows]

    def _program_header(
        self, kind: int, rights: int, offset: int, at: int, stored: int, size: int, align: int
    ) -> bytes:
        if self.machine.wide:
            return struct.pack("<IIQQQQQQ", kind, rights, offset, at, at, stored, size, align)
        return struct.pack("<IIIIIIII", kind, offset, at, at, stored, size, rights, align)

    def _section_header(self, part: _Part, name: int) -> bytes:
        linked = self.parts[_LINKS[part.name]].number if part.name in _LINKS else 0
        info = {".dynsym": 1, ".gnu.version_r": self.versioned}.get(part.name, 0)
        sizes = {
            ".dynsym": 24 if self.machine.wide else 16,
            ".gnu.version": 2,
            ".dynamic": 2 * self.machine.word,
            ".rela.dyn": 24,
            ".rel.dyn": 8,
            ".hash": 4,
        }
        fields = (name, part.type, part.flags, part.address, part.offset, part.size)
        form = "<IIQQQQIIQQ" if self.machine.wide else "<IIIIIIIIII"
        return struct.pack(form, *fields, linked, info, part.align, sizes.get(part.name, 0))


def _part_of(section: Section) -> str:
    if section.part:
        return section.part
    if section.type == INIT_ARRAY:
        return ".init_array"
    if section.type == FINI_ARRAY:
        return ".fini_array"
    if section.flags & EXECUTED:
        return ".text"
    if not section.flags & WRITE:
        return ".rodata"
    if section.name.startswith(".data.rel.ro"):
        return ".data.rel.ro"
    return ".bss" if section.type == NO_BITS else ".data"
