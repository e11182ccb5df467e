"""Covariances and correlations. Torch's own look at data to see whether there are enough columns,
also where the number of columns alone says so, and break the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.capture.torch.substitutes import substitute


def covariance(x: Tensor, *, correction: int = 1) -> Tensor:
    """What `torch.cov` does without weights: of rows, from their columns."""
    if x.dim() > 2:
        raise ValueError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {x.dim()}"
        )
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    x = x.reshape(1, -1) if x.dim() < 2 else x
    count = x.shape[1]
    x = x - x.sum(1, keepdim=True) / count
    return (x @ x.mH / max(count - correction, 0)).squeeze()


def correlation(x: Tensor) -> Tensor:
    """`torch.corrcoef`: covariances of rows, each as long as one."""
    if x.dim() > 2:
        raise ValueError(
            "corrcoef(): expected input to have two or fewer dimensions but got an input with "
            f"{x.dim()}"
        )
    found = covariance(x)
    if found.dim() == 0:
        return found / found
    size = found.diagonal().sqrt()
    found = found / size[:, None] / size
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)


def _is_plain(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """One tensor, and no weights?"""
    return len(operands) == 1 and {*named} <= {"correction"}


substitute(torch.cov, covariance, _is_plain)
substitute(torch.corrcoef, correlation, _is_plain)
