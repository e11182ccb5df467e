"""Numbers that a call computes from its sizes, such as a factor 1/sqrt(n): evaluated as exactly as
Python's own numbers allow, by functions that are known here by name."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from tilewright.ir import dim as D
from tilewright.runtime.signature import Constant, Expression, Operation


def _power(a: Any, b: Any) -> Any:
    if isinstance(b, Fraction) and b.denominator == 2:
        root = math.sqrt(a)
        return root**b.numerator
    if isinstance(a, int) and isinstance(b, int) and b < 0:
        return Fraction(a) ** b
    return a**b


def _divided(a: Any, b: Any) -> Any:
    return Fraction(a) / b if isinstance(a, int) and isinstance(b, int) else a / b


# By the names that torch and sympy have for them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *x: reduce(operator.add, x),
    "Mul": lambda *x: reduce(operator.mul, x),
    "Pow": _power,
    "FloatPow": lambda a, b: float(a) ** float(b),
    "PowByNatural": operator.pow,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "TruncToInt": math.trunc,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "IntTrueDiv": _divided,
    "FloatTrueDiv": lambda a, b: float(a) / float(b),
    "ToFloat": float,
    "floor": math.floor,
    "ceiling": math.ceil,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *x: all(x),
    "Or": lambda *x: any(x),
    "Not": operator.not_,
    **{
        f"OpaqueUnaryFn_{name}": getattr(math, name)
        for name in ("sqrt", "cos", "sin", "tan", "cosh", "sinh", "tanh", "exp", "log", "log2")
    },
}


def evaluate(e: Expression, dims: Mapping[str, int], numbers: Mapping[str, Any]) -> Any:
    """The value for given sizes, and for arguments that are numbers."""
    if isinstance(e, Constant):
        return int(e.value) if e.whole else e.value
    if isinstance(e, Operation):
        return FUNCTIONS[e.name](*(evaluate(x, dims, numbers) for x in e.operands))
    if e.dim is not None:
        return int(D.evaluate(e.dim, dims))
    return numbers[e.slot] if e.slot is not None else 0
