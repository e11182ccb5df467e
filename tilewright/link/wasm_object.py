"""Reading a relocatable object of WebAssembly: functions, data, symbols and relocations.

Beside the sections of a module, objects have `linking` (symbols, and names and alignments of data)
and `reloc.…` (places that depend on the final numbers of functions, types and addresses).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.base.errors import Invalid, Unsupported, require
from tilewright.link.leb import Reader

# Kinds of symbols, and their flags.
FUNCTION, DATA, GLOBAL, SECTION, TAG, TABLE = range(6)
WEAK, LOCAL, UNDEFINED, NAMED, RETAINED = 1, 2, 0x10, 0x40, 0x80
_OF_THREAD, ABSOLUTE = 0x100, 0x200
_TYPES, _IMPORTS, _FUNCTIONS, _EXPORTS, _CODE, _DATA = 1, 2, 3, 7, 10, 11
_OWN = (4, 6, 13)  # tables, globals, tags
_SEGMENTS, _INITIAL, _GROUPS, _SYMBOLS = 5, 6, 7, 8


@dataclass(eq=False, slots=True)
class Chunk:
    """A function's body or a segment of data. `relocations` are (offset, type, index, addend)."""

    owner: WasmObject
    name: str
    start: int  # in its section
    data: bytes
    type: bytes = b""  # of a function
    align: int = 1
    retained: bool = False
    of_thread: bool = False
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)
    kept: bool = True
    live: bool = False
    place: int = -1  # a function's number, or the address of data

    @property
    def zero(self) -> bool:
        """Does it hold nothing but zeros, addresses that will be filled in included?"""
        return not self.relocations and not any(self.data)

    def __str__(self) -> str:
        return f"{self.name} of {self.owner.name}"


@dataclass(eq=False, slots=True)
class WasmSymbol:
    """A function or a place in data; without a chunk, somebody else's. `type` is a function's."""

    name: str
    object: str
    kind: int
    flags: int
    chunk: Chunk | None = None
    offset: int = 0
    type: bytes = b""
    made: bool = False  # defined by the linker
    slot: int = -1  # in the table of functions
    number: int = -1  # of a function that has no chunk
    address: int = 0  # of data that has no chunk

    def __str__(self) -> str:
        return self.name or (str(self.chunk) if self.chunk is not None else "no symbol")


@dataclass(eq=False, slots=True)
class WasmObject:
    name: str
    types: list[bytes] = field(default_factory=list)
    imported: list[tuple[str, bytes]] = field(default_factory=list)  # functions: name, type
    other_imports: dict[int, list[str]] = field(default_factory=dict)  # by kind
    declared: list[bytes] = field(default_factory=list)  # types of own functions
    functions: list[Chunk] = field(default_factory=list)
    segments: list[Chunk] = field(default_factory=list)
    symbols: list[WasmSymbol] = field(default_factory=list)
    initial: list[tuple[int, int]] = field(default_factory=list)  # priority, symbol
    groups: list[tuple[str, list[Chunk]]] = field(default_factory=list)


def read_wasm_object(image: bytes, name: str) -> WasmObject:
    """`name` is what errors call it."""
    require(
        image[:8] == b"\0asm\1\0\0\0",
        f"{name} is not an object of WebAssembly",
        hint="compile for wasm32-unknown-unknown",
    )
    try:
        return _read(bytes(image), WasmObject(name))
    except (ValueError, IndexError, OverflowError) as problem:
        if isinstance(problem, Invalid):
            raise
        raise Invalid(
            f"{name} is damaged: {problem}", hint="compile it again; it may be cut off"
        ) from None


@dataclass(frozen=True)
class WasmModule:
    """What a linked module says of itself: names that it gives, and that it takes from outside."""

    exports: tuple[str, ...]
    imports: tuple[str, ...]


def read_wasm_module(image: bytes, name: str) -> WasmModule:
    """`name` is what errors call it."""
    require(image[:8] == b"\0asm\1\0\0\0", f"{name} is not a module of WebAssembly")
    exports: list[str] = []
    imports: list[str] = []
    try:
        r = Reader(bytes(image), 8, len(image))
        while r.more:
            kind, part = r.byte(), r.part()
            if kind == _IMPORTS:
                imports += _imported_names(part)
            elif kind == _EXPORTS:
                for _ in range(part.count()):
                    exports.append(part.name())
                    part.byte(), part.unsigned()
    except (ValueError, IndexError) as problem:
        raise Invalid(f"{name} is damaged: {problem}") from None
    return WasmModule(tuple(exports), tuple(imports))


def _imported_names(part: Reader) -> Iterator[str]:
    for _ in range(part.count()):
        yield f"{part.name()}.{part.name()}"
        kind = part.byte()
        if kind == 1:  # a table: its type before its limits
            part.byte()
        if kind in (1, 2):
            has_most = part.byte() & 1
            part.unsigned()
            if has_most:
                part.unsigned()
        elif kind == 3:
            part.take(2)
        else:
            part.unsigned()


def _read(image: bytes, o: WasmObject) -> WasmObject:
    whole = Reader(image, 8, len(image))
    index, own, later, linked = 0, 0, [], False
    chunks: dict[int, list[Chunk]] = {}
    while whole.more:
        kind = whole.byte()
        part = whole.part()
        if kind == _TYPES:
            o.types = [_type(part) for _ in range(part.count())]
        elif kind == _IMPORTS:
            for _ in range(part.count()):
                _import(part, o)
        elif kind == _FUNCTIONS:
            o.declared = [o.types[part.unsigned()] for _ in range(part.count())]
        elif kind == _CODE:
            chunks[index] = o.functions = _functions(part, o)
        elif kind == _DATA:
            chunks[index] = o.segments = _segments(part, o)
        elif kind == 0:
            title = part.name()
            if title == "linking":
                linked = True
                _linking(part, o)
            elif title.startswith("reloc."):
                later.append(part)
        elif kind in _OWN:
            own += part.unsigned()
        index += 1
    if not linked:
        raise Invalid(f"{o.name} is a module, not an object", hint="pass what the compiler makes")
    if own:
        raise Unsupported(f"{o.name} defines globals, tables or tags of its own")
    if len(o.functions) != len(o.declared):
        raise ValueError("functions without code")
    for part in later:
        _relocations(part, o, chunks)
    return o


def _type(part: Reader) -> bytes:
    start = part.at
    if part.byte() != 0x60:
        raise ValueError("a type that is no function's")
    part.take(part.unsigned())
    part.take(part.unsigned())
    return part.data[start : part.at]


def _import(part: Reader, o: WasmObject) -> None:
    part.name()
    name, kind = part.name(), part.byte()
    if kind == 0:
        o.imported.append((name, o.types[part.unsigned()]))
        return
    o.other_imports.setdefault(kind, []).append(name)
    if kind == 3:
        part.take(2)
    elif kind in (1, 2):
        if kind == 1:
            part.byte()
        flags = part.unsigned()
        part.unsigned()
        if flags & 1:
            part.unsigned()
    else:
        raise Unsupported(f"{o.name} imports {name}, of kind {kind}")


def _functions(part: Reader, o: WasmObject) -> list[Chunk]:
    start, found = part.at, []
    count = part.count()
    if count != len(o.declared):
        raise ValueError("functions without code")
    for k in range(count):
        body = part.part()
        data = body.take(body.end - body.at)
        found.append(Chunk(o, f"function {k}", body.end - len(data) - start, data, o.declared[k]))
    return found


def _segments(part: Reader, o: WasmObject) -> list[Chunk]:
    start, found = part.at, []
    for k in range(part.count()):
        if part.unsigned():
            raise ValueError(f"segment {k} has no place")
        # Where it would lie: a constant, and the end of the expression.
        if part.byte() != 0x41:
            raise ValueError(f"segment {k} has an odd place")
        part.signed()
        part.byte()
        data = part.part()
        content = data.take(data.end - data.at)
        found.append(Chunk(o, f"data {k}", data.end - len(content) - start, content))
    return found


def _linking(part: Reader, o: WasmObject) -> None:
    version = part.unsigned()
    if version != 2:
        raise Unsupported(f"{o.name} has linking data of version {version}; 2 is known")
    while part.more:
        kind = part.byte()
        inner = part.part()
        if kind == _SYMBOLS:
            o.symbols = [_symbol(inner, o) for _ in range(inner.count())]
        elif kind == _SEGMENTS:
            for k in range(inner.count()):
                segment = o.segments[k]
                segment.name = inner.name()
                power, flags = inner.unsigned(), inner.unsigned()
                if power > 16:
                    raise Unsupported(f"{segment} is aligned to 2^{power} bytes, more than 2^16")
                segment.align = 1 << power
                segment.of_thread, segment.retained = bool(flags & 2), bool(flags & 4)
        elif kind == _INITIAL:
            o.initial = [(inner.unsigned(), inner.unsigned()) for _ in range(inner.count())]
        elif kind == _GROUPS:
            o.groups = [_group(inner, o) for _ in range(inner.count())]
    if any(symbol >= len(o.symbols) for _, symbol in o.initial):
        raise ValueError("a function to call at the start is no symbol")


def _group(part: Reader, o: WasmObject) -> tuple[str, list[Chunk]]:
    name = part.name()
    part.unsigned()
    members = []
    for _ in range(part.count()):
        kind, index = part.byte(), part.unsigned()
        if kind == 0:
            members.append(o.segments[index])
        elif kind == 1:
            members.append(_function(o, index))
    return name, members


def _function(o: WasmObject, index: int) -> Chunk:
    own = index - len(o.imported)
    if own < 0:
        raise ValueError(f"function {index} is somebody else's")
    return o.functions[own]


def _symbol(part: Reader, o: WasmObject) -> WasmSymbol:
    kind, flags = part.byte(), part.unsigned()
    found = WasmSymbol("", o.name, kind, flags)
    if kind == DATA:
        found.name = part.name()
        if not flags & UNDEFINED:
            segment, found.offset, _ = part.unsigned(), part.unsigned(), part.unsigned()
            if flags & ABSOLUTE:
                raise Unsupported(f"{found.name} of {o.name} is a number, not a place in data")
            found.chunk = o.segments[segment]
            if found.offset > len(found.chunk.data):
                raise ValueError(f"symbol {found.name} lies beyond its data")
        if flags & _OF_THREAD:
            raise Unsupported(
                f"{found.name} of {o.name} is a variable of each thread",
                hint="pass such values as arguments",
            )
    elif kind == SECTION:
        part.unsigned()
    elif kind in (FUNCTION, GLOBAL, TABLE):
        index = part.unsigned()
        if not flags & UNDEFINED or flags & NAMED:
            found.name = part.name()
        if kind == FUNCTION:
            _bind_function(found, o, index)
        elif flags & UNDEFINED:
            imported = o.other_imports.get(3 if kind == GLOBAL else 1, [])
            found.name = found.name or imported[index]
        else:
            raise Unsupported(f"{o.name} defines {found.name}, a global or a table")
    else:
        raise Unsupported(f"{o.name} has a symbol of kind {kind}")
    return found


def _bind_function(symbol: WasmSymbol, o: WasmObject, index: int) -> None:
    if symbol.flags & UNDEFINED:
        name, symbol.type = o.imported[index]
        symbol.name = symbol.name or name
    else:
        symbol.chunk = _function(o, index)
        symbol.chunk.name, symbol.type = symbol.name, symbol.chunk.type


# Types of relocations that objects of LLVM have, by what they need: a symbol or a type.
TYPE_INDEX = 6
WITH_ADDEND = (3, 4, 5, 11)


def _relocations(part: Reader, o: WasmObject, chunks: dict[int, list[Chunk]]) -> None:
    section = part.unsigned()
    if section not in chunks:
        return  # of debug data, which is left out
    targets = chunks[section]
    starts = [c.start for c in targets]
    for _ in range(part.count()):
        kind, offset, index = part.byte(), part.unsigned(), part.unsigned()
        addend = part.signed() if kind in WITH_ADDEND else 0
        k = bisect_right(starts, offset) - 1
        if k < 0 or offset >= starts[k] + len(targets[k].data):
            raise ValueError(f"a relocation at byte {offset} of section {section}")
        limit = len(o.types) if kind == TYPE_INDEX else len(o.symbols)
        if index >= limit:
            raise ValueError(f"{targets[k].name} refers to number {index} of {limit}")
        targets[k].relocations.append((offset - starts[k], kind, index, addend))
