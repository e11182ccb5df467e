"""Elementwise operators: one line each, in three tables.

A line gives the name, a numpy reference, the scalar expression (by default the scalar function of
that name), where its samples are drawn, and properties. Binary and ternary operators broadcast as
numpy does; their operands have one dtype. Plain numbers become 0-d constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir import expr
from tilewright.ir.expr import Tensor, Value, fn, select
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import DType, TensorType, b1, bf16, f16, f32, f64, i8, i16, i32, i64, u8
from tilewright.ops import samples as S
from tilewright.ops.creation import full
from tilewright.ops.references import by_element, exact_int, special
from tilewright.ops.shapes import at, broadcast_shapes, same_dtype, want_kind

Operand: TypeAlias = Node | float | int | bool


class _Map(Op):
    """out[i] = scalar(x[i], y[i], …) with the operands broadcast together."""

    elementwise: ClassVar[bool] = True
    kinds: ClassVar[str] = "fiub"
    to_bool: ClassVar[bool] = False
    least_bits: ClassVar[int] = 0
    exact: ClassVar[bool] = False  # the reference depends on the dtype: never give it float64
    cancels: ClassVar[bool] = False  # a sum: its error is relative to the operands, not to itself
    reference_error: ClassVar[float] = 0.0  # largest absolute error of the reference in float64
    domain: ClassVar[tuple[float, float]] = (-4.0, 4.0)

    @staticmethod
    def scalar(*xs: Value) -> Value:
        raise NotImplementedError

    @staticmethod
    def numpy(*xs: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def infer(self, *types: TensorType) -> TensorType:
        dtype = same_dtype(self.name, *types)
        for t in types:
            want_kind(self.name, t, self.kinds)
        if dtype.is_float and dtype.bits < self.least_bits:
            raise Invalid(
                f"{self.name} is not defined on {dtype}: the next value depends on the precision",
                hint="cast to f32 first",
            )
        shape = broadcast_shapes(*(t.shape for t in types), what=self.name)
        return TensorType(b1 if self.to_bool else dtype, shape)

    def compute(self, *xs: Tensor) -> Tensor:
        shape = broadcast_shapes(*(x.shape for x in xs))
        return expr.compute(shape, lambda *i: self.scalar(*(at(x, i) for x in xs)))

    def reference(self, *xs: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.numpy(*xs)


class _Unary(_Map):
    @classmethod
    def samples(cls) -> Iterator[Sample]:
        lo, hi = cls.domain
        if "f" in cls.kinds:
            yield S.case(cls(), S.uniform(5, 7, lo=lo, hi=hi))
            yield S.case(cls(), S.uniform(lo=lo, hi=hi))
            yield S.case(cls(), S.uniform(0, 3))
            yield S.case(cls(), S.extremes(14))
            for d in (d for d in (f64, f16, bf16) if d.bits >= cls.least_bits):
                yield S.case(cls(), S.uniform(2, 3, 5, lo=lo, hi=hi), dtype=d)
                yield S.case(cls(), S.extremes(14, dtype=d), dtype=d)
        for d in (i64, i32, i16, i8, u8, b1):
            if d.kind in cls.kinds:
                yield S.case(cls(), S.integers(3, 5, dtype=d))
                yield S.case(cls(), S.extremes(7, dtype=d))


class _Binary(_Map):
    @classmethod
    def samples(cls) -> Iterator[Sample]:
        lo, hi = cls.domain
        if "f" in cls.kinds:
            yield S.case(
                cls(), S.uniform(5, 7, lo=lo, hi=hi), S.uniform(5, 7, lo=lo, hi=hi, seed=1)
            )
            yield S.case(cls(), S.uniform(3, 1, 5, lo=lo, hi=hi), S.uniform(4, 1, lo=lo, hi=hi))
            yield S.case(cls(), S.uniform(lo=lo, hi=hi), S.uniform(3, lo=lo, hi=hi))
            yield S.case(cls(), S.normal(0, 3), S.normal(1, 3))
            for d in (d for d in S.FLOATS if d.bits >= cls.least_bits):
                yield S.case(cls(), S.extremes(14, 1, dtype=d), S.extremes(1, 14, dtype=d), dtype=d)
            for d in (d for d in (f64, f16, bf16) if d.bits >= cls.least_bits):
                x, y = (S.uniform(3, 5, lo=lo, hi=hi, seed=s) for s in (2, 3))
                yield S.case(cls(), x, y, dtype=d)
        for d in (i64, i32, i16, i8, u8, b1):
            if d.kind in cls.kinds:
                yield S.case(cls(), S.integers(3, 5, dtype=d), S.integers(5, dtype=d, seed=1))
                yield S.case(cls(), S.extremes(7, 1, dtype=d), S.extremes(1, 7, dtype=d))


def _define(base: type[_Map], name: str, scalar: Any, reference: Any, facets: dict[str, Any]) -> Op:
    title = name.title().replace("_", "")
    given = {"kinds": "f", **facets, "scalar": staticmethod(scalar), "name": name}
    cls = type(title, (base,), {**given, "numpy": staticmethod(reference), "__module__": __name__})
    return operator(cls)()


def _unary(name: str, reference: Any, scalar: Any = None, **facets: Any) -> Callable[[Node], Node]:
    op = _define(_Unary, name, scalar or (lambda x: fn(name, x)), reference, facets)

    def build(x: Node) -> Node:
        return node(op, x)

    return _named(build, name)


def _binary(
    name: str, reference: Any, scalar: Any = None, **facets: Any
) -> Callable[[Operand, Operand], Node]:
    op = _define(_Binary, name, scalar or (lambda x, y: fn(name, x, y)), reference, facets)

    def build(x: Operand, y: Operand) -> Node:
        return node(op, *_operands(name, x, y))

    return _named(build, name)


def _named(build: Any, name: str) -> Any:
    build.__name__ = build.__qualname__ = name
    build.__module__ = __name__
    return build


def _operands(what: str, *xs: Operand) -> tuple[Node, ...]:
    """Plain numbers take the dtype of the other operands."""
    dtype = next((x.dtype for x in xs if isinstance(x, Node)), None)
    if dtype is None:
        hint = "make one operand a node: full((), 1.0, f32)"
        raise Invalid(f"{what} of plain numbers only has no dtype", hint=hint)
    return tuple(x if isinstance(x, Node) else full((), x, dtype) for x in xs)


def _wide(scalar: Callable[..., Value]) -> Callable[..., Value]:
    """An expression of several steps rounds once: 16-bit floats go through float32."""

    def widened(*xs: Value) -> Value:
        dtype = xs[0].dtype
        return expr.cast(scalar(*(expr.cast(x, dtype.accumulator) for x in xs)), dtype)

    return widened


# ---- scalar expressions of more than one step


def _is(name: str) -> Callable[..., Value]:
    return lambda *xs: fn(name, *(expr.cast(x, b1) for x in xs))


def _sign(x: Value) -> Value:
    return select(x > 0, 1, select(x < 0, -1, expr.const(0, x.dtype)))


def _isinf(x: Value) -> Value:
    return fn("abs", x).eq(math.inf) if x.dtype.is_float else expr.const(False, b1)


def _isfinite(x: Value) -> Value:
    return fn("abs", x) < math.inf if x.dtype.is_float else expr.const(True, b1)


def _floordiv(x: Value, y: Value) -> Value:
    """Rounds the exact quotient: floor(x / y) is one too large where the division rounds up."""
    if x.dtype.is_int:
        return fn("floordiv", x, y)
    rest = fn("rem", x, y)
    quotient = (x - rest) / y
    below = rest.ne(0) & (y < 0).ne(rest < 0)
    quotient = select(below, quotient - 1, quotient)
    floor = fn("floor", quotient)
    floor = select(quotient - floor > 0.5, floor + 1, floor)
    whole = select(quotient.ne(0), floor, fn("copysign", expr.const(0, x.dtype), x / y))
    return select(y.eq(0), x / y, whole)


def _pow(x: Value, n: Value) -> Value:
    if x.dtype.is_float:
        return fn("pow", x, n)
    # Square and multiply, wrapping; a negative exponent leaves something only for 1 and -1.
    power, square = expr.const(1, x.dtype), x
    for k in range(x.dtype.bits - (1 if x.dtype.kind == "i" else 0)):
        power = power * select((n & (1 << k)).ne(0), square, 1)
        square = square * square
    odd = (n & 1).ne(0)
    inverse = select(x.eq(1), 1, select(x.eq(-1), select(odd, x, -x), expr.const(0, x.dtype)))
    return select(n < 0, inverse, power)


def _other_if_nan(name: str) -> Callable[..., Value]:
    return lambda x, y: select(x.ne(x), y, select(y.ne(y), x, fn(name, x, y)))


def _hypot(x: Value, y: Value) -> Value:
    """Scaled by the larger side, so that squares neither overflow nor vanish."""
    a, b = fn("abs", x), fn("abs", y)
    big, small = fn("max", a, b), fn("min", a, b)
    ratio = select(big.eq(0), 0.0, small / big)
    side = big * fn("sqrt", ratio * ratio + 1)
    return select(a.eq(math.inf) | b.eq(math.inf), math.inf, side)


def _logaddexp(x: Value, y: Value) -> Value:
    same = x.eq(y) & fn("abs", x).eq(math.inf)
    return select(same, x, fn("max", x, y) + fn("log1p", fn("exp", -fn("abs", x - y))))


def _logaddexp2(x: Value, y: Value) -> Value:
    same = x.eq(y) & fn("abs", x).eq(math.inf)
    more = fn("log1p", fn("exp2", -fn("abs", x - y))) * (1 / math.log(2))
    return select(same, x, fn("max", x, y) + more)


def _gelu_tanh(x: Value) -> Value:
    # (1 + tanh(y)) / 2 without its cancellation: the sigmoid of 2y.
    inner = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return x * fn("sigmoid", inner)


def _gelu_erf(x: Value) -> Value:
    return 0.5 * x * (1 + fn("erf", x * math.sqrt(0.5)))


# ---- unary

_ANY = "fiub"
_NUMBER = "fiu"

neg = _unary("neg", np.negative, kinds=_NUMBER, linear=(0,))
abs = _unary("abs", np.abs, kinds=_NUMBER)
exp = _unary("exp", np.exp)
exp2 = _unary("exp2", np.exp2)
expm1 = _unary("expm1", np.expm1, domain=(-1, 1))
log = _unary("log", np.log, domain=(0, 9))
log2 = _unary("log2", np.log2, domain=(0, 9))
log10 = _unary("log10", np.log10, domain=(0, 9))
log1p = _unary("log1p", np.log1p, domain=(-0.9, 2))
sqrt = _unary("sqrt", np.sqrt, domain=(0, 9))
rsqrt = _unary("rsqrt", lambda x: 1 / np.sqrt(x), domain=(0, 9))
sin = _unary("sin", np.sin, domain=(-40, 40))
cos = _unary("cos", np.cos, domain=(-40, 40))
tan = _unary("tan", np.tan)
asin = _unary("asin", np.arcsin, domain=(-1, 1))
acos = _unary("acos", np.arccos, domain=(-1, 1))
atan = _unary("atan", np.arctan)
sinh = _unary("sinh", np.sinh)
cosh = _unary("cosh", np.cosh)
tanh = _unary("tanh", np.tanh)
asinh = _unary("asinh", np.arcsinh)
acosh = _unary("acosh", np.arccosh, domain=(1, 9))
atanh = _unary("atanh", np.arctanh, domain=(-1, 1))
erf = _unary("erf", by_element(math.erf))
erfc = _unary("erfc", by_element(math.erfc))
erfinv = _unary("erfinv", by_element(special.erfinv), domain=(-1, 1))
# Near its zeros on the negative axis Python's lgamma is a difference of larger terms.
lgamma = _unary("lgamma", by_element(special.lgamma), domain=(3, 9), reference_error=2.0**-49)
digamma = _unary("digamma", by_element(special.digamma), domain=(2, 9))
sigmoid = _unary("sigmoid", lambda x: 1 / (1 + np.exp(-x)), domain=(-9, 9))
floor = _unary("floor", np.floor)
ceil = _unary("ceil", np.ceil)
trunc = _unary("trunc", np.trunc)
round = _unary("round", np.round)
sign = _unary("sign", lambda x: np.where(x > 0, 1, np.where(x < 0, -1, 0)), _sign, kinds=_NUMBER)
relu = _unary("relu", lambda x: np.where(x < 0, 0, x), lambda x: fn("max", x, 0), kinds=_NUMBER)
reciprocal = _unary("reciprocal", lambda x: 1 / x, lambda x: 1 / x)
square = _unary("square", np.square, lambda x: x * x, kinds=_NUMBER)
signbit = _unary("signbit", np.signbit, to_bool=True)
logical_not = _unary("logical_not", np.logical_not, _is("not"), kinds=_ANY, to_bool=True)
bitwise_not = _unary("bitwise_not", np.invert, lambda x: ~x, kinds="iub")
isnan = _unary("isnan", np.isnan, lambda x: x.ne(x), kinds=_ANY, to_bool=True)
isinf = _unary("isinf", np.isinf, _isinf, kinds=_ANY, to_bool=True)
isfinite = _unary("isfinite", np.isfinite, _isfinite, kinds=_ANY, to_bool=True)
silu = _unary("silu", lambda x: x / (1 + np.exp(-x)), _wide(lambda x: x * fn("sigmoid", x)))

# ---- binary

_COMPARE = {"kinds": _ANY, "to_bool": True}
_LOGIC = {"kinds": _ANY, "to_bool": True, "commutative": True}
_BITS = {"kinds": "iub", "commutative": True}

add = _binary("add", np.add, kinds=_ANY, commutative=True)
sub = _binary("sub", np.subtract, kinds=_NUMBER)
mul = _binary("mul", np.multiply, kinds=_ANY, commutative=True, linear=(0, 1))
div = _binary("div", np.divide, linear=(0,))
floordiv = _binary(
    "floordiv", exact_int(np.floor_divide, special.quotient), _wide(_floordiv), kinds=_NUMBER
)
mod = _binary("mod", exact_int(np.mod, special.modulus), kinds=_NUMBER)  # sign of the divisor
rem = _binary("rem", exact_int(np.fmod, special.remainder), kinds=_NUMBER)  # of the dividend
pow = _binary("pow", exact_int(np.power, special.power), _pow, kinds=_NUMBER, domain=(0, 3))
maximum = _binary("maximum", np.maximum, lambda x, y: fn("max", x, y), kinds=_ANY, commutative=True)
minimum = _binary("minimum", np.minimum, lambda x, y: fn("min", x, y), kinds=_ANY, commutative=True)
fmax = _binary("fmax", np.fmax, _other_if_nan("max"), kinds=_ANY, commutative=True)
fmin = _binary("fmin", np.fmin, _other_if_nan("min"), kinds=_ANY, commutative=True)
atan2 = _binary("atan2", np.arctan2)
hypot = _binary("hypot", np.hypot, _wide(_hypot), commutative=True)
_SUM = {"commutative": True, "cancels": True}
logaddexp = _binary("logaddexp", np.logaddexp, _wide(_logaddexp), **_SUM)
logaddexp2 = _binary("logaddexp2", np.logaddexp2, _wide(_logaddexp2), **_SUM)
copysign = _binary("copysign", np.copysign)
nextafter = _binary("nextafter", np.nextafter, least_bits=32, exact=True)
lt = _binary("lt", np.less, **_COMPARE)
le = _binary("le", np.less_equal, **_COMPARE)
gt = _binary("gt", np.greater, **_COMPARE)
ge = _binary("ge", np.greater_equal, **_COMPARE)
eq = _binary("eq", np.equal, **_LOGIC)
ne = _binary("ne", np.not_equal, **_LOGIC)
logical_and = _binary("logical_and", np.logical_and, _is("and"), **_LOGIC)
logical_or = _binary("logical_or", np.logical_or, _is("or"), **_LOGIC)
logical_xor = _binary("logical_xor", np.logical_xor, _is("xor"), **_LOGIC)
bitwise_and = _binary("bitwise_and", np.bitwise_and, lambda x, y: x & y, **_BITS)
bitwise_or = _binary("bitwise_or", np.bitwise_or, lambda x, y: x | y, **_BITS)
bitwise_xor = _binary("bitwise_xor", np.bitwise_xor, lambda x, y: x ^ y, **_BITS)
shl = _binary("shl", exact_int(None, special.shl), kinds="iu")
sar = _binary("sar", exact_int(None, special.sar), kinds="iu")  # keeps the sign
shr = _binary("shr", exact_int(None, special.shr), kinds="iu")  # fills with zeros

# ---- ternary, and those with attributes


@operator
class Where(Op):
    """a where the condition holds, else b."""

    elementwise: ClassVar[bool] = True

    def infer(self, c: TensorType, a: TensorType, b: TensorType) -> TensorType:
        want_kind("where (its condition)", c, "b")
        dtype = same_dtype("where", a, b)
        return TensorType(dtype, broadcast_shapes(c.shape, a.shape, b.shape, what="where"))

    def compute(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        shape = broadcast_shapes(c.shape, a.shape, b.shape)
        return expr.compute(shape, lambda *i: select(at(c, i), at(a, i), at(b, i)))

    def reference(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.choose(c.astype(np.int64), [b, a])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(), S.booleans(4, 5), S.normal(4, 5), S.normal(4, 5, seed=1))
        yield S.case(cls(), S.booleans(3, 1), S.normal(), S.normal(2, 1, 5, seed=1), dtype=bf16)
        yield S.case(cls(), S.booleans(), S.integers(3), S.integers(3, seed=1))
        yield S.case(cls(), S.booleans(14), S.extremes(14), S.extremes(1, dtype=f32))
        yield S.case(cls(), S.booleans(0, 1), S.normal(1, 3), S.normal(3, seed=1), dtype=f16)
        yield S.case(cls(), S.booleans(6), S.booleans(6, seed=1), S.booleans(6, seed=2))


@operator
class Gelu(Op):
    """x times the normal distribution function of x, by erf or by its tanh approximation."""

    elementwise: ClassVar[bool] = True
    approximate: str = "none"

    def infer(self, x: TensorType) -> TensorType:
        want_kind("gelu", x, "f")
        return x

    def compute(self, x: Tensor) -> Tensor:
        scalar = _wide(_gelu_tanh if self.approximate == "tanh" else _gelu_erf)
        return expr.compute(x.shape, lambda *i: scalar(x[i]))

    def reference(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            if self.approximate == "tanh":
                return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            return x * (0.5 + 0.5 * by_element(math.erf)(x / math.sqrt(2)).astype(x.dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for how in ("none", "tanh"):
            yield S.case(cls(how), S.uniform(5, 7, lo=-4, hi=4))
            yield S.case(cls(how), S.uniform(3, lo=-4, hi=4), dtype=bf16)
            yield S.case(cls(how), S.uniform(2, 2, lo=-4, hi=4), dtype=f16)
            yield S.case(cls(how), S.uniform(lo=-4, hi=4), dtype=f64)
            yield S.case(cls(how), S.extremes(14))
            yield S.case(cls(how), S.normal(0))


@operator
class Cast(Op):
    """Conversion. Floats become integers toward zero; out of range is unspecified, as in C."""

    elementwise: ClassVar[bool] = True
    dtype: DType

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(self.dtype, x.shape)

    def compute(self, x: Tensor) -> Tensor:
        return expr.compute(x.shape, lambda *i: x[i], self.dtype)

    def reference(self, x: np.ndarray) -> np.ndarray:
        if self.dtype.is_bool:
            return np.not_equal(x, 0)
        if self.dtype.is_float:
            return x.astype(np.float64)
        return (np.trunc(x) if x.dtype.kind == "f" else x).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u8, b1):
            yield S.case(cls(d), S.uniform(4, 5, lo=0, hi=100))
            yield S.case(cls(d), S.uniform(7, lo=0, hi=100), dtype=bf16)
            yield S.case(cls(d), S.integers(3, 3, lo=-100, hi=100))
            yield S.case(cls(d), S.integers(5, lo=0, hi=200, dtype=u8))
            yield S.case(cls(d), S.booleans(5))
            if d.kind in "fib":
                yield S.case(cls(d), S.uniform(9, lo=-100, hi=100))
            if d.kind in "fb":
                yield S.case(cls(d), S.extremes(14))
                yield S.case(cls(d), S.extremes(14, dtype=f64), dtype=f64)
        yield S.case(cls(f32), S.extremes(7, dtype=i64))
        yield S.case(cls(i8), S.extremes(7, dtype=i32))
        yield S.case(cls(i32), S.normal())
        yield S.case(cls(f16), S.normal(0, 2))


def where(c: Node, a: Operand, b: Operand) -> Node:
    """`a` where the boolean `c` holds, else `b`."""
    return node(Where(), c, *_operands("where", a, b))


def gelu(x: Node, approximate: str = "none") -> Node:
    """approximate: "none" (erf) or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise Invalid(f"gelu: approximate={approximate!r} should be 'none' or 'tanh'")
    return node(Gelu(approximate), x)


def cast(x: Node, dtype: DType) -> Node:
    """`x` in another dtype; the node itself where it already has it."""
    return x if x.dtype is dtype else node(Cast(dtype), x)
