"""The catalogue of operators, from their registry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields

import tilewright.ops  # noqa: F401  (fills OPERATORS)
from docs.generator.pieces import code, doc_of, first_sentence, table, words
from tilewright.ir.expr import Value
from tilewright.ir.node import Op
from tilewright.ir.operator import DEFINITIONS, OPERATORS, definition, sample_node
from tilewright.ir.value_print import value_text

PROPERTIES = {
    "elementwise": "an element of the result depends on the operands' elements at the same place",
    "commutative": "the operands may be exchanged",
    "linear": "linear in these operands, one at a time",
    "view": "every element of the result is one element of an operand",
    "ordered": "a view in the order of memory, so that reading through it costs nothing",
    "random": "draws from a stream that is one of its operands",
    "positions": "these results are positions along the operator's axis in its first operand",
    "barrier": "the result is always stored; what reads it does not compute it again",
    "inline": "kernels read through it; it is never stored",
}

LONG = 72  # characters of a definition that are shown

INTRODUCTION = """# Operators

Generated from the registry of `tilewright/ops/`. A graph consists of these operators and nothing
else. Each has a type rule (`infer`), a numpy reference, samples to try it on, and exactly one
definition:

- `compose`: written in other operators,
- `compute`: index functions and reductions,
- `program`: scans and updates in an order,
- `interpret`: control flow, which runs graphs inside it.

The column *types* shows what the type rule gives for the operator's first sample. Other ranks,
sizes and dtypes follow the same rule, which refuses with a sentence what it cannot take. Where an
operator is described by its definition, `x0` is the first operand, `i0` the first index of the
element, and `r0` runs over what is reduced.
[How to write one](../extend/operator.md).
"""


def definition_kind(cls: type[Op]) -> str:
    (kind,) = [d for d in DEFINITIONS if hasattr(cls, d)]
    return kind


def properties(cls: type[Op]) -> Iterator[str]:
    for name in PROPERTIES:
        value = getattr(cls, name, False)
        if value:
            yield name if value is True else f"{name} {', '.join(map(str, value))}"


def types(cls: type[Op]) -> str:
    """The types of the first sample: what goes in and what comes out."""
    for sample in cls.samples():  # type: ignore[attr-defined]
        n = sample_node(sample)
        given = ", ".join(repr(x.type) for x in n.inputs)
        return f"{given} → {n.type!r}" if given else repr(n.type)
    return ""


def about(cls: type[Op]) -> str:
    """Its own words, or else its definition for the first sample: `x0` is the first operand."""
    if said := doc_of(cls):
        return words(first_sentence(said))
    sample = next(cls.samples())  # type: ignore[attr-defined]
    _, outputs = definition(sample.op, tuple(x.ttype for x in sample_node(sample).inputs))
    texts = (value_text(o.body) if isinstance(o.body, Value) else repr(o.body) for o in outputs)
    return ", ".join(code(t if len(t) <= LONG else f"{t[:LONG]}…") for t in texts)


def row(name: str, cls: type[Op]) -> list[str]:
    arguments = ", ".join(f.name for f in fields(cls))
    kind = f"{code(definition_kind(cls))}"
    return [
        code(name),
        about(cls),
        code(arguments),
        kind,
        code(types(cls)),
        ", ".join(properties(cls)),
    ]


def page() -> str:
    out = [INTRODUCTION, "## What the properties mean\n"]
    out.append(table(["property", "meaning"], ([code(k), v] for k, v in PROPERTIES.items())))
    files: dict[str, list[tuple[str, type[Op]]]] = {}
    for name, cls in OPERATORS.items():
        files.setdefault(cls.__module__, []).append((name, cls))
    titles = ["operator", "what it computes", "attributes", "definition", "types", "properties"]
    for module in sorted(files):
        out.append(f"## `{module.removeprefix('tilewright.')}`\n")
        about = first_sentence(sys.modules[module].__doc__ or "")
        out.append(words(about) + "\n")
        out.append(table(titles, (row(*one) for one in files[module])))
    return "\n".join(out)
