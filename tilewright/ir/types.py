"""Types: a dtype and dims. Layout is not part of a type; it is an operator (`relayout`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.ir.dim import Dim, Int


@dataclass(frozen=True)
class DType:
    name: str
    kind: str  # 'f' float, 'i' signed, 'u' unsigned, 'b' bool
    bits: int

    def __repr__(self) -> str:
        return self.name

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
        """How the interpreter holds it. numpy has no bfloat16: it is held as rounded float32."""
        return _NUMPY[self.name]

    @property
    def accumulator(self) -> DType:
        """The dtype in which sums of this dtype are carried."""
        return f32 if self in (f16, bf16) else self

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
u8 = DType("u8", "u", 8)
b1 = DType("bool", "b", 8)  # one byte in memory, as in numpy and torch


@dataclass(frozen=True, repr=False)
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


DTYPES: dict[str, DType] = {d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u8, b1)}
_NUMPY = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


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
    """Round float32 values to the nearest bfloat16 (ties to even), kept as float32."""
    x = np.asarray(x, dtype=np.float32, order="C")  # ascontiguousarray would lose 0-d shapes
    u = x.view(np.uint32)
    r = ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), x, r).astype(np.float32)


def as_dtype(x: np.ndarray, dtype: DType) -> np.ndarray:
    """`x` as the interpreter holds a value of `dtype`."""
    if dtype is bf16:
        return round_bf16(np.asarray(x, dtype=np.float32))
    return np.asarray(x).astype(dtype.numpy)
