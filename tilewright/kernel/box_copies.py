"""A tile that the copy engine brings to shared memory, as loops.

An instruction brings a box: rows of 128 bytes (or 64, or 32), one after the other in shared memory.
A wider tile is stored in blocks of so many columns, and maybe of so many rows
(kernel/group_products.py): each of them is a box.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.atom import Quo
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, extent
from tilewright.kernel.guards import conditions, copied
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic
from tilewright.kernel.nest import (
    Atomic,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    While,
    bodies,
    substitute,
    walk,
    writes,
)
from tilewright.kernel.pieces import Piece
from tilewright.kernel.threads import instruction_around
from tilewright.kernel.views import misfit, view_of

MOST_ROWS = 256  # of a box
ACQUIRES = ("acquire", "acq_rel")


def engine_of(name: str) -> Intrinsic | None:
    """The copy of the copy engine that an instruction is, if it is one."""
    i = INTRINSICS[name]
    return i if i.engine else None


def by_engine(path: Path) -> bool:
    """Does the copy engine do what these loops are around?"""
    i = instruction_around(path)
    return i is not None and i.engine > 0


def row_of_box(i: Intrinsic) -> int:
    """Elements of a row of a box."""
    n = extent(i.group.stages[0].axes[-1])
    assert isinstance(n, int)
    return n


def copied_axes(p: Piece) -> tuple[Load, Loop, Loop] | None:
    """What a piece copies, and its loops over rows and columns; the elements of a row are
    neighbours in memory."""
    s = p.statement
    x = copied(s.value) if isinstance(s, Store) and s is p.leaf and s.combine is None else None
    if x is None or len(p.loops) != 2 or len(x.index) != 1:
        return None
    along = [y for y in p.loops if D.coefficient(x.index[0], y.var) == 1]
    if len(along) != 1:
        return None
    rows = p.loops[1] if along[0] is p.loops[0] else p.loops[0]
    return x, rows, along[0]


def axes_of_box(n: Nest, p: Piece) -> int | str:
    """How many axes the array has whose box a piece copies, if nothing writes it meanwhile; or why
    it is no box."""
    found, s = copied_axes(p), p.statement
    if found is None or not isinstance(s, Store):
        return "it is no copy of rows whose elements are neighbours"
    x, rows, columns = found
    view = view_of(x, conditions(s.value), (rows.var, columns.var), n.dims)
    if isinstance(view, str):
        return view
    axes = len(view.shape)
    return misfit(view, replace(n.buffer(str(x.source)), scope="in"), axes) or axes


def box_loops(p: Piece, instruction: str) -> Stmt:
    """The loops of the boxes of a tile."""
    found, s = copied_axes(p), p.statement
    assert found is not None and isinstance(s, Store)
    _, rows, columns = found
    tall, wide = _together(s.index, rows), row_of_box(INTRINSICS[instruction])
    turn, block = (
        _variable(f"{s.stage}.{axis}0", _extent(x) // size)
        for axis, x, size in (("i", rows, tall), ("k", columns, wide))
    )
    row, column = D.var(f"{s.stage}.i", tall), D.var(f"{s.stage}.k", wide)
    table: dict[Sym, Dim] = {rows.var: tall * turn + row, columns.var: wide * block + column}
    made: Stmt = substitute(s, table)
    made = Loop(D.the_sym(column), "tensor", (made,))
    made = Loop(D.the_sym(row), "tensor", (made,), instruction=instruction)
    for v in (turn, block):
        if not isinstance(v, int):
            made = Loop(D.the_sym(v), "unroll", (made,))
    return made


def _together(index: tuple[Dim, ...], rows: Loop) -> int:
    """So many rows of a tile are one after the other."""
    apart = [
        a.b
        for d in index
        for a in D.atoms(d)
        if isinstance(a, Quo) and a.op == "floordiv" and rows.var in D.symbols(a.a)
    ]
    return min([_extent(rows), MOST_ROWS, *(n for n in apart if isinstance(n, int))])


def _extent(x: Loop) -> int:
    assert isinstance(x.extent, int)
    return x.extent


def _variable(name: str, extent: int) -> Dim:
    return D.var(name, extent) if extent > 1 else 0


# ---- may the engine read it?


def changed_meanwhile(n: Nest, source: str, near: frozenset[tuple[str, str]]) -> str | None:
    """Why the copy engine may not read the memory behind a pointer: it does not see what threads
    write there, nor what they know of other blocks' writes."""
    for name in sorted(writes(n.body)):
        b = n.buffer(name)
        if name == source or b.scope == "memory" or (name, source) in near:
            return f"{name} is written, which may be the memory that {source} is read from"
    seen = False  # has something been waited for that other blocks did?
    for s, path in walk(n.body):
        waits = isinstance(s, While) or (isinstance(s, Atomic) and s.order in ACQUIRES)
        if waits and _around(path, source):
            return f"{source} is read where other blocks are waited for"
        seen = seen or waits
        if seen and isinstance(s, Store) and any(x == source for x in s.value.sources):
            return f"{source} is read after other blocks are waited for"
    return None


def _around(path: Path, source: str) -> bool:
    """Is memory read in a loop around a place?"""
    inside = (s for q in path if q.kind == "serial" for body in bodies(q) for s, _ in walk(body))
    return any(isinstance(s, Store) and source in map(str, s.value.sources) for s in inside)
