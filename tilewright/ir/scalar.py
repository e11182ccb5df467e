"""The scalar functions: the one vocabulary of operators, tensor expressions, tiles and emitters.

Each has a name, an arity, a result rule and a numpy meaning, which is what the interpreter runs.
Floats of 16 bits are computed in float32 and rounded. Integer division by zero is 0 here and in
native code: no trap, no surprise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.types import DType, b1


@dataclass(frozen=True)
class Scalar:
    name: str
    arity: int
    numpy: Callable[..., Any]
    result: str = "same"  # "same" as the last argument, or "bool"
    only: str = "fiub"  # dtype kinds accepted
    commutative: bool = False
    associative: bool = False

    def type(self, args: tuple[DType, ...]) -> DType:
        return b1 if self.result == "bool" else args[-1]


SCALARS: dict[str, Scalar] = {}


def _add(name: str, arity: int, fn: Callable[..., Any], **kw: Any) -> None:
    SCALARS[name] = Scalar(name, arity, fn, **kw)


def _vectorised(fn: Callable[..., float]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        a = np.broadcast_arrays(*args)
        out = np.empty(a[0].shape, dtype=np.float64)
        flat = out.reshape(-1)
        for k, xs in enumerate(
            zip(*(np.asarray(x, dtype=np.float64).reshape(-1) for x in a), strict=True)
        ):
            flat[k] = fn(*map(float, xs))
        return out.astype(np.result_type(*args))

    return apply


def _int_or_float(on_int: Callable[..., Any], on_float: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: on_float(a, b) if np.asarray(a).dtype.kind == "f" else on_int(a, b)


def _int_div(a: Any, b: Any) -> Any:
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.floor_divide(a, safe)).astype(np.asarray(a).dtype)


def _int_mod(a: Any, b: Any) -> Any:
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.mod(a, safe)).astype(np.asarray(a).dtype)


def _int_rem(a: Any, b: Any) -> Any:
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.fmod(a, safe)).astype(np.asarray(a).dtype)


def _unsigned(x: Any) -> Any:
    d = np.asarray(x).dtype
    return np.asarray(x).astype(d).view(f"u{d.itemsize}") if d.kind == "i" else np.asarray(x)


def _shift_ok(x: Any, n: Any) -> Any:
    return (n >= 0) & (n < np.asarray(x).dtype.itemsize * 8)


def _shl(x: Any, n: Any) -> Any:
    ok = _shift_ok(x, n)
    return np.where(ok, np.left_shift(x, np.where(ok, n, 0)), 0).astype(np.asarray(x).dtype)


def _shr(x: Any, n: Any) -> Any:
    ok = _shift_ok(x, n)
    u = _unsigned(x)
    r = np.right_shift(u, np.where(ok, n, 0).astype(u.dtype))
    return np.where(ok, r, 0).astype(np.asarray(x).dtype)


def _sar(x: Any, n: Any) -> Any:
    if np.asarray(x).dtype.kind == "u":
        return _shr(x, n)
    top = np.asarray(x).dtype.itemsize * 8 - 1
    return np.right_shift(x, np.where(_shift_ok(x, n), n, top)).astype(np.asarray(x).dtype)


def _lgamma(x: float) -> float:
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _digamma(x: float) -> float:
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1.0))
    steps = []
    while x < 20:
        steps.append(-1 / x)
        x += 1
    f = 1 / (x * x)
    series = f * (1 / 12 - f * (1 / 120 - f * (1 / 252 - f * (1 / 240 - f * (1 / 132)))))
    return math.fsum((*steps, math.log(x), -0.5 / x, -series))


def _erfinv(x: float) -> float:
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    a = 0.147
    w = math.log1p(-x * x)
    t = 2 / (math.pi * a) + w / 2
    y = math.copysign(math.sqrt(math.sqrt(t * t - w / a) - t), x) if x else 0.0
    for _ in range(4):  # Newton on erf, with erfc near the ends where 1 - x would cancel
        tail = ((1 - abs(x)) - math.erfc(abs(y))) * math.copysign(1, x)
        err = math.erf(y) - x if abs(x) < 0.5 else tail
        y -= err / (2 / math.sqrt(math.pi) * math.exp(-y * y))
    return y


def _erfc(x: float) -> float:
    return math.nan if math.isnan(x) else math.erfc(x)


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-np.asarray(x, dtype=np.float64)))).astype(np.asarray(x).dtype)


def _rsqrt(x: Any) -> Any:
    return (1 / np.sqrt(np.asarray(x, dtype=np.float64))).astype(np.asarray(x).dtype)


def _sum(a: Any, b: Any) -> Any:
    return np.logical_or(a, b) if np.asarray(a).dtype == bool else a + b


def _mulhi(a: Any, b: Any) -> Any:
    if np.ndim(a) or np.ndim(b):
        return ((a.astype(object) * b.astype(object)) >> 64).astype(np.int64)
    return np.int64((int(a) * int(b)) >> 64)


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
_NAMED_AS_IN_NUMPY = "exp exp2 expm1 log log2 log10 log1p tanh sin cos tan sinh cosh".split()

_add("add", 2, _sum, commutative=True, associative=True)
_add("sub", 2, lambda a, b: a - b, only="fiu")
_add("mul", 2, lambda a, b: a * b, commutative=True, associative=True)
_add("div", 2, lambda a, b: a / b, only="f")
_add("floordiv", 2, _int_or_float(_int_div, lambda a, b: np.floor(a / b)), only="fiu")
_add("mod", 2, _int_or_float(_int_mod, np.mod), only="fiu")  # sign of the divisor
_add("rem", 2, _int_or_float(_int_rem, np.fmod), only="fiu")  # sign of the dividend, as C
_add("pow", 2, lambda a, b: np.power(a, b), only="f")
_add("atan2", 2, np.arctan2, only="f")
_add("max", 2, np.maximum, commutative=True, associative=True)  # NaN wins
_add("min", 2, np.minimum, commutative=True, associative=True)
_add("copysign", 2, np.copysign, only="f")
_add("nextafter", 2, np.nextafter, only="f")
_add("and", 2, np.bitwise_and, only="iub", commutative=True, associative=True)
_add("or", 2, np.bitwise_or, only="iub", commutative=True, associative=True)
_add("xor", 2, np.bitwise_xor, only="iub", commutative=True, associative=True)
_add("shl", 2, _shl, only="iu")
_add("shr", 2, _shr, only="iu")  # logical
_add("sar", 2, _sar, only="iu")  # arithmetic
_add("mulhi", 2, _mulhi, only="iu")
for _n, _f in _COMPARISONS.items():
    _add(_n, 2, _f, result="bool", commutative=_n in ("eq", "ne"))
_add("select", 3, lambda c, a, b: np.where(c, a, b))
_add("neg", 1, lambda a: -a, only="fiu")
_add("abs", 1, np.abs, only="fiu")
_add("not", 1, lambda a: ~a if np.asarray(a).dtype != bool else np.logical_not(a), only="iub")
_add("floor", 1, np.floor, only="f")
_add("ceil", 1, np.ceil, only="f")
_add("trunc", 1, np.trunc, only="f")
_add("round", 1, np.rint, only="f")  # half to even
_add("sqrt", 1, np.sqrt, only="f")
_add("rsqrt", 1, _rsqrt, only="f")
_add("signbit", 1, np.signbit, only="f", result="bool")
for _n in _NAMED_AS_IN_NUMPY:
    _add(_n, 1, getattr(np, _n), only="f")
for _n in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
    _add(_n, 1, getattr(np, "arc" + _n[1:]), only="f")
_add("sigmoid", 1, _sigmoid, only="f")
_add("erf", 1, _vectorised(lambda x: math.nan if math.isnan(x) else math.erf(x)), only="f")
_add("erfc", 1, _vectorised(_erfc), only="f")
_add("erfinv", 1, _vectorised(_erfinv), only="f")
_add("lgamma", 1, _vectorised(_lgamma), only="f")
_add("digamma", 1, _vectorised(_digamma), only="f")


def neutral(combine: str, dtype: DType) -> float | int | bool:
    """The number that a reduction with this function starts from."""
    if combine in ("add", "or", "xor"):
        return 0
    if combine == "mul":
        return 1
    if combine == "and":
        return True if dtype.is_bool else -1
    if combine == "max":
        return dtype.lowest
    if combine == "min":
        return dtype.highest
    raise ValueError(f"{combine} is not a reduction")
