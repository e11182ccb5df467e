"""Winograd's transforms: an identity in exact arithmetic, and a measured error in floats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tilewright.ops import winograd
from tilewright.ops.convolution import ConvValid
from tilewright.ops.winograd import WinogradInput, WinogradOutput, WinogradWeight, matrices


@pytest.mark.parametrize("size", winograd.POINTS)
def test_identity_is_exact(size: int) -> None:
    """back · (weight w ⊙ there x) is the correlation, as polynomials over the rationals."""
    back, weight, there = matrices(size)
    points = len(there)
    for i in range(size):
        for tap in range(winograd.TAPS):
            for at in range(points):
                total = sum(back[i][p] * weight[p][tap] * there[p][at] for p in range(points))
                assert total == Fraction(at == i + tap)


def by_tiles(x: np.ndarray, w: np.ndarray, size: int) -> np.ndarray:
    """In float32 throughout, as kernels compute it."""
    there, back = (
        np.array(m, np.float64).astype(np.float32) for m in (matrices(size)[2], matrices(size)[0])
    )
    t = size + 2
    windows = np.lib.stride_tricks.sliding_window_view(x, (t, t), (1, 2))[:, ::size, ::size]
    points = np.einsum("ai,npqcij->npqcaj", there, windows)
    points = np.einsum("bj,npqcaj->abnpqc", there, points)
    weight, half = WinogradWeight(size).reference(w).swapaxes(2, 3), x.shape[3] // 2
    sums = np.zeros((*points.shape[:-1], w.shape[0]), np.float32)
    for at in (0, half):  # two chains, each one channel after the other
        chain = np.zeros_like(sums)
        for c in range(at, at + half):
            chain += points[..., c, None] * weight[:, :, None, None, None, c]
        sums += chain
    rows = np.einsum("ia,abnpqo->ibnpqo", back, sums)
    y = np.einsum("jb,ibnpqo->npiqjo", back, rows)
    n, p, i, q, j, o = y.shape
    return y.reshape(n, p * i, q * j, o)


def errors(size: int, channels: int, seed: int) -> tuple[float, float]:
    """(of tiles, of a direct sum in float32) relative to the largest value, root mean squares."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, 10, 10, channels)).astype(np.float32)
    w = rng.standard_normal((8, channels, 3, 3)).astype(np.float32)
    direct = ConvValid((1, 1), (1, 1), 1)
    image = x.transpose(0, 3, 1, 2)
    exact = direct.reference(image.astype(np.float64), w.astype(np.float64)).transpose(0, 2, 3, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    summed = np.zeros(exact.shape, np.float32)
    for c in range(channels):  # one after the other, as a loop over the reduction adds them
        for i in range(3):
            for j in range(3):
                summed += windows[:, :, :, c, i, j, None] * w[:, c, i, j]
    scale = np.abs(exact).max()

    def rms(y: np.ndarray) -> float:
        return float(np.sqrt(np.mean((y - exact) ** 2)) / scale)

    return rms(by_tiles(x, w, size)), rms(summed)


@pytest.mark.parametrize(("size", "times"), [(2, 0.7), (4, 1.7)])
def test_error_is_near_that_of_the_direct_sum(size: int, times: float) -> None:
    for seed in range(3):
        tiles, direct = errors(size, 64, seed)
        assert tiles < times * direct, (size, seed, tiles, direct)


def test_points_are_better_than_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [errors(4, 64, seed)[0] for seed in range(3)]
    usual = {4: (Fraction(1), Fraction(2))}
    monkeypatch.setattr(winograd, "POINTS", usual)
    matrices.cache_clear()
    try:
        others = [errors(4, 64, seed)[0] for seed in range(3)]
    finally:
        matrices.cache_clear()
    assert all(1.5 * a < b for a, b in zip(own, others, strict=True)), (own, others)


@pytest.mark.parametrize("size", winograd.POINTS)
def test_operators_together_convolve(size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((2, 2 * size + 2, size + 2, 5))
    w = rng.standard_normal((3, 5, 3, 3))
    points = WinogradInput(size).reference(x)
    sums = np.einsum("abnpqc,aboc->abnpqo", points, WinogradWeight(size).reference(w))
    y = WinogradOutput(size, 2 * size, size).reference(sums)
    want = ConvValid((1, 1), (1, 1), 1).reference(x.transpose(0, 3, 1, 2), w)
    np.testing.assert_allclose(y, want.transpose(0, 2, 3, 1), rtol=1e-10, atol=1e-12)
