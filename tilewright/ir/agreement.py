"""When two results agree: the one comparison by which programs, passes, kernels and code are
judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.types import DType, TensorType, as_dtype

# Of the largest value. What is computed in float64 in another order agrees far more closely, and a
# mistake does not. 16-bit floats are rounded at every function.
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 3e-2, "bf16": 2e-1}


def tolerance(dtype: DType) -> float:
    """How far results of a dtype may be apart, of the largest value; 0 of what is exact."""
    return TOLERANCES.get(dtype.name, 0.5) if dtype.is_float else 0.0


def disagreement(
    got: np.ndarray, want: np.ndarray, dtype: DType, *, exact: bool = False
) -> str | None:
    """How a result differs from what is expected, or None. Integers are equal; floats are within
    the dtype's tolerance, NaN and infinite in the same places, or equal where that is `exact`."""
    if got.shape != want.shape:
        return f"its shape is {got.shape}, not {want.shape}"
    if not dtype.is_float:
        wrong = int(np.count_nonzero(got != want))
        return f"{wrong} of {want.size} values differ" if wrong else None
    x, y = got.astype(np.float64), want.astype(np.float64)
    odd = ~np.isfinite(y)
    if not np.array_equal(x[odd], y[odd], equal_nan=True) or not np.isfinite(x[~odd]).all():
        return "NaN or infinity in other places"
    x, y = x[~odd], y[~odd]
    if exact:
        wrong = int(np.count_nonzero(x != y))
        return f"{wrong} of {want.size} values are not the same bits" if wrong else None
    scale = max(1.0, float(np.abs(y).max(initial=0.0)))
    error, most = float(np.abs(x - y).max(initial=0.0)), tolerance(dtype) * scale
    return None if error <= most else f"the error is {error:.3g} where {most:.3g} is allowed"


def drawn(
    t: TensorType, sizes: dict[str, int], rng: np.random.Generator, whole: bool, most: int = 10
) -> np.ndarray:
    """Random elements: floats are normal, or small whole numbers, of which sums and products are
    exact in any order; integers are from 0 to below `most`, so that they can be indices."""
    shape = tuple(int(D.evaluate(d, sizes)) for d in t.shape)
    if t.dtype.is_float:
        found = rng.integers(-3, 4, shape) if whole else rng.standard_normal(shape)
        return as_dtype(found, t.dtype)
    return as_dtype(rng.integers(0, 2 if t.dtype.is_bool else most, shape), t.dtype)


def small_sizes(symbols: Sequence[D.Sym]) -> dict[str, int]:
    """A small size for each symbol, different ones where its bounds leave room."""
    sizes: dict[str, int] = {}
    for k, s in enumerate(sorted(symbols, key=lambda s: s.name)):
        low, step = max(1, int(D.bounds(s.lo)[0])), s.multiple
        high = D.bounds(s.hi)[1] if s.hi is not None else D.INF
        first = -(-low // step) * step
        wanted = first + (2 + k) * step
        sizes[s.name] = int(wanted if wanted <= high else first)
    return sizes
