"""Registers of PTX while its instructions run.

A register is a tile of bits; an instruction reads its operands as its types say, so `add.f32` of
two registers of 32 bits is a sum of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import promote, semantic
from tilewright.lang.tile.language.elementwise import minimum, where
from tilewright.lang.tile.language.ptx_text import Instruction, number_of, refused
from tilewright.lang.tile.language.tensor import tensor, value, wrap
from tilewright.lang.tile.language.types import (
    bfloat16,
    dtype,
    float8e4nv,
    float8e5,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

UNSIGNED = {8: uint8, 16: uint16, 32: uint32, 64: uint64}
SIGNED = {8: int8, 16: int16, 32: int32, 64: int64}
TYPES: dict[str, dtype] = {
    **{f"{c}{n}": t for c in "ub" for n, t in UNSIGNED.items()},
    **{f"s{n}": t for n, t in SIGNED.items()},
    "f16": float16,
    "bf16": bfloat16,
    "f32": float32,
    "f64": float64,
    "pred": int1,
}
# Several numbers in one register, the first in the lowest bits; strings are codes of their own.
PACKED: dict[str, tuple[Any, int]] = {
    "f16x2": (float16, 2),
    "bf16x2": (bfloat16, 2),
    "u16x2": (uint16, 2),
    "s16x2": (int16, 2),
    "e4m3x2": (float8e4nv, 2),
    "e5m2x2": (float8e5, 2),
    "e2m1x2": ("e2m1", 2),
    "ue8m0x2": ("ue8m0", 2),
    "tf32": ("tf32", 1),
}


def bits(t: tensor) -> int:
    return t.dtype.primitive_bitwidth


def as_bits(t: tensor) -> tensor:
    return t if t.dtype is int1 else t.to(UNSIGNED[bits(t)], bitcast=True)


@dataclass
class Machine:
    """Registers while instructions run."""

    shape: tuple[int, ...]
    widths: dict[str, int]
    registers: dict[str, tensor]

    def constant(self, x: float, to: dtype) -> tensor:
        if isinstance(x, int) and to.is_int() and to is not int1:
            width = to.primitive_bitwidth
            x &= (1 << width) - 1
            if to in SIGNED.values() and x >> (width - 1):
                x -= 1 << width
        return wrap(promote.constant(x, to, self.shape))

    def raw(self, name: str) -> tensor:
        """The bits of a register."""
        if name not in self.registers:
            if name.startswith("%"):
                raise refused(name, "queries the state of a GPU")
            if name not in self.widths:
                raise Invalid(
                    f"inline_asm_elementwise: {name} is no register and no number",
                    hint="operands are $0, $1, …; others are declared: .reg .b32 t;",
                )
            width = self.widths[name]
            self.registers[name] = self.constant(0, int1 if width == 1 else UNSIGNED[width])
        return self.registers[name]

    def read(self, name: str, to: dtype) -> tensor:
        """An operand as a number of a type."""
        if name.startswith("{"):
            name, whole = "", self.gathered(name)
        else:
            number = number_of(name)
            if number is not None:
                return self._literal(number, to)
            negated = name.startswith("!")
            whole = self.raw(name.lstrip("!"))
            if to is int1:
                found = whole if whole.dtype is int1 else whole != 0
                return ~found if negated else found
        if whole.dtype is int1:
            raise refused(name, "is a predicate where a number is required")
        width = to.primitive_bitwidth
        if bits(whole) != width:  # the low bits, or nothing above them
            whole = whole.to(UNSIGNED[width])
        return whole if to in UNSIGNED.values() else whole.to(to, bitcast=True)

    def _literal(self, x: float, to: dtype) -> tensor:
        if to is int1:
            return self.constant(bool(x), to)
        if to.is_floating() and isinstance(x, int):  # an integer stands for bits
            width = to.primitive_bitwidth
            return self.constant(x, UNSIGNED[width]).to(to, bitcast=True)
        if not to.is_floating() and isinstance(x, float):
            given = self.constant(x, float32 if to.primitive_bitwidth == 32 else float64)
            return given.to(to, bitcast=True)
        return self.constant(x, to)

    def gathered(self, text: str) -> tensor:
        """{a, b}: registers one above the other."""
        parts = [self.raw(n.strip()) for n in text.strip("{} ").split(",")]
        return packed(parts)

    def write(self, name: str, t: tensor, guard: tensor | None) -> None:
        if name.startswith("{"):
            names = [n.strip() for n in name.strip("{} ").split(",")]
            for n, part in zip(names, unpacked(as_bits(t), len(names)), strict=True):
                if n != "_":
                    self.write(n, part, guard)
            return
        if name == "_":
            return
        width = self.widths.get(name)
        if width is None:
            raise Invalid(
                f"inline_asm_elementwise: {name} is written and not declared",
                hint="results are $0, $1, …; others are declared: .reg .b32 t;",
            )
        if (width == 1) != (t.dtype is int1) or (width > 1 and width < bits(t)):
            raise Invalid(
                f"inline_asm_elementwise: {name} has {width} bits, and {t.dtype} is written to it",
                hint="declare it, or its constraint, as wide as the instruction's type",
            )
        if width > 1 and bits(t) < width:
            # Signs are carried up, as a GPU does it for integers with one.
            wide = t.to(SIGNED[width]) if t.dtype in SIGNED.values() else as_bits(t)
            t = wide.to(UNSIGNED[width])
        new = as_bits(t)
        self.registers[name] = new if guard is None else where(guard, new, self.raw(name))


@dataclass
class Step:
    """One instruction at work."""

    machine: Machine
    instruction: Instruction

    @property
    def guard(self) -> tensor | None:
        """Where its result counts."""
        i = self.instruction
        if i.predicate is None:
            return None
        found = self.machine.read(i.predicate, int1)
        return ~found if i.negated else found

    @property
    def kinds(self) -> list[str]:
        return [p for p in self.instruction.parts if p in TYPES or p in PACKED]

    @property
    def modifiers(self) -> set[str]:
        return {p for p in self.instruction.parts if p not in TYPES and p not in PACKED}

    def kind(self, k: int = -1) -> str:
        if not self.kinds:
            raise self.refusal("names no type that is known here")
        return self.kinds[k]

    def refusal(self, why: str = "is not among the instructions that have a meaning on a CPU"):
        return refused(f"`{self.instruction.text}`", why)

    def allow(self, *known: str) -> set[str]:
        """Its modifiers, all of which have to be among these."""
        unknown = self.modifiers - set(known)
        if unknown:
            raise self.refusal(f"has .{min(unknown)}, which has no meaning on a CPU")
        return self.modifiers

    def operands(self, n: int) -> tuple[str, ...]:
        """The n operands after the result."""
        found = self.instruction.operands
        if len(found) != n + 1:
            raise self.refusal(f"has {len(found)} operands and takes {n + 1}")
        return found[1:]

    def result(self, t: tensor) -> None:
        self.machine.write(self.instruction.operands[0], t, self.guard)

    def each(self, n: int, compute: Callable[..., tensor]) -> None:
        """The same for all n operands, of all numbers in a register."""
        kind = self.kind()
        if kind not in PACKED:
            self.result(compute(*(self.machine.read(x, TYPES[kind]) for x in self.operands(n))))
            return
        to, lanes = PACKED[kind]
        if isinstance(to, str):
            raise self.refusal()
        given = [numbers(self.machine, x, kind) for x in self.operands(n)]
        self.result(packed([as_bits(compute(*(g[k] for g in given))) for k in range(lanes)]))


# ---- several numbers in one register


def packed(parts: Sequence[tensor]) -> tensor:
    """Bits one above the other, the first lowest."""
    width = bits(parts[0]) * len(parts)
    to = UNSIGNED[width]
    found = parts[0].to(to)
    for k, part in enumerate(parts[1:], 1):
        found = found | (part.to(to) << (k * bits(parts[0])))
    return found


def unpacked(whole: tensor, n: int) -> list[tensor]:
    width = bits(whole) // n
    return [(whole >> (k * width)).to(UNSIGNED[width]) for k in range(n)]


def numbers(m: Machine, name: str, kind: str) -> list[tensor]:
    to, lanes = PACKED[kind]
    if to == "e2m1":  # two in a byte
        byte = m.read(name, uint8)
        return [byte & 15, byte >> 4]
    width = 8 if isinstance(to, str) else to.primitive_bitwidth
    whole = m.read(name, UNSIGNED[width * lanes])
    return [x if isinstance(to, str) else x.to(to, bitcast=True) for x in unpacked(whole, lanes)]


# ---- floats

_SMALLEST = 2.0**-126  # of normal float32


def function(name: str, t: tensor) -> tensor:
    """A function of numbers, in float32 where they are narrower."""
    if bits(t) < 32:
        return wrap(semantic.function(name, value(t.to(float32)))).to(t.dtype)
    return wrap(semantic.function(name, value(t)))


def flushed(x: tensor, modifiers: set[str]) -> tensor:
    """.ftz: what is too small to be normal is zero."""
    if "ftz" not in modifiers or x.dtype is not float32:
        return x
    small = wrap(semantic.absolute(value(x))) < _SMALLEST
    return where(small, x * 0.0, x)


def finished(x: tensor, modifiers: set[str]) -> tensor:
    x = flushed(x, modifiers)
    if "sat" in modifiers:
        x = where(x > 0.0, minimum(x, 1.0), 0.0).to(x.dtype)
    return x
