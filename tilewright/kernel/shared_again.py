"""Shared memory of a block that buffers have one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.group import Buffer
from tilewright.kernel.guards import copied
from tilewright.kernel.nest import (
    Alloc,
    Stmt,
    Store,
    bodies,
    mentions,
    substitute_all,
    walk,
    with_bodies,
)


def used_again(body: tuple[Stmt, ...], shared: Mapping[str, Buffer]) -> tuple[Stmt, ...]:
    """Shared memory that is not needed any more takes the next buffer of its kind. What copies of
    an argument's memory fill stays apart: it may be filled ahead of its time."""
    last: dict[str, int] = {}
    for k, s in enumerate(body):
        for name in mentions(s):
            last[name] = k
    copies = {
        s.buffer for s, _ in walk(body) if isinstance(s, Store) and copied(s.value) is not None
    }
    free: dict[tuple[Any, ...], list[str]] = {}
    names: dict[str, str] = {}
    ends: dict[int, list[str]] = {}
    out: list[Stmt] = []
    for k, s in enumerate(body):
        if isinstance(s, Alloc) and s.buffer in shared and s.buffer not in copies:
            kind = _kind(shared[s.buffer])
            found = free.get(kind, [])
            names[s.buffer] = found.pop() if found else s.buffer
            ends.setdefault(last[s.buffer], []).append(s.buffer)
            if names[s.buffer] == s.buffer:
                out.append(s)
        else:
            inside = tuple(used_again(x, shared) for x in bodies(s))
            out.append(with_bodies(s, inside) if inside else s)
        for name in ends.get(k, []):
            free.setdefault(_kind(shared[name]), []).append(names[name])
    moved = {a: b for a, b in names.items() if a != b}

    def on_load(x: Load) -> Value:
        known = moved.get(str(x.source))
        return x if known is None else load(known, x.index, x.dtype)

    def on_store(name: str, at: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
        return moved.get(name, name), at

    return substitute_all(out, {}, on_load, on_store) if moved else tuple(out)


def _kind(b: Buffer) -> tuple[Any, ...]:
    return b.dtype, b.shape, b.swizzle
