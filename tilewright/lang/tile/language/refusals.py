"""Functions that exist by name only; calling one is an error that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.language.tensor import builtin


def refused(name: str, why: str, hint: str) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        raise Invalid(f"{name}: {why}", hint=hint)

    apply.__name__ = apply.__qualname__ = name.rpartition(".")[2]
    apply.__doc__ = f"Not available here: {why}."
    return builtin(apply)
