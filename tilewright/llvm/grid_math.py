"""Scalar functions on a GPU, where an instruction of it is the better part of a polynomial.

A GPU has approximations of 2^x, 1/x and 1/sqrt(x), off by no more than two units in the last place
near zero; nothing is flushed to zero on the way. So exp2, rsqrt and sigmoid are good to three units
(measured on an H200: exp2 2.1, sigmoid 2.7). exp is 2^x of a rounded product, which is off by up to
70 units where the result is very large or very small: 2^-17, a hundredth of a unit of 16 bits.
All are more than `vmath.ERROR_BOUNDS` promises for float32: they are used in kernels all of whose
results are rounded to 16 bits or fewer, and in those that round what they compute to 16 bits before
they multiply it (the weights of attention, whatever else it stores: a logarithm of their sum is off
by 2^-17). tanh keeps its bound and is always used. Functions that are not here are the polynomials
of llvm/vmath. The check `function_errors` of tests/gpu measures both.

Terms of a sum have a formula of their own: exp as 2^n times the instruction's 2^f, good to three
units, in half as many instructions as the polynomial. A sum that may be added up in any order is
off by more than that anyway: by as many units as it has additions. Terms of a softmax are 2^x of a
rounded product (kernel/softmax_terms.py): a term 2^-t is off by t half units of its own, which is
less than a unit of the sum, whose largest term is 1. They are used where no other 2^x is.

In such kernels exp of a difference whose first operand is a product with a constant, as
exp(s * 0.125 - top) in a softmax, is 2^(s * k - top * log2(e)): product, difference and the factor
log2(e) are one instruction for each s. The result is off as if both operands of the difference had
been rounded once more, which the product has been anyway: by 2^-23 of their size, relative to it.

1 + erf(z), which gelu multiplies by, is erfc(-z) there: 2^p(|z|) for a polynomial p, or what that
lacks to 2. It is off by 2^-17 of the result above 0.005, by 2^-11 above 2^-55, and takes half as
many instructions as a polynomial of erf; small results keep their digits, which the sum loses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.ir.expr import Const, Fn, Value, const, fn, walk
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel.nest import Stmt, Store, own_values
from tilewright.kernel.nest import walk as walk_nest
from tilewright.llvm.scalar_types import literal, register_type, vector
from tilewright.llvm.scalars import Arith

_LOG2E = 1.4426950408889634
_LOG2E_HIGH = 1.44269502162933349609375  # as a float32
_LOG2E_LOW = _LOG2E - _LOG2E_HIGH
# Adding it leaves an integer, and the exponent of a float32 that is its power of two, in the low
# bits of the sum. Exponents stay within those of normal numbers; the rest is left to 2^x.
_MAGIC = 12582912.0 + 127.0
_REACH = 126.0
# tanh(x) = x + x^3 p(x^2) for small arguments; largest error relative to tanh 3e-9.
_TANH = (-0.33333298, 0.13331923, -0.05378377, 0.0207958, -0.00589496)
_TANH_SMALL = 0.6
# log2(erfc(x)) for x from 0 to 6; errors count less from 2 on. Larger x only get smaller results.
_LOG2_ERFC = (
    -9.709558071335778e-06,
    -1.6278690099716187,
    -0.9178177118301392,
    -0.15133929252624512,
    0.033133652061223984,
    -0.004941545892506838,
    0.0004360747698228806,
    -1.6900505215744488e-05,
)


class _Text:
    """A function of one float being written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declares: set[str] = set()

    def put(self, text: str) -> str:
        self.lines.append(f"  %v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def number(self, x: str | float) -> str:
        return x if isinstance(x, str) else literal(x, f32)

    def call(self, name: str, *args: str | float) -> str:
        self.declares.add(f"declare float @llvm.{name}({', '.join(['float'] * len(args))})")
        given = ", ".join(f"float {self.number(a)}" for a in args)
        return self.put(f"call float @llvm.{name}({given})")

    def fma(self, a: str | float, b: str | float, c: str | float) -> str:
        return self.call("fma.f32", a, b, c)

    def op(self, code: str, a: str | float, b: str | float) -> str:
        return self.put(f"{code} float {self.number(a)}, {self.number(b)}")

    def negated(self, x: str) -> str:
        return self.put(f"fneg float {x}")

    def choose(self, c: str, a: str, b: str) -> str:
        return self.put(f"select i1 {c}, float {a}, float {b}")

    # ---- what functions are made of

    def power(self, x: str, high: float, low: float) -> str:
        """2^(x * (high + low)): a power of two times 2^f of a small f."""
        sum_ = self.fma(x, high, _MAGIC)
        least = self.call("maxnum.f32", sum_, _MAGIC - _REACH)
        sum_ = self.call("minnum.f32", least, _MAGIC + _REACH)
        whole = self.op("fadd", sum_, -_MAGIC)
        rest = self.fma(x, high, self.negated(whole))
        if low:
            rest = self.fma(x, low, rest)
        small = self.call("nvvm.ex2.approx.ftz.f", rest)
        bits = self.put(f"bitcast float {sum_} to i32")
        scale = self.put(f"bitcast i32 {self.put(f'shl i32 {bits}, 23')} to float")
        return self.op("fmul", small, scale)

    def polynomial(self, coefficients: tuple[float, ...], x: str) -> str:
        p: str | float = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            p = self.fma(p, x, c)
        assert isinstance(p, str)
        return p

    def reciprocal(self, x: str) -> str:
        """1/x of an x between 1 and 2^60."""
        r = self.call("nvvm.rcp.approx.ftz.f", x)
        return self.fma(r, self.fma(self.negated(x), r, 1.0), r)


def _exp(t: _Text, x: str) -> str:
    return _exp2(t, t.op("fmul", x, _LOG2E_HIGH))


def _exp_of_term(t: _Text, x: str) -> str:
    return t.power(x, _LOG2E_HIGH, _LOG2E_LOW)


def _exp2(t: _Text, x: str) -> str:
    """The instruction alone, off by 2.06 units at most on an H200. Results below 2^-126 are zero,
    as Triton's: to keep them takes three instructions more, a quarter of an attention's loop."""
    return t.call("nvvm.ex2.approx.ftz.f", x)


def _sigmoid(t: _Text, x: str) -> str:
    """e^-|x| is at most 1: neither it nor its sum with 1 overflows, small results stay exact."""
    size = t.call("fabs.f32", x)
    e = t.power(size, -_LOG2E_HIGH, -_LOG2E_LOW)
    r = t.reciprocal(t.op("fadd", e, 1.0))
    positive = t.put(f"fcmp oge float {x}, {t.number(0.0)}")
    # e/(1+e) as e - e * e/(1+e): where e is small, errors of the quotient are smaller still.
    return t.choose(positive, r, t.fma(t.negated(e), t.op("fmul", e, r), e))


def _tanh(t: _Text, x: str) -> str:
    """1 - 2/(e^2|x| + 1), or a polynomial where that would lose digits."""
    size = t.call("fabs.f32", x)
    e = t.call("nvvm.ex2.approx.ftz.f", t.op("fmul", size, 2 * _LOG2E))
    r = t.call("nvvm.rcp.approx.ftz.f", t.op("fadd", e, 1.0))
    large = t.call("copysign.f32", t.fma(r, -2.0, 1.0), x)
    square = t.op("fmul", x, x)
    small = t.fma(t.op("fmul", square, t.polynomial(_TANH, square)), x, x)
    near = t.put(f"fcmp olt float {size}, {t.number(_TANH_SMALL)}")
    return t.choose(near, small, large)


def _rsqrt(t: _Text, x: str) -> str:
    """The instruction alone, off by 2^-22.9 of the result; nothing is flushed to zero."""
    return t.call("nvvm.rsqrt.approx.f", x)


def _erfc(t: _Text, x: str) -> str:
    e = _exp2(t, t.polynomial(_LOG2_ERFC, t.call("fabs.f32", x)))
    negative = t.put(f"fcmp olt float {x}, {t.number(0.0)}")
    return t.choose(negative, t.op("fsub", 2.0, e), e)


FUNCTIONS = {
    "exp": _exp,
    "exp2": _exp2,
    "rsqrt": _rsqrt,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "erfc": _erfc,
}
EXACT = frozenset({"tanh"})  # those within the bounds of float32
# Formulas for terms of a sum; 2^x for those of a softmax alone.
TERMS = {"exp": _exp_of_term, "exp2": _exp2}
# Functions that are an instruction or two.
_LIGHT = frozenset({"add", "sub", "mul", "neg", "fma", "max", "min", "cast", "select"})
# What keeps the relative error of an operand: a sum of it may cancel, a function magnify it.
_FACTORS = frozenset({"mul", "neg", "cast", "select"})


def only_terms(launch: tuple[Stmt, ...]) -> frozenset[str]:
    """Functions that are used for terms of sums (or factors of them), and for nothing else; "exp2",
    which then is one of a softmax, where the launch has none itself."""
    terms = {"exp2"}
    others: set[str] = set()
    for s, _ in walk_nest(launch):
        for v in own_values(s):
            used = {x for x in walk(v) if isinstance(x, Fn) and x.name in TERMS}
            summed = isinstance(s, Store) and s.function == "add" and v is s.value
            factors = {x for x in used if x.name != "exp2"} & set(_factors(v)) if summed else set()
            terms |= {x.name for x in used & factors}
            others |= {x.name for x in used - factors}
    return frozenset(terms - others)


def rounds_factors(launch: tuple[Stmt, ...]) -> bool:
    """Does an instruction multiply what is computed here and rounded to 16 bits?"""
    rounded: set[str] = set()
    multiplied: set[str] = set()
    for s, path in walk_nest(launch):
        if not isinstance(s, Store):
            continue
        v = s.value
        if isinstance(v, Fn) and v.name == "cast" and v.dtype.is_float and v.dtype.bits == 16:
            rounded |= {s.buffer} if v.args[0].dtype is f32 else set()
        if any(x.kind == "tensor" for x in path):
            multiplied |= set(map(str, v.sources))
    return bool(rounded & multiplied)


def _factors(v: Value) -> Iterator[Value]:
    yield v
    if isinstance(v, Fn) and v.name in _FACTORS and v.dtype.is_float:
        for x in v.args[1:] if v.name == "select" else v.args:
            yield from _factors(x)


def definition(symbol: str, f: Callable[[_Text, str], str]) -> tuple[str, frozenset[str]]:
    """A function of float32 and the intrinsics that it calls."""
    t = _Text()
    result = f(t, "%x")
    head = f"define internal float @{symbol}(float %x) alwaysinline nounwind {{"
    return "\n".join([head, *t.lines, f"  ret float {result}", "}"]), frozenset(t.declares)


@dataclass
class GridArith(Arith):
    """Scalar functions with a GPU's instructions; with `short`, for results of 16 bits or fewer.
    `terms` are those that are terms of sums wherever they are used, `softmax` the terms of one."""

    short: bool = False
    terms: frozenset[str] = frozenset()
    softmax: frozenset[Value] = frozenset()

    def _float(self, name: str, d: DType, t: str, lanes: int, a: list[str], flag: str = "") -> str:
        """Quotients off by at most 2 units, where results are short."""
        if name != "div" or not self.short or t != "float" or self.strict:
            return super()._float(name, d, t, lanes, a, flag)
        self.declares.add("declare float @llvm.nvvm.div.full(float, float)")
        return self._each("@llvm.nvvm.div.full", lanes, *a)

    def horizontal(self, combine: str, x: str, d: DType, lanes: int, of: Value) -> str:
        """Products are added up in their order: each is one instruction with its addition."""
        product = isinstance(of, Fn) and of.name == "mul" and combine == "add"
        if not product or self.strict or register_type(d) != "float":
            return super().horizontal(combine, x, d, lanes, of)
        name, v = f"@llvm.vector.reduce.fadd.v{lanes}f32", vector("float", lanes)
        self.declares.add(f"declare float {name}(float, {v})")
        zero = literal(-0.0, f32)
        return self.put(f"call contract float {name}(float {zero}, {v} {x})")

    def _widened(self, x: str, d: DType, lanes: int) -> str:
        """Two numbers of bf16 are the halves of a register: one is shifted up, one has the other
        masked out."""
        if d is not bf16 or lanes % 2:
            return super()._widened(x, d, lanes)
        pairs = vector("i32", lanes // 2)
        both = self.put(f"bitcast {vector('i16', lanes)} {x} to {pairs}")
        sixteen, mask = (self.splat_literal(c, "i32", lanes // 2) for c in ("16", "-65536"))
        low, high = (
            self.put(f"shl {pairs} {both}, {sixteen}"),
            self.put(f"and {pairs} {both}, {mask}"),
        )
        if lanes == 2:
            one = self.put(f"insertelement <2 x i32> poison, i32 {low}, i64 0")
            made = self.put(f"insertelement <2 x i32> {one}, i32 {high}, i64 1")
        else:
            which = ", ".join(f"i32 {k // 2 + k % 2 * (lanes // 2)}" for k in range(lanes))
            either = f"{pairs} {low}, {pairs} {high}"
            made = self.put(f"shufflevector {either}, <{lanes} x i32> <{which}>")
        return self.put(f"bitcast {vector('i32', lanes)} {made} to {vector('float', lanes)}")

    def math(self, name: str, d: DType, lanes: int, *args: str) -> str:
        short = self.short or d.bits <= 16 or name in EXACT
        f = FUNCTIONS.get(name) if short else TERMS.get(name) if name in self.terms else None
        if f is None or register_type(d) != "float":
            return super().math(name, d, lanes, *args)
        symbol = f"tw.grid.{name}{'' if short else '.term'}"
        self.defines[symbol], declares = definition(symbol, f)
        self.declares |= declares
        return self._each(f"@{symbol}", lanes, args[0])

    def instead(self, v: Value) -> Value | None:
        """exp(x * c - y) as 2^(x * (c log2(e)) - y * log2(e)); exp(x) of a softmax as
        2^(x log2(e)), and a quotient of it as a product, which is off by 1.5 units at most, as is
        that for a quotient by a constant; 1 + erf(x) as erfc(-x)."""
        if v in self.softmax and isinstance(v, Fn) and not self.short:
            if v.name == "div":
                return fn("mul", v.args[0], fn("div", const(1.0, f32), v.args[1]))
            if "exp2" in self.terms:
                return fn("exp2", fn("mul", v.args[0], const(_LOG2E_HIGH, f32)))
        if not self.short or self.strict or not isinstance(v, Fn) or v.dtype is not f32:
            return None
        if v.name == "div" and isinstance(v.args[1], Const):
            by = float(v.args[1].value)
            normal = 2.0**-100 <= abs(by) <= 2.0**100
            return fn("mul", v.args[0], const(1 / by, f32)) if normal else None
        if v.name == "add":
            for one, other in (v.args, v.args[::-1]):
                unit = isinstance(one, Const) and one.value == 1
                if unit and isinstance(other, Fn) and other.name == "erf":
                    return fn("erfc", fn("neg", other.args[0]))
        if v.name != "exp":
            return None
        (difference,) = v.args
        if not isinstance(difference, Fn) or difference.name != "sub":
            return None
        a, b = difference.args
        if not isinstance(a, Fn) or a.name != "mul" or not isinstance(a.args[1], Const):
            return None
        times = const(float(a.args[1].value) * _LOG2E, f32)
        return fn("exp2", fn("fma", a.args[0], times, fn("mul", b, const(-_LOG2E, f32))))

    def is_light(self, v: Value) -> bool:
        light = (x.name in _LIGHT or x in self.softmax for x in walk(v) if isinstance(x, Fn))
        return all(light)

    def _each(self, name: str, lanes: int, *args: str) -> str:
        """A function of one number, for every lane."""
        if lanes == 1:
            return self.put(f"call float {name}({', '.join(f'float {x}' for x in args)})")
        v, r = vector("float", lanes), "poison"
        for k in range(lanes):
            own = [self.put(f"extractelement {v} {x}, i64 {k}") for x in args]
            y = self.put(f"call float {name}({', '.join(f'float {x}' for x in own)})")
            r = self.put(f"insertelement {v} {r}, float {y}, i64 {k}")
        return r
