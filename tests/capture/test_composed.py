"""Compositions of operators agree with the operators, on torch's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tilewright.capture.torch.composed import compositions

aten = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def resampled() -> Iterator[Call]:
    for size in ((4, 9), (17, 5), (1, 1)):
        for align in (True, False):
            x, g = torch.randn(2, 3, 7, 11), torch.randn(2, 3, *size)
            for kind in ("bilinear", "bicubic"):
                yield getattr(aten, f"_upsample_{kind}2d_aa").default, (x, size, align), {}
                back = getattr(aten, f"_upsample_{kind}2d_aa_backward").default
                yield back, (g, size, [2, 3, 7, 11], align), {}


def sampled() -> Iterator[Call]:
    x, grid = torch.randn(2, 3, 4, 5, 6), torch.randn(2, 3, 4, 5, 3) * 1.3
    for mode in (0, 1):
        for padding in (0, 1, 2):
            for align in (True, False):
                yield aten.grid_sampler_3d.default, (x, grid, mode, padding, align), {}
    x, grid = torch.randn(2, 3, 5, 6), torch.randn(2, 4, 5, 2) * 1.3
    for padding in (0, 1, 2):
        for align in (True, False):
            yield aten.grid_sampler_2d.default, (x, grid, 2, padding, align), {}


def mirrored() -> Iterator[Call]:
    for rank, pads in (
        (1, [3, 2]),
        (2, [2, 0, 1, 3]),
        (3, [1, 2, 0, 1, 2, 1]),
        (2, [-1, 2, 0, -2]),
    ):
        for lead in ((2, 3), (3,)):
            x = torch.randn(*lead, *(4, 5, 6)[:rank])
            yield getattr(aten, f"reflection_pad{rank}d").default, (x, pads), {}
    x = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    yield aten.reflection_pad2d.default, (x, [1, 2, 1, 1]), {}


def pooled() -> Iterator[Call]:
    x, places = torch.randn(2, 3, 9, 11), torch.rand(2, 3, 2)
    yield aten.fractional_max_pool2d.default, (x, [2, 3], [4, 5], places), {}
    x, places = torch.randn(2, 3, 9, 11, 7), torch.rand(2, 3, 3)
    forward = aten.fractional_max_pool3d.default
    yield forward, (x, [2, 3, 2], [4, 5, 1], places), {}
    values, indices = forward(x, [2, 3, 2], [4, 5, 1], places)
    back = aten.fractional_max_pool3d_backward.default
    yield back, (torch.randn_like(values), x, [2, 3, 2], [4, 5, 1], indices), {}


def counted() -> Iterator[Call]:
    x, w, edges = torch.randn(50), torch.rand(50), torch.tensor([-2.0, -1, 0, 0.5, 3])
    for how in ({}, {"range": [-1.0, 1.0]}, {"weight": w, "density": True}, {"range": [1.0, 1.0]}):
        yield aten.histogram.bin_ct, (x, 7), how
    yield aten.histogram.bins_tensor, (x, edges), {"weight": w, "density": True}
    points = torch.randn(50, 2)
    for how in ({}, {"range": [-1.0, 1.0, -2.0, 2.0]}, {"weight": w, "density": True}):
        yield aten._histogramdd_bin_edges.default, (points, [3, 4]), how
        yield aten._histogramdd_from_bin_cts.default, (points, [3, 4]), how


def frequencies() -> Iterator[Call]:
    for op in (aten.fft_fftfreq.default, aten.fft_rfftfreq.default):
        for n, step in ((8, 1.0), (7, 0.3), (1, 2.0)):
            yield op, (n, step), {}
            yield op, (n,), {"dtype": torch.float64}


def windows() -> Iterator[Call]:
    for name in ("hamming", "blackman", "bartlett", "kaiser"):
        op = getattr(aten, f"{name}_window")
        for n in (0, 1, 2, 9, 16):
            yield op.default, (n,), {}
            yield op.periodic, (n, False), {"dtype": torch.float64}
    yield aten.hamming_window.periodic_alpha_beta, (9, True, 0.6, 0.3), {}
    yield aten.kaiser_window.beta, (9, False, 5.0), {}


def inverted() -> Iterator[Call]:
    op = aten.linalg_pinv.atol_rtol_tensor
    for shape in ((3, 5), (2, 5, 3), (0, 3)):
        a = torch.randn(shape)
        yield op, (a,), {}
        yield op, (a,), {"atol": torch.tensor(0.9)}
        yield op, (a,), {"atol": torch.tensor(0.0), "rtol": torch.tensor(0.5)}
    a = torch.randn(2, 4, 4)
    yield op, (a + a.mT,), {"hermitian": True}


def bags() -> Iterator[Call]:
    weight, n = torch.randn(10, 4), 8
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 4, 6])
    for mode in (0, 1, 2):
        forward = aten._embedding_bag.default
        out, bag, size, most = forward(weight, indices, offsets, False, mode, padding_idx=4)
        grad = torch.randn_like(out)
        rest = 10, False, mode, None, 4
        back = aten._embedding_bag_dense_backward.default
        yield back, (grad, indices, bag, size, most, *rest), {}
    _, bag, size, most = aten._embedding_bag.default(weight, indices, offsets)
    own = aten._embedding_bag_per_sample_weights_backward.default
    yield own, (torch.randn(4, 4), weight, indices, offsets, bag, 0), {}
    assert bag.shape[0] in (0, n)


def averaged() -> Iterator[Call]:
    x = torch.randint(-90, 90, (2, 3, 7, 8))
    for how in (
        ([2, 3], [], [0], False, True, None),
        ([3, 2], [2, 3], [1, 1], True, True, None),
        ([3, 3], [2, 2], [1], True, False, None),
        ([2, 2], [2, 2], [0], False, True, 3),
    ):
        yield aten.avg_pool2d.default, (x, *how), {}
    yield aten.avg_pool3d.default, (x.unsqueeze(0), [2, 2, 2], [1], [1], False, False), {}


def rounded() -> Iterator[Call]:
    whole, some = torch.randint(-5, 5, (50,), dtype=torch.int32), torch.randn(50) * 2
    limits = (-60, 61)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(9, 50).to(dtype) * 3
        x[0, :4] = torch.tensor([0.125, -0.125, 0.375, 1e4]).to(dtype)  # ties, and beyond
        for scale, zero in ((0.03, 3), (0.25, -1)):
            each = aten.fake_quantize_per_tensor_affine_cachemask.default
            yield each, (x, scale, zero, *limits), {}
            numbers = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
            for on in (0, 1):
                op = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
                yield op, (x, *numbers, torch.tensor([on]), *limits), {}
        for zeros in (whole, some):
            op = aten.fake_quantize_per_channel_affine_cachemask.default
            yield op, (x, torch.rand(50) * 0.1 + 0.01, zeros, 1, *limits), {}
        mask = x > 0
        yield aten.fake_quantize_per_tensor_affine_cachemask_backward.default, (x, mask), {}
    x, learned = torch.randn(9, 50) * 3, (torch.tensor([0.03]), torch.tensor([3.2]), *limits, 0.5)
    yield aten._fake_quantize_learnable_per_tensor_affine.default, (x, *learned), {}
    back = aten._fake_quantize_learnable_per_tensor_affine_backward.default
    yield back, (torch.randn(9, 50), x, *learned), {}


def segmented() -> Iterator[Call]:
    """With an empty segment, equal elements, zeros and elements of no segment."""
    back = aten._segment_reduce_backward.default
    rows, lengths = torch.randint(-2, 3, (2, 6, 3)).float(), torch.tensor([[2, 0, 4], [1, 3, 2]])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        for x, how in (
            (rows, {"lengths": lengths, "axis": 1, "initial": 2}),
            (rows[0], {"lengths": lengths[0]}),
            (rows[0], {"offsets": torch.tensor([1, 3, 3, 5])}),
        ):
            out = aten.segment_reduce.default(x, reduce, unsafe=True, **how)
            yield back, (torch.randn_like(out), out, x, reduce), how


COMPOSED = [
    averaged,
    rounded,
    mirrored,
    frequencies,
    windows,
    resampled,
    sampled,
    pooled,
    counted,
    inverted,
    bags,
    segmented,
]


@pytest.mark.parametrize("calls", COMPOSED)
def test_what_an_operator_is_composed_of(calls: Any) -> None:
    torch.manual_seed(0)
    table = compositions()
    for op, args, kwargs in calls():
        want, found = op(*args, **kwargs), table[op](*args, **kwargs)
        several = not isinstance(want, Tensor)
        for a, b in zip(want, found, strict=True) if several else [(want, found)]:
            torch.testing.assert_close(b, a, equal_nan=True, msg=lambda m, op=op: f"{op}: {m}")
