"""Functions of single elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.capture.to_onnx.writer import Out, Writer, writes
from tilewright.ir.node import Constant, Node
from tilewright.ir.types import b1
from tilewright.ops.creation import Full
from tilewright.ops.elementwise import Gelu

_SAME = {
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "neg": "Neg",
    "relu": "Relu",
    "reciprocal": "Reciprocal",
    "sub": "Sub",
    "div": "Div",
    "where": "Where",
}
_COMPARED = {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
# By operator: ONNX's name for numbers, and for booleans.
_OF_BOTH = {
    "add": ("Add", "Or"),
    "mul": ("Mul", "And"),
    "maximum": ("Max", "Or"),
    "minimum": ("Min", "And"),
    "bitwise_and": ("BitwiseAnd", "And"),
    "bitwise_or": ("BitwiseOr", "Or"),
    "bitwise_xor": ("BitwiseXor", "Xor"),
    "bitwise_not": ("BitwiseNot", "Not"),
}


def _same(kind: str) -> Callable[..., Out]:
    return lambda w, n, *xs: w.op(kind, *xs, dtype=n.dtype)


def _of_both(kind: str, of_bool: str) -> Callable[..., Out]:
    return lambda w, n, *xs: w.op(of_bool if xs[0].dtype.is_bool else kind, *xs)


def _logical(kind: str) -> Callable[..., Out]:
    return lambda w, n, *xs: w.op(kind, *(w.cast(x, b1) for x in xs))


for _name, _kind in _SAME.items():
    writes(_name)(_same(_kind))
for _name, _kind in _COMPARED.items():
    writes(_name)(_same(_kind))
for _name, _kind in _LOGICAL.items():
    writes(_name)(_logical(_kind))
for _name, _kinds in _OF_BOTH.items():
    writes(_name)(_of_both(*_kinds))


@writes("logical_not")
def logical_not(w: Writer, n: Node, x: Out) -> Out:
    return w.negated(w.cast(x, b1))


def _equal(w: Writer, x: Out, y: Out) -> Out:
    return w.op("Equal", x, y, dtype=b1)


@writes("eq")
def eq(w: Writer, n: Node, x: Out, y: Out) -> Out:
    return _equal(w, x, y)


@writes("ne")
def ne(w: Writer, n: Node, x: Out, y: Out) -> Out:
    return w.negated(_equal(w, x, y))


@writes("isnan")
def isnan(w: Writer, n: Node, x: Out) -> Out:
    return w.negated(_equal(w, x, x))


def _infinite(w: Writer, x: Out) -> Out:
    return _equal(w, w.op("Abs", x), w.number(math.inf, x.dtype))


@writes("isinf")
def isinf(w: Writer, n: Node, x: Out) -> Out:
    return _infinite(w, x) if x.dtype.is_float else w.negated(_equal(w, x, x))


@writes("isfinite")
def isfinite(w: Writer, n: Node, x: Out) -> Out:
    if not x.dtype.is_float:
        return _equal(w, x, x)
    return w.op("Less", w.op("Abs", x), w.number(math.inf, x.dtype), dtype=b1)


@writes("cast")
def cast(w: Writer, n: Node, x: Out) -> Out:
    return w.cast(x, n.dtype)


@writes("square")
def square(w: Writer, n: Node, x: Out) -> Out:
    return w.op("Mul", x, x)


@writes("rsqrt")
def rsqrt(w: Writer, n: Node, x: Out) -> Out:
    return w.op("Reciprocal", w.op("Sqrt", x))


@writes("trunc")
def trunc(w: Writer, n: Node, x: Out) -> Out:
    below = w.op("Less", x, w.number(0, x.dtype), dtype=b1)
    return w.op("Where", below, w.op("Ceil", x), w.op("Floor", x), dtype=x.dtype)


@writes("sign")
def sign(w: Writer, n: Node, x: Out) -> Out:
    zero, one = w.number(0, x.dtype), w.number(1, x.dtype)
    above = w.op("Greater", x, zero, dtype=b1)
    if x.dtype.kind == "u":
        return w.op("Where", above, one, zero, dtype=x.dtype)
    below = w.op("Less", x, zero, dtype=b1)
    least = w.op("Where", below, w.number(-1, x.dtype), zero, dtype=x.dtype)
    return w.op("Where", above, one, least, dtype=x.dtype)


def _times(w: Writer, x: Out, factor: float) -> Out:
    return w.op("Mul", x, w.number(factor, x.dtype))


@writes("log2")
def log2(w: Writer, n: Node, x: Out) -> Out:
    return _times(w, w.op("Log", x), 1 / math.log(2))


@writes("log10")
def log10(w: Writer, n: Node, x: Out) -> Out:
    return _times(w, w.op("Log", x), 1 / math.log(10))


@writes("exp2")
def exp2(w: Writer, n: Node, x: Out) -> Out:
    return w.op("Pow", w.number(2, x.dtype), x)


@writes("expm1")
def expm1(w: Writer, n: Node, x: Out) -> Out:
    """Near 0 by the hyperbolic tangent of x/2: exp(x) - 1 would cancel there."""
    half = w.op("Tanh", _times(w, x, 0.5))
    one = w.number(1, x.dtype)
    near = w.op("Div", w.op("Add", half, half), w.op("Sub", one, half))
    close = w.op("Less", w.op("Abs", x), one, dtype=b1)
    return w.op("Where", close, near, w.op("Sub", w.op("Exp", x), one), dtype=x.dtype)


@writes("log1p")
def log1p(w: Writer, n: Node, x: Out) -> Out:
    return _log1p(w, x)


def _log1p(w: Writer, x: Out) -> Out:
    """log(1 + x), times what the rounding of 1 + x changed."""
    one = w.number(1, x.dtype)
    more = w.op("Add", x, one)
    rest = w.op("Sub", more, one)
    plain = w.op("Log", more)
    exact = w.op("Mul", plain, w.op("Div", x, rest))
    lost = _equal(w, rest, w.number(0, x.dtype))
    far = w.op("Greater", w.op("Abs", x), one, dtype=b1)
    near = w.op("Where", lost, x, exact, dtype=x.dtype)
    return w.op("Where", far, plain, near, dtype=x.dtype)


@writes("silu")
def silu(w: Writer, n: Node, x: Out) -> Out:
    return w.op("Mul", x, w.op("Sigmoid", x))


@writes("gelu", since=20)
def gelu(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Gelu)
    return w.op("Gelu", x, approximate=n.op.approximate)


@writes("gelu")
def gelu_by_parts(w: Writer, n: Node, x: Out) -> Out:
    assert isinstance(n.op, Gelu)
    if n.op.approximate == "tanh":
        cube = w.op("Mul", w.op("Mul", x, x), x)
        inner = w.op("Add", x, _times(w, cube, 0.044715))
        return w.op("Mul", x, w.op("Sigmoid", _times(w, inner, 2 * math.sqrt(2 / math.pi))))
    part = w.op("Add", w.op("Erf", _times(w, x, math.sqrt(0.5))), w.number(1, x.dtype))
    return w.op("Mul", _times(w, x, 0.5), part)


# ---- division, powers, shifts


@writes("rem")
def rem(w: Writer, n: Node, x: Out, y: Out) -> Out:
    return w.op("Mod", x, y, fmod=1)


@writes("mod")
def mod(w: Writer, n: Node, x: Out, y: Out) -> Out:
    return _mod(w, x, y)


def _mod(w: Writer, x: Out, y: Out) -> Out:
    """Of the sign of the divisor."""
    if x.dtype.is_int:
        return w.op("Mod", x, y)
    rest = w.op("Mod", x, y, fmod=1)
    other = _signs_differ(w, rest, y)
    return w.op("Where", other, w.op("Add", rest, y), rest, dtype=x.dtype)


def _signs_differ(w: Writer, rest: Out, y: Out) -> Out:
    """Is there a rest of the other sign than the divisor?"""
    zero = w.number(0, y.dtype)
    signs = [w.op("Less", v, zero, dtype=b1) for v in (rest, y)]
    return w.op("And", w.negated(_equal(w, rest, zero)), w.op("Xor", *signs))


@writes("floordiv")
def floordiv(w: Writer, n: Node, x: Out, y: Out) -> Out:
    """What is left after the rest is divided exactly, or nearly so."""
    rest = w.op("Mod", x, y, fmod=1)
    if x.dtype.is_int:  # toward zero, so far
        whole = w.op("Div", x, y)
        if x.dtype.kind == "u":
            return whole
    else:
        whole = w.op("Div", w.op("Sub", x, rest), y)
    less = w.op("Sub", whole, w.number(1, x.dtype))
    whole = w.op("Where", _signs_differ(w, rest, y), less, whole, dtype=x.dtype)
    if x.dtype.is_int:
        return whole
    special = _equal(w, y, w.number(0, y.dtype))
    return w.op("Where", special, w.op("Div", x, y), w.op("Round", whole), dtype=x.dtype)


@writes("pow")
def power(w: Writer, n: Node, x: Out, y: Out) -> Out:
    if x.dtype.is_int and _known(n.inputs[1]) is None:
        w.refuse("a power of integers whose exponent is not known: negative ones are open")
    return w.op("Pow", x, y)


def _known(n: Node) -> int | None:
    """The only value of an operand, where it is known and not negative."""
    op = n.op
    value = op.literal.array if isinstance(op, Constant) else None
    if isinstance(op, Full):
        value = np.array(op.value)
    if value is None or value.size != 1 or value.reshape(()) < 0:
        return None
    return int(value.reshape(()))


def _shift(w: Writer, n: Node) -> int:
    """The number of bits, which has to be known: ONNX leaves open what others do."""
    by = _known(n.inputs[1])
    if by is None or by >= n.dtype.bits - 1:
        w.refuse("a shift by bits that are not known, or by all of them")
    return by


@writes("shl")
def shl(w: Writer, n: Node, x: Out, y: Out) -> Out:
    return w.op("Mul", x, w.number(1 << _shift(w, n), x.dtype))


@writes("sar")
def sar(w: Writer, n: Node, x: Out, y: Out) -> Out:
    by = w.number(1 << _shift(w, n), x.dtype)
    return w.op("Div", w.op("Sub", x, w.op("Mod", x, by)), by)


@writes("shr")
def shr(w: Writer, n: Node, x: Out, y: Out) -> Out:
    if x.dtype.kind != "u":
        w.refuse("a shift of a signed number that fills with zeros")
    return w.op("Div", x, w.number(1 << _shift(w, n), x.dtype))


# ---- two operands


@writes("fmax", "fmin")
def fmax(w: Writer, n: Node, x: Out, y: Out) -> Out:
    """The other one where one is NaN."""
    larger = n.op.name == "fmax"
    if x.dtype.is_bool:
        return w.op("Or" if larger else "And", x, y)
    found = w.op("Max" if larger else "Min", x, y)
    if not x.dtype.is_float:
        return found
    found = w.op("Where", _equal(w, y, y), found, x, dtype=x.dtype)
    return w.op("Where", _equal(w, x, x), found, y, dtype=x.dtype)


@writes("hypot")
def hypot(w: Writer, n: Node, x: Out, y: Out) -> Out:
    """Scaled by the larger side, so that squares neither overflow nor vanish."""
    a, b = w.op("Abs", x), w.op("Abs", y)
    big, small = w.op("Max", a, b), w.op("Min", a, b)
    zero = w.number(0, x.dtype)
    flat = w.op("Or", _equal(w, big, zero), _infinite(w, big))
    ratio = w.op("Where", flat, zero, w.op("Div", small, big), dtype=x.dtype)
    more = w.op("Add", w.op("Mul", ratio, ratio), w.number(1, x.dtype))
    side = w.op("Mul", big, w.op("Sqrt", more))
    infinite = w.op("Or", _infinite(w, a), _infinite(w, b))
    return w.op("Where", infinite, w.number(math.inf, x.dtype), side, dtype=x.dtype)


@writes("logaddexp", "logaddexp2")
def logaddexp(w: Writer, n: Node, x: Out, y: Out) -> Out:
    base = 2.0 if n.op.name == "logaddexp2" else math.e
    gap = w.op("Neg", w.op("Abs", w.op("Sub", x, y)))
    more = w.op("Exp", gap) if base == math.e else w.op("Pow", w.number(2, x.dtype), gap)
    tail = _log1p(w, more)
    tail = tail if base == math.e else _times(w, tail, 1 / math.log(2))
    same = w.op("And", _equal(w, x, y), _infinite(w, x))
    return w.op("Where", same, x, w.op("Add", w.op("Max", x, y), tail), dtype=x.dtype)


def _signbit(w: Writer, x: Out) -> Out:
    """Below zero, or the zero whose reciprocal is."""
    zero = w.number(0, x.dtype)
    below = w.op("Less", x, zero, dtype=b1)
    turned = w.op("Less", w.op("Reciprocal", x), zero, dtype=b1)
    return w.op("Or", below, w.op("And", _equal(w, x, zero), turned))


@writes("signbit")
def signbit(w: Writer, n: Node, x: Out) -> Out:
    return _signbit(w, x)


def _copysign(w: Writer, x: Out, y: Out) -> Out:
    size = w.op("Abs", x)
    return w.op("Where", _signbit(w, y), w.op("Neg", size), size, dtype=x.dtype)


@writes("copysign")
def copysign(w: Writer, n: Node, x: Out, y: Out) -> Out:
    return _copysign(w, x, y)


@writes("atan2")
def atan2(w: Writer, n: Node, y: Out, x: Out) -> Out:
    """The angle in the first quadrant, moved to that of the signs."""
    a, b = w.op("Abs", y), w.op("Abs", x)
    zero, one = w.number(0, x.dtype), w.number(1, x.dtype)
    nothing = w.op("And", _equal(w, a, zero), _equal(w, b, zero))
    infinite = w.op("And", _infinite(w, a), _infinite(w, b))
    ratio = w.op("Where", infinite, one, w.op("Div", a, b), dtype=x.dtype)
    angle = w.op("Atan", w.op("Where", nothing, zero, ratio, dtype=x.dtype))
    other = w.op("Sub", w.number(math.pi, x.dtype), angle)
    return _copysign(w, w.op("Where", _signbit(w, x), other, angle, dtype=x.dtype), y)
