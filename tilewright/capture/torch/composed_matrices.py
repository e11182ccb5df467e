"""What follows from factorisations of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed


@composed("linalg_pinv.atol_rtol_tensor")
def pinv(
    a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False
) -> Tensor:
    """By singular values (of a Hermitian matrix: eigenvalues) that are not too small."""
    m, n = a.shape[-2:]
    if a.numel() == 0:
        return a.new_empty((*a.shape[:-2], n, m))
    if rtol is None:
        # As eager: where only an absolute bound is given, there is no relative one.
        least = torch.finfo(a.dtype).eps * max(m, n)
        none = torch.full((), least, dtype=torch.float64, device=a.device)
        rtol = none if atol is None else torch.where(atol > 0, 0.0, none)
    if hermitian:
        values, vectors = torch.linalg.eigh(a)
        size = values.abs()
        largest = size.amax(-1, keepdim=True)
        left, right = vectors, vectors.mH
    else:
        u, size, vh = torch.linalg.svd(a, full_matrices=False)
        values, largest = size, size[..., :1]
        left, right = vh.mH, u.mH
    least = rtol.unsqueeze(-1).to(size.dtype) * largest
    if atol is not None:
        least = torch.maximum(atol.unsqueeze(-1).to(size.dtype), least)
    inverse = torch.where(size > least, values.reciprocal(), 0.0).to(a.dtype)
    return left @ (inverse.unsqueeze(-1) * right)
