"""Pointers that LLVM takes as they are.

LLVM's loop strength reduction looks for the best way to step every address of an innermost loop on,
all together, in time that grows with the square of their number: for unrolled bodies it took a
third of code generation. Addresses here are one pointer per array and iteration plus constants,
which machines add while they load. Behind this intrinsic, which becomes no code, that pointer is
all there is to step on.
"""

from __future__ import annotations

_INTRINSIC = "@llvm.strip.invariant.group.p0"
DECLARATION = f"declare ptr {_INTRINSIC}(ptr)"


def opaque(pointer: str) -> str:
    """The same pointer, as an instruction."""
    return f"call ptr {_INTRINSIC}(ptr {pointer})"
