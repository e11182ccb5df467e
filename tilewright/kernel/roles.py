"""Loops whose copies a warp of their own issues.

A loop that begins with Acquire has two roles. The statements up to its Commit are the producer's:
a warp that the block has besides its threads does them, and nothing else, as early as it may. The
rest is done by the threads of the block. Two things order them, and no barrier:

- the Wait for copies of an iteration waits for the Commit of the same iteration;
- the Acquire of an iteration waits until the threads have released the iteration that many earlier
  (Release), from which on the same memory is used again.

Iterations are counted from the beginning of the launch, also where the loop is inside others.
Several such loops one after the other are one loop to this: the first iterations may be apart from
the rest, and a tile that is needed in all of them may come before. In order, one iteration after
the other, the statements mean the same: nests are checked and interpreted so.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import (
    THREADS,
    Acquire,
    Alloc,
    Barrier,
    Commit,
    Loop,
    Path,
    Release,
    Stmt,
    Store,
    Wait,
    transform,
    walk,
)


def shows_others(s: Stmt) -> bool:
    """Does a thread see after it what others, or the copy engine, have written?"""
    return isinstance(s, Barrier) or (isinstance(s, Wait) and not s.products)


def has_roles(s: Stmt) -> bool:
    return isinstance(s, Loop) and any(isinstance(x, Acquire) for x in s.body)


def role_loop(body: tuple[Stmt, ...]) -> Loop | None:
    """The first loop with roles of a launch, if it has one."""
    return next((s for s, _ in walk(body) if isinstance(s, Loop) and has_roles(s)), None)


def versions_of(body: tuple[Stmt, ...]) -> int:
    """By how many iterations the producer of a launch may be ahead at most; 0: it has none."""
    return max((s.versions for s, _ in walk(body) if isinstance(s, Acquire)), default=0)


def _parts(loop: Loop) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    at = loop.body.index(Commit()) + 1
    return loop.body[:at], loop.body[at:]


def producer(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """What the producer does: its part of the loop, and the loops around that."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop) and has_roles(s):
            out.append(s.around(_parts(s)[0]))
        elif isinstance(s, Loop) and role_loop(s.body) is not None:
            out.append(s.around(producer(s.body)))
    return tuple(out)


def consumers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """What the threads of the block do: all else."""

    def own(s: Stmt) -> tuple[Stmt, ...]:
        return (s.around(_parts(s)[1]),) if isinstance(s, Loop) and has_roles(s) else (s,)

    return transform(body, own)


def by_producer(path: Path) -> bool:
    """Is a copy of the copy engine inside these loops the producer's?"""
    engine = any(q.instruction and INTRINSICS[q.instruction].engine for q in path)
    return engine and any(has_roles(q) for q in path)


def role_faults(launch: tuple[Stmt, ...]) -> Iterator[tuple[str, Stmt]]:
    """What is wrong with the roles of a launch, and where."""
    loops = [(s, p) for s, p in walk(launch) if isinstance(s, Loop) and has_roles(s)]
    for s, _ in walk(launch):
        if isinstance(s, Release) and (not loops or s.pending < 0):
            yield "copies are released that no producer waits for", s
    together = any(dict(q.pragmas).get("cluster", 1) > 1 for _, p in loops for q in p)
    released = [s for s, _ in walk(launch) if isinstance(s, Release)]
    if together and released and released[-1].pending:
        what = "blocks of a cluster end when all is released, but the last iterations are not"
        yield what, released[-1]
    for loop, path in loops[1:]:
        first, around = loops[0]
        if path != around:
            yield f"{first.name} and {loop.name} have roles, but are not in one place", loop
    mine = {id(s) for loop, _ in loops for s, _ in walk(loop.body)}
    for loop, path in loops:
        yield from ((what, loop) for what in _loop_faults(loop, path))
    for s, _ in walk(launch) if loops else ():
        if id(s) not in mine and (isinstance(s, Commit) or _asks(s)):
            name = loops[0][0].name
            yield f"copies outside of {name}, whose copies a warp of its own issues", s


def _loop_faults(loop: Loop, path: Path) -> Iterator[str]:
    what = f"{loop.name} has roles"
    if any(q.kind in (*THREADS, "lane", "parallel") for q in (*path, loop)):
        yield f"{what} inside of threads"
    if not isinstance(loop.body[0], Acquire) or versions_of(loop.body) < 1:
        yield f"{what}, but does not begin with an acquire of its memory"
    if loop.body.count(Commit()) != 1:
        yield f"{what}, but not one group of copies"
        return
    first, rest = _parts(loop)
    for s in first[1:-1]:
        inside = [x for x, _ in walk((s,)) if not isinstance(x, Loop)]
        if not all(isinstance(x, Store) and x.asynchronous for x in inside):
            yield f"{what}: before its commit there is more than copies"
        elif not all(by_producer((loop, *p)) for x, p in walk((s,)) if isinstance(x, Store)):
            yield f"{what}: its copies are not those of the copy engine"
    waits = [x for x, _ in walk(rest) if isinstance(x, Wait) and not x.products]
    if [x.pending for x in waits] != [0] or rest[0] != waits[0]:
        yield f"{what}, but its threads do not wait for the copies of their iteration"
    brought = {x.buffer for x, _ in walk(first) if isinstance(x, Store)}
    again = any(isinstance(x, Alloc) and x.buffer in brought for x in rest)
    if again or any(isinstance(x, Acquire) for x in rest):
        yield f"{what} and allocates or acquires memory behind its copies"
    if not any(isinstance(x, Release) for x in rest):
        yield f"{what}, but its threads never release what they have read"


def _asks(s: Stmt) -> bool:
    return isinstance(s, Store) and s.asynchronous
