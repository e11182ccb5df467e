"""What the instructions of groups of four warps have in common (wgmma on sm_90a): descriptors of
operands in shared memory, sums that go through registers, and how a tile's axes are written.

Rows of an operand run along the sum, in 128, 64 or 32 bytes, swizzled over as many; or across it,
in 128 bytes, in blocks of 64 elements and as many rows as there are steps of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS, DEEP = 64, 16  # of one instruction, of elements of 16 bits
STEP = 32  # bytes of the sum of one instruction
WIDE = 64  # elements of 16 bits of a row, and of a block that lies across the sum
ROW = 128  # bytes
BLOCK = WIDE * ROW  # 64 rows
UNIT = 16  # bytes, in which descriptors count
ADDRESSES = (1 << 18) - 1  # of shared memory
SWIZZLES = {128: 1, 64: 2, 32: 3}  # a descriptor's number for swizzles over so many bytes


def word(across: bool, row: int, deep: int) -> int:
    """What a descriptor says besides the address: the swizzle, how far 8 rows are from the next 8,
    and blocks of 64 across the sum from each other."""
    if across:
        return (1 << 62) | (8 * ROW // UNIT << 32) | (deep * ROW // UNIT << 16)
    return (SWIZZLES[row] << 62) | (8 * row // UNIT << 32) | (1 << 16)


def descriptor(x: str, says: int) -> list[str]:
    """The operand's address as an instruction takes it."""
    signed = says - (1 << 64) if says >> 63 else says
    return [
        f"  %{x}.shared = addrspacecast ptr %{x} to ptr addrspace(3)",
        f"  %{x}.at = ptrtoint ptr addrspace(3) %{x}.shared to i64",
        f"  %{x}.low = and i64 %{x}.at, {ADDRESSES}",
        f"  %{x}.16 = lshr i64 %{x}.low, 4",
        f"  %{x}.d = add i64 %{x}.16, {signed}",
    ]


def alone(text: str) -> str:
    return f'  call void asm sideeffect "{text}", "~{{memory}}"() convergent'


class Sums:
    """The text of instructions that add to the sums of a thread: `parts` times 64 rows, of `count`
    sums each, loaded before the first instruction and stored behind the last."""

    def __init__(self, dtype: str, parts: int, count: int) -> None:
        self.dtype, self.parts, self.count = dtype, parts, count
        self.type = "float" if dtype == "f32" else "i32"
        self.steps = 0
        self.lines: list[str] = []

    def load(self) -> None:
        for k in range(self.parts * self.count):
            self.lines.append(f"  %p{k} = getelementptr {self.type}, ptr %c, i64 {k}")
            self.lines.append(f"  %c0.{k} = load {self.type}, ptr %p{k}, align 4")
        self.lines.append(alone("wgmma.fence.sync.aligned;"))

    def text(self, shape: str, operands: str, ends: str, says: str = "") -> str:
        """An instruction; numbers of its operands come behind those of the sums."""
        names = ", ".join(f"${k}" for k in range(self.count))
        text = f"{{ {says}.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned."
        return text + f"{shape} {{{names}}}, {operands}, p{ends}; }}"

    def add(self, part: int, text: str, kinds: Sequence[str], operands: Sequence[str]) -> None:
        """One instruction for 64 rows, in this step."""
        step, count = self.steps, self.count
        own = ["=f" if self.type == "float" else "=r"] * count
        tied = ",".join([*own, *kinds, *map(str, range(count)), "~{memory}"])
        result = f"{{ {', '.join([self.type] * count)} }}"
        old = [f"{self.type} %c{step}.{part * count + k}" for k in range(count)]
        given = ", ".join([*operands, *old])
        into = f"%r{step}.{part}"
        call = f'call {result} asm sideeffect "{text}", "{tied}"({given}) convergent'
        self.lines.append(f"  {into} = {call}")
        for k in range(count):
            to = f"%c{step + 1}.{part * count + k}"
            self.lines.append(f"  {to} = extractvalue {result} {into}, {k}")

    def next(self) -> None:
        self.steps += 1

    def store(self) -> str:
        self.lines.append(alone("wgmma.commit_group.sync.aligned;"))
        for k in range(self.parts * self.count):
            place = f"%c{self.steps}.{k}, ptr %p{k}"
            self.lines.append(f"  store {self.type} {place}, align 4")
        return "\n".join([*self.lines, "  ret void"])


@dataclass(frozen=True)
class Side:
    """An operand's axis of rows or columns: one loop, or blocks of 64 and a place in them.

    size      of the axis of the sums
    shape     of the operand
    at        its index
    place     along the axis of the sums
    loops     of the computation
    sizes     what the text says of the names of sizes
    strides   of the operand
    """

    size: str
    shape: str
    at: str
    place: str
    loops: str
    sizes: str
    strides: tuple[int, ...]

    @property
    def name(self) -> str:
        """The place, by the names that fragments have for it."""
        return self.place.replace("c.", "")


def side(
    across: bool,
    deep: int,
    letters: tuple[str, str],
    names: tuple[str, str],
    sizes: tuple[str, str],
) -> Side:
    """`letters` are loops over blocks and over single elements, `names` their extents, and `sizes`
    what is known of these."""
    (g, i), (blocks, single) = letters, names
    if across:
        return Side(
            f"{WIDE}*{blocks}",
            f"{blocks},{deep},{WIDE}",
            f"c.{g},c.k,c.{i}",
            f"{WIDE}*c.{g}+c.{i}",
            f"c.{g} in {blocks}, c.{i} in {WIDE}",
            f"{blocks}: {sizes[0]}",
            (deep * WIDE, WIDE, 1),
        )
    at, loops = f"c.{i}", f"c.{i} in {single}"
    return Side(
        single, f"{single},{deep}", f"{at},c.k", at, loops, f"{single}: {sizes[1]}", (deep, 1)
    )


def rows_of(across: bool, deep: int, groups: int) -> Side:
    known = (f"{groups}..2", f"{ROWS * groups}..128")
    return side(across, deep, ("g", "i"), ("parts", "rows"), known)


def columns_of(across: bool, deep: int, least: int = 8) -> Side:
    return side(across, deep, ("h", "j"), ("blocks", "columns"), ("1..4", f"{least}..256"))
