"""PTX, the assembly of Nvidia's GPUs, as text: what `inline_asm_elementwise` is given, taken apart.

    {.reg .b32 t; mul.f32 t, $1, 0f3F000000; @p add.f32 $0, t, t;}

is a list of instructions, each with its name (`mul`), its modifiers and types (`f32`), its operands
and perhaps a predicate. What they compute is said by `ptx.py`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tilewright.base.errors import Invalid, Unsupported

# Bits of a register by its constraint, and by its type where it is declared.
CONSTRAINTS = {"b": 1, "c": 8, "h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
_WIDTH = re.compile(r"\.(?:[busf]|bf)(8|16|32|64)$")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w%$.]+)\s+)?([a-z]\w*(?:\.[\w:]+)*)\s*(.*)", re.DOTALL)
_DECLARED = re.compile(r"([\w$%]+)(?:<(\d+)>)?")

HINT = "write it in the language: tl.math, bit operations, x.to(…, bitcast=True)"


def refused(text: str, why: str = "is not among the instructions that have a meaning on a CPU"):
    return Unsupported(f"inline_asm_elementwise: {text} {why}", hint=HINT)


@dataclass(frozen=True)
class Instruction:
    text: str
    name: str  # add
    parts: tuple[str, ...]  # rn, f32
    operands: tuple[str, ...]
    predicate: str | None = None  # the register that decides whether it counts
    negated: bool = False


@dataclass(frozen=True)
class Code:
    instructions: tuple[Instruction, ...]
    widths: dict[str, int]  # of registers that are declared; 1: a predicate


def parsed(text: str) -> Code:
    instructions: list[Instruction] = []
    widths: dict[str, int] = {}
    for statement in _COMMENT.sub(" ", text).split(";"):
        line = " ".join(statement.split()).lstrip("{} ")
        line = line.rstrip("}").rstrip() if line.count("}") > line.count("{") else line
        if not line:
            continue
        if line.startswith(".reg"):
            widths |= _declared(line)
            continue
        found = _INSTRUCTION.fullmatch(line)
        if found is None or line.startswith("."):
            raise refused(f"`{line}`", "is no instruction of PTX that is understood here")
        negated, predicate, opcode, rest = found.groups()
        name, *parts = opcode.replace("::", ".").split(".")
        operands = tuple(_split(rest))
        instructions.append(
            Instruction(line, name, tuple(parts), operands, predicate, bool(negated))
        )
    return Code(tuple(instructions), widths)


def _declared(line: str) -> dict[str, int]:
    _, kind, names = line.split(None, 2)
    width = 1 if kind == ".pred" else int(m[1]) if (m := _WIDTH.match(kind)) else None
    if width is None:
        raise refused(f"`{line}`", f"declares registers of the type {kind}, which is unknown")
    found: dict[str, int] = {}
    for name in names.split(","):
        m = _DECLARED.fullmatch(name.strip())
        if m is None:
            raise refused(f"`{line}`", "is no declaration of registers that is understood here")
        if m[2] is None:
            found[m[1]] = width
        else:
            found |= {f"{m[1]}{k}": width for k in range(int(m[2]))}
    return found


def _split(text: str) -> list[str]:
    """Operands, separated by commas that are in no braces."""
    found, depth = [""], 0
    for c in text:
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return [x.strip() for x in found if x.strip()]


def constraints_of(text: str) -> tuple[list[int], list[int | str]]:
    """Widths of the outputs and of the inputs; an input tied to an output is its number as text."""
    outputs: list[int] = []
    inputs: list[int | str] = []
    for item in re.split(r",(?![^{]*\})", text):
        item = item.strip()
        if not item or item.startswith("~"):  # what it changes besides
            continue
        kind = item.lstrip("=&")
        if kind.isdigit() and not item.startswith("="):
            inputs.append(kind)
            continue
        if kind not in CONSTRAINTS:
            raise Invalid(
                f"inline_asm_elementwise: the constraint {item!r}",
                hint=f"registers are {', '.join(CONSTRAINTS)}, with = before those of results",
            )
        (outputs if item.startswith("=") else inputs).append(CONSTRAINTS[kind])
    return outputs, inputs


def number_of(text: str) -> int | float | None:
    """A literal; None for the name of a register."""
    sign, bare = (-1, text[1:].strip()) if text.startswith("-") else (1, text)
    lower = bare.lower()
    if re.fullmatch(r"0f[0-9a-f]{8}", lower):
        return sign * struct.unpack(">f", bytes.fromhex(lower[2:]))[0]
    if re.fullmatch(r"0d[0-9a-f]{16}", lower):
        return sign * struct.unpack(">d", bytes.fromhex(lower[2:]))[0]
    if re.fullmatch(r"(0x[0-9a-f]+|0b[01]+|[0-9]+)u?", lower):
        digits = lower.rstrip("u")
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        return sign * int(digits, 8 if octal else 0)
    if re.fullmatch(r"([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(e[+-]?[0-9]+)?", lower):
        return sign * float(lower)
    return None
