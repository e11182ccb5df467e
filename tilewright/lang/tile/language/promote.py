"""How values of different types and shapes come together: constants, casts, broadcasting.

The rules are Triton's. They work on values of the tile IR and on Python numbers; a number has no
type of its own until it is combined with a tile: it takes the tile's type unless it is of a higher
kind (bool < integers < floats).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tilewright.base.errors import Invalid
from tilewright.ir.types import i64
from tilewright.lang.tile.builder import current, maker
from tilewright.lang.tile.ir import Element, Pointer, TileType, Value
from tilewright.lang.tile.language import types as t
from tilewright.lang.tile.language.types import dtype, dtype_of

Operand = Union[Value, bool, int, float]


def emit(
    name: str, args: Sequence[Value], type: TileType, attrs: Mapping[str, Any] | None = None
) -> Value:
    """One operation with one result."""
    return current().emit(name, args, (type,), attrs)[0]


def map_values(fn: str, *args: Value) -> Value:
    """A scalar function over tiles of one shape, with the first one's last element as result."""
    return emit("map", args, args[-1].type, {"fn": fn})


def compare_values(fn: str, a: Value, b: Value) -> Value:
    return emit("map", (a, b), a.type.with_element(t.int1.ir), {"fn": fn})


def described(x: Operand) -> str:
    """A type for messages: `fp32[16, 32]`, or the number itself."""
    if not isinstance(x, Value):
        return repr(x)
    shape = f"[{', '.join(map(str, x.shape))}]" if x.shape else ""
    return f"{dtype_of(x.element)}{shape}"


# ---- constants


def number(x: Any) -> bool | int | float | None:
    """A Python number from a number of any library; None where it is none."""
    if isinstance(x, (bool, int, float)):
        return x
    if isinstance(x, numbers.Integral):
        return int(x)
    if isinstance(x, numbers.Real):
        return float(x)
    return None


def type_of_number(x: bool | int | float) -> dtype:
    """The first of int32, uint32, int64 and uint64 that holds an integer; float32 unless a float
    needs more range."""
    if isinstance(x, bool):
        return t.int1
    if isinstance(x, int):
        for d in (t.int32, t.uint32, t.int64, t.uint64):
            if d.get_int_min_value() <= x <= d.get_int_max_value():
                return d
        raise Invalid(f"the integer {x} does not fit 64 bits", hint="write it as a float")
    tiny, huge = 2.0**-126, (2 - 2.0**-23) * 2.0**127
    fits = x == 0 or not math.isfinite(x) or tiny <= abs(x) <= huge
    return t.float32 if fits else t.float64


def constant(x: bool | int | float, to: dtype, shape: Sequence[int] = ()) -> Value:
    """The same number everywhere; integers wrap around as they do in memory."""
    element = to.ir
    value: bool | int | float
    if isinstance(element, Pointer):
        if x != 0:
            raise Invalid(f"{x} as a pointer", hint="cast an int64: x.to(tl.pointer_type(…))")
        value = 0
    elif element.is_float:
        value = float(x)
    elif element.is_bool:
        value = bool(x)
    else:
        if isinstance(x, float) and x != int(x):
            raise Invalid(f"{x} as {to}", hint="write an integer, or take a float type")
        bits = 1 << element.bits
        value = int(x) % bits
        if element.kind == "i" and value >= bits // 2:
            value -= bits
    return emit("const", (), TileType(element, tuple(shape)), {"value": value})


def value_of(x: Operand) -> Value:
    """A number becomes a constant of its own type."""
    return x if isinstance(x, Value) else constant(x, type_of_number(x))


# ---- casts


def cast(v: Value, to: dtype, rounding: str | None = None) -> Value:
    """The same numbers as another type. Floats become integers by cutting; integers wrap; anything
    but zero is true. Addresses are 64-bit integers."""
    target = to.scalar.ir
    source = v.element
    if rounding not in (None, "rtne", "rtz"):
        raise Invalid(f"fp_downcast_rounding={rounding!r}", hint='"rtne" or "rtz"')
    if source == target:  # whatever the rounding: kernels cast to what a pointer points to
        return v
    if rounding is not None and not _narrows(source, target):
        what = f"fp_downcast_rounding for a cast of {described(v)} to {to}"
        raise Invalid(what, hint="it is for casts of floats to narrower floats only")
    result = v.type.with_element(target)
    if isinstance(source, Pointer) or isinstance(target, Pointer):
        return _cast_address(v, to, result)
    return emit("cast", (v,), result, {"rounding": rounding or "rtne"})


def _narrows(source: Element, target: Element) -> bool:
    if isinstance(source, Pointer) or isinstance(target, Pointer):
        return False
    return source.is_float and target.is_float and target.bits < source.bits


def _cast_address(v: Value, to: dtype, result: TileType) -> Value:
    source, target = v.element, result.element
    if isinstance(source, Pointer):
        if isinstance(target, Pointer) or (target.is_int and target.bits == 64):
            return emit("bitcast", (v,), result)
        if target.is_bool:
            address = emit("bitcast", (v,), v.type.with_element(i64))
            return emit("cast", (address,), result, {"rounding": "rtne"})
        hint = "tl.load(p) reads what is there; addresses are tl.int64"
        raise Invalid(f"a cast of {described(v)} to {to}", hint=hint)
    if not source.is_int:
        raise Invalid(f"a cast of {described(v)} to {to}", hint="addresses are tl.int64")
    wide = v if source.bits == 64 else cast(v, t.int64)
    return emit("bitcast", (wide,), result)


def bitcast(v: Value, to: dtype) -> Value:
    """The same bits as another type of the same width."""
    target = to.scalar
    if v.element == target.ir:
        return v
    if isinstance(v.element, Pointer) or target.is_ptr():
        return cast(v, target)
    a, b = dtype_of(v.element).primitive_bitwidth, target.primitive_bitwidth
    if a != b:
        what = f"a bitcast of {described(v)} ({a} bits) to {target} ({b} bits)"
        raise Invalid(what, hint="drop bitcast=True to convert the numbers")
    return emit("bitcast", (v,), v.type.with_element(target.ir))


# ---- shapes


def reshape(v: Value, shape: Sequence[int]) -> Value:
    shape = tuple(shape)
    return v if shape == v.shape else emit("reshape", (v,), v.type.with_shape(shape))


def broadcast_to(v: Value, shape: Sequence[int]) -> Value:
    """Axes of one stretched; a scalar everywhere."""
    shape = tuple(shape)
    if v.shape == shape:
        return v
    if not v.shape:
        made = maker(v)
        if made is not None and made.name == "const":
            return emit("const", (), v.type.with_shape(shape), made.attrs)
        v = reshape(v, (1,) * len(shape))
        if v.shape == shape:
            return v
    if len(v.shape) != len(shape):
        what = f"{described(v)} has {len(v.shape)} axes and cannot become {list(shape)}"
        raise Invalid(what, hint="add axes first: x[:, None] or tl.expand_dims")
    for k, (a, b) in enumerate(zip(v.shape, shape, strict=True)):
        if a != b and a != 1:
            what = f"{described(v)} cannot become {list(shape)}: axis {k} has {a} elements, not {b}"
            raise Invalid(what, hint="only axes of one element are stretched")
    return emit("broadcast", (v,), v.type.with_shape(shape))


def common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that tiles of these shapes have together; missing axes are added in front."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for k in range(rank):
        sizes = {s[k] for s in padded} - {1}
        if len(sizes) > 1:
            shown = " and ".join(str(list(s)) for s in shapes)
            what = f"tiles of {shown} do not go together: axis {k} has " + " and ".join(
                map(str, sorted(sizes))
            )
            raise Invalid(what, hint="axes are equal or one of them is 1: x[:, None], y[None, :]")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def broadcast(*values: Value) -> tuple[Value, ...]:
    """Tiles of one shape."""
    first = values[0].shape
    if all(v.shape == first for v in values):
        return values
    shape = common_shape(*(v.shape for v in values))
    return tuple(
        broadcast_to(v if not v.shape else _with_rank(v, len(shape)), shape) for v in values
    )


def _with_rank(v: Value, rank: int) -> Value:
    return reshape(v, (1,) * (rank - len(v.shape)) + v.shape)


# ---- promotion


def integer_type(a: dtype, b: dtype) -> dtype:
    """C's rule: the wider one; of two as wide the unsigned one."""
    if a.int_signedness == b.int_signedness:
        return a if a.int_bitwidth > b.int_bitwidth else b
    unsigned, signed = (a, b) if a.is_int_unsigned() else (b, a)
    return unsigned if unsigned.int_bitwidth >= signed.int_bitwidth else signed


def common_type(
    a: dtype, b: dtype, a_is_number: bool = False, b_is_number: bool = False, dividing: bool = False
) -> dtype:
    """The type in which an operation on two operands is computed."""
    if a_is_number != b_is_number:
        of_number, of_tile = (a, b) if a_is_number else (b, a)
        if of_number.kind().value <= of_tile.kind().value:
            a = b = of_tile
    either = (a, b)
    if t.float64 in either:
        return t.float64
    if dividing and (a.is_floating() or b.is_floating()):
        return t.float32
    if t.float32 in either:
        return t.float32
    if t.float16 in either:
        return t.float16
    if t.bfloat16 in either:
        return t.bfloat16 if a == b else t.float32
    if a.is_fp8() and b.is_fp8():
        return a if a == b else t.float16
    if not (a.is_int() and b.is_int()):
        what = f"{a} and {b} have no common type"
        raise Invalid(what, hint="cast the 8-bit float first: x.to(tl.float32)")
    if dividing and a.int_signedness != b.int_signedness:
        what = f"Cannot use /, // or % with {a} and {b} because they have different signedness"
        raise Invalid(what, hint="cast both to one signedness: x.to(tl.int32)")
    return integer_type(a, b)


def _in_range(x: bool | int | float, to: dtype) -> None:
    if not to.is_int():
        return
    if x < 0 and to.is_int_unsigned():
        what = f"the number {x} with a tile of {to}"
        raise Invalid(what, hint="cast the tile to a signed type: x.to(tl.int32)")
    if not to.get_int_min_value() <= x <= to.get_int_max_value():
        what = f"the number {x} is out of range for {to}"
        raise Invalid(what, hint="cast the tile to a wider type: x.to(tl.int64)")


def operands(
    what: str, a: Operand, b: Operand, *, dividing: bool = False, pointers: bool = False
) -> tuple[Value, Value]:
    """Both operands of `what` with one type and one shape. Where `pointers` are allowed they keep
    their type, and so does what they go with."""
    x, y = _element(a), _element(b)
    if x.is_ptr() or y.is_ptr():
        _check_pointers(what, a, b, x, y, pointers)
        return _pair(value_of(a), value_of(b))
    common = common_type(x, y, not isinstance(a, Value), not isinstance(b, Value), dividing)
    for v in (a, b):
        if not isinstance(v, Value):
            _in_range(v, common)
    if not isinstance(b, Value) and isinstance(a, Value):
        return cast(a, common), constant(b, common, a.shape)
    if not isinstance(a, Value) and isinstance(b, Value):
        return constant(a, common, b.shape), cast(b, common)
    if not isinstance(a, Value) or not isinstance(b, Value):
        return constant(a, common), constant(b, common)  # type: ignore[arg-type]
    return _pair(cast(a, common), cast(b, common))


def _pair(a: Value, b: Value) -> tuple[Value, Value]:
    x, y = broadcast(a, b)
    return x, y


def _element(x: Operand) -> dtype:
    return dtype_of(x.element) if isinstance(x, Value) else type_of_number(x)


def _check_pointers(what: str, a: Operand, b: Operand, x: dtype, y: dtype, pointers: bool) -> None:
    if not pointers or (x.is_ptr() and y.is_ptr() and x != y):
        shown = f"invalid operands of type {described(a)} and {described(b)} for {what}"
        raise Invalid(shown, hint="cast addresses to tl.int64 to compute with them")
    if x.is_floating() or y.is_floating():
        shown = f"invalid operands of type {described(a)} and {described(b)} for {what}"
        raise Invalid(shown, hint="pointers move by integers: cast the offset with .to(tl.int32)")
