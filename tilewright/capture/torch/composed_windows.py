"""Windows of signals: numbers that depend on their count alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed


def _places(n: int, periodic: bool, how: dict[str, Any]) -> Tensor:
    """From 0 at the first element to 1 at the last, or behind it where the window is periodic.
    Windows are computed in float64 and rounded once."""
    k = torch.arange(n, dtype=torch.float64, device=how.get("device"))
    return k / max(n if periodic else n - 1, 1)


def _rounded(x: Tensor, n: int, how: dict[str, Any]) -> Tensor:
    if n == 1:
        x = torch.ones_like(x)
    return x.to(how.get("dtype") or torch.get_default_dtype())


@composed(
    "hamming_window.default",
    "hamming_window.periodic",
    "hamming_window.periodic_alpha",
    "hamming_window.periodic_alpha_beta",
)
def hamming_window(
    n: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **how: Any
) -> Tensor:
    return _rounded(alpha - beta * (2 * math.pi * _places(n, periodic, how)).cos(), n, how)


@composed("blackman_window.default", "blackman_window.periodic")
def blackman_window(n: int, periodic: bool = True, **how: Any) -> Tensor:
    turn = 2 * math.pi * _places(n, periodic, how)
    return _rounded(0.42 - 0.5 * turn.cos() + 0.08 * (2 * turn).cos(), n, how)


@composed("bartlett_window.default", "bartlett_window.periodic")
def bartlett_window(n: int, periodic: bool = True, **how: Any) -> Tensor:
    return _rounded(1 - (2 * _places(n, periodic, how) - 1).abs(), n, how)


@composed("kaiser_window.default", "kaiser_window.periodic", "kaiser_window.beta")
def kaiser_window(n: int, periodic: bool = True, beta: float = 12.0, **how: Any) -> Tensor:
    given = how.get("dtype") or torch.get_default_dtype()
    wide = torch.float64 if given is torch.float64 else torch.float32  # as its function has it
    x = 2 * _places(n, periodic, how) - 1
    height = (beta * (1 - x * x).clamp(min=0).sqrt()).to(wide)
    whole = torch.full((), beta, dtype=wide, device=x.device)
    return _rounded(torch.special.i0(height) / torch.special.i0(whole), n, how)
