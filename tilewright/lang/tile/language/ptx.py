"""`inline_asm_elementwise`: elements of tiles as registers of PTX, and back.

`ptx_text.py` takes the text apart, `ptx_machine.py` has the registers, `ptx_table.py` says what
each instruction computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import promote
from tilewright.lang.tile.language.ptx_machine import (
    UNSIGNED,
    Machine,
    Step,
    as_bits,
    bits,
    packed,
    unpacked,
)
from tilewright.lang.tile.language.ptx_table import TABLE
from tilewright.lang.tile.language.ptx_text import constraints_of, parsed, refused
from tilewright.lang.tile.language.shapes import broadcast_to, join, reshape, split
from tilewright.lang.tile.language.tensor import tensor, value
from tilewright.lang.tile.language.types import dtype, int1, int8


def run(
    asm: str, constraints: str, args: Sequence[tensor], dtypes: Sequence[dtype], pack: int
) -> list[tensor]:
    """The results, of the shape of all arguments together. `pack` elements that lie side by side
    are taken at once; those narrower than 32 bits share registers."""
    code = parsed(asm)
    outputs, inputs = constraints_of(constraints)
    shape = promote.common_shape(*(tuple(value(a).shape) for a in args)) if args else ()
    size = 1
    for n in shape:
        size *= n
    if pack < 1 or pack & (pack - 1) or size % pack:
        raise Invalid(
            f"inline_asm_elementwise: pack={pack} of tiles of {size} elements",
            hint="pack is a power of two and divides the number of elements",
        )
    inner = (size // pack,) if pack > 1 else shape
    given: list[tensor] = []
    for a in args:
        given += in_registers(elements(broadcast_to(a, shape), pack))
    per_result = [registers_of(t, pack) for t in dtypes]
    if len(outputs) != sum(per_result) or len(inputs) != len(given):
        raise Invalid(
            f"inline_asm_elementwise: {constraints!r} has {len(outputs)} registers for results and "
            f"{len(inputs)} for arguments; with pack={pack} there are {sum(per_result)} and "
            f"{len(given)}",
            hint="one = constraint for each register of a result, then one for each of an argument",
        )
    machine = Machine(inner, dict(code.widths), {})
    for k, width in enumerate(outputs):
        machine.widths[f"${k}"] = width
    for k, (width, x) in enumerate(zip(inputs, given, strict=True), len(outputs)):
        tied = isinstance(width, str)
        name = f"${width}" if tied else f"${k}"
        machine.widths.setdefault(name, width)  # type: ignore[arg-type]
        machine.write(name, x, None)
        if tied:
            machine.widths[f"${k}"] = machine.widths[name]
            machine.registers[f"${k}"] = machine.registers[name]
    for i in code.instructions:
        compute = TABLE.get(i.name)
        if compute is None:
            raise refused(f"`{i.text}`")
        compute(Step(machine, i))
    found: list[tensor] = []
    at = 0
    for t, n in zip(dtypes, per_result, strict=True):
        parts = [machine.raw(f"${k}") for k in range(at, at + n)]
        at += n
        found.append(from_registers(parts, t, pack, shape))
    return found


def registers_of(t: dtype, pack: int) -> int:
    width = max(8, t.primitive_bitwidth)
    return pack if width >= 32 else max(1, pack * width // 32)


def elements(x: tensor, pack: int) -> list[tensor]:
    """Tiles of the first, second, … of each `pack` elements."""
    if pack == 1:
        return [x]
    axes = pack.bit_length() - 1
    groups = [reshape(x, [value(x).type.size // pack, *[2] * axes])]
    for _ in range(axes):  # the last axis is the lowest bit of the position
        halves = [split(g) for g in groups]
        groups = [h[0] for h in halves] + [h[1] for h in halves]
    return groups


def in_registers(parts: list[tensor]) -> list[tensor]:
    """Elements as bits; narrow ones share a register."""
    raw = [as_bits(x.to(int8) if x.dtype is int1 else x) for x in parts]
    together = min(len(raw), max(1, 32 // bits(raw[0])))
    if together == 1:
        return raw
    return [packed(raw[k : k + together]) for k in range(0, len(raw), together)]


def from_registers(parts: list[tensor], to: dtype, pack: int, shape: tuple[int, ...]) -> tensor:
    width = max(8, to.primitive_bitwidth)
    together = min(pack, max(1, 32 // width))
    flat: list[tensor] = []
    for x in parts:
        if x.dtype is int1:
            flat.append(x)
            continue
        if bits(x) < width * together:
            raise Invalid(
                f"inline_asm_elementwise: a register of {bits(x)} bits for {together} of {to}",
                hint="give results wider constraints",
            )
        whole = x.to(UNSIGNED[width * together])
        flat += unpacked(whole, together) if together > 1 else [whole]
    typed = [_typed(x, to) for x in flat]
    if pack == 1:
        return typed[0]
    while len(typed) > 1:
        half = len(typed) // 2
        typed = [join(typed[k], typed[k + half]) for k in range(half)]
    return reshape(typed[0], list(shape))


def _typed(x: tensor, to: dtype) -> tensor:
    if to is int1:
        return x if x.dtype is int1 else x != 0
    return x.to(to, bitcast=True) if to not in UNSIGNED.values() else x
