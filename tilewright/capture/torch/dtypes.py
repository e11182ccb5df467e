"""torch's dtypes and ours."""

from __future__ import annotations

import torch

from tilewright.ir.types import (
    DType,
    b1,
    bf16,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
)

FROM_TORCH: dict[torch.dtype, DType] = {
    torch.float64: f64,
    torch.float32: f32,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.float8_e4m3fn: f8e4m3,
    torch.float8_e5m2: f8e5m2,
    torch.int64: i64,
    torch.int32: i32,
    torch.int16: i16,
    torch.int8: i8,
    torch.uint8: u8,
    torch.bool: b1,
}
TO_TORCH: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in FROM_TORCH.items()}
# Pairs of a real dtype in memory.
FROM_COMPLEX: dict[torch.dtype, DType] = {
    torch.complex128: f64,
    torch.complex64: f32,
    torch.complex32: f16,
}
TO_COMPLEX: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in FROM_COMPLEX.items()}


def torch_dtype(dtype: DType, paired: bool) -> torch.dtype:
    return TO_COMPLEX[dtype] if paired else TO_TORCH[dtype]


def real_dtype(dtype: torch.dtype) -> DType:
    """The dtype of a tensor's elements, of each of a pair where it is complex."""
    return FROM_COMPLEX[dtype] if dtype in FROM_COMPLEX else FROM_TORCH[dtype]


def has_native_form(dtype: torch.dtype) -> bool:
    return dtype in FROM_TORCH or dtype in FROM_COMPLEX


def default_float() -> DType:
    """The dtype that integers become where a float is needed."""
    return FROM_TORCH[torch.get_default_dtype()]


def promoted(a: DType, b: DType) -> DType:
    return FROM_TORCH[torch.promote_types(TO_TORCH[a], TO_TORCH[b])]
