"""Passes: frozen dataclasses with a text form, `Simplify{rounds=8},FoldConstants`.

Subclassing `Pass` is all it takes; fields are options. Between passes the named checks of the level
run when asked, and every stage can be written to a file that parses back.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.ir.check import level_of, verify
from tilewright.ir.reader import Reader
from tilewright.ir.text import attribute_text, read_attribute

PASSES: dict[str, type[Pass]] = {}


@dataclass(frozen=True)
class Pass:
    """A program in, a program out. Subclasses are frozen dataclasses that define `apply`."""

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        cls.name = cls.__name__
        known = PASSES.get(cls.name)
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(f"the pass {cls.name} is in {known.__module__} and {cls.__module__}")
        PASSES[cls.name] = cls

    def apply(self, program: Any, log: Log) -> Any:
        raise NotImplementedError(f"the pass {self.name} does nothing")

    def __str__(self) -> str:
        """Options that differ from their default are shown."""
        shown = [
            f"{f.name}={attribute_text(getattr(self, f.name))}"
            for f in fields(self)
            if f.default is MISSING or getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{', '.join(shown)}}}" if shown else self.name


def passes_text(passes: Sequence[Pass]) -> str:
    return ",".join(map(str, passes))


def parse_passes(text: str) -> tuple[Pass, ...]:
    """The passes that the text names, in order."""
    r = Reader(text, "passes")
    out: list[Pass] = []
    while not r.sees_kind("end"):
        out.append(_read_pass(r))
        if not r.take(","):
            r.end()
    return tuple(out)


def _read_pass(r: Reader) -> Pass:
    t = r.token
    name = r.name("a pass")
    cls = PASSES.get(name)
    if cls is None:
        near = difflib.get_close_matches(name, PASSES, 1)
        r.problem(f"there is no pass {name}" + (f"; did you mean {near[0]}?" if near else ""), t)
    options: dict[str, Any] = {}
    if r.take("{"):
        while not r.take("}"):
            at = r.token
            key = r.name("an option")
            if key not in {f.name for f in fields(cls)}:
                known = ", ".join(f.name for f in fields(cls)) or "none"
                r.problem(f"{name} has no option {key}; it has {known}", at)
            r.expect("=")
            options[key] = read_attribute(r)
            if not r.take(",") and not r.sees("}"):
                r.fail("',' or '}'")
    try:
        return cls(**options)
    except TypeError as why:
        r.problem(str(why), t)


def run(
    passes: Sequence[Pass],
    program: Any,
    log: Log,
    check: bool | None = None,
    dump: Path | None = None,
    prefix: str = "",
    between: Callable[[str, Any], Any] | None = None,
) -> Any:
    """Apply the passes in order. `check` and `dump` default to their environment switches.

    `between` sees the program before the first pass ("input") and after each one, by the pass's
    name, and gives the program to go on with; it then takes the place of `dump`.
    """
    check = knobs.check.get() if check is None else check
    dump = knobs.dump.get() if dump is None and between is None else dump
    for k, p in enumerate((None, *passes)):
        name = p.name if p is not None else "input"
        if p is not None:
            program = p.apply(program, log)
        if between is not None:
            program = between(name, program)
        if check:
            verify(program, after=str(p) if p is not None else "")
        if dump is not None:
            _write(dump, k, f"{prefix}{name}", program)
    return program


def _write(folder: Path, number: int, name: str, program: Any) -> None:
    path = folder / f"{number:02}-{name}.tw"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(level_of(program).text(program) + "\n")
    except OSError as why:
        raise Invalid(
            f"the stage {path.name} cannot be written to {folder}: {why.strerror or why}",
            hint=f"give {knobs.dump.name} a directory that can be written",
        ) from None
