"""Histograms of one axis and of several, with edges that are given, in equal steps, or found."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed


def _steps(low: Tensor, high: Tensor, count: int) -> Tensor:
    """`count` numbers from low to high, both ends exact: counted from the nearer one."""
    k = torch.arange(count, dtype=low.dtype, device=low.device)
    step = (high - low) / max(count - 1, 1)
    return torch.where(k < count // 2, low + step * k, high - step * ((count - 1) - k))


def _ends(x: Tensor, span: Sequence[float] | None, axis: int, rank: int) -> tuple[Tensor, Tensor]:
    """The outermost edges along one axis of the points [n, rank]."""
    if span is not None:
        low, high = (
            torch.full((), v, dtype=x.dtype, device=x.device) for v in span[2 * axis :][:2]
        )
    elif x.shape[0] == 0:
        low, high = x.new_zeros(()), x.new_ones(())
    else:
        low, high = x[:, axis].amin(), x[:, axis].amax()
    same = low == high
    return torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)


def _edges(x: Tensor, bins: Sequence[int], span: Sequence[float] | None) -> list[Tensor]:
    rank = x.shape[1]
    return [_steps(*_ends(x, span, k, rank), n + 1) for k, n in enumerate(bins)]


def _points(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _counted(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    """How many points [n, rank], or how much weight, is between edges; the last bin has its upper
    edge too."""
    sizes = [e.shape[0] - 1 for e in edges]
    inside = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    index = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
    for k, (e, n) in enumerate(zip(edges, sizes, strict=True)):
        v = x[:, k].contiguous()
        inside = inside & (v >= e[0]) & (v <= e[-1])
        bin = torch.searchsorted(e, v, right=True) - 1
        index = index * n + bin.clamp(0, n - 1)
    whole = 1
    for n in sizes:
        whole = whole * n
    of_each = x.new_ones(x.shape[0]) if weight is None else weight.reshape(-1).to(x.dtype)
    found = x.new_zeros(whole).scatter_add(0, index, torch.where(inside, of_each, 0.0))
    found = found.reshape(sizes)
    if density:
        found = found / found.sum()
        for k, e in enumerate(edges):
            width = (e[1:] - e[:-1]).reshape([-1 if j == k else 1 for j in range(len(sizes))])
            found = found / width
    return found


@composed("histogram.bin_ct")
def histogram(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    points = x.reshape(-1, 1)
    edges = _edges(points, [bins], range)
    return _counted(points, edges, weight, density), edges[0]


@composed("histogram.bins_tensor")
def histogram_of(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return _counted(x.reshape(-1, 1), [bins], weight, density), bins.clone()


@composed("_histogramdd_bin_edges.default")
def histogramdd_bin_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    return _edges(_points(x), bins, range)


@composed("_histogramdd_from_bin_cts.default")
def histogramdd(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    points = _points(x)
    return _counted(points, _edges(points, bins, range), weight, density)


@composed("_histogramdd_from_bin_tensors.default")
def histogramdd_of(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    return _counted(_points(x), bins, weight, density)
