"""Conditions made of conditions."""

from __future__ import annotations

from tilewright.ir.expr import Fn, Value


def parts_of(v: Value, name: str = "and") -> list[Value]:
    """The conditions that are joined by `and` (or `or`), in their order."""
    out: list[Value] = []
    stack = [v]
    while stack:
        x = stack.pop()
        if isinstance(x, Fn) and x.name == name:
            stack += reversed(x.args)
        else:
            out.append(x)
    return out
