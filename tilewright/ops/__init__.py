"""Tensor operators. `ops.add(x, y)` builds a node; ir.operator.OPERATORS holds the classes by name.

Every module of this folder is found by itself: a new operator is one class and one builder in one
file. Public functions of a module are its builders, except in the modules of helpers below.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tilewright.base.discover import import_all

HELPERS = (".samples", ".shapes", ".references", ".conv_parts")


def _builders(modules: tuple[ModuleType, ...]) -> dict[str, Any]:
    """The public functions that each module itself defines."""
    found: dict[str, Any] = {}
    for module in modules:
        if module.__name__.endswith(HELPERS):
            continue
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if name.startswith("_") or not own or isinstance(value, type) or not callable(value):
                continue
            if name in found:
                raise TypeError(
                    f"builder {name} is in {found[name].__module__} and {module.__name__}"
                )
            found[name] = value
    return found


BUILDERS = _builders(import_all(__name__))
globals().update(BUILDERS)
# Builders that have the name of their module, which type checkers would take them for.
attention: Any
fourier: Any
softmax: Any
wide_matmul: Any


def __getattr__(name: str) -> Any:
    raise AttributeError(f"there is no operator {name!r} in {__name__}")
