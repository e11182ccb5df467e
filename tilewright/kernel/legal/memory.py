"""Where the local buffers of a processor's nest live: on the stack, or on the heap.

    local t: f32[8]           stack t: f32[8]
    local u: f32[1000000]     heap u: f32[1000000]

The stack is free, and small. What may be larger than the target's `stack` is taken from the heap
where it is allocated and given back at the end of that body; default traces avoid that. (One whose
size is known at a call only is on the stack after all where it is small then: llvm/emit.py.)
Registers are the compiler's own, so "register" stays as it is unless it is that large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, transform, walk
from tilewright.kernel.untuple import untuple


def place_buffers(n: Nest, target: Target) -> Nest:
    """Local buffers become stack or heap. Threads of a grid have memory of their own instead."""
    if target.grid is not None:
        return n
    return replace(n, buffers=tuple(_placed(b, target.stack) for b in n.buffers))


def without_tuples(n: Nest, target: Target) -> Nest:
    """Components for tuples. What is computed before any of them is stored has its memory before
    the lanes that compute it."""
    apart = untuple(n)
    return n if apart is n else replace(apart, body=transform(apart.body, _allocated_before))


def _allocated_before(s: Stmt) -> tuple[Stmt, ...]:
    if not isinstance(s, Loop) or s.kind != "lane":
        return (s,)
    inside = [x for x, _ in walk(s.body) if isinstance(x, Alloc)]
    rest = transform(s.body, lambda x: () if isinstance(x, Alloc) else (x,))
    return (*inside, s.around(rest)) if inside else (s,)


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
