"""Private memory of which each thread has its own part only.

A private buffer from outside the thread loops is one for every thread. Where each of them touches
some places along an axis only, it has memory for those.
"""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Alloc, Nest, Stmt, walk
from tilewright.kernel.threads import accesses

PRIVATE = ("local", "register")

# By axis of a buffer: the thread axis, and how many places along it are one thread's.
Own = dict[int, tuple[str, int]]


def own_parts(n: Nest, launch: tuple[Stmt, ...], buffers: dict[str, Buffer]) -> dict[str, Own]:
    """Of private buffers, the axes along which each thread of a loop inside touches its own places
    only: their index is, wherever they are touched, size * thread + something less than the
    size."""
    around = {s.buffer: p for s, p in walk(launch) if isinstance(s, Alloc)}
    private = {x for x in around if x in buffers and buffers[x].scope in PRIVATE}
    seen: dict[str, list[set[tuple[str, int] | None]]] = {
        x: [set() for _ in buffers[x].shape] for x in private
    }
    for a in (a for s in launch for a in accesses(n, s, ())):
        if a.buffer in seen:
            outside = {q.var for q in around[a.buffer]}
            inside = [(axis, v) for axis, v in a.threads if v not in outside]
            for known, i in zip(seen[a.buffer], a.index, strict=True):
                known.add(_own_place(i, inside))
    out: dict[str, Own] = {}
    for x in private:
        own: Own = {}
        for k, places in enumerate(seen[x]):
            place = places.pop() if len(places) == 1 else None
            if place is not None:
                own[k] = place
        if own:
            out[x] = own
    return out


def _own_place(i: Dim, threads: list[tuple[str, D.Sym]]) -> tuple[str, int] | None:
    for axis, v in threads:
        if v in D.symbols(i):
            size = D.coefficient(i, v)
            if not isinstance(size, int) or size < 1:
                return None
            low, high = D.bounds(i - size * D.as_int(v))
            return (axis, size) if 0 <= low and high < size else None
    return None
