"""Floats of 8 bits: what graphs read and write of them, and products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tests.capture.running import check

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
EDGES = (448.0, 464.0, 465.0, 480.0, 1e6, -1e6, float("inf"), float("nan"), -0.0, 2.0**-10)


def _codes(dtype: torch.dtype) -> Tensor:
    """Every number that there is."""
    return torch.arange(256, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_every_number_is_read(dtype: torch.dtype) -> None:
    check(lambda x: (x.float() * 2, x.to(torch.bfloat16), x.to(torch.float16)), _codes(dtype))


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_are_rounded_as_eager_does(wide: torch.dtype) -> None:
    x = torch.cat([torch.tensor(EDGES), torch.randn(200) * 100]).to(wide)
    check(lambda x: (x * 1).to(E4M3).float(), x)


def test_what_has_infinities_is_written_in_eager() -> None:
    with pytest.raises(tw.TilewrightError, match="become infinite in torch's float8_e5m2"):
        tw.compile(lambda x: (x * 1).to(E5M2), strict=True)(torch.ones(3))


SCALES: dict[str, Callable[[int, int], tuple[Tensor, Tensor]]] = {
    "one": lambda m, n: (torch.tensor(0.5), torch.tensor(3.0)),
    "rows and columns": lambda m, n: (torch.rand(m, 1), torch.rand(1, n)),
}


@pytest.mark.parametrize("scales", SCALES)
def test_scaled_products(scales: str) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(16, 32).to(E4M3), torch.randn(48, 32).to(E4M3).t()
    x, y = SCALES[scales](16, 48)

    def product(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch._scaled_mm(a, b, x, y, out_dtype=torch.float32)

    check(product, a, b, x, y)
