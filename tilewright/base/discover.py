"""Importing every module of a package, so that registries fill without a central list."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType


@cache
def import_all(package: str, *, recursive: bool = True) -> tuple[ModuleType, ...]:
    """Import the modules below `package`, sorted by name, once; `__main__` is left out."""
    root = importlib.import_module(package)
    found: list[ModuleType] = []
    for info in sorted(pkgutil.iter_modules(root.__path__), key=lambda info: info.name):
        if info.name == "__main__":
            continue
        name = f"{package}.{info.name}"
        found.append(importlib.import_module(name))
        if info.ispkg and recursive:
            found.extend(import_all(name))
    return tuple(found)
