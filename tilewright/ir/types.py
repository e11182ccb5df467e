"""Types: a dtype and dims. Layout is not part of a type; it is an operator (`relayout`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tilewright.ir.dim import Dim, Int
from tilewright.ir.narrow import FORMATS, Format, to_single


@dataclass(frozen=True, eq=False)
class DType:
    """There is one object of each, and equality is identity: dtypes are hashed often, in keys."""

    name: str
    kind: str  # 'f' float, 'i' signed, 'u' unsigned, 'b' bool
    bits: int

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_named, (self.name,)

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype that the interpreter computes with. What numpy lacks (bfloat16, floats of
        8 bits) is represented as rounded float32."""
        return _NUMPY[self.name]

    @property
    def memory(self) -> np.dtype:
        """How numpy sees it in memory: what it lacks as unsigned codes."""
        return self.numpy if self.format is None or self is f16 else self.format.code

    @property
    def format(self) -> Format | None:
        """Of the floats that are computed in float32 and rounded."""
        return FORMATS.get(self.name)

    @property
    def accumulator(self) -> DType:
        """The dtype in which sums of this dtype are carried."""
        return f32 if self.format is not None else self

    @property
    def lowest(self) -> float | int:
        if self.is_float:
            return float("-inf")
        return 0 if self.kind in "ub" else -(1 << (self.bits - 1))

    @property
    def highest(self) -> float | int:
        if self.is_float:
            return float("inf")
        if self.is_bool:
            return 1
        return (1 << self.bits) - 1 if self.kind == "u" else (1 << (self.bits - 1)) - 1


f64, f32, f16 = DType("f64", "f", 64), DType("f32", "f", 32), DType("f16", "f", 16)
bf16 = DType("bf16", "f", 16)
i64, i32, i16, i8 = (DType(f"i{b}", "i", b) for b in (64, 32, 16, 8))
u64, u32, u16, u8 = (DType(f"u{b}", "u", b) for b in (64, 32, 16, 8))
b1 = DType("bool", "b", 8)  # one byte in memory, as in numpy and torch
f8e4m3, f8e5m2, f8e4b15, f8e4b8, f8e5b16 = (
    DType(name, "f", 8) for name in ("f8e4m3", "f8e5m2", "f8e4b15", "f8e4b8", "f8e5b16")
)


@dataclass(frozen=True, repr=False, eq=False)
class TupleDType(DType):
    """Several components that one reduction carries; only memory inside a kernel has it."""

    items: tuple[DType, ...] = ()


@cache
def tuple_dtype(items: tuple[DType, ...]) -> TupleDType:
    name = f"({','.join(d.name for d in items)})"
    return TupleDType(name, "t", sum(max(8, d.bits) for d in items), items)


def dtype_named(name: str) -> DType | None:
    """The dtype that prints so: `f32`, or `(i64,f32)` for a tuple."""
    if name.startswith("(") and name.endswith(")"):
        items = [DTYPES.get(x) for x in name[1:-1].split(",")]
        known = tuple(d for d in items if d is not None)
        return tuple_dtype(known) if len(known) == len(items) else None
    return DTYPES.get(name)


# What tensor operators take; the others are for kernels in the tile language.
TENSOR_DTYPES = {d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u8, b1)}
FLOATS_OF_8_BITS = (f8e4m3, f8e5m2, f8e4b15, f8e4b8, f8e5b16)
DTYPES: dict[str, DType] = {
    **TENSOR_DTYPES,
    **{d.name: d for d in (u64, u32, u16, *FLOATS_OF_8_BITS)},
}
# As numpy and torch call them.
LONG_NAMES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
    "bool": "bool",
}
_NUMPY = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    **{d.name: np.dtype(np.float32) for d in FLOATS_OF_8_BITS},
}
_OF_NUMPY = {_NUMPY[d.name]: d for d in DTYPES.values() if d.memory == _NUMPY[d.name]}


def dtype_of_numpy(dtype: np.dtype) -> DType:
    """The dtype that numpy has under this one; `KeyError` for strings, complex numbers and such."""
    return _OF_NUMPY[np.dtype(dtype)]


@dataclass(frozen=True)
class TensorType:
    dtype: DType
    shape: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Dim:
        n: Dim = 1
        for d in self.shape:
            n = n * d
        return n

    @property
    def is_static(self) -> bool:
        return not any(isinstance(d, Int) for d in self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class TupleType:
    items: tuple[TensorType, ...]

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.items))})"


Type = TensorType | TupleType


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 values to the nearest bfloat16 (ties to even), still as float32."""
    x = np.asarray(x, dtype=np.float32, order="C")  # ascontiguousarray would lose 0-d shapes
    u = x.view(np.uint32)
    r = ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), x, r).astype(np.float32)


def as_dtype(x: np.ndarray, dtype: DType) -> np.ndarray:
    """`x` as the interpreter represents a value of `dtype`."""
    if dtype is bf16:
        return round_bf16(to_single(x))
    if dtype in FLOATS_OF_8_BITS:
        return FORMATS[dtype.name].round(x)
    return np.asarray(x).astype(dtype.numpy)


def clamped(x: Any, dtype: DType) -> Any:
    """Numbers about to be cast: a cast to 8 bits makes the largest number of an infinity, which
    memory of the same dtype may well hold."""
    return FORMATS[dtype.name].clamp(x) if dtype in FLOATS_OF_8_BITS else x


def to_memory(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Values (of any numpy dtype) as they lie in memory, of `dtype.memory`."""
    if dtype.memory == dtype.numpy:
        return np.asarray(x).astype(dtype.numpy, order="C")
    return FORMATS[dtype.name].encode(x)


def from_memory(codes: np.ndarray, dtype: DType) -> np.ndarray:
    """What lies in memory, as the interpreter represents it."""
    if dtype.memory == dtype.numpy:
        return np.asarray(codes, dtype.numpy)
    return FORMATS[dtype.name].decode(codes)


def has_all_of(wide: DType, narrow: DType) -> bool:
    """Is every number of one dtype one of another?"""
    if wide is narrow:
        return True
    if not wide.is_float and not narrow.is_float:
        return wide.lowest <= narrow.lowest and narrow.highest <= wide.highest
    if not (wide.is_float and narrow.is_float) or wide.bits <= narrow.bits:
        return False
    return wide.bits > 16 or narrow in FLOATS_OF_8_BITS
