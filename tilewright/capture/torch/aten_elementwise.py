"""Elementwise ATen operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, Operand, cast
from tilewright.capture.torch.eager import rounds_scaled
from tilewright.capture.torch.registry import Untranslated, aten
from tilewright.ir.node import Node
from tilewright.ir.types import b1, bf16, f16, f32, f64, i64

# Floats in, floats out; integers become the default float first.
_FLOAT_UNARY = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh
    acosh atanh erf erfc erfinv lgamma digamma sigmoid reciprocal
""".split()
# The dtype stays.
_SAME_UNARY = "neg abs relu square bitwise_not".split()
# Integers are whole already.
_ROUNDING = "floor ceil trunc round".split()
_TO_BOOL = "isnan isinf isfinite logical_not".split()


def _register_unary() -> None:
    def float_unary(name: str) -> Callable[..., Node]:
        return lambda c, x: c.compute(getattr(ops, name), x, to_float=True)

    def same_unary(name: str) -> Callable[..., Node]:
        return lambda c, x: x if name == "abs" and x.dtype.kind in "ub" else getattr(ops, name)(x)

    def rounding(name: str) -> Callable[..., Node]:
        return lambda c, x: getattr(ops, name)(x) if x.dtype.is_float else x

    for name in _FLOAT_UNARY:
        aten(f"{name}.default")(float_unary(name))
    for name in _SAME_UNARY:
        aten(f"{name}.default")(same_unary(name))
    for name in _ROUNDING:
        aten(f"{name}.default")(rounding(name))
    for name in _TO_BOOL:
        aten(f"{name}.default")(lambda c, x, name=name: getattr(ops, name)(x))


_register_unary()


@aten("sign.default", "sgn.default")
def sign(c: Context, x: Node) -> Node:
    return x if x.dtype.is_bool else ops.sign(x)


@aten("signbit.default")
def signbit(c: Context, x: Node) -> Node:
    if x.dtype.is_float:
        return ops.signbit(x)
    if x.dtype.kind == "i":
        return ops.lt(x, c.number(0, x.dtype))
    return ops.full(x.shape, False, b1)


@aten("round.decimals")
def round_decimals(c: Context, x: Node, decimals: int = 0) -> Node:
    if not x.dtype.is_float:
        return x
    if decimals == 0:
        return ops.round(x)
    ten = float(10 ** abs(decimals))

    def rounded(v: Node) -> Node:
        k = c.number(ten, v.dtype)
        if decimals > 0:
            return ops.div(ops.round(ops.mul(v, k)), k)
        return ops.mul(ops.round(ops.div(v, k)), k)

    return _in_float32(x, rounded)


def _in_float32(x: Node, fn: Callable[[Node], Node]) -> Node:
    """16-bit floats go through float32, as eager's kernels do."""
    return cast(fn(cast(x, f32)), x.dtype) if x.dtype in (f16, bf16) else fn(x)


# ---- arithmetic


def _scaled(c: Context, y: Operand, alpha: Any, like: Node) -> Node:
    y = c.node(y, like.dtype)
    return (
        y if alpha == 1 and not isinstance(alpha, Node) else ops.mul(y, c.node(alpha, like.dtype))
    )


def _add(c: Context, fn: Callable[[Node, Node], Node], x: Operand, y: Operand, alpha: Any) -> Node:
    plain = isinstance(alpha, (int, float)) and alpha == 1
    if plain:
        return c.compute(fn, x, y)
    # Of 16-bit floats eager rounds the factor, and on some machines the product.
    d = c.promote(x, y)[1]
    a = c.node(x, d)
    if d in (f16, bf16) and not rounds_scaled(d):
        product = ops.mul(cast(c.node(y, d), f32), cast(c.node(alpha, d), f32))
        return cast(cast(fn(cast(a, f32), product), d), c.out().dtype)
    return cast(fn(a, _scaled(c, y, alpha, a)), c.out().dtype)


@aten("add.Tensor", "add.Scalar", "operator.add")
def add(c: Context, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    return _add(c, ops.add, x, y, alpha)


@aten("sub.Tensor", "sub.Scalar", "operator.sub")
def sub(c: Context, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    return _add(c, ops.sub, x, y, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(c: Context, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    return _add(c, ops.sub, y, x, alpha)


@aten("mul.Tensor", "mul.Scalar", "operator.mul")
def mul(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.mul, x, y, wide=True)


@aten("prims.fma.default")
def fma(c: Context, x: Node, y: Node, z: Node) -> Node:
    return ops.add(ops.mul(x, y), z)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "operator.truediv")
def div(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.div, x, y, to_float=True, wide=True)


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(c: Context, x: Operand, y: Operand, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return div(c, x, y)
    if rounding_mode == "floor":
        return floor_divide(c, x, y)
    d = c.promote(x, y)[1]
    if d.is_float:
        return c.compute(lambda a, b: ops.trunc(ops.div(a, b)), x, y)

    def truncated(a: Node, b: Node) -> Node:
        c.checks.divisor(b)
        # (a - a rem b) divides exactly, so flooring it is truncating a / b.
        return ops.floordiv(ops.sub(a, ops.rem(a, b)), b)

    return c.compute(truncated, x, y)


@aten("floor_divide.default", "floor_divide.Scalar", "operator.floordiv")
def floor_divide(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(_checked(c, _floor_divide), x, y)


def _checked(c: Context, divide: Callable[[Node, Node], Node]) -> Callable[[Node, Node], Node]:
    """A division of integers raises where the divisor is 0."""

    def checked(a: Node, b: Node) -> Node:
        c.checks.divisor(b)
        return divide(a, b)

    return checked


def _floor_divide(a: Node, b: Node) -> Node:
    """Floats as eager divides them: from the exact remainder, so that 1 // 0.1 is 9 and not 10."""
    if not a.dtype.is_float:
        return ops.floordiv(a, b)
    rem = ops.rem(a, b)
    zero, one = ops.full((), 0.0, a.dtype), ops.full((), 1.0, a.dtype)
    div = ops.div(ops.sub(a, rem), b)
    crosses = ops.logical_and(ops.ne(rem, zero), ops.ne(ops.lt(b, zero), ops.lt(rem, zero)))
    div = ops.where(crosses, ops.sub(div, one), div)
    floor = ops.floor(div)
    half = ops.full((), 0.5, a.dtype)
    floor = ops.where(ops.gt(ops.sub(div, floor), half), ops.add(floor, one), floor)
    exact = ops.where(ops.eq(div, zero), ops.copysign(zero, ops.div(a, b)), floor)
    return ops.where(ops.eq(b, zero), ops.div(a, b), exact)


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "operator.mod")
def remainder(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(_checked(c, ops.mod), x, y)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(_checked(c, ops.rem), x, y)


@aten("pow.Tensor_Tensor", "pow.Scalar", "operator.pow")
def pow_tensor(c: Context, x: Operand, y: Operand) -> Node:
    if isinstance(x, (int, float)) and x == 2 and isinstance(y, Node) and y.dtype.is_float:
        return ops.exp2(y)
    return c.compute(ops.pow, x, y)


@aten("pow.Tensor_Scalar")
def pow_scalar(c: Context, x: Node, y: Operand) -> Node:
    d = c.out().dtype
    x = cast(x, d)
    if d.is_int and isinstance(y, int) and y < 0:
        raise Untranslated("eager refuses negative powers of integers")
    if isinstance(y, (int, float)):
        special = _special_power(c, x, y)
        if special is not None:
            return special
    return c.compute(ops.pow, x, y)


def _special_power(c: Context, x: Node, y: float) -> Node | None:
    """The exponents for which eager, too, multiplies or takes roots."""
    one = c.number(1, x.dtype)
    if y == 0:
        return ops.expand(one, x.shape) if x.rank else one
    if y == 1:
        return x
    if y == 2:
        return ops.mul(x, x)
    if y == 3:
        if x.dtype is f16:  # which eager leaves to its general function, in float32
            return _in_float32(x, lambda v: ops.mul(ops.mul(v, v), v))
        return ops.mul(ops.mul(x, x), x)
    if not x.dtype.is_float:
        if y == 4:
            return ops.mul(ops.mul(x, x), ops.mul(x, x))
        return None
    if x.dtype is f16 and y != -2:
        return None
    if y == 0.5:
        return ops.sqrt(x)
    if y == -0.5:
        return ops.rsqrt(x)
    if y == -1:
        return ops.reciprocal(x)
    if y == -2:
        wide = f32 if x.dtype is f16 else x.dtype
        square = ops.mul(cast(x, wide), cast(x, wide))
        return cast(ops.reciprocal(square), x.dtype)
    return None


@aten("atan2.default", "arctan2.default")
def atan2(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.atan2, x, y, to_float=True)


@aten("hypot.default")
def hypot(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.hypot, x, y)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.copysign, x, y, to_float=True)


@aten("nextafter.default")
def nextafter(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.nextafter, x, y)


@aten("logaddexp.default")
def logaddexp(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.logaddexp, x, y)


@aten("logaddexp2.default")
def logaddexp2(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.logaddexp2, x, y)


@aten("maximum.default", "max.other")
def maximum(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.maximum, x, y)


@aten("minimum.default", "min.other")
def minimum(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.minimum, x, y)


@aten("fmax.default")
def fmax(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.fmax, x, y)


@aten("fmin.default")
def fmin(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.fmin, x, y)


@aten("clamp.default", "clamp.Tensor", "clamp_min", "clamp_max", "clip")
def clamp(c: Context, x: Node, *bounds: Any, **named: Any) -> Node:
    low, high = _clamp_bounds(c, bounds, named)
    d = c.out().dtype
    out = cast(x, d)
    if low is not None:
        out = ops.maximum(out, c.node(low, d))
    if high is not None:
        out = ops.minimum(out, c.node(high, d))
    return out


def _clamp_bounds(c: Context, bounds: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    name = str(c.fx.target)
    if "clamp_max" in name:
        return None, named.get("max", bounds[0] if bounds else None)
    low = named.get("min", bounds[0] if bounds else None)
    high = named.get("max", bounds[1] if len(bounds) > 1 else None)
    return low, high


# ---- comparisons and logic


def _register_comparisons() -> None:
    def compare(name: str) -> Callable[..., Node]:
        def rule(c: Context, x: Operand, y: Operand) -> Node:
            (a, b), _ = c.promote(x, y)
            if name == "eq" and b.rank == 1:
                c.checks.classes(a, b.shape[0])
            return getattr(ops, name)(a, b)

        return rule

    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        aten(f"{name}.Tensor", f"{name}.Scalar", f"operator.{name}")(compare(name))
    for name in ("logical_and", "logical_or", "logical_xor"):
        aten(f"{name}.default")(_logical(name))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        aten(f"{name}.Tensor", f"{name}.Scalar", f"{name}.Scalar_Tensor")(_bitwise(name))


def _logical(name: str) -> Callable[..., Node]:
    def rule(c: Context, x: Operand, y: Operand) -> Node:
        (a, b), _ = c.promote(x, y)
        return getattr(ops, name)(a, b)

    return rule


def _bitwise(name: str) -> Callable[..., Node]:
    return lambda c, x, y: c.compute(getattr(ops, name), x, y)


_register_comparisons()


@aten("bitwise_left_shift", "__lshift__")
def left_shift(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.shl, x, y)


@aten("bitwise_right_shift", "__rshift__")
def right_shift(c: Context, x: Operand, y: Operand) -> Node:
    return c.compute(ops.sar, x, y)


@aten("where.self", "where.Scalar", "where.ScalarSelf", "where.ScalarOther")
def where(c: Context, cond: Node, x: Operand, y: Operand) -> Node:
    if not cond.dtype.is_bool:
        cond = ops.ne(cond, c.number(0, cond.dtype))
    (a, b), _ = c.promote(x, y)
    return ops.where(cond, a, b)


# ---- activations


@aten("silu.default")
def silu(c: Context, x: Node) -> Node:
    return ops.silu(x)


@aten("gelu.default")
def gelu(c: Context, x: Node, approximate: str = "none") -> Node:
    return ops.gelu(x, approximate)


@aten("hardtanh.default")
def hardtanh(c: Context, x: Node, min_val: float = -1, max_val: float = 1) -> Node:
    return ops.minimum(ops.maximum(x, c.number(min_val, x.dtype)), c.number(max_val, x.dtype))


@aten("leaky_relu.default")
def leaky_relu(c: Context, x: Node, negative_slope: float = 0.01) -> Node:
    def leaky(v: Node) -> Node:
        positive = ops.gt(v, c.number(0, v.dtype))
        return ops.where(positive, v, ops.mul(v, c.number(negative_slope, v.dtype)))

    return _in_float32(x, leaky)


@aten("elu.default")
def elu(c: Context, x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    def curve(v: Node) -> Node:
        def k(value: float) -> Node:
            return c.number(value, v.dtype)

        negative = ops.mul(ops.expm1(ops.mul(v, k(input_scale))), k(alpha * scale))
        return ops.where(ops.gt(v, k(0)), ops.mul(v, k(scale)), negative)

    return _in_float32(x, curve)


@aten("relu6.default")
def relu6(c: Context, x: Node) -> Node:
    return hardtanh(c, x, 0, 6)


@aten("nan_to_num.default")
def nan_to_num(
    c: Context,
    x: Node,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Node:
    if not x.dtype.is_float:
        return x
    largest = {
        f64: 1.7976931348623157e308,
        f32: 3.4028234663852886e38,
        f16: 65504.0,
        bf16: 3.3895313892515355e38,
    }[x.dtype]
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf
    out = ops.where(ops.isnan(x), c.number(nan or 0.0, x.dtype), x)
    out = ops.where(ops.eq(x, c.number(math.inf, x.dtype)), c.number(high, x.dtype), out)
    return ops.where(ops.eq(x, c.number(-math.inf, x.dtype)), c.number(low, x.dtype), out)


# ---- special functions made of others


@aten("angle.default")
def angle(c: Context, x: Node) -> Node:
    d = c.out().dtype
    v = cast(x, d)
    negative = ops.lt(v, c.number(0, d))
    out = ops.where(negative, c.number(math.pi, d), c.number(0, d))
    return ops.where(ops.isnan(v), v, out)


@aten("ldexp.Tensor")
def ldexp(c: Context, x: Operand, y: Operand) -> Node:
    d = c.out().dtype
    return ops.mul(c.node(x, d), ops.exp2(c.node(y, d)))


@aten("_conj", "_conj_physical", "conj_physical", "resolve_conj", "resolve_neg", "real")
def conjugate(c: Context, x: Node) -> Node:
    return x


@aten("prims.convert_element_type.default")
def convert_element_type(c: Context, x: Operand, dtype: Any) -> Node:
    return c.node(x, c.out().dtype)


@aten("_to_copy.default", "to.dtype")
def to_copy(c: Context, x: Operand, *_: Any, **options: Any) -> Node:
    return c.node(x, c.out().dtype)


@aten(
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "lift.default",
    "contiguous.default",
    "alias_copy.default",
)
def identity(c: Context, x: Node, **_: Any) -> Node:
    return x


@aten("copy.default")
def copy(c: Context, x: Node, src: Operand, non_blocking: bool = False) -> Node:
    out = c.node(src, x.dtype)
    return out if out.shape == x.shape else ops.expand(out, x.shape)


@aten("_prelu_kernel.default")
def prelu(c: Context, x: Node, weight: Node) -> Node:
    return ops.where(ops.gt(x, c.number(0, x.dtype)), x, ops.mul(cast(weight, x.dtype), x))


@aten("math.trunc", "operator.neg")
def number_neg(c: Context, x: Node) -> Node:
    return ops.neg(x) if "neg" in str(c.fx.target) else ops.trunc(x)


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    c: Context, x: Operand, boundaries: Node, *, out_int32: bool = False, right: bool = False
) -> Node:
    return count_below(c, boundaries, c.node(x), right, out_int32)


def count_below(c: Context, sorted_: Node, x: Node, right: bool, out_int32: bool = False) -> Node:
    """How many of `sorted_` (last axis) are below each x: below or equal where `right`."""
    d = c.promote(sorted_, x)[1]
    s = cast(sorted_, d)
    v = ops.reshape(cast(x, d), (*x.shape, 1))
    if s.rank == 1:
        s = ops.reshape(s, (*(1,) * x.rank, s.shape[0]))
    else:
        s = ops.reshape(s, (*s.shape[:-1], 1, s.shape[-1]))
    # NaN sorts last: it is not below anything, and everything is below it.
    below = ops.logical_not(ops.lt(v, s)) if right else ops.logical_not(ops.ge(s, v))
    count = ops.sum(ops.cast(below, i64), (-1,))
    return cast(count, c.out().dtype)
