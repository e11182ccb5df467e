"""Operators that torch has no decomposition of, written with other operators of torch.

AOTAutograd applies them after it took gradients, so each is a forward or a backward operator, and
what they are made of is translated like the user's own operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from tilewright.base.discover import import_all

F = TypeVar("F", bound=Callable[..., Any])
_COMPOSED: dict[Any, Callable[..., Any]] = {}


def composed(*names: str) -> Callable[[F], F]:
    """Register a composition for overloads ("histogram.bin_ct") that this version of torch has."""

    def register(function: F) -> F:
        for name in names:
            packet, overload = name.split(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
            if op in _COMPOSED:
                raise TypeError(f"aten.{name} is composed twice")
            if op is not None:
                _COMPOSED[op] = function
        return function

    return register


def compositions() -> dict[Any, Callable[..., Any]]:
    """By overload, for tables of decompositions."""
    import_all("tilewright.capture.torch")
    return dict(_COMPOSED)
