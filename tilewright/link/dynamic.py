"""The tables by which loaders find names: symbols, hashes, versions, and what to relocate."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from tilewright.link.object import WEAK, Symbol
from tilewright.link.relocation import Machine

GLOBAL_BINDING = 1


class Strings:
    """Names after each other, each once; the first is empty."""

    def __init__(self):
        self.data = bytearray(b"\0")
        self._places: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._places[text]


def gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def elf_hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def _buckets(count: int) -> int:
    return max(1, count // 2)


def hash_order(names: Sequence[str]) -> list[str]:
    """The order of exports that `gnu_table` needs: those of one bucket together."""
    buckets = _buckets(len(names))
    return sorted(names, key=lambda name: (gnu_hash(name) % buckets, name))


def gnu_table(names: Sequence[str], first: int, machine: Machine) -> bytes:
    """DT_GNU_HASH: a filter that says of most names that they are not here, then a chain for each
    bucket. `names` are the exports in `hash_order`, symbols from number `first` on."""
    bits, shift = 8 * machine.word, 26
    count = 1
    while count * bits < 8 * len(names):
        count *= 2
    words = [0] * count
    hashes = [gnu_hash(name) for name in names]
    buckets = _buckets(len(names))
    starts = [0] * buckets
    for k, value in reversed(list(enumerate(hashes))):
        words[value // bits % count] |= 1 << value % bits | 1 << (value >> shift) % bits
        starts[value % buckets] = first + k
    # The lowest bit marks the end of a chain.
    ends = [
        k + 1 == len(hashes) or hashes[k + 1] % buckets != value % buckets
        for k, value in enumerate(hashes)
    ]
    chain = [value & ~1 | end for value, end in zip(hashes, ends)]
    head = struct.pack("<4I", buckets, first, count, shift)
    filters = struct.pack(f"<{count}{'Q' if machine.wide else 'I'}", *words)
    return head + filters + struct.pack(f"<{buckets + len(chain)}I", *starts, *chain)


def elf_table(names: Sequence[str]) -> bytes:
    """DT_HASH, which older loaders know: of all symbols, number 0 without a name included."""
    buckets = _buckets(len(names))
    starts, chain = [0] * buckets, [0] * len(names)
    for number, name in reversed(list(enumerate(names))):
        if number:
            bucket = elf_hash(name) % buckets
            chain[number], starts[bucket] = starts[bucket], number
    words = (buckets, len(chain), *starts, *chain)
    return struct.pack(f"<{len(words)}I", *words)


def symbol_table(
    symbols: Sequence[Symbol],
    strings: Strings,
    machine: Machine,
    section_of: Callable[[Symbol], int],
) -> bytes:
    """DT_SYMTAB. `section_of`: the number of the section that a symbol is in."""
    rows = [bytes(24 if machine.wide else 16)]
    for s in symbols:
        name, value, size = strings.add(s.name), s.address, s.size
        size = 0 if s.section is None else size
        # Only the name is weak of what may be missing; an export is what it is.
        weak = s.section is None and s.binding == WEAK
        info = (WEAK if weak else GLOBAL_BINDING) << 4 | s.type & 15
        number = section_of(s)
        if machine.wide:
            rows.append(struct.pack("<IBBHQQ", name, info, 0, number, value, size))
        else:
            rows.append(struct.pack("<IIIBBH", name, value, size, info, 0, number))
    return b"".join(rows)


def version_tables(
    symbols: Sequence[Symbol], versions: Mapping[str, str], strings: Strings
) -> tuple[bytes, bytes, int]:
    """Which version of a library's function each symbol means (DT_VERSYM), the versions that are
    needed of each library (DT_VERNEED), and of how many libraries."""
    needed: dict[str, dict[str, int]] = {}
    numbers = [0]  # symbol 0 is nobody's
    count = 2  # 1: any version
    for s in symbols:
        version = versions.get(s.name, "") if s.section is None else ""
        if not version:
            numbers.append(1)
            continue
        of_library = needed.setdefault(s.library, {})
        if version not in of_library:
            of_library[version] = count
            count += 1
        numbers.append(of_library[version])
    table = bytearray()
    for k, (library, wanted) in enumerate(needed.items()):
        last = k + 1 == len(needed)
        size = 16 + 16 * len(wanted)
        name = strings.add(library)
        table += struct.pack("<HHIII", 1, len(wanted), name, 16, 0 if last else size)
        for j, (version, number) in enumerate(wanted.items()):
            after = 0 if j + 1 == len(wanted) else 16
            name = strings.add(version)
            table += struct.pack("<IHHII", elf_hash(version), 0, number, name, after)
    return struct.pack(f"<{len(numbers)}H", *numbers), bytes(table), len(needed)


def relocation_table(rows: Sequence[tuple[int, int, int, int]], machine: Machine) -> bytes:
    """(address, type, symbol's number, addend) as loaders read them; without room for addends they
    are in the words themselves."""
    if machine.explicit:
        record = struct.Struct("<QQq")
        return b"".join(record.pack(at, n << 32 | t, a) for at, t, n, a in rows)
    record = struct.Struct("<II")
    return b"".join(record.pack(at, n << 8 | t) for at, t, n, _ in rows)
