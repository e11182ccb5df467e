"""Products of matrices: `dot`, and `dot_scaled` for numbers of few bits with scales of their own.

Eight-bit floats are widened to float16, which holds all of them exactly. Microscaling formats are
widened to bfloat16 (or float32 where float16 takes part), which holds their elements times their
scales exactly.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.ir import Value
from tilewright.lang.tile.language import promote, semantic
from tilewright.lang.tile.language import types as t
from tilewright.lang.tile.language.promote import cast, constant, described, emit, map_values
from tilewright.lang.tile.language.tensor import builtin, tensor, value, wrap
from tilewright.lang.tile.language.types import dtype, dtype_of, unwrap

_PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
_OPERANDS = (t.int8, t.uint8, t.float16, t.bfloat16, t.float32, t.float64)


@builtin
def dot(
    input: Any,
    other: Any,
    acc: Any = None,
    input_precision: Any = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = None,
    trans_a: Any = False,
    trans_b: Any = False,
) -> tensor:
    """The product of two matrices (or of batches of them), added to `acc`. Sums are float32, of
    int8 int32, of float64 float64; of float16 they are float16 if `out_dtype` says so."""
    for given, name, instead in (
        (trans_a, "a", "tl.trans(a), b"),
        (trans_b, "b", "a, tl.trans(b)"),
    ):
        if unwrap(given):
            raise Invalid(
                f"dot: trans_{name}=True was a parameter of old versions",
                hint=f"transpose it: tl.dot({instead})",
            )
    precision = _precision(unwrap(input_precision), unwrap(allow_tf32))
    a, b = value(input), value(other)
    c = None if unwrap(acc) is None else value(acc)
    _check_shapes(a, b, c)
    a, b = _operands(a, b)
    kind = _result(a, c, unwrap(out_dtype))
    if c is not None and dtype_of(c.element) != kind:
        what = f"dot of {described(a)} and {described(b)} gives {kind}, acc is {described(c)}"
        raise Invalid(what, hint=f"tl.zeros(…, dtype=tl.{kind.codegen_name()}), or out_dtype=")
    shape = (*a.shape[:-1], b.shape[-1])
    return wrap(_product(a, b, constant(0, kind, shape) if c is None else c, precision))


def _product(a: Value, b: Value, c: Value, precision: str) -> Value:
    """Leading axes are one batch."""
    if len(a.shape) <= 3:
        return emit("dot", (a, b, c), c.type, {"precision": precision})
    batch = prod(a.shape[:-2])
    flat = [promote.reshape(v, (batch, *v.shape[-2:])) for v in (a, b, c)]
    made = emit("dot", flat, flat[2].type, {"precision": precision})
    return promote.reshape(made, c.shape)


def _precision(given: Any, allow_tf32: Any) -> str:
    """A CPU has no reason to round float32 first, so the default is ieee."""
    if given is not None and allow_tf32 is not None:
        raise Invalid("dot: input_precision and allow_tf32", hint="only one of them")
    if given is None:
        return "tf32" if allow_tf32 else "ieee"
    if not isinstance(given, str) or given.lower() not in _PRECISIONS:
        raise Invalid(f"dot: input_precision={given!r}", hint=f"one of {', '.join(_PRECISIONS)}")
    return given.lower()


def _check_shapes(a: Value, b: Value, c: Value | None) -> None:
    shown = f"dot of {described(a)} and {described(b)}"
    if len(a.shape) < 2 or len(a.shape) != len(b.shape):
        raise Invalid(shown, hint="both have two axes, or a batch of them in front: x[:, None]")
    if a.shape[:-2] != b.shape[:-2]:
        raise Invalid(shown, hint="the batches differ")
    if a.shape[-1] != b.shape[-2]:
        what = f"{shown}: {a.shape[-1]} columns and {b.shape[-2]} rows differ"
        raise Invalid(what, hint="transpose one of them: tl.trans(y)")
    wanted = (*a.shape[:-1], b.shape[-1])
    if c is not None and c.shape != wanted:
        raise Invalid(f"{shown} with acc {described(c)}", hint=f"acc has the shape {list(wanted)}")


def _operands(a: Value, b: Value) -> tuple[Value, Value]:
    x, y = dtype_of(a.element), dtype_of(b.element)
    shown = f"dot of {described(a)} and {described(b)}"
    if x.is_fp8() and y.is_fp8():
        return cast(a, t.float16), cast(b, t.float16)
    for d in (x, y):
        if d not in _OPERANDS:
            names = ", ".join(map(str, _OPERANDS))
            raise Invalid(shown, hint=f"operands are two 8-bit floats or {names}")
    if x != y:
        raise Invalid(shown, hint="both operands have one type: x.to(y.dtype)")
    return a, b


def _result(a: Value, c: Value | None, out: dtype | None) -> dtype:
    kind = dtype_of(a.element)
    if kind.is_int():
        return t.int32
    if out is None:
        out = t.float32 if c is None else dtype_of(c.element)
    if out.is_bf16():
        hint = "out_dtype=tl.float32, then .to(tl.bfloat16)"
        raise Invalid("dot: sums in bfloat16", hint=hint)
    if kind.is_fp64():
        return t.float64
    if kind.is_fp16() and out.is_fp16():
        return t.float16
    return t.float32


# ---- microscaling formats

_FORMATS = {"e5m2": t.float8e5, "e4m3": t.float8e4nv, "bf16": t.bfloat16, "fp16": t.float16}


@builtin
def dot_scaled(
    lhs: Any,
    lhs_scale: Any,
    lhs_format: Any,
    rhs: Any,
    rhs_scale: Any,
    rhs_format: Any,
    acc: Any = None,
    fast_math: Any = False,
    lhs_k_pack: Any = True,
    rhs_k_pack: Any = True,
    out_dtype: Any = t.float32,
) -> tensor:
    """The product of matrices whose elements have few bits (e2m1 two in a byte, e4m3, e5m2, or
    bf16 and fp16) and share a scale (e8m0 in a byte) with their neighbours along K. The scale of
    the right matrix is given as [N, K / group]."""
    if unwrap(out_dtype) != t.float32:
        raise Invalid(f"dot_scaled: out_dtype={unwrap(out_dtype)}", hint="it is tl.float32")
    formats = [unwrap(f) for f in (lhs_format, rhs_format)]
    for f in formats:
        if f not in (*_FORMATS, "e2m1"):
            raise Invalid(f"dot_scaled: the format {f!r}", hint="e2m1, e4m3, e5m2, bf16 or fp16")
    wide = t.float32 if "fp16" in formats else t.bfloat16
    a = _widened(value(lhs), formats[0], bool(unwrap(lhs_k_pack)), True, wide)
    b = _widened(value(rhs), formats[1], bool(unwrap(rhs_k_pack)), False, wide)
    c = None if unwrap(acc) is None else value(acc)
    _check_shapes(a, b, c)
    if c is not None and dtype_of(c.element) != t.float32:
        raise Invalid(f"dot_scaled with acc {described(c)}", hint="acc is float32")
    if unwrap(lhs_scale) is not None:
        a = map_values("mul", a, _scales(value(lhs_scale), a.shape, wide, "lhs_scale"))
    if unwrap(rhs_scale) is not None:
        across = (*b.shape[:-2], b.shape[-1], b.shape[-2])
        scale = _scales(value(rhs_scale), across, wide, "rhs_scale")
        b = map_values("mul", b, _last_swapped(scale))
    shape = (*a.shape[:-1], b.shape[-1])
    total = constant(0, t.float32, shape) if c is None else c
    for x, y in _exact_products(a, b, formats):
        total = _product(x, y, total, "ieee")
    return wrap(total)


def _exact_products(a: Value, b: Value, formats: list[Any]) -> list[tuple[Value, Value]]:
    """Operands of products of bfloat16 that add up to that of the matrices. A number of fp16 is a
    sum of two of bfloat16, one of any other format is one (0 where it is below 2 ** -134); of two
    matrices of fp16 the product stays one of float32."""
    halves = [f == "fp16" for f in formats]
    if all(halves) or not any(halves):
        return [(a, b)]
    small, wide = (b, a) if halves[0] else (a, b)
    small = cast(small, t.bfloat16)
    high = cast(wide, t.bfloat16)
    rest = semantic.sub(wide, cast(high, t.float32))
    infinite = semantic.compare("eq", map_values("abs", wide), float("inf"))
    low = cast(semantic.where(infinite, 0.0, rest), t.bfloat16)
    return [(x, small) if halves[0] else (small, x) for x in (high, low)]


def _last_swapped(v: Value) -> Value:
    rank = len(v.shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    return emit("permute", (v,), v.type.with_shape([v.shape[k] for k in order]), {"order": order})


def _widened(v: Value, format: str, along_k: bool, left: bool, to: dtype) -> Value:
    side = "lhs" if left else "rhs"
    if len(v.shape) < 2:
        raise Invalid(f"dot_scaled: {side} is {described(v)}", hint="it has two axes or three")
    if format == "e2m1":
        if dtype_of(v.element) != t.uint8:
            what = f"dot_scaled: {side} is {described(v)}"
            raise Invalid(what, hint="e2m1 comes as uint8 with two numbers each")
        low, high = _of_four_bits(v, 0, to), _of_four_bits(v, 4, to)
        pairs = emit("join", (low, high), low.type.with_shape((*low.shape, 2)))
        *front, m, n = v.shape
        if along_k == left:  # the packed axis is the last one
            return promote.reshape(pairs, (*front, m, 2 * n))
        return promote.reshape(_last_swapped(pairs), (*front, 2 * m, n))
    if not along_k:
        raise Invalid(f"dot_scaled: {side}_k_pack=False with {format}", hint="only e2m1 is packed")
    kind = _FORMATS[format]
    if dtype_of(v.element) != kind:
        bits = t.get_int_dtype(kind.primitive_bitwidth, False)
        if dtype_of(v.element) != bits:
            what = f"dot_scaled: {side} is {described(v)} for the format {format}"
            raise Invalid(what, hint=f"it comes as {kind}, or its bits as {bits}")
        v = promote.bitcast(v, kind)
    return cast(v, to)


def _of_four_bits(v: Value, shift: int, to: dtype) -> Value:
    """A sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    bits = cast(v, t.int32)
    code = semantic.and_(semantic.shr(bits, shift, False), 15)
    exponent = semantic.and_(semantic.shr(code, 1, False), 3)
    half = semantic.and_(code, 1)
    normal = semantic.or_(semantic.shl(semantic.add(exponent, 126), 23), semantic.shl(half, 22))
    tiny = semantic.mul(cast(half, t.float32), 0.5)
    magnitude = semantic.where(
        semantic.compare("eq", exponent, 0), tiny, promote.bitcast(normal, t.float32)
    )
    negative = semantic.compare("ge", code, 8)
    return cast(semantic.where(negative, semantic.minus(magnitude), magnitude), to)


def _scales(scale: Value, shape: tuple[int, ...], to: dtype, name: str) -> Value:
    """A factor for every element of a matrix with K along the last axis."""
    factors = cast(_factor(scale, name), to)
    if scale.type.size == 1:
        return promote.broadcast_to(promote.reshape(factors, ()), shape)
    *front, rows, k = shape
    group = k // scale.shape[-1] if scale.shape else 0
    if scale.shape[:-1] != (*front, rows) or group * scale.shape[-1] != k:
        what = f"dot_scaled: {name} is {described(scale)}"
        raise Invalid(what, hint=f"it has the shape {[*front, rows, max(1, k // 32)]}")
    spread = promote.reshape(factors, (*scale.shape, 1))
    stretched = promote.broadcast_to(spread, (*scale.shape, group))
    return promote.reshape(stretched, shape)


def _factor(scale: Value, name: str) -> Value:
    """A byte is a power of two: 2 ** (s - 127), 255 is NaN."""
    kind = dtype_of(scale.element)
    if kind.is_floating():
        return scale
    if kind not in (t.uint8, t.int8):
        what = f"dot_scaled: {name} is {described(scale)}"
        raise Invalid(what, hint="scales are e8m0 as uint8, or float8e4nv")
    code = cast(promote.bitcast(scale, t.uint8), t.int32)
    bits = semantic.shl(code, 23)
    bits = semantic.where(semantic.compare("eq", code, 0), 0x00400000, bits)
    bits = semantic.where(semantic.compare("eq", code, 255), 0x7FC00000, bits)
    return promote.bitcast(bits, t.float32)
