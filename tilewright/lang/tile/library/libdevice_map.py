"""Functions of libdevice that are scalar functions of ours (ir/scalar.py), element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir.scalar import SCALARS
from tilewright.lang.tile.language import core, promote
from tilewright.lang.tile.language.types import dtype, unwrap


def floats(name: str, *args: Any) -> list[core.tensor]:
    """The arguments of a function of floats: one element, one shape."""
    given = [unwrap(a) for a in args]
    tiles = [a for a in given if isinstance(a, core.tensor)]
    for a in tiles:
        if not a.dtype.is_floating():
            raise Invalid(
                f"libdevice.{name} of {a.dtype}",
                hint="it takes floats: x.to(tl.float32)",
            )
    common: dtype = tiles[0].dtype if tiles else core.float32
    for a in tiles[1:]:
        common = promote.common_type(common, a.dtype)
    values = [
        promote.cast(a.handle, common)
        if isinstance(a, core.tensor)
        else promote.constant(_number(name, a), common)
        for a in given
    ]
    return [core.tensor(v) for v in promote.broadcast(*values)]


def _number(name: str, x: Any) -> float:
    found = promote.number(x)
    if found is None:
        raise Invalid(f"libdevice.{name} of {x!r}", hint="it takes tiles of floats and numbers")
    return float(found)


def mapped(fn: str, name: str = "") -> Callable[..., core.tensor]:
    """A scalar function under libdevice's name for it."""
    spec = SCALARS[fn]
    shown = name or fn

    def apply(*args: Any) -> core.tensor:
        if len(args) != spec.arity:
            raise Invalid(
                f"libdevice.{shown} of {len(args)} arguments",
                hint=f"it takes {spec.arity}",
            )
        values = [x.handle for x in floats(shown, *args)]
        element = spec.type(tuple(v.type.dtype for v in values))
        return core.tensor(
            promote.emit("map", values, values[0].type.with_element(element), {"fn": fn})
        )

    apply.__name__ = apply.__qualname__ = shown
    apply.__doc__ = f"{fn} of each element."
    return core.builtin(apply)
