"""torch's dtypes and ours."""

from __future__ import annotations

import torch

from tilewright.ir.types import DType, b1, bf16, f16, f32, f64, i8, i16, i32, i64, u8

FROM_TORCH: dict[torch.dtype, DType] = {
    torch.float64: f64,
    torch.float32: f32,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.int64: i64,
    torch.int32: i32,
    torch.int16: i16,
    torch.int8: i8,
    torch.uint8: u8,
    torch.bool: b1,
}
TO_TORCH: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in FROM_TORCH.items()}


def default_float() -> DType:
    """The dtype that integers become where a float is needed."""
    return FROM_TORCH[torch.get_default_dtype()]


def promoted(a: DType, b: DType) -> DType:
    return FROM_TORCH[torch.promote_types(TO_TORCH[a], TO_TORCH[b])]
