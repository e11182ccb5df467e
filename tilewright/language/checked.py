"""`tl.constexpr` as type checkers see it.

`BLOCK: tl.constexpr = 64` is a parameter that takes any constant, and `tl.constexpr(64)` makes one:
no class is both to a checker, unless it is known to be anything.
"""

from __future__ import annotations

from typing import Any


def _anything(x: Any) -> Any:
    return x


@_anything
class constexpr(Any):
    """A constant of a kernel."""

    def __init__(self, value: Any) -> None: ...
