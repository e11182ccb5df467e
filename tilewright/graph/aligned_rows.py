"""Rows of matrices at multiples of 16 bytes, where an instruction that copies whole tiles needs it.

A product of matrices whose rows have another length reads copies with longer rows: `x @ w` becomes
`x @ pad(w)[:, :n]`, or `pad(x) @ pad(w)` where the rows run along the sum, since zeros add nothing.
Of weights the copy is made once, and takes as much memory again as the weight itself. Of anything
else it is one pass over memory in every call, which a product of large matrices is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.ir.node import Graph, Input, Node, node, rebuild
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.target import Target
from tilewright.ops.linear import Matmul
from tilewright.ops.views import Permute, pad, permute, slice
from tilewright.ops.wide_matmul import WideMatmul

ROW = 16  # bytes
FEWEST = 16  # rows and columns of a product whose weight is worth a copy
LARGE = 256  # rows and columns of one whose other operands are, which every call copies


def _copied(t: Target) -> tuple[str, ...]:
    """The dtypes that instructions multiply in tiles which a copy engine brings."""
    if t.grid is None or not t.grid.copies_tiles:
        return ()
    return tuple(sorted({p.a.name for p in t.products if p.a is p.b}))


@dataclass(frozen=True)
class AlignRows(
    Pass, needs=("Decompose",), after=("NarrowProducts", "SinkReshapes"), rounds=True, regions=True
):
    """Products read rows whose lengths are multiples of 16 bytes."""

    dtypes: tuple[str, ...] = of_target((), _copied)

    def apply(self, program: Graph, log: Log) -> Graph:
        if not self.dtypes:
            return program

        def change(n: Node) -> Node:
            if not isinstance(n.op, (Matmul, WideMatmul)):
                return n
            a, b = n.inputs
            if a.dtype.name not in self.dtypes or a.dtype is not b.dtype or min(a.rank, b.rank) < 2:
                return n
            found = _aligned(a, b)
            if found is None:
                return n
            log.add("pack", f"{n!r} reads rows of multiples of {ROW} bytes", where=program.place(n))
            return node(n.op, *found)

        return rebuild(program, change)


def _aligned(a: Node, b: Node) -> tuple[Node, Node] | None:
    """Both operands with longer rows, where some are too short and the product is large enough."""
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    if not all(isinstance(d, int) for d in sizes):
        return None
    rows, columns, deep = (int(str(d)) for d in sizes)
    per = ROW // a.dtype.bytes
    first, second = _last(a), _last(b)
    # Whose rows run along the sum: then that is longer, of both.
    along = [first == a.rank - 1, second == b.rank - 2]
    longer = any(along) and deep % per != 0
    wide = [not along[0] and rows % per != 0, not along[1] and columns % per != 0]
    changed = [longer or wide[0], longer or wide[1]]
    if not any(changed):
        return None
    least = FEWEST if all(map(only_weights, _of((a, b), changed))) else LARGE
    if min(rows, columns) < least:
        return None
    out: list[Node] = []
    for x, axis, at, also in (
        (a, a.rank - 1, a.rank - 2, wide[0]),
        (b, b.rank - 2, b.rank - 1, wide[1]),
    ):
        made = _longer(x, axis, per) if longer else x
        if also:
            made = slice(_longer(made, at, per), at, 0, x.shape[at])
        out.append(made)
    return out[0], out[1]


def _of(xs: Sequence[Node], which: Sequence[bool]) -> list[Node]:
    return [x for x, chosen in zip(xs, which, strict=True) if chosen]


def _last(x: Node) -> int:
    """The axis whose neighbours are adjacent in memory."""
    return x.op.perm.index(x.rank - 1) if isinstance(x.op, Permute) else x.rank - 1


def _longer(x: Node, axis: int, per: int) -> Node:
    """x with zeros after an axis up to a multiple; in memory in the same order."""
    if isinstance(x.op, Permute):
        return permute(_longer(x.inputs[0], x.op.perm[axis], per), x.op.perm)
    size = x.shape[axis]
    assert isinstance(size, int)
    more = [0] * x.rank
    more[axis] = -size % per
    return pad(x, [0] * x.rank, more)


def only_weights(x: Node) -> bool:
    """Is it computed of weights alone?"""
    todo = [x]
    while todo:
        n = todo.pop()
        if isinstance(n.op, Input) and n.op.role != "weight":
            return False
        todo += n.inputs
    return True
