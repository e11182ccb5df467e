"""Edges of images that repeat what is inside: as pieces that are joined, which are read in whole
vectors; positions that are computed element by element would be gathered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from tilewright.capture.torch.composed import composed


@composed("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Mirrored at the first and at the last element of each axis, which are not repeated."""
    form = suggest_memory_format(x)
    axes = len(padding) // 2
    for k in reversed(range(axes)):
        low, high = padding[2 * k : 2 * k + 2]
        axis = x.dim() - 1 - k
        size = x.shape[axis]
        torch._check(low < size, lambda: "padding size should be less than the input's size")
        torch._check(high < size, lambda: "padding size should be less than the input's size")
        begin, end = max(-low, 0), size + min(high, 0)  # negative edges are cut off
        pieces = [x.narrow(axis, begin, end - begin)] if begin or end != size else [x]
        if low > 0:
            pieces.insert(0, x.narrow(axis, 1, low).flip(axis))
        if high > 0:
            pieces.append(x.narrow(axis, size - 1 - high, high).flip(axis))
        x = torch.cat(pieces, axis) if len(pieces) > 1 else pieces[0]
    return x.contiguous(memory_format=form)
