"""Averages of windows of integers: sums and quotients are exact, so they stay integers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from tilewright.capture.torch.composed import composed


def _each(given: Sequence[int], rank: int) -> list[int]:
    return list(given) * rank if len(given) == 1 else list(given)


def _results(n: int, window: int, step: int, edge: int, up: bool) -> int:
    """How many windows there are; one that begins beyond the right edge is none."""
    count = (n + 2 * edge - window + (step - 1 if up else 0)) // step + 1
    return count - 1 if up and (count - 1) * step >= n + edge else count


@composed("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    rank = len(kernel_size)
    if x.is_floating_point() or x.is_complex():
        return NotImplemented
    steps = _each(stride or kernel_size, rank)
    edges = _each(padding, rank)
    total, count = x, torch.ones((), dtype=x.dtype, device=x.device)
    for k, (window, step, edge) in enumerate(zip(kernel_size, steps, edges, strict=True)):
        axis = x.dim() - rank + k
        n = x.shape[axis]
        out = _results(n, window, step, edge, ceil_mode)
        last = max(0, (out - 1) * step + window - n - edge)
        wide = pad(total, [0, 0] * (x.dim() - 1 - axis) + [edge, last])
        parts = [wide.narrow(axis, j, (out - 1) * step + 1) for j in range(window)]
        total = torch.stack([p[(slice(None),) * axis + (slice(None, None, step),)] for p in parts])
        total = total.sum(0, dtype=x.dtype)
        start = torch.arange(out, device=x.device) * step - edge
        end = (start + window).clamp(max=n + edge)
        size = end - start if count_include_pad else end.clamp(max=n) - start.clamp(min=0)
        count = count.unsqueeze(-1) * size.to(x.dtype)
    divisor = count if divisor_override is None else divisor_override
    return torch.div(total, divisor, rounding_mode="trunc")
