"""Values that LLVM takes as they are.

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


def in_place(type_: str, value: str) -> str:
    """The same value, as an instruction that has its place among others of the kind, and behind
    what computes the value: no code either, in the order in which these are written."""
    return f'call {type_} asm sideeffect "", "=r,0"({type_} {value})'
