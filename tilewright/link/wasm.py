"""Objects of WebAssembly → one module.

Its memory begins with the stack, which grows down to address 0, so that a stack that overflows
traps. Data follows, then what is zero; the rest (from `__heap_base` on) is its user's. With
`shared`, memory comes from outside (`env.memory`), one for the instances of all threads: one of
them calls `__wasm_init_memory` once, and each sets its `__stack_pointer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.base.errors import Invalid, TilewrightError, Unsupported, require
from tilewright.link import leb
from tilewright.link.wasm_object import (
    DATA,
    FUNCTION,
    LOCAL,
    RETAINED,
    TABLE,
    TYPE_INDEX,
    WEAK,
    Chunk,
    WasmObject,
    WasmSymbol,
    read_wasm_object,
)

PAGE = 65536
_MOST_PAGES = 65536
_I32, _FUNCREF = 0x7F, 0x70
_NO_ARGUMENTS = b"\x60\0\0"
INIT_MEMORY = "__wasm_init_memory"
_STACK_POINTER, _HEAP_BASE = "__stack_pointer", "__heap_base"
# Globals that code which may lie anywhere adds to addresses: here it lies where it says.
_BASES = ("__memory_base", "__table_base")


def module(
    objects: Sequence[bytes],
    exports: Sequence[str],
    *,
    memory_pages: int,
    stack_bytes: int = 1 << 20,
    imports: Sequence[str] = (),
    shared: bool = False,
) -> bytes:
    """The bytes of a module. `exports` are functions (or data, exported as a global that holds its
    address), `imports` functions that the user of the module provides in `env`; any other name that
    no object defines is an error. Memory begins with what stack and data take, and may grow to
    `memory_pages` of 64 KB. It is exported as `memory`, or imported where it is `shared`."""
    require(objects, "there are no objects to link")
    require(exports, "nothing is exported, so the module would be empty", hint="name a function")
    require(
        0 < memory_pages <= _MOST_PAGES,
        f"memory has 1 to {_MOST_PAGES} pages of 64 KB, not {memory_pages}",
    )
    require(stack_bytes > 0, f"a stack of {stack_bytes} bytes")
    total = len(objects)
    read = [read_wasm_object(image, f"object {k} of {total}") for k, image in enumerate(objects, 1)]
    linker = _Linker(read, dict.fromkeys(exports), frozenset(imports))
    linker.place_data(-(-stack_bytes // 16) * 16, memory_pages)
    return linker.write(memory_pages, shared)


@dataclass(frozen=True)
class _Kind:
    """A type of relocation: bytes it has in the object, its value, how that is written."""

    name: str
    size: int
    value: Callable[[_Linker, Chunk, int, int], int]
    put: Callable[[int], bytes]


class _Linker:
    def __init__(
        self, objects: Sequence[WasmObject], exports: Iterable[str], imports: frozenset[str]
    ):
        self.objects, self.imports = objects, imports
        self.defined: dict[str, WasmSymbol] = {}
        self._define()
        self.exports = list(exports)
        missing = [
            e for e in self.exports if e not in self.defined or self.defined[e].chunk is None
        ]
        if missing:
            own = sorted(n for n, s in self.defined.items() if s.chunk is not None)
            raise Invalid(
                f"{', '.join(missing)}: to be exported, but no object defines it",
                hint=f"defined are {', '.join(own[:12]) or 'no names'}{', …' if own[12:] else ''}",
            )
        self.given: list[WasmSymbol] = []  # functions from outside
        self.absent: list[WasmSymbol] = []  # those that may be missing, and are
        self.slots: list[WasmSymbol] = []
        self.types: dict[bytes, int] = {}
        self.globals: list[bytes] = []
        # By name, or by the function or place in data whose address they hold.
        self.numbers: dict[str | WasmSymbol, int] = {_STACK_POINTER: 0}
        self.table_used = False
        self._reach()
        self.functions = [f for o in objects for f in o.functions if f.live]
        first = len(self.given)
        for k, symbol in enumerate(self.given):
            symbol.number = k
        for k, function in enumerate(self.functions):
            function.place = first + k
        for k, symbol in enumerate(self.absent):
            symbol.number = first + len(self.functions) + k

    def _define(self) -> None:
        """Names become what they mean: the strongest definition, or one symbol for all objects."""
        groups: set[str] = set()
        for o in self.objects:
            for name, members in o.groups:
                for chunk in members if name in groups else ():
                    chunk.kept = False
                groups.add(name)
        for name in (_HEAP_BASE, "__data_end", "__stack_low", "__stack_high"):
            self.defined[name] = WasmSymbol(name, "the linker", DATA, 0, made=True)
        for o in self.objects:
            for s in o.symbols:
                if s.kind not in (FUNCTION, DATA) or s.flags & LOCAL or not _whole(s):
                    continue
                old = self.defined.get(s.name)
                if old is None or (old.flags & WEAK and not s.flags & WEAK):
                    self.defined[s.name] = s
                elif not s.flags & WEAK:
                    raise Invalid(
                        f"{s.name} is defined by {old.object} and by {s.object}",
                        hint="rename one of them, or make it internal to its object",
                    )
        for o in self.objects:
            for k, s in enumerate(o.symbols):
                if s.kind not in (FUNCTION, DATA) or s.flags & LOCAL:
                    continue
                if not _whole(s):
                    s.chunk = None
                meant = self.defined.setdefault(s.name, s)
                _check_alike(meant, s)
                if meant is not s:
                    if meant.chunk is None and not s.flags & WEAK:
                        meant.flags &= ~WEAK
                    o.symbols[k] = meant

    def _reach(self) -> None:
        """Functions and data that are used; in the order of use, what comes from outside."""
        waiting: list[Chunk] = []
        missing: dict[str, str] = {}
        seen: set[int] = set()

        def reach(chunk: Chunk) -> None:
            if chunk.of_thread:
                raise Unsupported(f"{chunk} is data of each thread", hint="pass it as an argument")
            if not chunk.live:
                chunk.live = True
                waiting.append(chunk)

        def use(symbol: WasmSymbol, user: Chunk | str) -> None:
            if symbol.chunk is not None:
                if not symbol.chunk.kept:
                    raise Invalid(f"{user} refers to {symbol.chunk}, of which another copy is used")
                reach(symbol.chunk)
            elif id(symbol) not in seen and not symbol.made:
                seen.add(id(symbol))
                if symbol.kind == FUNCTION and symbol.name in self.imports:
                    self.given.append(symbol)
                elif symbol.flags & WEAK:
                    if symbol.kind == FUNCTION:
                        self.absent.append(symbol)
                else:
                    missing[symbol.name] = str(user)

        for name in self.exports:
            use(self.defined[name], "what is exported")
        for o in self.objects:
            for _, index in o.initial:
                use(o.symbols[index], o.name)
            for chunk in (*o.functions, *o.segments):
                if chunk.retained and chunk.kept:
                    reach(chunk)
            for symbol in o.symbols:
                if symbol.flags & RETAINED and symbol.chunk is not None and symbol.chunk.kept:
                    reach(symbol.chunk)
        while waiting:
            chunk = waiting.pop()
            for relocation in chunk.relocations:
                kind = _KINDS.get(relocation[1])
                if kind is None:
                    raise _refused(chunk, relocation, f"of type {relocation[1]} is not known")
                if relocation[0] + kind.size > len(chunk.data):
                    raise _refused(chunk, relocation, f"({kind.name}) lies beyond its end")
                if relocation[1] != TYPE_INDEX:
                    symbol = chunk.owner.symbols[relocation[2]]
                    if symbol.kind in (FUNCTION, DATA):
                        use(symbol, chunk)
        if missing:
            names = [f"{name} (for {who})" for name, who in sorted(missing.items())[:12]]
            more = f" and {len(missing) - 12} more" if len(missing) > 12 else ""
            raise Invalid(
                f"nobody defines {', '.join(names)}{more}",
                hint="pass the object that does, or name the function in `imports`",
            )

    def place_data(self, stack: int, memory_pages: int) -> None:
        live = [s for o in self.objects for s in o.segments if s.live]
        at = self.data_start = stack
        self.data_end = stack
        for segment in sorted(live, key=lambda s: s.zero):
            at = -(-at // segment.align) * segment.align
            segment.place = at
            at += len(segment.data)
            if not segment.zero:
                self.data_end = at
        self.segments = [s for s in live if not s.zero]
        heap = -(-at // 64) * 64
        ends = {_HEAP_BASE: heap, "__data_end": at, "__stack_low": 0, "__stack_high": stack}
        for name, address in ends.items():
            self.defined[name].address = address
        self.pages = -(-heap // PAGE)
        require(
            self.pages <= memory_pages,
            f"stack and data take {self.pages} pages of 64 KB, more than the {memory_pages} that "
            "memory may have",
            hint="raise memory_pages, or make the stack smaller",
        )
        self.globals.append(_global(stack, mutable=True))

    def number(self, symbol: WasmSymbol) -> int:
        return symbol.chunk.place if symbol.chunk is not None else symbol.number

    def slot(self, symbol: WasmSymbol) -> int:
        """Its place in the table of functions, which is what a pointer to it is; 0 is null."""
        self.table_used = True
        if symbol.chunk is None and symbol not in self.given:
            return 0
        if symbol.slot < 0:
            self.slots.append(symbol)
            symbol.slot = len(self.slots)
        return symbol.slot

    def address(self, symbol: WasmSymbol) -> int:
        if symbol.chunk is not None:
            return symbol.chunk.place + symbol.offset
        return symbol.address

    def global_number(self, of: str | WasmSymbol, value: int) -> int:
        if of not in self.numbers:
            self.numbers[of] = len(self.numbers)
            self.globals.append(_global(value))
        return self.numbers[of]

    def type_number(self, found: bytes) -> int:
        return self.types.setdefault(found, len(self.types))

    def patched(self, chunk: Chunk) -> bytes:
        """A chunk with its final numbers: in code each takes as few bytes as it can."""
        pieces, done = [], 0
        for relocation in sorted(chunk.relocations):
            offset, number, index, addend = relocation
            kind = _KINDS[number]
            if offset < done:
                raise _refused(chunk, relocation, "overlaps another one")
            value = kind.value(self, chunk, index, addend)
            pieces += [chunk.data[done:offset], kind.put(value)]
            done = offset + kind.size
        pieces.append(chunk.data[done:])
        return b"".join(pieces)

    def write(self, memory_pages: int, shared: bool) -> bytes:
        bodies = [(self.type_number(f.type), self.patched(f)) for f in self.functions]
        # What may be missing traps where it is called.
        bodies += [(self.type_number(s.type), b"\0\0\x0b") for s in self.absent]
        image = bytearray(self.data_end - self.data_start)
        for segment in self.segments:
            at = segment.place - self.data_start
            image[at : at + len(segment.data)] = self.patched(segment)
        init = self._initial(len(image) if shared else 0)
        starter = len(self.given) + len(bodies)
        if init or shared:
            bodies.append((self.type_number(_NO_ARGUMENTS), b"\0" + init + b"\x0b"))
        heap = self.defined[_HEAP_BASE].address
        exported = [self._export(name) for name in self.exports]
        exported.append(_export(_HEAP_BASE, 3, self.global_number(_HEAP_BASE, heap)))
        limits = b"\3" if shared else b"\1"
        limits += leb.unsigned(self.pages) + leb.unsigned(memory_pages)
        given = [
            leb.name("env") + leb.name(s.name) + b"\0" + leb.unsigned(self.type_number(s.type))
            for s in self.given
        ]
        if shared:
            given.append(leb.name("env") + leb.name("memory") + b"\2" + limits)
            exported.append(_export(INIT_MEMORY, 0, starter))
            exported.append(_export(_STACK_POINTER, 3, 0))
        else:
            exported.append(_export("memory", 2, 0))

        sections: list[tuple[int, bytes]] = [(1, leb.vector(list(self.types)))]
        if given:
            sections.append((2, leb.vector(given)))
        sections.append((3, leb.vector([leb.unsigned(t) for t, _ in bodies])))
        size = leb.unsigned(len(self.slots) + 1)
        if self.table_used:
            sections.append((4, leb.vector([bytes((_FUNCREF, 1)) + size + size])))
        if not shared:
            sections.append((5, leb.vector([limits])))
        sections.append((6, leb.vector(self.globals)))
        sections.append((7, leb.vector(exported)))
        if init and not shared:
            sections.append((8, leb.unsigned(starter)))
        if self.slots:
            members = leb.vector([leb.unsigned(self.number(s)) for s in self.slots])
            sections.append((9, leb.vector([b"\0\x41\1\x0b" + members])))
        data = []
        if image:
            place = b"\1" if shared else b"\0\x41" + leb.signed(self.data_start) + b"\x0b"
            data = [place + leb.unsigned(len(image)) + bytes(image)]
        if shared and data:
            sections.append((12, leb.unsigned(1)))
        sections.append((10, leb.vector([leb.unsigned(len(b)) + b for _, b in bodies])))
        if data:
            sections.append((11, leb.vector(data)))
        body = b"".join(bytes((k,)) + leb.unsigned(len(b)) + b for k, b in sections)
        return b"\0asm\1\0\0\0" + body

    def _initial(self, copied: int) -> bytes:
        """Code that copies data into memory where that has to be done once (so many bytes), and
        calls the functions that come before all others."""
        code = b""
        if copied:
            start = b"\x41" + leb.signed(self.data_start)
            code += start + b"\x41\0\x41" + leb.signed(copied) + b"\xfc\x08\0\0\xfc\x09\0"
        listed = [(p, o.symbols[k]) for o in self.objects for p, k in o.initial]
        for _, symbol in sorted(listed, key=lambda pair: pair[0]):
            require(
                symbol.type == _NO_ARGUMENTS,
                f"{symbol} is to be called at the start, but has arguments or a result",
            )
            code += b"\x10" + leb.unsigned(self.number(symbol))
        return code

    def _export(self, name: str) -> bytes:
        symbol = self.defined[name]
        if symbol.kind == FUNCTION:
            return _export(name, 0, self.number(symbol))
        return _export(name, 3, self.global_number(symbol, self.address(symbol)))


def _whole(symbol: WasmSymbol) -> bool:
    """Does its object define it, and was this copy taken?"""
    return symbol.chunk is not None and symbol.chunk.kept


def _check_alike(meant: WasmSymbol, used: WasmSymbol) -> None:
    require(
        meant.kind == used.kind and (meant.kind != FUNCTION or meant.type == used.type),
        f"{used.name} has one type in {meant.object} and another in {used.object}",
        hint="declare it as it is defined",
    )


def _export(name: str, kind: int, number: int) -> bytes:
    return leb.name(name) + bytes((kind,)) + leb.unsigned(number)


def _global(value: int, mutable: bool = False) -> bytes:
    return bytes((_I32, mutable, 0x41)) + leb.signed(_low(value)) + b"\x0b"


def _low(value: int) -> int:
    """32 bits as a signed number, which constants are."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _refused(chunk: Chunk, relocation: tuple[int, ...], what: str) -> TilewrightError:
    offset, number, index, _ = relocation
    named = "" if number == TYPE_INDEX else f", for {chunk.owner.symbols[index]}"
    error = Unsupported if number not in _KINDS else Invalid
    return error(f"a relocation {what}: in {chunk}, at byte {offset}{named}")


def _wanted(chunk: Chunk, index: int, kind: int) -> WasmSymbol:
    symbol = chunk.owner.symbols[index]
    if symbol.kind != kind:
        raise Invalid(f"{chunk} uses {symbol} as what it is not", hint="compile it again")
    return symbol


def _function_number(linker: _Linker, chunk: Chunk, index: int, addend: int) -> int:
    return linker.number(_wanted(chunk, index, FUNCTION))


def _function_slot(linker: _Linker, chunk: Chunk, index: int, addend: int) -> int:
    return linker.slot(_wanted(chunk, index, FUNCTION))


def _data_address(linker: _Linker, chunk: Chunk, index: int, addend: int) -> int:
    symbol = _wanted(chunk, index, DATA)
    absent = symbol.chunk is None and not symbol.made
    return 0 if absent else linker.address(symbol) + addend


def _type_number(linker: _Linker, chunk: Chunk, index: int, addend: int) -> int:
    return linker.type_number(chunk.owner.types[index])


def _global_number(linker: _Linker, chunk: Chunk, index: int, addend: int) -> int:
    """The stack pointer; or, in code that may lie anywhere, a global that holds an address."""
    symbol = chunk.owner.symbols[index]
    if symbol.kind == FUNCTION:
        return linker.global_number(symbol, linker.slot(symbol))
    if symbol.kind == DATA:
        return linker.global_number(symbol, _data_address(linker, chunk, index, 0))
    if symbol.name in _BASES:
        return linker.global_number(symbol.name, 0)
    require(
        symbol.name == _STACK_POINTER,
        f"{chunk} uses the global {symbol.name}, which nobody defines",
    )
    return 0


def _table_number(linker: _Linker, chunk: Chunk, index: int, addend: int) -> int:
    _wanted(chunk, index, TABLE)
    linker.table_used = True
    return 0


def _unsigned(value: int) -> bytes:
    return leb.unsigned(value & 0xFFFFFFFF)


def _signed(value: int) -> bytes:
    return leb.signed(_low(value))


def _word(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "little")


_KINDS = {
    0: _Kind("R_WASM_FUNCTION_INDEX_LEB", 5, _function_number, _unsigned),
    1: _Kind("R_WASM_TABLE_INDEX_SLEB", 5, _function_slot, _signed),
    2: _Kind("R_WASM_TABLE_INDEX_I32", 4, _function_slot, _word),
    3: _Kind("R_WASM_MEMORY_ADDR_LEB", 5, _data_address, _unsigned),
    4: _Kind("R_WASM_MEMORY_ADDR_SLEB", 5, _data_address, _signed),
    5: _Kind("R_WASM_MEMORY_ADDR_I32", 4, _data_address, _word),
    6: _Kind("R_WASM_TYPE_INDEX_LEB", 5, _type_number, _unsigned),
    7: _Kind("R_WASM_GLOBAL_INDEX_LEB", 5, _global_number, _unsigned),
    11: _Kind("R_WASM_MEMORY_ADDR_REL_SLEB", 5, _data_address, _signed),
    12: _Kind("R_WASM_TABLE_INDEX_REL_SLEB", 5, _function_slot, _signed),
    20: _Kind("R_WASM_TABLE_NUMBER_LEB", 5, _table_number, _unsigned),
}
