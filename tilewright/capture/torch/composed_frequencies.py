"""The frequencies that the points of a discrete Fourier transform stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed


@composed("fft_fftfreq.default")
def frequencies(n: int, d: float = 1.0, *, dtype: Any = None, **how: Any) -> Tensor:
    """Those of the second half are negative."""
    k = torch.arange(n, dtype=dtype or torch.get_default_dtype(), device=how.get("device"))
    return torch.where(k < (n + 1) // 2, k, k - n) * (1.0 / (n * d))


@composed("fft_rfftfreq.default")
def real_frequencies(n: int, d: float = 1.0, *, dtype: Any = None, **how: Any) -> Tensor:
    given = dtype or torch.get_default_dtype()
    return torch.arange(n // 2 + 1, dtype=given, device=how.get("device")) * (1.0 / (n * d))
