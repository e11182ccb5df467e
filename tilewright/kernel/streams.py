"""What the blocks of a launch stream through: arguments of which each block reads a piece of its
own, one piece after the other in memory; and small ones that every block reads."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import loads
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import Nest, Stmt, own_values, walk
from tilewright.kernel.threads import grid_of

SMALL = 32 * 1024  # bytes of an argument that every block reads


def streams(n: Nest, launch: tuple[Stmt, ...]) -> Iterator[tuple[str, int, int]]:
    """Arguments by name: block number t reads `size` bytes at `stride` * t; a stride of 0 is that
    of a small one, which all read. The launch has one block loop of a known extent; sizes that vary
    have no streams."""
    loops, body = grid_of(launch)
    moving = [x for x in loops if x.extent != 1]
    if len(moving) != 1 or moving[0].kind != "block.x":
        return
    block, count = moving[0], moving[0].extent
    if not isinstance(count, int):
        return
    reads: dict[str, list[Dim]] = {}
    for s, _ in walk(body):
        for x in (x for v in own_values(s) for x in loads(v)):
            b = n.buffer(str(x.source))
            if b.scope == "in" and not b.pointer:
                reads.setdefault(b.name, []).append(linear_index(b, x.index))
    for name, places in reads.items():
        b = n.buffer(name)
        small = isinstance(b.size, int) and b.size * b.dtype.bytes <= SMALL
        if small and not any(block.var in D.symbols(p) for p in places):
            yield name, 0, int(D.bounds(b.size)[1]) * b.dtype.bytes
        found = {_piece(p, block.var) for p in places}
        if None in found or not isinstance(b.size, int):
            continue
        pieces = [p for p in found if p is not None]
        # Copies for iterations that there are not would go further.
        stride = pieces[0][0]
        size = min(stride, max(end for _, end in pieces))
        inside = stride * (count - 1) + size <= b.size
        if all(p[0] == stride for p in pieces) and inside:
            yield name, stride * b.dtype.bytes, size * b.dtype.bytes


def _piece(place: Dim, block: D.Sym) -> tuple[int, int] | None:
    """(stride, end) of a place stride * block + rest with a rest from 0 to less than the end."""
    stride = D.coefficient(place, block)
    if not isinstance(stride, int) or stride < 1:
        return None
    rest = place - stride * D.as_int(block)
    if block in D.symbols(rest) or any(True for _ in D.data_values(rest)):
        return None
    low, high = D.bounds(rest)
    return (stride, high + 1) if low >= 0 and high < D.INF else None
