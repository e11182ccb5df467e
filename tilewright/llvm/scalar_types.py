"""LLVM's types of scalars and of vectors of them, and numbers of these types as text."""

from __future__ import annotations

import struct

from tilewright.ir.types import DType, f16, f64


def register_type(d: DType) -> str:
    """LLVM type of one lane in a register."""
    if d.is_float:
        return "double" if d is f64 else "float"
    return "i1" if d.is_bool else f"i{d.bits}"


def memory_type(d: DType) -> str:
    if d is f16:
        return "half"
    if d.format is not None:
        return f"i{d.bits}"
    return "i8" if d.is_bool else register_type(d)


def vector(t: str, lanes: int) -> str:
    return t if lanes == 1 else f"<{lanes} x {t}>"


def suffix(t: str, lanes: int) -> str:
    """The type's name inside an intrinsic's name."""
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(t, t)
    return short if lanes == 1 else f"v{lanes}{short}"


def literal(v: float | int | bool, d: DType) -> str:
    if d.is_float:
        x = float(v)
        if d is not f64 and x == x and abs(x) != float("inf"):
            x = struct.unpack("<f", struct.pack("<f", x))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"
    if d.is_bool:
        return "true" if v else "false"
    bits = d.bits
    n = int(v) & ((1 << bits) - 1)
    return str(n - (1 << bits) if n >> (bits - 1) else n)
