"""The catalogue of targets and of the instructions that they declare."""

from __future__ import annotations

from dataclasses import fields

from docs.generator.pieces import block, code, table
from tilewright.ir.target import Target
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic
from tilewright.targets import families

INTRODUCTION = """# Targets and instructions

Generated from `tilewright/targets/`. A target is data: schedules read its numbers, and nothing asks
for one by name. Without `TILEWRIGHT_TARGET` the compiler describes the machine that it runs on, and
that target is called `host`. Code for another target can be compiled anywhere; running it needs the
machine. [How to write a target](../extend/target.md).
"""
INSTRUCTIONS = """## Instructions

An instruction is declared as a small tensor expression, the strides of its operands, and its
emission. [`Tensorize`](steps.md#tensorize) proves that loops compute the expression on operands
that lie in memory as declared, and marks them. Presets that list an instruction have it tried by
default schedules.

A stride of *any* is handed over when the instruction is used. *Exact* instructions round as their
loops do.
"""


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(code, value)) or "none"
    return code(value)


def target_table(presets: tuple[Target, ...]) -> str:
    rows = (
        [code(f.name), *(value_text(getattr(p, f.name)) for p in presets)]
        for f in fields(Target)
        if f.name != "name"
    )
    return table(["", *(code(p.name) for p in presets)], rows)


def strides(i: Intrinsic, operand: str) -> str:
    return "(" + ", ".join("any" if s is None else str(s) for s in i.maps[operand]) + ")"


def instruction(i: Intrinsic, presets: list[str]) -> str:
    rows = [
        ["features", ", ".join(map(code, i.features)) or "none beyond the architecture's"],
        ["strides", ", ".join(f"{code(name)} {strides(i, name)}" for name in i.maps)],
        ["sizes", ", ".join(f"{k}: a multiple of {v}" for k, v in i.multiples.items()) or "any"],
        ["sizes that need not be constant", ", ".join(map(code, i.dynamic)) or "none"],
        ["exact", "yes" if i.exact else "no"],
        ["presets that try it", ", ".join(map(code, presets)) or "none"],
    ]
    return "\n".join([f"### `{i.name}`\n", block(i.expression), table(["", ""], rows)])


def page() -> str:
    out = [INTRODUCTION]
    presets = [p for family in families() for p in family.presets]
    for family in families():
        named = ", ".join(map(code, family.architectures))
        out.append(f"## {family.name}\n\nTriples that begin with {named}.\n")
        out.append(target_table(family.presets))
    out.append(INSTRUCTIONS)
    for name in sorted(INTRINSICS):
        users = [p.name for p in presets if name in p.instructions]
        out.append(instruction(INTRINSICS[name], users))
    return "\n".join(out)
