"""What `cvt` of PTX computes: conversions between the types of registers, and their roundings."""

from __future__ import annotations

from tilewright.lang.tile.language import semantic
from tilewright.lang.tile.language.elementwise import maximum, minimum, where
from tilewright.lang.tile.language.ptx_machine import (
    PACKED,
    SIGNED,
    TYPES,
    Step,
    as_bits,
    bits,
    finished,
    flushed,
    function,
    numbers,
    packed,
)
from tilewright.lang.tile.language.tensor import tensor, value, wrap
from tilewright.lang.tile.language.types import (
    dtype,
    float8e4nv,
    float8e5,
    float32,
    float64,
    uint8,
    uint32,
)

_ROUNDINGS = {"rzi": "trunc", "rmi": "floor", "rpi": "ceil", "rni": "round"}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def converted(s: Step) -> None:
    known = s.allow("rn", "rna", "rz", "rp", "ftz", "sat", "satfinite", "relu", *_ROUNDINGS)
    if len(s.kinds) != 2:
        raise s.refusal()
    target, source = s.kinds
    if target == "tf32" and source == "f32":
        x = s.machine.read(s.operands(1)[0], float32)
        s.result(short_float(s, maximum(x, 0.0) if "relu" in known else x, known))
    elif "tf32" in s.kinds:
        raise s.refusal()
    elif target in PACKED and source == "f32":
        first, second = (s.machine.read(x, float32) for x in s.operands(2))
        # The first operand goes above the second.
        low, high = (narrowed(s, x, target, known) for x in (second, first))
        s.result(low | (high << 4) if target == "e2m1x2" else packed([low, high]))
    elif target in PACKED and source in PACKED:
        given = numbers(s.machine, s.operands(1)[0], source)
        to, from_ = PACKED[target][0], PACKED[source][0]
        if isinstance(to, str):
            raise s.refusal()
        wide = [decoded(x) if from_ == "e2m1" else x.to(float32) for x in given]
        if from_ == "ue8m0":
            raise s.refusal()
        s.result(packed([as_bits(x.to(to)) for x in wide]))
    elif target in PACKED or source in PACKED:
        raise s.refusal()
    else:
        (name,) = s.operands(1)
        s.result(one_converted(s, s.machine.read(name, TYPES[source]), TYPES[target], known))


def one_converted(s: Step, x: tensor, to: dtype, modifiers: set[str]) -> tensor:
    if modifiers & {"rp", "rna", "satfinite"}:
        raise s.refusal()
    if not x.dtype.is_floating():
        if "rz" in modifiers or "sat" in modifiers:
            raise s.refusal()
        return x.to(to)
    x = flushed(x, modifiers)
    how = next((_ROUNDINGS[m] for m in modifiers if m in _ROUNDINGS), None)
    if to.is_floating():
        if how is not None:
            x = function(how, x)
        towards = "rtz" if "rz" in modifiers else None
        if towards and to.primitive_bitwidth >= bits(x):
            raise s.refusal()
        found = x.to(to, fp_downcast_rounding=towards)
        found = maximum(found, 0.0).to(to) if "relu" in modifiers else found
        return finished(found, modifiers)
    if how is None:
        raise s.refusal("does not say how it rounds: .rzi, .rni, .rmi or .rpi")
    whole = function(how, x.to(float64))
    # What is out of range is the nearest there is, and no number is 0.
    width = to.primitive_bitwidth
    signed = to in SIGNED.values()
    low = -float(1 << (width - 1)) if signed else 0.0
    high = float((1 << (width - 1 if signed else width)) - 1)
    inside = where(whole == whole, minimum(maximum(whole, low), high), 0.0)
    if width < 64:
        return inside.to(to)
    top = (1 << 63) - 1 if signed else (1 << 64) - 1
    return where(whole >= high, s.machine.constant(top, to), inside.to(to))


def narrowed(s: Step, x: tensor, kind: str, modifiers: set[str]) -> tensor:
    """The bits of a float32 as one number of a packed register."""
    to = PACKED[kind][0]
    if "relu" in modifiers:
        x = maximum(x, 0.0)
    if to == "ue8m0":
        if "rp" not in modifiers and "rz" not in modifiers:
            raise s.refusal()
        up = (as_bits(x) & 0x7FFFFF != 0) & ("rp" in modifiers)
        power = ((as_bits(x) >> 23) & 255) + up.to(uint32)
        return where(x != x, 255, minimum(power, 254)).to(uint8)
    if "rn" not in modifiers:
        raise s.refusal("does not round to nearest")
    if to == "e2m1":
        return encoded(x)
    if to in (float8e4nv, float8e5):
        limit = 448.0 if to is float8e4nv else 57344.0
        x = where(x != x, x, minimum(maximum(x, -limit), limit))
    return as_bits(x.to(to))


def short_float(s: Step, x: tensor, modifiers: set[str]) -> tensor:
    """tf32: the bits of a float32 of which 10 of the 23 after the point are left."""
    if modifiers - {"rn", "rna", "rz", "relu"}:
        raise s.refusal()
    code = as_bits(x)
    if "rna" in modifiers:  # halfway, away from zero
        code = code + 0x1000
    elif "rn" in modifiers:  # halfway, to an even number
        code = code + 0xFFF + ((code >> 13) & 1)
    elif "rz" not in modifiers:
        raise s.refusal("does not say how it rounds: .rn, .rna or .rz")
    return where(x != x, 0x7FFFFFFF, code & 0xFFFFE000).to(uint32)


def encoded(x: tensor) -> tensor:
    """The nearest of the numbers of four bits; halfway, the one with an even code."""
    size = wrap(semantic.absolute(value(x)))
    code = (size > 0.25).to(uint8)
    for k in range(1, 7):
        middle = (_E2M1[k] + _E2M1[k + 1]) / 2
        code = code + ((size >= middle) if k % 2 else (size > middle)).to(uint8)
    code = where(x != x, 7, code).to(uint8)
    return code | ((as_bits(x) >> 31) << 3).to(uint8)


def decoded(code: tensor) -> tensor:
    low = (code & 7).to(uint32)
    found = low.to(float32) * 0.5
    for k in (5, 6, 7):
        found = where(low == k, _E2M1[k], found)
    return where((code & 8) != 0, -found, found)
