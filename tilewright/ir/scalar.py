"""The scalar functions: the one vocabulary of operators, tensor expressions, tiles and emitters.

Each has a name, an arity, a result rule and a numpy meaning, which is what the interpreter runs,
and what passes, proofs and estimates know of it: its cost, and facts about it on real numbers.
Floats of 8 and 16 bits are computed in float32 and rounded. Integer division by zero is 0 here and
in native code: no trap, no surprise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.ir.types import DTYPES, DType, as_dtype, f64, from_memory, to_memory


@dataclass(frozen=True)
class Scalar:
    name: str
    arity: int
    numpy: Callable[..., Any]
    result: str = "same"  # "same" as the last argument, or the name of a dtype
    only: str = "fiub"  # dtype kinds accepted
    takes: DType | None = None  # the dtype accepted, where it is only one
    commutative: bool = False
    associative: bool = False
    # On narrow floats (stored as float32), where computing in float32 would round twice
    narrow: Callable[..., Any] | None = None
    cost: int = 1  # how many additions of a vector take as long
    parity: str = ""  # "odd": f(-x) = -f(x); "even": f(-x) = f(x)
    partial: bool = False  # is it not defined for all real numbers?
    rounded: bool = False  # is the result the nearest float wherever it is computed?

    def type(self, args: tuple[DType, ...]) -> DType:
        return args[-1] if self.result == "same" else DTYPES[self.result]


SCALARS: dict[str, Scalar] = {}

# Costs of a polynomial (llvm/vmath/), which a division of integers takes too, and of the divider.
SERIES, DIVIDED = 16, 4
# From this cost on it is better to compute a function once and to store its result than to compute
# it in each of several loops; and than to compute it again in a loop that could reuse it.
WORTH_STORING, WORTH_KEEPING = 8, 4
_SERIES = (
    "exp exp2 expm1 log log2 log10 log1p tanh sin cos tan sinh cosh asin acos atan asinh acosh "
    "atanh sigmoid erf erfc erfinv lgamma digamma pow atan2"
)
_COSTS = {
    **dict.fromkeys(_SERIES.split(), SERIES),
    **dict.fromkeys(("floordiv", "quo", "mod", "rem"), SERIES),
    **dict.fromkeys(("div", "sqrt"), DIVIDED),
    "rsqrt": DIVIDED + 1,
    "mulhi": 2,
}
_PARITY = {
    **dict.fromkeys("sin tan asin atan sinh tanh asinh atanh erf erfinv".split(), "odd"),
    **dict.fromkeys(("abs", "cos", "cosh"), "even"),
}
_PARTIAL = frozenset(
    "sqrt rsqrt log log2 log10 log1p pow tan asin acos acosh atanh erfinv lgamma digamma".split()
)
_ROUNDED = frozenset("add sub mul div neg abs max min sqrt floor ceil trunc round".split())


def _add(name: str, arity: int, fn: Callable[..., Any], **kw: Any) -> None:
    facts: dict[str, Any] = {"cost": _COSTS.get(name, 1), "parity": _PARITY.get(name, "")}
    facts |= {"partial": name in _PARTIAL, "rounded": name in _ROUNDED}
    SCALARS[name] = Scalar(name, arity, fn, **facts, **kw)


def cost_of(name: str) -> int:
    """How many additions of a vector take as long as a function; casts, which are no scalar
    functions, take one."""
    found = SCALARS.get(name)
    return 1 if found is None else found.cost


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


def _int_quo(a: Any, b: Any) -> Any:
    return _int_div(a - _int_rem(a, b), b)


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
    """The upper half of the product of twice the width."""
    a, b = np.asarray(a), np.asarray(b)
    bits = a.dtype.itemsize * 8
    if bits < 64:
        return ((a.astype(np.int64) * b.astype(np.int64)) >> bits).astype(a.dtype)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    cross = (x >> half) * (y & low) + (((x & low) * (y & low)) >> half)
    other = (x & low) * (y >> half) + (cross & low)
    r = (x >> half) * (y >> half) + (cross >> half) + (other >> half)
    if a.dtype.kind == "i":  # a negative factor was taken for one greater by two to the width
        r = r - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return r.astype(a.dtype)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    return _exactly(a, b, c) if a.dtype == np.float64 else _fma_odd(a, b, c).astype(a.dtype)


def _fma_odd(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of floats as doubles that rounding to floats leaves right."""
    a, b, c = np.broadcast_arrays(a, b, c)
    x, z = a.astype(np.float64) * b, c.astype(np.float64)  # the product is exact
    s = x + z
    back = s - x
    error = (x - (s - back)) + (z - back)
    # The sum rounded to odd: then rounding once more, to float32, does no harm.
    even = (np.ascontiguousarray(s).view(np.uint64).reshape(s.shape) & np.uint64(1)) == 0
    away = np.nextafter(s, np.where(error > 0, np.inf, -np.inf))
    return np.where(np.isfinite(s) & (error != 0) & even, away, s)


def _exactly(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = np.asarray(a * b + c)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for at in np.ndindex(out.shape):
        if not finite[at]:
            continue
        exact = Fraction(float(a[at])) * Fraction(float(b[at])) + Fraction(float(c[at]))
        if exact:  # the sign of a zero is right as it is
            try:
                out[at] = exact.numerator / exact.denominator
            except OverflowError:
                out[at] = math.copysign(math.inf, exact)
    return out


def _of_zeros_too(choose: Callable[..., Any], on_zeros: Callable[..., Any]) -> Callable[..., Any]:
    """The chosen argument; of two zeros, the one of the right sign."""

    def apply(a: Any, b: Any) -> Any:
        chosen = choose(a, b)
        if np.asarray(chosen).dtype.kind != "f":
            return chosen
        with np.errstate(all="ignore"):
            return np.where(np.equal(a, 0) & np.equal(b, 0), on_zeros(a, b), chosen)

    return apply


def _lower_zero(a: Any, b: Any) -> Any:
    return -(-a - b)


def _toward_zero(dtype: DType) -> Callable[..., Any]:
    """Cut to what a dtype can hold, and left as wide as it is."""

    def single(x: np.ndarray) -> np.ndarray:
        near = x.astype(np.float32)
        return np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)

    def apply(x: Any) -> Any:
        x = np.asarray(x)
        cut = single(x) if x.dtype == np.float64 else x
        if dtype.format is not None:
            cut = np.where(np.isinf(cut), cut, dtype.format.round(cut, "rtz"))
        return cut.astype(x.dtype)

    return apply


def _tf32(x: Any) -> Any:
    return (np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _bits_of(dtype: DType) -> Callable[..., Any]:
    return lambda x: to_memory(np.asarray(x), dtype).view(f"u{dtype.bytes}")


def _of_bits(dtype: DType) -> Callable[..., Any]:
    return lambda x: from_memory(np.array(x, order="C").view(dtype.memory), dtype)


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
_add("quo", 2, _int_quo, only="iu")  # cut towards zero, as C: x = quo * y + rem
_add("mod", 2, _int_or_float(_int_mod, np.mod), only="fiu")  # sign of the divisor
_add("rem", 2, _int_or_float(_int_rem, np.fmod), only="fiu")  # sign of the dividend, as C
_add("pow", 2, lambda a, b: np.power(a, b), only="f")
_add("atan2", 2, np.arctan2, only="f")
# NaN wins, and -0 is below +0: numpy leaves that to the machine.
_add("max", 2, _of_zeros_too(np.maximum, np.add), commutative=True, associative=True)
_add("min", 2, _of_zeros_too(np.minimum, _lower_zero), commutative=True, associative=True)
_add("maxnum", 2, _of_zeros_too(np.fmax, np.add), only="f", commutative=True, associative=True)
_add(
    "minnum",
    2,
    _of_zeros_too(np.fmin, _lower_zero),
    only="f",
    commutative=True,
    associative=True,
)
_add("copysign", 2, np.copysign, only="f")
# The float32 that an instruction for products of tf32 takes for a number: 10 bits of its fraction.
_add("tf32", 1, _tf32, only="f", takes=DTYPES["f32"])
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
_add("fma", 3, _fma, only="f", narrow=_fma_odd)
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

for _d in DTYPES.values():
    if not _d.is_float:
        continue
    # A float toward zero to what a narrower one can hold: a cast that rounds to zero is this and a
    # cast that has nothing left to round.
    if _d is not f64:
        _add(f"toward_zero_{_d}", 1, _toward_zero(_d), only="f")
    # What lies in memory, as an unsigned integer, and back: two of them are any bitcast.
    _u = DTYPES[f"u{_d.bits}"]
    _add(f"bits_of_{_d}", 1, _bits_of(_d), result=_u.name, only="f", takes=_d)
    _add(f"{_d}_of_bits", 1, _of_bits(_d), result=_d.name, only="u", takes=_u)


_HALF = np.dtype(np.float16)


def _of_half(a: Any) -> bool:
    return (a.dtype if isinstance(a, np.ndarray) else np.asarray(a).dtype) == _HALF


def applied(name: str, args: Sequence[Any], result: DType) -> np.ndarray:
    """A scalar function on arrays, as the interpreters represent them. Floats of 8 and 16 bits are
    computed in float32 and rounded."""
    spec = SCALARS[name]
    wide = [np.asarray(a, np.float32) if _of_half(a) else a for a in args]
    function = spec.narrow if spec.narrow is not None and result.format is not None else spec.numpy
    r = np.asarray(function(*wide))
    # Results mostly have the right numpy dtype already.
    return r if r.dtype == result.numpy and result.format is None else as_dtype(r, result)


def atomic_extreme(kind: str, old: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What an atomic maximum or minimum of float32 or float64 leaves, for arrays of one dtype. It
    compares bits, as the integer atomics of a GPU do: after the sign, a NaN is larger than all."""
    old, value = np.asarray(old), np.asarray(value, np.asarray(old).dtype)
    signed = np.dtype(f"i{old.dtype.itemsize}")
    magnitude = np.iinfo(signed).max

    def key(x: np.ndarray) -> np.ndarray:
        bits = x.view(signed)
        return np.where(bits < 0, bits ^ magnitude, bits)

    larger = key(value) > key(old)
    return np.where(larger if kind == "max" else ~larger, value, old)


def neutral(combine: str, dtype: DType) -> float | int | bool:
    """The number that a reduction with this function starts from."""
    if combine in ("add", "or", "xor"):
        return 0
    if combine == "mul":
        return 1
    if combine == "and":
        return True if dtype.is_bool else -1
    if combine in ("maxnum", "minnum"):
        return math.nan
    if combine == "max":
        return dtype.lowest
    if combine == "min":
        return dtype.highest
    raise ValueError(f"{combine} is not a reduction")
