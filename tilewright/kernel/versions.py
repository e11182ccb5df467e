"""A buffer in several versions, one axis more, so that iterations of a loop use them in turn."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, Value, load
from tilewright.kernel.nest import Alloc, Loop, Nest, OnAccess, Path, find, walk
from tilewright.kernel.step import Step


def version_of(buffer: str, which: Dim) -> tuple[Callable[[Load], Value], OnAccess]:
    """Accesses to a buffer as accesses to one of its versions."""

    def on_load(x: Load) -> Value:
        return load(buffer, (which, *x.index), x.dtype) if x.source == buffer else x

    def on_store(name: str, index: tuple[Dim, ...]) -> tuple[str, tuple[Dim, ...]]:
        return name, (which, *index) if name == buffer else index

    return on_load, on_store


def loop_of(step: Step, n: Nest, buffer: str) -> tuple[Loop, Path]:
    """The serial loop that allocates a buffer in every iteration, with the loops around it."""
    b = step.internal(n, buffer)
    fixed = f"{buffer} is in registers, which a loop variable cannot choose"
    step.need(b.scope != "register", fixed, f"SetScope('{buffer}', 'local')")
    places = [p for s, p in walk(n.body) if s == Alloc(buffer)]
    several = f"{buffer} is allocated in {len(places)} places"
    step.need(len(places) == 1, several, "do this before Peel")
    hint = f"ComputeAt('{buffer}', …) first"
    step.need(places[0], f"{buffer} is not allocated inside a loop", hint)
    loop = places[0][-1]
    step.need(loop.kind == "serial", f"{loop.name}, around {buffer}, is {loop.kind}")
    (found,) = [x for x in find(n, loop.name) if x[0] is loop]
    return found
