"""A product of two tiles by instructions of whole warps, as loops: the sums are in registers, the
second operand is in shared memory, the first is in either.

What lies in shared memory is brought to registers 16 x 16 elements at a time (ldmatrix), transposed
on the way where its rows run across; of float32 every thread reads its own elements. The layouts
(kernel/layouts.py) are those of fragments: of the rows `… z f2 y8`, of the columns and of an
operand's steps of the sum `… f2 x4 v2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, cast, fn, load
from tilewright.ir.types import DType
from tilewright.kernel.group import Buffer
from tilewright.kernel.layouts import FRAGMENT, LANES, REGISTER, Digit, Layout
from tilewright.kernel.nest import Alloc, Loop, Stmt, Store, substitute_all
from tilewright.kernel.pieces import ROUNDED, Piece, factors, is_rounded

ROWS, COLUMNS = 16, 8  # of one instruction
DEEP = 16  # steps of the sum, of factors of 16 bits
MOST_UNROLLED = 8  # steps of a sum
ROW_DIGITS = (Digit(2, FRAGMENT), Digit(8, "y"))
COLUMN_DIGITS = (Digit(2, FRAGMENT), Digit(4, "x"), Digit(2, LANES))


def rows_layout(size: int, warps: int) -> Layout | None:
    """Of the rows of the sums, 16 for each warp at a time; of few all warps have all."""
    return _layout(size, warps, ROW_DIGITS)


def columns_layout(size: int, warps: int = 1) -> Layout | None:
    return _layout(size, warps, COLUMN_DIGITS)


def _layout(size: int, warps: int, last: Layout) -> Layout | None:
    unit = 16 * warps
    if size % unit:
        return None
    left = size // unit
    first = [Digit(left)] * (left > 1) + [Digit(warps, "z")] * (warps > 1)
    return (*first, *last)


def is_step(x: Layout) -> bool:
    """Are registers with this layout along the sum what an instruction takes?"""
    rest = x[:-3]
    return x[-3:] == COLUMN_DIGITS and all(d.at == REGISTER for d in rest)


@dataclass(frozen=True)
class Fragments:
    """The layouts of the loops of a product and what its buffers are."""

    rows: Layout
    columns: Layout
    steps: Layout  # of the first operand in registers; else ()
    registers: Mapping[str, tuple[Layout, ...]]
    place: Callable[[str, list[list[Dim]]], tuple[Dim, ...]]  # digits by axis, as a buffer has them


def product_loops(
    p: Piece, instruction: str, laid: Fragments, buffers: dict[str, Buffer]
) -> tuple[Stmt, ...]:
    """The loops of a product; buffers for fragments of its operands are added."""
    s = p.statement
    assert isinstance(s, Store)
    found = factors(p)
    assert found is not None
    a, b = found
    i, j, r = (x.var for x in p.loops[-3:])
    name = s.stage
    pack = 4 // a.dtype.bytes  # neighbours along the sum in a register
    steps = 8 * pack
    ti, tj, tk = (
        D.var(f"{name}.{x}", n) for x, n in zip("ijk", (ROWS, COLUMNS, steps), strict=True)
    )
    deep = D.var(f"{name}.k0", _extent(r) // steps)
    row = _digits(laid.rows, f"{name}.m", [ti // 8, ti % 8])
    half = D.var(f"{name}.n8", 2)
    column = _digits(laid.columns, f"{name}.n", [half, tj // 2, tj % 2])
    at_row = _place(laid.rows, row, ti)
    kind = a.dtype
    body: list[Stmt] = []
    if str(a.source) in laid.registers:
        step = _digits(laid.steps, f"{name}.s", [tk // 8, tk // 2 % 4, tk % 2], deep)
        first = load(str(a.source), laid.place(str(a.source), [row, step]), kind)
    else:
        turns = _turns(laid.rows, row)
        own = f"{name}_a"
        buffers[own] = Buffer(own, kind, (_count(turns), 2, 2, 8, 4, pack), "local")
        which = D.as_int(turns[0].var) if turns else 0
        at = (which, tk // (4 * pack), ti // 8, ti % 8, tk // pack % 4, tk % pack)
        here = _moved(a, {i: at_row, r: steps * deep + tk})
        body.append(Alloc(own))
        body += _brought(name, "a", own, at, here, (ti, tk), turns, _along(a, i, r))
        first = load(own, at, kind)
    turns = _turns(laid.columns, column)
    own = f"{name}_b"
    buffers[own] = Buffer(own, kind, (_count(turns), 2, 2, 8, 4, pack), "local")
    which = D.as_int(turns[0].var) if turns else 0
    wide = D.var(f"{name}.j16", 16)
    at = (which, wide // 8, tk // (4 * pack), wide % 8, tk // pack % 4, tk % pack)
    at_column = _place(laid.columns, column, wide)
    here = _moved(b, {j: at_column, r: steps * deep + tk})
    body.append(Alloc(own))
    body += _brought(name, "b", own, at, here, (wide, tk), turns, _along(b, j, r))
    second = load(own, (which, half, tk // (4 * pack), tj, tk // pack % 4, tk % pack), kind)
    sums = s.value.dtype
    rounded = is_rounded(s.value)
    value = fn("mul", *(fn(ROUNDED, x) if rounded else cast(x, sums) for x in (first, second)))
    where = laid.place(s.buffer, [row, column])
    inner: Stmt = Store(name, s.buffer, where, value, s.combine)
    inner = _tensor([ti, tj, tk], inner, instruction)
    around = [*_turns(laid.rows, row), *turns, Loop(D.the_sym(half), "unroll", ())]
    body.append(_around(around, inner))
    made: tuple[Stmt, ...] = tuple(body)
    warps = _warps(laid.rows, row) + _warps(laid.columns, column)
    if len(warps) > 1:  # some along the rows, as many as it takes along the columns
        across = _extent(warps[1])
        number = D.var(f"{name}.w", _extent(warps[0]) * across)
        made = substitute_all(made, {warps[0]: number // across, warps[1]: number % across})
        warps = [D.the_sym(number)]
    for v in warps:
        made = (Loop(v, "thread.z", made),)
    kind_ = "unroll" if _extent(r) // steps <= MOST_UNROLLED else "serial"
    return (Loop(D.the_sym(deep), kind_, made),)


def _extent(v: Sym) -> int:
    return D.bounds(D.as_int(v))[1] + 1


def _digits(x: Layout, name: str, last: list[Dim], deep: Dim | None = None) -> list[Dim]:
    """The digits of a place: variables of the first ones, the given ones last."""
    rest = x[: len(x) - len(last)]
    if deep is not None:
        return [*([deep] if rest else []), *last]
    return [*(D.var(f"{name}{k}", d.extent) for k, d in enumerate(rest)), *last]


def _place(x: Layout, digits: list[Dim], inside: Dim) -> Dim:
    """The index of a place in the 16 rows or columns that the first digits say."""
    total, unit = inside, 16
    first = [(d, v) for d, v in zip(x, digits, strict=True) if d.at in (REGISTER, "z")]
    for d, v in reversed(first):
        total = total + v * unit
        unit *= d.extent
    return total


def _turns(x: Layout, digits: list[Dim]) -> list[Loop]:
    """Loops over the registers of a thread, before those of an instruction."""
    own = [v for d, v in zip(x, digits, strict=True) if d.at == REGISTER]
    return [Loop(D.the_sym(v), "unroll", ()) for v in own]


def _warps(x: Layout, digits: list[Dim]) -> list[Sym]:
    return [D.the_sym(v) for d, v in zip(x, digits, strict=True) if d.at == "z"]


def _count(turns: list[Loop]) -> int:
    return _extent(turns[0].var) if turns else 1


def _moved(x: Load, table: dict[Sym, Dim]) -> Load:
    made = x.substitute(table)
    assert isinstance(made, Load)
    return made


def _along(x: Load, row: Sym, deep: Sym) -> bool:
    """Do the rows of an operand run along the sum?"""
    return D.coefficient(x.index[-1], deep) == 1


def _brought(
    name: str,
    which: str,
    own: str,
    at: tuple[Dim, ...],
    here: Load,
    loops: tuple[Dim, Dim],
    turns: list[Loop],
    along: bool,
) -> list[Stmt]:
    """A fragment out of shared memory."""
    if here.dtype.bytes == 4:
        return [_around(turns, _read(own, at, here, loops))]
    row, deep = (D.var(f"{own}.{c}", 16) for c in "ik")
    table = {D.the_sym(loops[0]): row, D.the_sym(loops[1]): deep}
    where = tuple(D.substitute(i, table) for i in at)
    store = Store(own, own, where, here.substitute(table))
    kind: DType = here.dtype
    text = f"nvptx.ldmatrix.{which}.{kind}{'' if along else '.trans'}"
    order = [row, deep] if along else [deep, row]
    return [_around(turns, _tensor(order, store, text))]


def _read(own: str, at: tuple[Dim, ...], here: Load, loops: tuple[Dim, Dim]) -> Stmt:
    """A fragment of words, each read by the thread that has it."""
    digits = {c: D.var(f"{own}.{c}", n) for c, n in (("h", 2), ("q", 2), ("y", 8), ("x", 4))}
    row, deep = 8 * digits["h"] + digits["y"], 4 * digits["q"] + digits["x"]
    table = {D.the_sym(loops[0]): row, D.the_sym(loops[1]): deep}
    where = tuple(D.substitute(i, table) for i in at)
    made: Stmt = Store(own, own, where, here.substitute(table))
    for c, kind in (("x", "thread.x"), ("y", "thread.y"), ("q", "unroll"), ("h", "unroll")):
        made = Loop(D.the_sym(digits[c]), kind, (made,))
    return made


def _tensor(variables: Sequence[Dim], inner: Stmt, instruction: str) -> Stmt:
    for k, v in reversed(list(enumerate(variables))):
        inner = Loop(D.the_sym(v), "tensor", (inner,), instruction="" if k else instruction)
    return inner


def _around(loops: list[Loop], inner: Stmt) -> Stmt:
    for x in reversed(loops):
        inner = x.around((inner,))
    return inner
