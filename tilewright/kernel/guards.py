"""Values that are copies of an element, or zero where a condition fails; bounds of integers."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Const, Fn, Index, Load, Value
from tilewright.ir.polynomial import only_atom


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


def value_bounds(v: Value) -> tuple[int, int]:
    """What an integer lies between, whatever was read from memory for it."""
    d = v.dtype
    if isinstance(v, Const):
        return int(v.value), int(v.value)
    unsigned = d.kind == "u" or d.is_bool
    bits = 1 if d.is_bool else d.bits
    least, most = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if isinstance(v, Index):
        low, high = D.bounds(v.dim)
        return max(least, low), min(most, high)
    if not isinstance(v, Fn) or any(x.dtype.is_float for x in v.args):
        return least, most
    if v.name in ("min", "max"):
        ends = [value_bounds(x) for x in v.args]
        pick = min if v.name == "min" else max
        return pick(a for a, _ in ends), pick(b for _, b in ends)
    if v.name == "select":
        (a, b), (c, e) = map(value_bounds, v.args[1:])
        return min(a, c), max(b, e)
    if v.name == "cast":
        low, high = value_bounds(v.args[0])
        return (low, high) if least <= low and high <= most else (least, most)
    return least, most


def surely_inside(i: Dim, size: Dim) -> bool:
    """Is an index that may be read from memory one of an axis in any case?"""
    if D.nonneg(i) and D.known_lt(i, size):
        return True
    atom = only_atom(i)
    if not isinstance(atom, D.Data):
        return False
    low, high = value_bounds(atom.value)
    return low >= 0 and high < D.bounds(size)[0]


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
