"""Additions of blocks and threads to one cell, in any order (kernel/nest.py, `Store.atomic`)."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.expr import loads
from tilewright.ir.types import f32, f64
from tilewright.kernel.nest import (
    BLOCKS,
    Alloc,
    Atomic,
    Loop,
    Nest,
    Stmt,
    Store,
    own_values,
    walk,
)


def in_one(s: Store) -> Atomic:
    """The addition as one indivisible operation, which is in no order with other memory."""
    return Atomic(s.stage, str(s.combine), s.buffer, s.index, s.value, order="relaxed")


def unlike_atomic(n: Nest, s: Store) -> str:
    """Why a store cannot be an atomic addition; empty where it can."""
    b = n.buffer(s.buffer)
    known = b.dtype in (f32, f64) or (not b.dtype.is_float and b.dtype.bits in (32, 64))
    everyones = b.scope == "out" or (b.scope == "local" and Alloc(b.name) in n.body)
    if s.combine != "add" or s.asynchronous:
        return f"{s.stage} is no addition"
    if not known:
        return f"sums of {b.dtype} are not added up one by one"
    if not everyones:
        return f"{b.name} is not memory of all blocks"
    if any(str(x.source) == b.name for x in loads(s.value)):
        return f"{s.stage} reads what it adds to"
    return ""


def mixed_faults(launch: tuple[Stmt, ...]) -> Iterator[tuple[str, Stmt]]:
    """Memory that a grid adds to atomically, and uses otherwise: no wait or barrier orders what
    other blocks add."""
    if not isinstance(launch[0], Loop) or launch[0].kind not in BLOCKS:
        return
    added = {s.buffer for s, _ in walk(launch) if isinstance(s, Store) and s.atomic}
    for s, _ in walk(launch) if added else ():
        read = {str(x.source) for v in own_values(s) for x in loads(v)}
        wrote = {s.buffer} if isinstance(s, Store) and not s.atomic else set()
        for name in sorted(added & (read | wrote)):
            verb = "read" if name in read else "written"
            yield f"{name} is {verb} where blocks add to it, in the same launch", s
