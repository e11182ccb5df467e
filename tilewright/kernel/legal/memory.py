"""Where the local buffers of a processor's nest live: on the stack, or in memory that is asked for.

    local t: f32[8]           stack t: f32[8]
    local u: f32[1000000]     heap u: f32[1000000]

The stack is free, and small. What may be larger than the target's `stack` is taken from the heap
where it is allocated and given back at the end of that body; default traces avoid that. Registers
are the compiler's own, so "register" stays as it is unless it is that large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Nest


def place_buffers(n: Nest, target: Target) -> Nest:
    """Local buffers become stack or heap. Threads of a grid have memory of their own instead."""
    if target.grid is not None:
        return n
    return replace(n, buffers=tuple(_placed(b, target.stack) for b in n.buffers))


def _placed(b: Buffer, stack: int) -> Buffer:
    if b.scope not in ("local", "register"):
        return b
    fits = D.bounds(b.size)[1] * b.dtype.bytes <= stack
    if not fits:
        return replace(b, scope="heap")
    return b if b.scope == "register" else replace(b, scope="stack")


def misplaced(n: Nest, target: Target) -> Iterator[str]:
    """What is wrong with the places of a nest's buffers."""
    for b in n.buffers:
        if b.scope == "local" and target.grid is None:
            yield f"{b.name} is local, which says neither stack nor heap"
        elif b.scope == "stack" and D.bounds(b.size)[1] >= D.INF:
            yield f"{b.name} is on the stack and its size has no constant bound; heap takes it"
