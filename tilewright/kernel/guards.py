"""Values that are copies of an element, or zero where a condition fails."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Const, Fn, Index, Load, Value


def copied(v: Value) -> Load | None:
    """What a value copies, if it is a copy: an element, or zero where a condition fails."""
    while isinstance(v, Fn) and v.name == "select" and _is_zero(v.args[2]):
        v = v.args[1]
    return v if isinstance(v, Load) else None


def conditions(v: Value) -> list[Value]:
    """Those under which a copy is an element."""
    out: list[Value] = []
    while isinstance(v, Fn) and v.name == "select" and _is_zero(v.args[2]):
        out.append(v.args[0])
        v = v.args[1]
    return out


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0


def unlike_bounds(x: Load, shape: tuple[Dim, ...], given: list[Value]) -> str | None:
    """What is wrong with conditions as those under which an element is inside its buffer. Along
    axes without one it is so in any case, as every element that is read."""
    for c in given:
        inside = (
            isinstance(c, Fn)
            and c.name == "lt"
            and isinstance(c.args[0], Index)
            and any(
                D.known_eq(c.args[0].dim, at) and D.known_eq(c.args[1].as_dim(), size)
                for at, size in zip(x.index, shape, strict=True)
            )
        )
        if not inside:
            return f"{x!r} is read where {c!r}"
    return None
