"""Stores that fill the places between lanes, as one store of all of them.

    lane i in 4:              lane i in 4:
      unroll k in 2:            unroll k in 2 pragma interleave 1:
        y: y[2*i+k] = …           y: y[2*i+k] = …

Each iteration alone would write every second element, one lane after the other. Together they
write all: their vectors are interleaved in registers and stored at once. All values are computed
before any is stored, so none may read what is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.expr import loads
from tilewright.ir.target import Target
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.nest import (
    INTERLEAVE,
    If,
    Loop,
    Nest,
    Stmt,
    Store,
    While,
    bodies,
    walk,
    with_bodies,
)

PARTS = (2, 3, 4, 8, 16, 32)


def interleave_stores(n: Nest, target: Target) -> Nest:
    """Marks the unrolled loops inside lanes that are such a store."""
    return replace(n, body=tuple(_marked(n, s, None, False) for s in n.body))


def is_interleaved(s: Loop) -> bool:
    return bool(dict(s.pragmas).get(INTERLEAVE))


def _marked(n: Nest, s: Stmt, lane: Loop | None, streams: bool) -> Stmt:
    if not isinstance(s, (Loop, If, While)):
        return s
    if isinstance(s, Loop):
        lane = s if s.kind == "lane" else lane
        # What goes past the caches is stored as it comes.
        streams = streams or bool(dict(s.pragmas).get("nontemporal"))
        if lane is not None and not streams and not is_interleaved(s) and _fills(n, s, lane):
            return replace(s, pragmas=(*s.pragmas, (INTERLEAVE, 1)))
    inside = [tuple(_marked(n, x, lane, streams) for x in body) for body in bodies(s)]
    same = all(a is b for x, y in zip(inside, bodies(s)) for a, b in zip(x, y))
    return s if same else with_bodies(s, inside)


def _fills(n: Nest, s: Loop, lane: Loop) -> bool:
    """Do the iterations of a loop fill the places between lanes?"""
    if s.kind != "unroll" or s.extent not in PARTS or len(s.body) != 1:
        return False
    store = s.body[0]
    if not isinstance(store, Store) or store.combine is not None:
        return False
    b = n.buffer(store.buffer)
    if b.pointer or b.swizzle or any(x.source == b.name for x in loads(store.value)):
        return False
    at = linear_index(b, store.index)
    return D.coefficient(at, s.var) == 1 and D.coefficient(at, lane.var) == s.extent


def scattered(n: Nest, target: Target) -> Iterator[str]:
    """Loops that are said to interleave stores and do not."""
    for s, path in walk(n.body):
        if isinstance(s, Loop) and is_interleaved(s):
            lane = next((q for q in path if q.kind == "lane"), None)
            if lane is None or not _fills(n, s, lane):
                yield f"{s.name} does not fill the places between lanes: it cannot interleave"
