"""What a block does before it needs anything of earlier launches: it begins to copy arguments.

An Await parts the body of a block. Before it stand copies of inputs to shared memory that are only
begun, with the memory for them; all else comes after. A task of a kernel that is a whole program
waits there for the phases before (kernel/tasks.py), if none of them writes what is copied; a launch
of its own begins when those before it have ended, so nothing is to be done.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernel.nest import Alloc, Await, Commit, Loop, Nest, Stmt, Store, sources, walk


def parts(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """What a block does before and after its Await; without one, nothing and all of it."""
    at = next((k for k, s in enumerate(body) if isinstance(s, Await)), None)
    return ((), body) if at is None else (body[:at], body[at + 1 :])


def early_inputs(body: tuple[Stmt, ...]) -> frozenset[str]:
    """The buffers that are read before the Await of a block."""
    return frozenset().union(*(sources(s) for s in parts(body)[0]))


def only_begins(n: Nest, s: Stmt) -> bool:
    """Is all that a statement does to begin copies of inputs to shared memory?"""
    inside = [x for x, _ in walk((s,))]
    plain = all(isinstance(x, (Loop, Store, Commit)) for x in inside)
    return plain and all(
        x.asynchronous
        and n.buffer(x.buffer).scope == "shared"
        and all(n.buffer(b).scope == "in" and not n.buffer(b).pointer for b in sources(x))
        for x in inside
        if isinstance(x, Store)
    )


def await_faults(n: Nest, body: tuple[Stmt, ...]) -> Iterator[tuple[str, Stmt]]:
    """What is wrong with the Await of a block."""
    found = [s for s, _ in walk(body) if isinstance(s, Await)]
    if not found:
        return
    if len(found) > 1:
        yield "a block waits for earlier launches twice", found[1]
    if found[0] not in body:
        yield "a wait for earlier launches is inside a loop", found[0]
    for name in found[0].fetched:
        b = next((b for b in n.buffers if b.name == name), None)
        if b is None or b.scope != "in" or b.pointer or not isinstance(b.size, int):
            yield f"{name}, which is fetched meanwhile, is no input of a known size", found[0]
    for s in parts(body)[0]:
        if not isinstance(s, Alloc) and not only_begins(n, s):
            yield "more than copies of inputs is begun before the wait for earlier launches", s
