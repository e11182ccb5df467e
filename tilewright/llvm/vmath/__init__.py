"""Vector math as LLVM text: polynomials over vectors of any length, no calls into a C library.

`functions` gives the definitions a module needs, by symbol, so that what two functions share is
defined once; `declarations` gives the intrinsics they call. Error bounds, in units in the last
place over all finite arguments, float32 and float64, stand in `ERROR_BOUNDS`; infinities, NaN and
signed zeros follow C99. float16 and bfloat16 belong to the caller, who computes them in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tilewright.base.errors import Invalid
from tilewright.llvm.vmath import arithmetic, exponential, logarithm, special, trigonometric
from tilewright.llvm.vmath.builder import FORMATS, Builder, Value

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "pow": logarithm.pow,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
    "atan2": trigonometric.atan2,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "lgamma": special.lgamma,
    "digamma": special.digamma,
    "rsqrt": arithmetic.rsqrt,
    "fmod": arithmetic.fmod,
}

_BINARY = frozenset({"pow", "atan2", "fmod"})

# Largest error in units in the last place; without fused multiply-add at most one more. For lgamma
# and digamma of negative arguments the unit is that of the largest term, not of the result.
ERROR_BOUNDS: dict[str, float] = {
    "exp": 1.5,
    "exp2": 1.5,
    "expm1": 2.0,
    "sigmoid": 2.0,
    "tanh": 2.0,
    "sinh": 2.0,
    "cosh": 2.0,
    "log": 1.5,
    "log2": 1.5,
    "log10": 1.5,
    "log1p": 1.5,
    "asinh": 3.0,
    "acosh": 3.0,
    "atanh": 3.0,
    "pow": 2.0,
    "sin": 2.0,
    "cos": 2.0,
    "tan": 3.0,
    "asin": 2.0,
    "acos": 2.0,
    "atan": 2.5,
    "atan2": 2.5,
    "erf": 2.0,
    "erfc": 4.0,
    "erfinv": 4.0,
    "lgamma": 6.0,
    "digamma": 6.0,
    "rsqrt": 2.0,
    "fmod": 0.0,
}


def names() -> frozenset[str]:
    """The functions there are."""
    return frozenset(_FUNCTIONS)


def arity(name: str) -> int:
    """How many arguments: 2 for pow(x, y), atan2(y, x) and fmod(x, y), else 1."""
    return 2 if name in _BINARY else 1


def symbol(name: str, elem: str, lanes: int) -> str:
    """The name under which a function is defined: `tw.exp.f32x4`, or `tw.exp.f32` for a scalar."""
    return f"tw.{name}.{elem}" if lanes == 1 else f"tw.{name}.{elem}x{lanes}"


def functions(
    name: str, elem: str, lanes: int, fma: bool = True, maximum: bool = True
) -> dict[str, str]:
    """Definitions by symbol, helpers first, the function itself last.

    Merge the dictionaries of all functions of a module (made with the same `fma`) and define each
    symbol once. Say `fma=False` for a target without fused multiply-add, where the intrinsic would
    become a call, and `maximum=False` where maxima take many instructions.
    """
    return dict(_built(name, elem, lanes, fma, maximum)[0])


def define(name: str, elem: str, lanes: int, fma: bool = True, maximum: bool = True) -> str:
    """All that `functions` gives, as one text."""
    return "\n".join(functions(name, elem, lanes, fma, maximum).values())


def declarations(
    name: str, elem: str, lanes: int, fma: bool = True, maximum: bool = True
) -> frozenset[str]:
    """The `declare` lines of the intrinsics that the definitions call."""
    return _built(name, elem, lanes, fma, maximum)[1]


def needs(
    name: str, elem: str, lanes: int, fma: bool = True, maximum: bool = True
) -> tuple[str, ...]:
    """The symbols that `functions` defines."""
    return tuple(functions(name, elem, lanes, fma, maximum))


@lru_cache(maxsize=1024)
def _built(
    name: str, elem: str, lanes: int, fma: bool, maximum: bool
) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    if name not in _FUNCTIONS:
        raise Invalid(f"there is no vector function {name!r}; there are {sorted(_FUNCTIONS)}")
    if elem not in FORMATS:
        raise Invalid(
            f"vector function {name!r} of {elem!r}: elements are f32 or f64; compute narrower "
            "floats in f32"
        )
    if lanes < 1:
        raise Invalid(f"vector function {name!r} with {lanes} lanes: at least one is needed")
    b = Builder(lanes, fma, maximum)
    kind = FORMATS[elem].llvm
    arguments = [Value(b, f"%{p}", kind) for p in ("x", "y")[: arity(name)]]
    result = _FUNCTIONS[name](*arguments)
    typed = b.type(kind)
    parameters = ", ".join(f"{typed} {a.text}" for a in arguments)
    own = symbol(name, elem, lanes)
    head = f"define internal {typed} @{own}({parameters}) alwaysinline nounwind {{"
    text = "\n".join([head, *b.body(), f"  ret {typed} {result.text}", "}"])
    return (*b.helpers.items(), (own, text)), frozenset(b.declarations)
