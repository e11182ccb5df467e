"""Which definition each name means, and which sections are reached from what is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.base.errors import Invalid, Unsupported, require
from tilewright.link.object import (
    ALLOCATED,
    LOCAL,
    NO_BITS,
    WEAK,
    WRITE,
    ElfObject,
    Section,
    Symbol,
)


def resolve(
    objects: Sequence[ElfObject],
    exports: Sequence[str],
    libraries: Mapping[str, str],
    given: Mapping[str, Symbol],
) -> tuple[list[Section], list[Symbol]]:
    """The sections that are needed, in the order of the objects, and what is exported. From here
    on, `symbols` of an object are those that its names mean. `libraries`: which library has a
    name; `given`: symbols that the linker defines itself."""
    _one_of_equal_groups(objects)
    defined, made = _definitions(objects, given)
    for o in objects:
        _bind(o, defined)
    _check_exports(exports, defined)
    roots = [defined[name] for name in exports]
    return _reached(objects, made, roots, libraries), roots


def _one_of_equal_groups(objects: Sequence[ElfObject]) -> None:
    seen: set[str] = set()
    for o in objects:
        for name, sections in o.groups:
            if name in seen:
                for section in sections:
                    section.kept = False
            seen.add(name)


def _strength(symbol: Symbol) -> int:
    return 2 if symbol.common else 1 if symbol.binding == WEAK else 3


def _definitions(
    objects: Sequence[ElfObject], given: Mapping[str, Symbol]
) -> tuple[dict[str, Symbol], list[Section]]:
    """By name, the strongest definition; and sections for variables that several declare."""
    found: dict[str, Symbol] = dict(given)
    for o in objects:
        for symbol in o.symbols:
            if symbol.binding == LOCAL or not (_defines(symbol) or symbol.common):
                continue
            old = found.get(symbol.name)
            if old is None or _strength(symbol) > _strength(old):
                found[symbol.name] = symbol
            elif _strength(symbol) == _strength(old) == 3:
                raise Invalid(
                    f"{symbol.name} is defined by {old.object} and by {symbol.object}",
                    hint="rename one of them, or make it internal to its object",
                )
            elif symbol.common and old.common:
                old.size, old.common = max(old.size, symbol.size), max(old.common, symbol.common)
    made = []
    for symbol in found.values():
        if symbol.common:
            name, flags = f".common.{symbol.name}", ALLOCATED | WRITE
            section = Section(
                symbol.object, name, NO_BITS, flags, symbol.common, max(symbol.size, 1), b""
            )
            symbol.section, symbol.value = section, 0
            made.append(section)
    return found, made


def _defines(symbol: Symbol) -> bool:
    return symbol.absolute or (symbol.section is not None and symbol.section.kept)


def _bind(o: ElfObject, defined: dict[str, Symbol]) -> None:
    """Replaces names by what they mean. One that nobody defines is one symbol for all objects; it
    has to be there unless all of them can do without."""
    for k, symbol in enumerate(o.symbols):
        if symbol.binding == LOCAL or not symbol.name:
            continue
        if symbol.section is not None and not symbol.section.kept:
            symbol.section = None
        meant = defined.setdefault(symbol.name, symbol)
        if meant is not symbol:
            if meant.section is None and symbol.binding != WEAK:
                meant.binding = symbol.binding
            o.symbols[k] = meant


def _check_exports(exports: Sequence[str], defined: Mapping[str, Symbol]) -> None:
    require(exports, "nothing is exported, so the file would be empty", hint="name a function")
    missing = [e for e in exports if e not in defined or defined[e].section is None]
    if missing:
        own = sorted(n for n, s in defined.items() if s.section is not None)
        raise Invalid(
            f"{', '.join(missing)}: to be exported, but no object defines it",
            hint=f"defined are {', '.join(own[:12]) or 'no names'}{', …' if own[12:] else ''}",
        )


def _reached(
    objects: Sequence[ElfObject],
    made: Sequence[Section],
    roots: Sequence[Symbol],
    libraries: Mapping[str, str],
) -> list[Section]:
    sections = [s for o in objects for s in o.sections] + list(made)
    waiting: list[Section] = []
    missing: dict[str, str] = {}

    def reach(section: Section) -> None:
        if not section.live:
            section.live = True
            waiting.append(section)

    def use(symbol: Symbol, user: Section) -> None:
        if symbol.problem:
            raise Unsupported(f"{symbol} in {user} is {symbol.problem} which cannot be linked")
        if symbol.section is None:
            if symbol.name in libraries:
                symbol.library = libraries[symbol.name]
            elif symbol.binding != WEAK and symbol.name:
                missing.setdefault(symbol.name, user.object)
        elif symbol.section.part == "dropped":
            raise Invalid(f"{user} refers to {symbol.section}, which is not loaded")
        elif not symbol.section.kept:
            raise Invalid(f"{user} refers to {symbol.section}, of which another copy was taken")
        else:
            reach(symbol.section)

    for section in sections:
        if section.kept and section.retained:
            reach(section)
    for root in roots:
        if root.problem:
            raise Unsupported(f"{root} is {root.problem} which cannot be exported")
        if root.section is not None:
            loaded = root.section.part != "dropped"
            require(loaded, f"{root} is to be exported, but {root.section} is not loaded")
            reach(root.section)
    while waiting:
        section = waiting.pop()
        symbols = section.symbols
        for index in {r[2] for r in section.relocations}:
            use(symbols[index], section)
    _check_missing(missing)
    return [s for s in sections if s.live]


def _check_missing(missing: Mapping[str, str]) -> None:
    if missing:
        names = [f"{name} (for {who})" for name, who in sorted(missing.items())[:12]]
        more = f" and {len(missing) - 12} more" if len(missing) > 12 else ""
        raise Invalid(
            f"nobody defines {', '.join(names)}{more}",
            hint="pass the object that does, or name the library that has it in `needs`",
        )
