"""Tensor expressions and schedules in TVM's spelling; see `tilewright.lower` and `.build`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.lang.te.expression import (
    Operation,
    Tensor,
    all,
    any,
    compute,
    max,
    min,
    placeholder,
    prod,
    reduce_axis,
    size_var,
    sum,
    var,
)
from tilewright.lang.te.recurrence import scan
from tilewright.lang.te.reducers import argmax, argmin, comm_reducer, const, max_value, min_value
from tilewright.lang.te.scalars import (
    Expr,
    IterVar,
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cast,
    ceil,
    copysign,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    floor,
    floordiv,
    floormod,
    fmod,
    if_then_else,
    indexdiv,
    indexmod,
    isnan,
    log,
    log1p,
    log2,
    log10,
    nextafter,
    pow,
    power,
    round,
    rsqrt,
    select,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
)
from tilewright.lang.te.schedule import Schedule, create_schedule, thread_axis
from tilewright.targets import families

if TYPE_CHECKING:
    from tilewright.driver.te.tune import tune

__all__ = [
    "Expr",
    "IterVar",
    "Operation",
    "Schedule",
    "Tensor",
    "abs",
    "acos",
    "acosh",
    "all",
    "any",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cast",
    "ceil",
    "comm_reducer",
    "compute",
    "const",
    "copysign",
    "cos",
    "cosh",
    "create_schedule",
    "erf",
    "exp",
    "exp2",
    "floor",
    "floordiv",
    "floormod",
    "fmod",
    "if_then_else",
    "indexdiv",
    "indexmod",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "max",
    "max_value",
    "min",
    "min_value",
    "nextafter",
    "placeholder",
    "pow",
    "power",
    "prod",
    "reduce_axis",
    "round",
    "rsqrt",
    "scan",
    "select",
    "sigmoid",
    "sin",
    "sinh",
    "size_var",
    "sqrt",
    "sum",
    "tan",
    "tanh",
    "thread_axis",
    "trunc",
    "tune",
    "var",
]

_TUNE = "tilewright.driver.te.tune"

# Declares the instructions that `tensorize` knows by name.
families()


def __getattr__(name: str) -> Any:
    """What tunes is loaded when it is used: expressions and schedules need none of it."""
    if name != "tune":
        raise AttributeError(f"module 'tilewright.te' has no attribute {name!r}")
    found = globals()["tune"] = import_module(_TUNE).tune
    return found
