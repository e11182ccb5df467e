"""The catalogue of targets and of the instructions that they declare."""

from __future__ import annotations

from docs.generator.pieces import block, code, table
from tilewright.ir.target import Target
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic
from tilewright.targets import families

INTRODUCTION = """# Targets and instructions

Generated from `tilewright/targets/`. A target is data: schedules read its numbers, and nothing
tests for one by name. Without `TILEWRIGHT_TARGET` the compiler describes the machine that it runs
on, and that target is called `host`. Code for another target can be compiled anywhere; running it
needs the machine. Rates of a target that is not `rated` are defaults, not measurements.
[How to write a target](../extend/target.md).
"""
INSTRUCTIONS = """## Instructions

An instruction is declared as a small tensor expression, the strides of its operands, and its
emission. [`Tensorize`](steps.md#tensorize) proves that loops compute the expression on operands
that lie in memory as declared, and marks them. Presets that list an instruction have it tried by
default schedules.

A stride of *any* is passed at each use of the instruction. *Exact* instructions round as their
loops do.
"""


def said(target: Target) -> dict[str, str]:
    """The lines of a target's text: field and value, those of a GPU's grid among them."""
    lines = (line.strip().partition(" ") for line in target.text().splitlines()[1:])
    return {name: value for name, _, value in lines}


def value_text(value: str) -> str:
    return ", ".join(code(part) for part in map(str.strip, value.split(",")) if part)


def target_table(presets: tuple[Target, ...]) -> str:
    texts = [said(p) for p in presets]
    names = dict.fromkeys(name for text in texts for name in text)
    rows = ([code(n), *(value_text(text.get(n, "")) for text in texts)] for n in names)
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
