"""`tl.extra.libdevice`: CUDA's mathematical functions, created on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LIBRARY = "tilewright.lang.tile.library.libdevice"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module(_LIBRARY), name)


def __dir__() -> list[str]:
    return dir(import_module(_LIBRARY))
