"""Gradients of reductions over segments of an axis."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed


@composed("_segment_reduce_backward.default")
def backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Of each element of data; 0 outside of all segments."""
    if offsets is not None:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    elif lengths is not None:
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    else:
        return NotImplemented
    n, parts = data.shape[axis], starts.shape[-1]
    batch, rest = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
    if 0 in (n, parts, batch, rest):
        return torch.zeros_like(data)
    x = data.reshape(batch, n, rest)
    starts, ends = (t.reshape(batch, parts).contiguous() for t in (starts, ends))
    places = torch.arange(n, device=data.device, dtype=ends.dtype).expand(batch, n).contiguous()
    part = torch.searchsorted(ends, places, right=True).clamp(max=parts - 1)
    inside = (places >= starts.gather(1, part)) & (places < ends.gather(1, part))
    index = part.unsqueeze(2).expand(batch, n, rest)

    def of_part(table: Tensor) -> Tensor:
        return table.reshape(batch, parts, rest).gather(1, index)

    def totals(values: Tensor) -> Tensor:
        """Summed over segments, at each element."""
        own = torch.where(inside.unsqueeze(2), values.to(x.dtype), 0.0)
        return of_part(
            torch.zeros_like(grad).reshape(batch, parts, rest).scatter_add(1, index, own)
        )

    g = of_part(grad)
    if reduce == "mean":
        found = g / (ends - starts).gather(1, part).unsqueeze(2).to(g.dtype)
    elif reduce in ("max", "min"):
        chosen = (x == of_part(output)) | x.isnan()
        # As eager's: gradients below 0 are not shared among elements that are equal.
        shared = torch.where(g > 0, g / totals(chosen).clamp(min=1), g)
        found = torch.where(chosen, shared, 0.0)
    elif reduce == "prod":
        zero, unknown = x == 0, x.isnan()
        plain = torch.where(zero | unknown | ~inside.unsqueeze(2), 1.0, x)
        first = torch.full_like(grad, 1.0 if initial is None else float(initial))
        others = of_part(first.reshape(batch, parts, rest).scatter_reduce(1, index, plain, "prod"))
        # The product of the other elements of the segment, where it cannot be had by division.
        others = torch.where(totals(zero) - zero.to(x.dtype) > 0, 0.0, others)
        others = torch.where(totals(unknown) - unknown.to(x.dtype) > 0, math.nan, others)
        found = g * torch.where(zero | unknown, others, of_part(output) / x)
    else:
        found = g
    return torch.where(inside.unsqueeze(2), found, 0.0).reshape(data.shape)
