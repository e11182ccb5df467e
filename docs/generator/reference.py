"""The reference of the public API: every name that a module for users exports."""

from __future__ import annotations

import inspect
import re
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
    given: tuple[tuple[str, str], ...] = ()  # what its functions give back: (how, the class)


FACES = (
    Face(
        "tilewright",
        "tw",
        "Imported as `tw`. Names are loaded when they are first used.",
        (
            ("tw.explain(…)", "tilewright.driver.looking.explain.Explanation"),
            ("tw.lower(…)", "tilewright.driver.te.build.Lowered"),
            ("tw.build(…)", "tilewright.driver.te.build.Built"),
            ("tw.record()", "tilewright.base.events.Log"),
        ),
    ),
    Face(
        "tilewright.te",
        "te",
        "Tensor expressions and schedules in TVM's spelling.",
        (
            ("te.create_schedule(…)[tensor]", "tilewright.lang.te.handle.StageHandle"),
            ("te.tune(…)", "tilewright.driver.te.tune.Tuned"),
        ),
    ),
    Face("tilewright.onnx", "tw.onnx", "ONNX models as native code. Needs the extra `onnx`."),
    Face(
        "tilewright_runtime",
        "twr",
        "Runs packages, in plain Python; a distribution of its own, and part of Tilewright.",
        (("twr.load(…)", "tilewright_runtime.package.Package"),),
    ),
    Face("tilewright.tune", "tune", "Choices that `te.tune` and `tw.autotune` make by measuring."),
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
    out += ["## Functions and classes\n", *whole]
    if face.given:
        out += ["## What functions give back\n", *(entry(*one) for one in face.given)]
    if rows:
        out += ["## Functions of scalars, and values\n", table(["name", "call", "what"], rows)]
    if modules:
        out += ["## Modules\n", table(["module", "what it holds"], modules)]
    return "\n".join(out)


def entry(shown: str, path: str) -> str:
    return f"::: {path}\n    options:\n      heading: {shown}\n      toc_label: {shown}\n"


def signature(thing: Any) -> str:
    inner = getattr(thing, "fn", thing)
    if not inspect.isfunction(inner):
        return ""
    # Annotations are text under `from __future__ import annotations`; a reader needs no quotes.
    return code(re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(inner))))


def value(thing: Any) -> str:
    if callable(thing) and doc_of(thing):
        return words(first_sentence(doc_of(thing)))
    return code(repr(thing)) if not callable(thing) else ""


def missing(face: Face, text: str) -> Sequence[str]:
    """Names that the text of a page does not mention."""
    return [n for n in names(face) if f"{face.short}.{n}" not in text]
