"""An operator that only eager has: what becomes of it is a fallback."""

from __future__ import annotations

import torch


@torch.library.custom_op("tilewright_tests::outside", mutates_args=())
def outside(x: torch.Tensor) -> torch.Tensor:
    return x.sinh() + 1


@outside.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


OUTSIDE = "tilewright_tests.outside.default"
