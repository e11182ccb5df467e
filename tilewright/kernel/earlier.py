"""Statements of one body in another order: those that make what an earlier place needs go there."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernel.nest import Alloc, Stmt, sources, writes


def _written(s: Stmt) -> set[str]:
    return {s.buffer} if isinstance(s, Alloc) else writes((s,))


def earlier(body: Sequence[Stmt], at: int, needed: set[str]) -> tuple[list[Stmt], int] | None:
    """The statements with those that write what is needed, and what these need in turn, before the
    one that was at `at`, and where that is now. None where one of them depends on what it would
    pass."""
    moving: set[int] = set()
    wanted = set(needed)
    for k in range(len(body) - 1, at - 1, -1):
        if _written(body[k]) & wanted:
            moving.add(k)
            wanted |= sources(body[k])
    for k in moving:
        mine, read = _written(body[k]), sources(body[k])
        for j in range(at, k):
            passed = body[j]
            if j not in moving and (
                _written(passed) & (mine | read) or mine & (sources(passed) | _written(passed))
            ):
                return None
    moved = [body[k] for k in sorted(moving)]
    rest = [s for k, s in enumerate(body[at:], at) if k not in moving]
    return [*body[:at], *moved, *rest], at + len(moved)
