"""The table from ATen operators to the functions that translate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from tilewright.base.discover import import_all

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)

# Names that do not begin with aten.
_OTHERS = (
    "operator.",
    "math.",
    "prims.",
    "higher_order::",
    "torchvision.",
    "transformers.",
    "tilewright.",
)
_RULES: dict[str, Rule] = {}
_COMPLEX: dict[str, Rule] = {}


class Untranslated(Exception):
    """This use of an operator has no native form; the text says why."""


def aten(*names: str, numbers: str = "real") -> Callable[[F], F]:
    """Register a translation for overloads ("add.Tensor") or every overload ("add")."""

    def register(rule: F) -> F:
        for name in names:
            own = name.startswith(_OTHERS)
            key = name if own else f"aten.{name}"
            table = _COMPLEX if numbers == "complex" else _RULES
            if key in table:
                raise TypeError(f"{key} is translated twice")
            table[key] = rule
        return rule

    return register


def rule_for(target: Any, numbers: str = "real") -> Rule | None:
    """The translation of an fx target: of the overload first, then of the operator."""
    import_all("tilewright.capture.torch")
    name = target_name(target)
    table = _COMPLEX if numbers == "complex" else _RULES
    found = table.get(name)
    if found is None and name.count(".") == 2:
        found = table.get(name.rsplit(".", 1)[0])
    return found


def target_name(target: Any) -> str:
    """For an overload "aten.add.Tensor", for Python's own "operator.add", else its name."""
    module = getattr(target, "__module__", "")
    if module == "_operator":
        return f"operator.{target.__name__}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    if module == "math":
        return f"math.{target.__name__}"
    return str(target)


def translated() -> tuple[str, ...]:
    """Every registered name, for documentation and tests."""
    import_all("tilewright.capture.torch")
    return tuple(sorted(_RULES))
