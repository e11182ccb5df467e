"""Functions of the language that compute each element from elements: choice, extremes and maths.

Maths is for float32 and float64, as in Triton: narrower floats are cast by the author, who then
knows where precision is lost.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.builder import IRBuilder, current
from tilewright.lang.tile.language import semantic
from tilewright.lang.tile.language.semantic import PropagateNan
from tilewright.lang.tile.language.tensor import builtin, member, operand, tensor, value, wrap
from tilewright.lang.tile.language.types import constexpr, float32, unwrap


@builtin
def add(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    """x + y; `sanitize_overflow=False` says that it is meant to wrap around."""
    return _wrapping(wrap(value(x)) + y, sanitize_overflow)


@builtin
def sub(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    """x - y; `sanitize_overflow=False` says that it is meant to wrap around."""
    return _wrapping(wrap(semantic.sub(operand(x), operand(y)), x), sanitize_overflow)


@builtin
def mul(x: Any, y: Any, sanitize_overflow: Any = True) -> tensor:
    """x * y; `sanitize_overflow=False` says that it is meant to wrap around."""
    return _wrapping(wrap(semantic.mul(operand(x), operand(y))), sanitize_overflow)


def _wrapping(t: tensor, sanitize: Any) -> tensor:
    """Debugging kernels leave it unchecked: front/overflow.py."""
    builder, v = current(), value(t)
    if not unwrap(sanitize) and isinstance(builder, IRBuilder):
        made = builder.made.get(v)
        if made is not None and made.name == "map":
            builder.change(v, wraps=True)
    return t


@builtin
def where(condition: Any, x: Any, y: Any) -> tensor:
    """x where the condition holds, y elsewhere. Both are computed."""
    return wrap(semantic.where(operand(condition), operand(x), operand(y)), x)


@builtin
def minimum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """The smaller of two elements."""
    return wrap(semantic.extreme("min", operand(x), operand(y), unwrap(propagate_nan)))


@builtin
def maximum(x: Any, y: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """The larger of two elements."""
    return wrap(semantic.extreme("max", operand(x), operand(y), unwrap(propagate_nan)))


@builtin
def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = PropagateNan.NONE) -> tensor:
    """Floats moved into the interval from min to max."""
    nan = unwrap(propagate_nan)
    return wrap(semantic.clamp(operand(x), operand(min), operand(max), nan))


@member
@builtin
def exp(x: Any) -> tensor:
    return wrap(semantic.function("exp", operand(x)))


@member
@builtin
def exp2(x: Any) -> tensor:
    return wrap(semantic.function("exp2", operand(x)))


@member
@builtin
def log(x: Any) -> tensor:
    return wrap(semantic.function("log", operand(x)))


@member
@builtin
def log2(x: Any) -> tensor:
    return wrap(semantic.function("log2", operand(x)))


@member
@builtin
def cos(x: Any) -> tensor:
    return wrap(semantic.function("cos", operand(x)))


@member
@builtin
def sin(x: Any) -> tensor:
    return wrap(semantic.function("sin", operand(x)))


@member
@builtin
def sqrt(x: Any) -> tensor:
    return wrap(semantic.function("sqrt", operand(x)))


@member
@builtin
def sqrt_rn(x: Any) -> tensor:
    """The square root rounded to nearest, as `sqrt` always is here."""
    return wrap(semantic.function("sqrt", operand(x), (float32,)))


@member
@builtin
def rsqrt(x: Any) -> tensor:
    return wrap(semantic.function("rsqrt", operand(x)))


@member
@builtin
def erf(x: Any) -> tensor:
    return wrap(semantic.function("erf", operand(x)))


@member
@builtin
def floor(x: Any) -> tensor:
    return wrap(semantic.function("floor", operand(x)))


@member
@builtin
def ceil(x: Any) -> tensor:
    return wrap(semantic.function("ceil", operand(x)))


@member
@builtin
def abs(x: Any) -> tensor:
    return wrap(semantic.absolute(operand(x)))


@builtin
def fdiv(x: Any, y: Any, ieee_rounding: Any = False) -> tensor:
    """A division of floats in their own type, always rounded to nearest."""
    return wrap(semantic.fdiv(operand(x), operand(y)))


@builtin
def div_rn(x: Any, y: Any) -> tensor:
    """A division of float32 rounded to nearest."""
    a, b = (semantic.checked("div_rn", value(v), (float32,)) for v in (x, y))
    return wrap(semantic.fdiv(a, b))


@builtin
def fma(x: Any, y: Any, z: Any) -> tensor:
    """x * y + z, rounded once."""
    return wrap(semantic.fma(operand(x), operand(y), operand(z)))


@builtin
def umulhi(x: Any, y: Any) -> tensor:
    """The upper half of the product of two unsigned integers."""
    return wrap(semantic.umulhi(operand(x), operand(y)))


@builtin
def builtin_max(*args: Any, propagate_nan: Any = None) -> Any:
    """Python's max inside a kernel: of constants a constant, of tensors their maximum."""
    return _extreme_of("max", args, propagate_nan)


@builtin
def builtin_min(*args: Any, propagate_nan: Any = None) -> Any:
    """Python's min inside a kernel."""
    return _extreme_of("min", args, propagate_nan)


def _extreme_of(fn: str, args: tuple, propagate_nan: Any) -> Any:
    items = [unwrap(a) for a in (args[0] if len(args) == 1 else args)]
    if not any(isinstance(x, tensor) for x in items):
        if propagate_nan is not None or any(x != x for x in items):
            raise Invalid(f"{fn} of constants with NaN", hint=f"tl.{fn}imum of tensors")
        return constexpr(max(items) if fn == "max" else min(items))
    if len(items) < 2:
        hint = f"tl.{fn}(x, axis) reduces a tile; tl.{fn}imum compares two"
        raise Invalid(f"Python's {fn} of {items[0]}", hint=hint)
    nan = PropagateNan.NONE if propagate_nan is None else unwrap(propagate_nan)
    found = operand(items[0])
    for x in items[1:]:
        found = semantic.extreme(fn, found, operand(x), nan)
    return wrap(semantic.value_of(found))
