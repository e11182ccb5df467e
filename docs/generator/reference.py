"""The reference of the public API: every name that a module for users exports."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from docs.generator.pieces import code, doc_of, first_sentence, table, words
from tilewright.lang.tile.front.functions import ConstexprFunction, TileFunction


@dataclass(frozen=True)
class Face:
    """A module that gathers names for users, and how users call it."""

    module: str
    short: str
    introduction: str


FACES = (
    Face("tilewright", "tw", "Imported as `tw`. Names are loaded when they are first used."),
    Face("tilewright.te", "te", "Tensor expressions and schedules in TVM's spelling."),
    Face("tilewright.language", "tl", "The tile language, Triton's names, imported as `tl`."),
    Face("tilewright.testing", "tw.testing", "Timing, comparing and reporting kernels."),
)


def uri(face: Face) -> str:
    return f"reference/{face.module}.md"


def names(face: Face) -> tuple[str, ...]:
    module = import_module(face.module)
    return tuple(sorted(module.__all__, key=lambda n: (n.lower(), n)))


def defined_at(thing: Any) -> str | None:
    """The path of the `def` or `class` statement behind a name, where there is one."""
    inner = thing.fn if isinstance(thing, TileFunction | ConstexprFunction) else thing
    if not inspect.isfunction(inner) and not inspect.isclass(inner):
        return None
    module, name = inner.__module__, inner.__qualname__
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}.{name}" if found is thing else None


def page(face: Face) -> str:
    module = import_module(face.module)
    out = [f"# `{face.module}`\n", face.introduction + "\n"]
    whole, rows, modules = [], [], []
    for name in names(face):
        thing = getattr(module, name)
        if isinstance(thing, ModuleType):
            modules.append([code(f"{face.short}.{name}"), words(first_sentence(doc_of(thing)))])
        elif path := defined_at(thing):
            whole.append(entry(f"{face.short}.{name}", path))
        else:
            rows.append([code(f"{face.short}.{name}"), signature(thing), value(thing)])
    if modules:
        out += ["## Modules\n", table(["module", "what it holds"], modules)]
    if rows:
        out += [
            "## Values, and functions that are made by others\n",
            table(["name", "call", "what"], rows),
        ]
    return "\n".join([*out, "## Functions and classes\n", *whole])


def entry(shown: str, path: str) -> str:
    return f"::: {path}\n    options:\n      heading: {shown}\n      toc_label: {shown}\n"


def signature(thing: Any) -> str:
    inner = getattr(thing, "fn", thing)
    return code(str(inspect.signature(inner))) if inspect.isfunction(inner) else ""


def value(thing: Any) -> str:
    if callable(thing) and doc_of(thing):
        return words(first_sentence(doc_of(thing)))
    return code(repr(thing)) if not callable(thing) else ""


def missing(face: Face, text: str) -> Sequence[str]:
    """Names that the text of a page does not mention."""
    return [n for n in names(face) if f"{face.short}.{n}" not in text]
