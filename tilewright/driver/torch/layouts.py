"""Tensors in the layouts that eager would give them, and memory that stands in for none."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def one_of(x: torch.Tensor) -> torch.Tensor:
    """Elements as if no axis were empty."""
    return torch.zeros([max(1, n) for n in x.shape], dtype=x.dtype, device=x.device)


def as_announced(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """What a host call returned, with the strides that torch announced: a copy where it has not."""
    axes = zip(x.shape, x.stride(), stride, strict=True)
    return x if all(n < 2 or a == b for n, a, b in axes) else restrided(x, x.shape, stride)


def restrided(
    x: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    """A copy of x with other strides, which begins at an offset in its storage. Where elements lie
    on top of each other they are equal."""
    made = torch.empty_strided(shape, stride, dtype=x.dtype, device=x.device)
    if offset:
        size = offset + made.untyped_storage().nbytes() // made.element_size()
        made = torch.empty(size, dtype=x.dtype, device=x.device).as_strided(shape, stride, offset)
    to = made
    for axis, (n, step) in enumerate(zip(shape, stride, strict=True)):
        if n > 1 and step == 0:  # torch refuses to write to one place several times
            to, x = to.narrow(axis, 0, 1), x.narrow(axis, 0, 1)
    reach, apart = 1, True  # elements from the first one to the last
    for step, n in sorted(zip(to.stride(), to.shape, strict=True)):
        apart = apart and (n < 2 or step >= reach)
        reach += (n - 1) * step
    if apart or x.numel() == 0:
        to.copy_(x)
    else:  # windows that overlap
        where = torch.arange(reach, device=x.device).as_strided(to.shape, to.stride()).reshape(-1)
        made.as_strided((reach,), (1,))[where] = x.reshape(-1)
    return made
