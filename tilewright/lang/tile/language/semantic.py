"""What operators mean: arithmetic, comparisons, bits, selection and functions of single elements.

Everything here takes values of the tile IR or Python numbers, brings them together (promote.py) and
writes operations. Integer division cuts towards zero and the remainder has the sign of the
dividend, as in C and Triton.
"""

from __future__ import annotations

from enum import Enum

from tilewright.base.errors import Invalid
from tilewright.ir.types import b1, i64
from tilewright.lang.tile.ir import Pointer, Value
from tilewright.lang.tile.language import types as t
from tilewright.lang.tile.language.promote import (
    Operand,
    bitcast,
    broadcast,
    broadcast_to,
    cast,
    compare_values,
    constant,
    described,
    emit,
    integer_type,
    map_values,
    operands,
    value_of,
)
from tilewright.lang.tile.language.types import dtype, dtype_of


class PropagateNan(Enum):
    """Is the larger (or smaller) of a number and NaN NaN? `NONE`: the number wins."""

    NONE = 0
    ALL = 0xFFFF


# Arithmetic on bits: a sum of two truths that has one bit only is their difference.
_ON_BITS = {"add": "xor", "sub": "xor", "mul": "and"}


def _arithmetic(fn: str, a: Value, b: Value) -> Value:
    return map_values(_ON_BITS[fn] if a.element is b1 else fn, a, b)


def add(a: Operand, b: Operand) -> Value:
    x, y = operands("+", a, b, pointers=True)
    if isinstance(x.element, Pointer) and isinstance(y.element, Pointer):
        what = f"a sum of the pointers {described(x)} and {described(y)}"
        raise Invalid(what, hint="a pointer moves by an integer: p + offsets")
    if isinstance(y.element, Pointer):
        x, y = y, x
    if isinstance(x.element, Pointer):
        return _move(x, y)
    return _arithmetic("add", x, y)


def _move(p: Value, n: Value) -> Value:
    element = dtype_of(n.element)
    if element.is_bool() or (element.is_int_unsigned() and element.int_bitwidth < 64):
        n = cast(n, t.int64)  # offsets are signed: an unsigned one must not turn negative
    return emit("offset", (p, n), p.type)


def sub(a: Operand, b: Operand) -> Value:
    if isinstance(b, Value) and isinstance(b.element, Pointer):
        what = f"{described(a)} minus the pointer {described(b)}"
        raise Invalid(what, hint="cast both to tl.int64 for a distance in bytes")
    x, y = operands("-", a, b, pointers=True)
    if isinstance(x.element, Pointer):
        return _move(x, minus(cast(y, t.int64) if y.type.dtype.kind != "i" else y))
    return _arithmetic("sub", x, y)


def mul(a: Operand, b: Operand) -> Value:
    return _arithmetic("mul", *operands("*", a, b))


def truediv(a: Operand, b: Operand) -> Value:
    x, y = operands("/", a, b, dividing=True)
    if not x.type.dtype.is_float:
        x, y = cast(x, t.float32), cast(y, t.float32)
    return map_values("div", x, y)


def _integers(what: str, a: Operand, b: Operand) -> tuple[Value, Value]:
    x, y = operands(what, a, b, dividing=True)
    if x.type.dtype.is_float:
        shown = f"{described(a)} {what} {described(b)} on floats"
        raise Invalid(shown, hint="tl.floor(x / y), or cast to integers first")
    return x, y


def floordiv(a: Operand, b: Operand) -> Value:
    x, y = _integers("//", a, b)
    if x.element is b1:
        return _as_byte("quo", x, y)
    return map_values("quo", x, y)


def mod(a: Operand, b: Operand) -> Value:
    x, y = operands("%", a, b, dividing=True)
    return _as_byte("rem", x, y) if x.element is b1 else map_values("rem", x, y)


def _as_byte(fn: str, a: Value, b: Value) -> Value:
    """An operation on single bits that only whole bytes have."""
    wide = map_values(fn, cast(a, t.uint8), cast(b, t.uint8))
    return cast(map_values("and", wide, constant(1, t.uint8, wide.shape)), t.int1)


def fdiv(a: Operand, b: Operand) -> Value:
    """A division of floats in their own type; `/` computes narrow ones in float32."""
    x, y = value_of(a), value_of(b)
    for v in (x, y):
        if not dtype_of(v.element).is_floating():
            raise Invalid(f"fdiv of {described(x)} and {described(y)}", hint="use x / y")
    if x.element != y.element:
        return map_values("div", *operands("fdiv", x, y))
    return map_values("div", *broadcast(x, y))


# ---- bits


def _bits(what: str, a: Operand, b: Operand) -> tuple[Value, Value]:
    x, y = operands(what, a, b)
    if x.type.dtype.is_float:
        given = f"{described(a)} and {described(b)}"
        shown = f"invalid operands of type {given} for {what}: floats have no bits to combine"
        raise Invalid(shown, hint="x.to(tl.int32, bitcast=True) gives the bits of a float32")
    common = integer_type(dtype_of(x.element), dtype_of(y.element))
    return cast(x, common), cast(y, common)


def and_(a: Operand, b: Operand) -> Value:
    return map_values("and", *_bits("&", a, b))


def or_(a: Operand, b: Operand) -> Value:
    return map_values("or", *_bits("|", a, b))


def xor_(a: Operand, b: Operand) -> Value:
    return map_values("xor", *_bits("^", a, b))


def _shift(fn: str, what: str, a: Operand, b: Operand) -> Value:
    x, y = _bits(what, a, b)
    return _as_byte(fn, x, y) if x.element is b1 else map_values(fn, x, y)


def shl(a: Operand, b: Operand) -> Value:
    return _shift("shl", "<<", a, b)


def shr(a: Operand, b: Operand, signed: bool) -> Value:
    """`signed`: is it an arithmetic shift? The first operand's type decides, whatever the common
    type is."""
    x, y = _bits(">>", a, b)
    common = dtype_of(x.element)
    if not signed or not common.is_int_unsigned() or common.is_bool():
        return _shift("sar" if signed else "shr", ">>", x, y)
    signed_type = t.get_int_dtype(common.int_bitwidth, True)
    return bitcast(map_values("sar", bitcast(x, signed_type), bitcast(y, signed_type)), common)


def truth(a: Operand) -> Value:
    """Bools; anything but zero is true."""
    return cast(value_of(a), t.int1)


def logical_and(a: Operand, b: Operand) -> Value:
    return and_(truth(a), truth(b))


def logical_or(a: Operand, b: Operand) -> Value:
    return or_(truth(a), truth(b))


def logical_not(a: Operand) -> Value:
    return map_values("not", truth(a))


def invert(a: Operand) -> Value:
    v = value_of(a)
    if isinstance(v.element, Pointer) or v.element.is_float:
        raise Invalid(f"~ of {described(v)}", hint="it is for integers and bools")
    return map_values("not", v)


def minus(a: Operand) -> Value:
    v = value_of(a)
    if isinstance(v.element, Pointer):
        raise Invalid(f"minus {described(v)}", hint="pointers have no sign")
    return v if v.element is b1 else map_values("neg", v)


# ---- comparisons and choice


def compare(fn: str, a: Operand, b: Operand) -> Value:
    """lt, le, gt, ge, eq or ne. Numbers take part in the promotion with their own type here: an
    int8 tile is compared with 300 as int32."""
    return compare_values(fn, *operands(fn, value_of(a), value_of(b)))


def where(condition: Operand, a: Operand, b: Operand) -> Value:
    c = truth(condition)
    x, y = operands("where", a, b, pointers=True)
    if isinstance(x.element, Pointer) != isinstance(y.element, Pointer):
        what = f"where chooses between {described(x)} and {described(y)}"
        raise Invalid(what, hint="both must be pointers, or none")
    c, x, y = broadcast(c, x, y)
    if isinstance(x.element, Pointer):
        addresses = [emit("bitcast", (v,), v.type.with_element(i64)) for v in (x, y)]
        chosen = map_values("select", c, *addresses)
        return emit("bitcast", (chosen,), x.type)
    return map_values("select", c, x, y)


def _without_bf16(v: Value) -> Value:
    return cast(v, t.float32) if dtype_of(v.element).is_bf16() else v


def extreme(fn: str, a: Operand, b: Operand, propagate_nan: PropagateNan) -> Value:
    """min or max. Of bfloat16 it is a float32, as in Triton."""
    x, y = operands(fn, _without_bf16(value_of(a)), _without_bf16(value_of(b)))
    if not isinstance(propagate_nan, PropagateNan):
        what = f"propagate_nan={propagate_nan!r}"
        raise Invalid(what, hint="tl.PropagateNan.NONE or tl.PropagateNan.ALL")
    ignores = x.type.dtype.is_float and propagate_nan is PropagateNan.NONE
    return map_values(f"{fn}num" if ignores else fn, x, y)


def clamp(x: Operand, low: Operand, high: Operand, propagate_nan: PropagateNan) -> Value:
    lo, hi = operands("clamp", _without_bf16(value_of(low)), _without_bf16(value_of(high)))
    v, lo = operands("clamp", _without_bf16(value_of(x)), lo)
    v, hi = operands("clamp", v, hi)
    if not v.type.dtype.is_float:
        what = f"clamp of {described(v)}"
        raise Invalid(what, hint="clamp is for floats: tl.minimum(tl.maximum(x, low), high)")
    return extreme("min", extreme("max", v, lo, propagate_nan), hi, propagate_nan)


# ---- functions of single elements


def checked(what: str, v: Value, allowed: tuple[dtype, ...]) -> Value:
    if dtype_of(v.element) not in allowed:
        names = " or ".join(map(str, allowed))
        hint = f"cast it first: x.to(tl.{allowed[0].codegen_name()})"
        raise Invalid(f"{what}: Expected dtype {names} but got {described(v)}", hint=hint)
    return v


FULL_FLOATS = (t.float32, t.float64)


def function(fn: str, x: Operand, allowed: tuple[dtype, ...] = FULL_FLOATS) -> Value:
    return map_values(fn, checked(fn, value_of(x), allowed))


def absolute(x: Operand) -> Value:
    v = value_of(x)
    if isinstance(v.element, Pointer):
        raise Invalid(f"abs of {described(v)}", hint="pointers have no sign")
    return v if v.element.kind in "ub" else map_values("abs", v)


def fma(x: Operand, y: Operand, z: Operand) -> Value:
    a, b = operands("fma", value_of(x), value_of(y))
    c, a = operands("fma", value_of(z), a)
    c, b = operands("fma", c, b)
    if not a.type.dtype.is_float:
        raise Invalid(f"fma of {described(a)}", hint="it is for floats: x * y + z")
    return map_values("fma", *broadcast(a, b, c))


def umulhi(x: Operand, y: Operand) -> Value:
    """The upper half of the product, of the operands' bits as unsigned numbers."""
    allowed = (t.int32, t.int64, t.uint32, t.uint64)
    a, b = checked("umulhi", value_of(x), allowed), checked("umulhi", value_of(y), allowed)
    a, b = operands("umulhi", a, b)
    kind = dtype_of(a.element)
    unsigned = t.get_int_dtype(kind.int_bitwidth, False)
    product = map_values("mulhi", bitcast(a, unsigned), bitcast(b, unsigned))
    return bitcast(product, kind)


def full(shape: tuple[int, ...], value: Operand, to: dtype) -> Value:
    if not isinstance(value, Value):
        return constant(value, to, shape)
    if value.type.size != 1:
        what = f"full of {described(value)}"
        raise Invalid(what, hint="the value is a single number: tl.broadcast_to stretches tiles")
    single = value if not value.shape else emit("reshape", (value,), value.type.with_shape(()))
    return broadcast_to(cast(single, to), shape)
