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


def streams(n: Nest, launch: tuple[Stmt, ...]) -> Iterator[tuple[str, int, int, int, int]]:
    """Arguments by name, with stride, size, start and every: block number t reads `size` bytes at
    `start` + `stride` * (t // `every`). A stride of 0 is that of a small one, which all read. The
    launch has one block loop of a known extent; sizes that vary have no streams."""
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
            yield name, 0, int(D.bounds(b.size)[1]) * b.dtype.bytes, 0, 1
        found = {_piece(p, block.var) for p in places}
        if None in found or not isinstance(b.size, int):
            continue
        pieces = [p for p in found if p is not None]
        stride, every = pieces[0][:2]
        start, end = min(p[2] for p in pieces), max(p[3] for p in pieces)
        size = min(stride, end - start)  # copies for iterations that there are not would go further
        inside = start + stride * ((count - 1) // every) + size <= b.size
        if all(p[:2] == (stride, every) for p in pieces) and inside:
            width = b.dtype.bytes
            yield name, stride * width, size * width, start * width, every


def _piece(place: Dim, block: D.Sym) -> tuple[int, int, int, int] | None:
    """(stride, every, start, end) of a place stride * (block // every) + rest, with a rest from the
    start to before the end."""
    terms = [] if isinstance(place, int) else place.terms
    found = [
        (mono, c) for mono, c in terms if any(block in D.symbols(D.from_atom(a)) for a in mono)
    ]
    if len(found) != 1 or len(found[0][0]) != 1 or found[0][1] < 1:
        return None
    ((atom,), stride), every = found[0], 1
    if isinstance(atom, D.Quo):
        whole = atom.op == "floordiv" and isinstance(atom.b, int)
        if not whole or not D.is_sym(atom.a) or D.the_sym(atom.a) is not block:
            return None
        every = int(D.bounds(atom.b)[1])
    elif atom is not block:
        return None
    rest = place - stride * D.from_atom(atom)
    low, high = D.bounds(rest)
    if any(True for _ in D.data_values(rest)) or low < 0 or high >= D.INF:
        return None
    return stride, every, int(low), int(high) + 1
