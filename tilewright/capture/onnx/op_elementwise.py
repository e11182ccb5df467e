"""Functions of one element: arithmetic, activations, casts, bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tilewright import ops
from tilewright.capture.onnx.casts import cast_to
from tilewright.capture.onnx.context import Context, Value, translation
from tilewright.capture.onnx.elements import Narrow, dtype_for
from tilewright.ir.node import Node
from tilewright.ir.types import f32, f64

_ONE = {
    "Abs": ops.abs,
    "Acos": ops.acos,
    "Acosh": ops.acosh,
    "Asin": ops.asin,
    "Asinh": ops.asinh,
    "Atan": ops.atan,
    "Atanh": ops.atanh,
    "BitwiseNot": ops.bitwise_not,
    "Ceil": ops.ceil,
    "Cos": ops.cos,
    "Cosh": ops.cosh,
    "Erf": ops.erf,
    "Exp": ops.exp,
    "Floor": ops.floor,
    "Log": ops.log,
    "Neg": ops.neg,
    "Reciprocal": ops.reciprocal,
    "Relu": ops.relu,
    "Round": ops.round,
    "Sigmoid": ops.sigmoid,
    "Sign": ops.sign,
    "Sin": ops.sin,
    "Sinh": ops.sinh,
    "Sqrt": ops.sqrt,
    "Tan": ops.tan,
    "Tanh": ops.tanh,
}
_TWO = {
    "Add": ops.add,
    "Sub": ops.sub,
    "Mul": ops.mul,
    "BitwiseAnd": ops.bitwise_and,
    "BitwiseOr": ops.bitwise_or,
    "BitwiseXor": ops.bitwise_xor,
}


def _one(build: Callable[[Node], Node]) -> Callable[[Context, Node], Node]:
    return lambda c, x: build(x)


def _two(build: Callable[[Node, Node], Node]) -> Callable[[Context, Node, Node], Node]:
    return lambda c, x, y: build(x, y)


for _name, _build in _ONE.items():
    translation(_name)(_one(_build))
for _name, _build in _TWO.items():
    translation(_name)(_two(_build))


def like(x: Node, value: float) -> Node:
    """A number of the dtype of a tensor."""
    return ops.number(value, x.dtype)


@translation("Div")
def div(c: Context, x: Node, y: Node) -> Node:
    if x.dtype.is_float:
        return ops.div(x, y)
    q = ops.floordiv(x, y)
    if x.dtype.kind == "u":
        return q
    # Toward zero: one more than the floor where that is negative and there is a remainder.
    inexact = ops.ne(ops.mul(q, y), x)
    up = ops.logical_and(inexact, ops.lt(q, like(q, 0)))
    return ops.where(up, ops.add(q, like(q, 1)), q)


@translation("Mod")
def mod(c: Context, x: Node, y: Node) -> Node:
    return (ops.rem if c.get("fmod", 0) else ops.mod)(x, y)


@translation("Pow")
def power(c: Context, x: Node, y: Node) -> Node:
    if x.dtype.is_float:
        return ops.pow(x, ops.cast(y, x.dtype))
    if y.dtype is x.dtype:
        return ops.pow(x, y)
    return ops.cast(ops.pow(ops.cast(x, f64), ops.cast(y, f64)), x.dtype)


@translation("BitShift")
def bit_shift(c: Context, x: Node, y: Node) -> Node:
    if c.get("direction", "") == "LEFT":
        return ops.shl(x, y)
    return ops.sar(x, y) if x.dtype.kind == "i" else ops.shr(x, y)


def _fold(build: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    return lambda c, *xs: reduce(build, xs)


translation("Max")(_fold(ops.maximum))
translation("Min")(_fold(ops.minimum))
translation("Sum")(_fold(ops.add))


@translation("Mean")
def mean(c: Context, *xs: Node) -> Node:
    total = reduce(ops.add, xs)
    return ops.div(total, like(total, len(xs)))


@translation("Identity", narrow=True)
def identity(c: Context, x: Value) -> Value:
    return x


@translation("Cast", narrow=True)
def cast(c: Context, x: Node | Narrow) -> Node | Narrow:
    how = c.get("round_mode", "up")
    return cast_to(c, x, c.get("to", 0), bool(c.get("saturate", 1)), how)


@translation("CastLike", narrow=True)
def cast_like(c: Context, x: Node | Narrow, y: Node | Narrow) -> Node | Narrow:
    how = c.get("round_mode", "up")
    return cast_to(c, x, c.element(1), bool(c.get("saturate", 1)), how)


@translation("BitCast")
def bit_cast(c: Context, x: Node) -> Node:
    return ops.bit_cast(x, dtype_for(c.get("to", 0)))


@translation("Clip")
def clip(c: Context, x: Node, low: Node | None = None, high: Node | None = None) -> Node:
    if low is None and "min" in c.attributes:
        low = like(x, c.attributes["min"])
    if high is None and "max" in c.attributes:
        high = like(x, c.attributes["max"])
    x = x if low is None else ops.maximum(x, ops.reshape(low, ()))
    return x if high is None else ops.minimum(x, ops.reshape(high, ()))


# ---- activations


def _positive(x: Node) -> Node:
    return ops.gt(x, like(x, 0))


@translation("PRelu")
def prelu_by_channel(c: Context, x: Node, slope: Node) -> Node:
    """Before opset 7 a vector has a slope for each channel."""
    if slope.rank == 1 and x.rank > 2:
        slope = ops.reshape(slope, (slope.shape[0], *[1] * (x.rank - 2)))
    return prelu(c, x, slope)


@translation("PRelu", since=7)
def prelu(c: Context, x: Node, slope: Node) -> Node:
    return ops.where(ops.lt(x, like(x, 0)), ops.mul(x, slope), x)


@translation("LeakyRelu")
def leaky_relu(c: Context, x: Node) -> Node:
    return ops.where(ops.lt(x, like(x, 0)), ops.mul(x, like(x, c.get("alpha", 0.01))), x)


def _elu(x: Node, alpha: float) -> Node:
    return ops.where(_positive(x), x, ops.mul(like(x, alpha), ops.expm1(x)))


@translation("Elu")
def elu(c: Context, x: Node) -> Node:
    return _elu(x, c.get("alpha", 1.0))


@translation("Selu")
def selu(c: Context, x: Node) -> Node:
    alpha = c.get("alpha", 1.67326319217681884765625)
    return ops.mul(like(x, c.get("gamma", 1.05070102214813232421875)), _elu(x, alpha))


@translation("Celu")
def celu(c: Context, x: Node) -> Node:
    alpha = c.get("alpha", 1.0)
    below = ops.mul(like(x, alpha), ops.expm1(ops.div(x, like(x, alpha))))
    return ops.where(_positive(x), x, below)


def _hard_sigmoid(x: Node, alpha: float, beta: float) -> Node:
    line = ops.add(ops.mul(x, like(x, alpha)), like(x, beta))
    return ops.maximum(ops.minimum(line, like(x, 1)), like(x, 0))


@translation("HardSigmoid")
def hard_sigmoid(c: Context, x: Node) -> Node:
    return _hard_sigmoid(x, c.get("alpha", 0.2), c.get("beta", 0.5))


@translation("HardSwish")
def hard_swish(c: Context, x: Node) -> Node:
    return ops.mul(x, _hard_sigmoid(x, 1 / 6, 0.5))


@translation("Softplus")
def softplus(c: Context, x: Node) -> Node:
    # log(1 + e^x) as max(x, 0) + log(1 + e^-|x|), which does not overflow.
    rest = ops.log1p(ops.exp(ops.neg(ops.abs(x))))
    return ops.add(ops.relu(x), rest)


@translation("Softsign")
def softsign(c: Context, x: Node) -> Node:
    return ops.div(x, ops.add(like(x, 1), ops.abs(x)))


@translation("ThresholdedRelu")
def thresholded_relu(c: Context, x: Node) -> Node:
    return ops.where(ops.gt(x, like(x, c.get("alpha", 1.0))), x, like(x, 0))


@translation("Shrink")
def shrink(c: Context, x: Node) -> Node:
    wide = ops.cast(x, f32) if x.dtype.is_int else x
    bias, edge = like(wide, c.get("bias", 0.0)), like(wide, c.get("lambd", 0.5))
    inner = ops.where(ops.gt(wide, edge), ops.sub(wide, bias), like(wide, 0))
    found = ops.where(ops.lt(wide, ops.neg(edge)), ops.add(wide, bias), inner)
    return ops.cast(found, x.dtype)


@translation("Mish")
def mish(c: Context, x: Node) -> Node:
    return ops.mul(x, ops.tanh(softplus(c, x)))


@translation("Swish")
def swish(c: Context, x: Node) -> Node:
    return ops.mul(x, ops.sigmoid(ops.mul(x, like(x, c.get("alpha", 1.0)))))


@translation("Gelu")
def gelu(c: Context, x: Node) -> Node:
    return ops.gelu(x, c.get("approximate", "none"))
