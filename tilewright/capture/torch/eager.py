"""What eager does differently from machine to machine, found by running eager."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.capture.torch.dtypes import TO_TORCH
from tilewright.ir.types import DType


@cache
def rounds_scaled(dtype: DType) -> bool:
    """Does `add(x, y, alpha=…)` of 16-bit floats round the product before it adds? Vector code of
    some processors does, that of others multiplies and adds in one step."""
    with _disable_current_modes():
        y = torch.full((256,), 1.625, dtype=TO_TORCH[dtype])
        scaled = y * torch.tensor(0.3, dtype=y.dtype)
        return not bool(torch.add(-scaled, y, alpha=0.3).any())
