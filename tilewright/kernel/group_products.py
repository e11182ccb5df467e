"""A product of two tiles by groups of four warps (wgmma), as loops: the sums are in registers, the
operands are tiles of shared memory, which the instruction reads by itself; the first one may be in
registers too.

A tile has rows of 128 bytes, or as many as the instruction has steps of the sum. A wider one is
stored in blocks of that many columns, one after the other (`a, b -> b//64, a, b%64`). The layouts
(kernel/layouts.py) are those of the instruction: of the rows `… z f2 y8`, of the columns
`f x4 v2`. It goes on while the threads do other things, so a wait follows.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, cast, extent, fn, load
from tilewright.ir.types import DType
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic
from tilewright.kernel.layouts import FRAGMENT, LANES, Digit, Layout
from tilewright.kernel.nest import Loop, Stmt, Store, Wait
from tilewright.kernel.pieces import Piece, factors
from tilewright.kernel.warp_products import Fragments, is_step

ROW = 128  # bytes of a row
MOST_ROWS, MOST_COLUMNS = 128, 256  # of one use
GROUPS = (4, 8)  # warps that do a product together


def wide(d: DType) -> int:
    """Elements of a row."""
    return ROW // d.bytes


def depth(i: Intrinsic) -> int:
    """Steps of the sum that one use of an instruction is for."""
    n = extent(i.group.stages[0].raxes[-1])
    assert isinstance(n, int)
    return n


def row_of(i: Intrinsic, operand: str, d: DType) -> int:
    """Elements of a row of an operand."""
    return wide(d) if across(i, operand) else depth(i)


def is_group(name: str) -> bool:
    """Is an instruction one of groups of warps?"""
    return INTRINSICS[name].warps > 1


def across(i: Intrinsic, operand: str) -> bool:
    """Do the rows of an operand run across the sum?"""
    return len(i.maps.get(operand, ())) == 3


def group_layouts(rows: int, columns: int, warps: int) -> tuple[Layout, Layout] | None:
    """The layouts of the sums, if groups of warps can have them."""
    if warps not in GROUPS or columns % 8 or not 16 <= columns <= MOST_COLUMNS:
        return None
    if rows % (16 * warps) or rows % _rows_of_use(rows):
        return None
    uses, parts = rows // _rows_of_use(rows), _rows_of_use(rows) // (16 * warps)
    turns = [Digit(k) for k in (uses, parts) if k > 1]
    row = (*turns, Digit(warps, "z"), Digit(2, FRAGMENT), Digit(8, "y"))
    return row, (Digit(columns // 8, FRAGMENT), Digit(4, "x"), Digit(2, LANES))


def is_group_step(x: Layout) -> bool:
    """Are registers with this layout along the sum what an instruction takes?"""
    return len(x) == 3 and x == group_steps(x[0].extent * 8)


def held_steps(instruction: str) -> Callable[[Layout], bool]:
    """Are registers with a layout along the sum what this instruction takes as first operand?"""
    if is_group(instruction):
        return is_group_step
    wide = any(
        b.dtype.bytes == 4 and b.scope == "in" for b in INTRINSICS[instruction].group.buffers
    )
    return (lambda _: False) if wide else is_step


def group_steps(size: int) -> Layout:
    """The layout along the sum of a first operand in registers."""
    return Digit(size // 8, FRAGMENT), Digit(4, "x"), Digit(2, LANES)


def _rows_of_use(rows: int) -> int:
    return min(rows, MOST_ROWS)


def group_product_loops(p: Piece, instruction: str, laid: Fragments) -> tuple[Stmt, ...]:
    """The loops of a product, and the wait for it."""
    s, found, i = p.statement, factors(p), INTRINSICS[instruction]
    assert isinstance(s, Store) and found is not None
    rows, columns, deep = (_extent(x) for x in p.loops[-3:])
    name, used, steps = s.stage, _rows_of_use(rows), depth(i)
    # Turns of the instruction, and what it does in one.
    turn, step = _variable(f"{name}.m0", rows // used), _variable(f"{name}.k0", deep // steps)
    inner: list[Dim] = []
    places: list[Dim] = []
    for axis, operand, size in (("i", "a", used), ("j", "b", columns)):
        together = wide(found[0].dtype)
        blocks = across(i, operand) and size > together
        at: Dim = D.var(f"{name}.{axis}", together if blocks else size)
        if blocks:
            block = D.var(f"{name}.{axis}0", size // together)
            inner += [block, at]
            at = together * block + at
        else:
            inner.append(at)
        places.append(at)
    row, column = places
    k = D.var(f"{name}.k", steps)
    inner.append(k)
    at_loops: tuple[Dim, ...] = (used * turn + row, column, steps * step + k)
    table: dict[Sym, Dim] = {x.var: d for x, d in zip(p.loops[-3:], at_loops, strict=True)}
    warps = i.warps
    parts = used // (16 * warps)
    digits: list[Dim] = [
        *([turn] if rows > used else []),
        *([row // (16 * warps)] if parts > 1 else []),
    ]
    digits += [row // 16 % warps, row // 8 % 2, row % 8]
    others: list[Dim] = [column // 8, column // 2 % 4, column % 2]
    a, b = found
    first: Value = a.substitute(table)
    if str(a.source) in laid.registers:
        along: list[Dim] = [(steps * step + k) // 8, k // 2 % 4, k % 2]
        first = load(str(a.source), laid.place(str(a.source), [digits, along]), a.dtype)
    second = b.substitute(table)
    assert isinstance(first, Load) and isinstance(second, Load)
    sums = s.value.dtype
    value = fn("mul", cast(first, sums), cast(second, sums))
    made: Stmt = Store(name, s.buffer, laid.place(s.buffer, [digits, others]), value, s.combine)
    for n, v in reversed(list(enumerate(inner))):
        made = Loop(D.the_sym(v), "tensor", (made,), instruction="" if n else instruction)
    for v in (step, turn):
        if not isinstance(v, int):
            made = Loop(D.the_sym(v), "unroll", (made,))
    return made, Wait(0, products=True)


def _extent(x: Loop) -> int:
    assert isinstance(x.extent, int)
    return x.extent


def _variable(name: str, extent: int) -> Dim:
    return D.var(name, extent) if extent > 1 else 0
