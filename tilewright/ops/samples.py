"""Arrays to try operators on: deterministic, of every dtype, with the values that break things."""

from __future__ import annotations

import numpy as np

from tilewright.ir.node import Op
from tilewright.ir.operator import Sample
from tilewright.ir.types import DType, as_dtype, b1, bf16, dtype_of_numpy, f16, f32, f64, i64

HALVES = (f16, bf16)
FLOATS = (f64, f32, f16, bf16)


def _random(seed: int, shape: tuple[int, ...]) -> np.random.Generator:
    return np.random.default_rng([seed, *shape])


def normal(*shape: int, dtype: DType = f32, seed: int = 0) -> np.ndarray:
    """Standard normal values. Equal arguments give equal arrays: operands differ by seed."""
    return as_dtype(_random(seed, shape).standard_normal(shape), dtype)


def uniform(
    *shape: int, lo: float = 0.0, hi: float = 1.0, dtype: DType = f32, seed: int = 0
) -> np.ndarray:
    return as_dtype(_random(seed, shape).uniform(lo, hi, shape), dtype)


def integers(
    *shape: int, lo: int = -9, hi: int = 10, dtype: DType = i64, seed: int = 0
) -> np.ndarray:
    """Whole numbers in [lo, hi), with lo raised to 0 for unsigned dtypes."""
    low = max(lo, 0) if dtype.kind in "ub" else lo
    return as_dtype(_random(seed, shape).integers(low, hi, shape), dtype)


def booleans(*shape: int, seed: int = 0) -> np.ndarray:
    return _random(seed, shape).integers(0, 2, shape).astype(b1.numpy)


def permutation(n: int, seed: int = 0) -> np.ndarray:
    return _random(seed, (n,)).permutation(n).astype(np.int64)


def extremes(*shape: int, dtype: DType = f32) -> np.ndarray:
    """Zeros, infinities, NaN, subnormals and the ends of the range, repeated to fill the shape."""
    return as_dtype(np.resize(np.array(_edges(dtype), dtype=dtype.numpy), shape), dtype)


def _edges(dtype: DType) -> list[float] | list[int]:
    if dtype.is_bool:
        return [0, 1]
    if dtype.is_int:
        low, high = int(dtype.lowest), int(dtype.highest)
        return [0, 1, low, high, high // 2, 7, low // 2 if low else 3]
    # bfloat16 has float32's range and fewer digits.
    info = np.finfo(dtype.numpy)
    largest = float(info.max) if dtype is not bf16 else 3.3895313892515355e38
    small = float(info.smallest_subnormal) if dtype is not bf16 else 9.183549615799121e-41
    tiny = float(info.tiny)
    inf, nan = float("inf"), float("nan")
    ends = [inf, -inf, nan, small, -small, tiny, largest, -largest]
    return [0.0, -0.0, 1.0, -1.0, *ends, 0.5, -2.5]


def case(op: Op, *args: np.ndarray, dtype: DType | None = None) -> Sample:
    """A sample; with `dtype`, every floating argument is rounded to it first."""
    given, types = [], []
    for a in args:
        d = dtype_of_numpy(a.dtype)
        if dtype is not None and d.is_float:
            a, d = as_dtype(a, dtype), dtype
        given.append(a)
        types.append(d)
    return Sample(op, tuple(given), tuple(types))
