"""Images resampled with a filter against aliasing, sampled at points of a volume, and pooled by
windows at random places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed


def _triangle(x: Tensor) -> Tensor:
    return (1.0 - x.abs()).clamp(min=0.0)


def _cubic(x: Tensor) -> Tensor:
    a = -0.5
    x = x.abs()
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


Filter = tuple[int, Callable[[Tensor], Tensor]]  # half the width of its support, and the function
_LINEAR: Filter = 2, _triangle
_CUBIC: Filter = 4, _cubic


def _scale(n: int, out: int, align: bool, factor: float | None) -> float:
    if align:
        return (n - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / factor if factor is not None and factor > 0 else n / out


def _taps(
    x: Tensor, n: int, out: int, align: bool, factor: float | None, kind: Filter
) -> tuple[Tensor, Tensor]:
    """(positions, weights), both [out, taps]: what each element of a resampled axis is summed
    from. Positions beyond the window have no weight."""
    width, function = kind
    scale = _scale(n, out, align, factor)
    support = width * 0.5 * max(scale, 1.0)
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    center = scale * (torch.arange(out, dtype=dtype, device=x.device) + 0.5)
    first = (center - support + 0.5).to(torch.int64).clamp(min=0)
    count = (center + support + 0.5).to(torch.int64).clamp(max=n) - first
    taps = torch.arange(2 * math.ceil(support) + 1, device=x.device)
    at = (taps.to(dtype) + first.to(dtype).unsqueeze(1) - center.unsqueeze(1) + 0.5) / max(
        scale, 1.0
    )
    weights = torch.where(taps < count.unsqueeze(1), function(at), 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    return (first.unsqueeze(1) + taps).clamp(max=n - 1), weights


def _resampled(
    x: Tensor, axis: int, out: int, align: bool, factor: float | None, kind: Filter
) -> Tensor:
    n = x.shape[axis]
    if n == out and not align and factor is None:
        return x
    positions, weights = _taps(x, n, out, align, factor, kind)
    moved = x.movedim(axis, -1)
    # One tap after the other: each a row of reads that the sum is fused with.
    windows = moved[..., positions.reshape(-1)].unflatten(-1, positions.shape)
    return (windows * weights).sum(-1).movedim(-1, axis)


def _spread(
    grad: Tensor, axis: int, n: int, align: bool, factor: float | None, kind: Filter
) -> Tensor:
    """The transpose of `_resampled`."""
    out = grad.shape[axis]
    if n == out and not align and factor is None:
        return grad
    positions, weights = _taps(grad, n, out, align, factor, kind)
    moved = grad.movedim(axis, -1)
    parts = (moved.unsqueeze(-1) * weights).flatten(-2)
    whole = moved.new_zeros((*moved.shape[:-1], n), dtype=parts.dtype)
    return whole.index_add(moved.dim() - 1, positions.reshape(-1), parts).movedim(-1, axis)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _antialiased(kind: Filter) -> Callable[..., Tensor]:
    def forward(
        x: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        if x.dtype is torch.uint8:
            return NotImplemented
        wide = _resampled(_wide(x), 3, output_size[1], align_corners, scales_w, kind)
        wide = _resampled(wide, 2, output_size[0], align_corners, scales_h, kind)
        return wide.to(x.dtype).contiguous()

    return forward


def _antialiased_backward(kind: Filter) -> Callable[..., Tensor]:
    def backward(
        grad: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        wide = _spread(_wide(grad), 2, input_size[2], align_corners, scales_h, kind)
        wide = _spread(wide, 3, input_size[3], align_corners, scales_w, kind)
        return wide.to(grad.dtype).contiguous()

    return backward


composed("_upsample_bilinear2d_aa.default")(_antialiased(_LINEAR))
composed("_upsample_bicubic2d_aa.default")(_antialiased(_CUBIC))
composed("_upsample_bilinear2d_aa_backward.default")(_antialiased_backward(_LINEAR))
composed("_upsample_bicubic2d_aa_backward.default")(_antialiased_backward(_CUBIC))


# ---- points of an image or a volume


def _unnormalised(x: Tensor, size: int, align: bool) -> Tensor:
    return x * (size * 0.5 - 0.5 if align else size * 0.5) + (size * 0.5 - 0.5)


def _reflected(x: Tensor, low: int, high: int) -> Tensor:
    """Positions between low / 2 and high / 2, by reflection at these."""
    if low == high:
        return torch.zeros_like(x)
    least, span = low / 2, (high - low) / 2
    x = (x - least).abs()
    rest = x - (x / (2 * span)).trunc() * (2 * span)  # to and fro once
    return torch.minimum(rest, 2 * span - rest) + least


def _brought_inside(x: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """Positions that a mode of padding moves to where the image is; zeros: as they are."""
    if padding == 2:
        x = _reflected(x, 0, 2 * (size - 1)) if align else _reflected(x, -1, 2 * size - 1)
    return x.clamp(0, size - 1) if padding else x


def _inside(position: Tensor, size: int) -> Tensor:
    return (position >= 0) & (position <= size - 1)


def _cubic_weights(t: Tensor) -> tuple[Tensor, ...]:
    """Of the four neighbours of a position, which is `t` behind the second one."""
    a = -0.75
    near = lambda x: ((a + 2) * x - (a + 3)) * x * x + 1  # noqa: E731
    far = lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a  # noqa: E731
    return far(t + 1), near(t), near(1 - t), far(2 - t)


Tap = tuple[Tensor, Tensor | None]  # a position, a whole number, and its weight


def _taps_of_axis(x: Tensor, size: int, mode: int, padding: int, align: bool) -> list[Tap]:
    """The neighbours along one axis that a sample is a weighted sum of."""
    at = _unnormalised(x, size, align)
    if mode == 2:
        low = at.floor()
        weights = _cubic_weights(at - low)
        near = [_brought_inside(low + k, size, padding, align) for k in (-1, 0, 1, 2)]
        return list(zip(near, weights, strict=True))
    at = _brought_inside(at, size, padding, align)
    if mode == 1:
        return [(at.round(), None)]
    low = at.floor()
    return [(low, low + 1 - at), (low + 1, at - low)]


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """Samples of a tensor's last axes: nearest ones, or weighted sums of neighbours. What belongs
    to a point of the grid, the places in memory and their weights, is computed once for all
    channels."""
    n, channels, *sizes = x.shape
    rank, points = len(sizes), grid.shape[1:-1]
    x, grid = _wide(x), _wide(grid)
    flat = x.reshape(n, channels, -1)
    few = all(type(m) is int for m in sizes) and math.prod(sizes) < 1 << 31
    index_type = torch.int32 if few else torch.int64
    batch = torch.arange(n, device=x.device, dtype=index_type).view(n, 1, 1)
    channel = torch.arange(channels, device=x.device, dtype=index_type).view(1, channels, 1)
    # The last axis of the grid has the innermost position first.
    axes: list[list[tuple[Tensor, Tensor, Tensor | None]]] = []
    for k, size in enumerate(sizes):
        taps = []
        for at, weight in _taps_of_axis(grid[..., rank - 1 - k], size, mode, padding, align):
            inside = _inside(at, size)
            near = torch.where(inside, at, 0.0).to(index_type).clamp(0, size - 1)
            taps.append((near, inside, weight))
        axes.append(taps)
    total = None
    for corner in product(*axes):
        index = torch.zeros((), dtype=index_type, device=x.device)
        weight, inside = None, None
        for size, (near, here, part) in zip(sizes, corner, strict=True):
            index = index * size + near
            inside = here if inside is None else inside & here
            weight = part if weight is None or part is None else weight * part
        assert inside is not None
        found = flat[batch, channel, index.reshape(n, 1, -1)].reshape(n, channels, *points)
        if weight is None:
            return torch.where(inside.unsqueeze(1), found, 0.0)
        term = found * torch.where(inside, weight, 0.0).unsqueeze(1)
        total = term if total is None else total + term
    assert total is not None
    return total


@composed("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(
    x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    found = _sampled(x, grid, interpolation_mode, padding_mode, align_corners)
    return found.to(x.dtype)


# ---- windows at random places


def _starts(sample: Tensor, n: int, out: int, window: int) -> Tensor:
    """Where the windows along an axis begin: [..., out] of a random number for each channel."""
    if out == 1:
        return torch.full((*sample.shape, 1), n - window, device=sample.device)
    step = (n - window) / (out - 1)
    places = torch.arange(out, device=sample.device)
    first = (sample * step).to(torch.int64).unsqueeze(-1)
    begun = ((places.to(sample.dtype) + sample.unsqueeze(-1)) * step).to(torch.int64) - first
    return torch.where(places == out - 1, n - window, begun)


def _fractional(
    x: Tensor, window: Sequence[int], size: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    rank = len(size)
    batched = x if x.dim() == rank + 2 else x.unsqueeze(0)
    lead, axes = batched.shape[:2], batched.shape[2:]
    index = torch.zeros((), dtype=torch.int64, device=x.device)
    for k in range(rank):
        # Of two axes the random number of the last one comes first.
        sample = samples[:, :, rank - 1 - k if rank == 2 else k]
        starts = _starts(sample, axes[k], size[k], window[k])
        within = starts.unsqueeze(-1) + torch.arange(window[k], device=x.device)
        shape = [1] * (2 * rank)
        shape[k], shape[rank + k] = size[k], window[k]
        index = index * axes[k] + within.reshape(*lead, *shape)
    index = index.expand(*lead, *size, *window)
    rows = index.reshape(*lead, -1)
    found = batched.flatten(2).gather(2, rows).reshape(*lead, *size, math.prod(window))
    best = found.argmax(-1, keepdim=True)
    values = found.gather(-1, best).squeeze(-1)
    places = index.reshape(*lead, *size, math.prod(window)).gather(-1, best).squeeze(-1)
    return (values, places) if batched is x else (values[0], places[0])


@composed("fractional_max_pool2d.default", "fractional_max_pool3d.default")
def fractional_max_pool(
    x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Tensor
) -> tuple[Tensor, Tensor]:
    return _fractional(x, kernel_size, output_size, random_samples)


@composed("fractional_max_pool2d_backward.default", "fractional_max_pool3d_backward.default")
def fractional_max_pool_backward(
    grad: Tensor, x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], indices: Tensor
) -> Tensor:
    rank = len(output_size)
    lead = x.shape[: x.dim() - rank]
    zeros = grad.new_zeros((*lead, math.prod(x.shape[x.dim() - rank :])))
    flat = zeros.scatter_add(len(lead), indices.flatten(len(lead)), grad.flatten(len(lead)))
    return flat.reshape(x.shape)
