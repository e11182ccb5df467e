"""Conditions on sizes that are known only after a host call, as the user's program or torch states
them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx

from tilewright.capture.torch.places import place_of

# What `torch._assert_async` says where it was given no message.
NOT_SO = "Expected Tensor with single nonzero value, but got zero"
# Functions that torch's expressions of sizes have in addition to sympy's own.
_FUNCTIONS = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": max,
    "Min": min,
    "Identity": lambda x: x,
    "PowByNatural": operator.pow,
}


@dataclass(frozen=True)
class SizeCheck:
    """A function of the sizes' values that raises where the condition does not hold."""

    check: Callable[..., None]
    sizes: tuple[sympy.Symbol, ...]
    environment: Any


def size_check(n: torch.fx.Node) -> SizeCheck | None:
    """Of a node of `aten._assert_scalar`. None where guards have established it: a condition on
    nothing but the sizes of inputs."""
    condition, words = n.args[0], str(n.args[1])
    v = condition.meta.get("val") if isinstance(condition, torch.fx.Node) else None
    if not isinstance(v, torch.SymBool):
        return None
    sizes = tuple(sorted(v.node.expr.free_symbols, key=str))
    if not any(str(s)[0] == "u" for s in sizes):
        return None
    holds = sympy.lambdify(sizes, v.node.expr, [_FUNCTIONS, "math"])
    place = place_of(n)

    def check(*values: int) -> None:
        if not holds(*values):
            raise RuntimeError(words if place is None else f"{words}\n  at {place}")

    return SizeCheck(check, sizes, v.node.shape_env)
