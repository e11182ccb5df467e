"""Transforms of any length, of all or some elements, and a short-time transform and back."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.driver.running import run_graph
from tests.graph.build import arg, build, fused, graph, kinds, names
from tilewright.ir.interpret import evaluate
from tilewright.ir.types import f64
from tilewright.ops.fourier import _radices

# Passes of all radices, in several orders; products with a matrix (11, 97); convolutions (131).
LENGTHS = (1, 2, 3, 5, 7, 8, 12, 32, 49, 60, 128, 11, 97, 131)


def expected(z: np.ndarray, n: int, forward: bool) -> np.ndarray:
    whole = np.zeros((z.shape[0], n, z.shape[2]), complex)
    whole[:, : z.shape[1]] = z
    return np.fft.fft(whole, axis=1) if forward else np.fft.ifft(whole, axis=1, norm="forward")


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms(n: int) -> None:
    """Of complex numbers; of real ones, half of the results; of half of a spectrum, the real part;
    each against numpy."""
    rng, half, forward = np.random.default_rng(n), n // 2 + 1, n % 3 != 0
    x, y = rng.standard_normal((2, 2, n, 3))
    a, b = arg("a", 2, n, 3, dtype=f64), arg("b", 2, n, 3, dtype=f64)
    first = [build.slice(v, 1, 0, half) for v in (a, b)]
    results = (
        *build.fourier(a, b, 1, n, forward),
        *build.fourier(a, None, 1, n, forward, keep=half),
        build.fourier(*first, 1, n, forward, real=True)[0],
    )
    re, im, half_re, half_im, real = evaluate(graph(*results), (x, y))
    z = x + 1j * y
    np.testing.assert_allclose(re + 1j * im, expected(z, n, forward), atol=1e-11)
    np.testing.assert_allclose(
        half_re + 1j * half_im, expected(x, n, forward)[:, :half], atol=1e-11
    )
    np.testing.assert_allclose(real, expected(z[:, :half], n, forward).real, atol=1e-11)


def test_few_passes() -> None:
    assert [_radices(n) for n in (512, 1024, 96, 13)] == [(8, 8, 8), (4, 4, 8, 8), (4, 8, 3), None]
    assert [_radices(n, 1) for n in (64, 512, 96)] == [(16, 4), (16, 4, 8), (4, 8, 3)]


def spectrum(rows: int, n: int) -> Sequence[np.ndarray]:
    return [np.random.default_rng(k).standard_normal((rows, n)).astype(np.float32) for k in (0, 1)]


def test_passes_of_a_row_are_one_kernel() -> None:
    """With what joins both parts of the results behind them; a transform of one long row is one
    kernel for each pass, which threads share."""
    a, b = arg("a", 6, 96), arg("b", 6, 96)
    joined = build.stack(build.fourier(a, b, 1, 96), 2)
    f = fused(joined)
    assert kinds(f) == ["map"] and {"fourier_pass", "concat"} <= names(f.clusters[0])
    x, y = spectrum(6, 96)
    (out,) = run_graph(graph(joined), (x, y))
    want = np.fft.fft(x + 1j * y)
    np.testing.assert_allclose(out[..., 0] + 1j * out[..., 1], want, atol=1e-5 * abs(want).max())
    long = build.fourier(arg("a", 1, 1 << 14), None, 1, 1 << 14)
    assert len(fused(*long).clusters) >= len(_radices(1 << 14) or ())


def test_transposed_and_back_is_not_transposed() -> None:
    x = arg("x", 4, 6, 8)
    there = build.permute(x, (0, 2, 1))
    back = build.permute(build.mul(build.exp(there), build.add(there, 2.0)), (0, 2, 1))
    f = fused(back)
    assert kinds(f) == ["map"] and "permute" not in names(f.clusters[0])
    other = build.permute(build.exp(build.permute(x, (1, 2, 0))), (1, 0, 2))
    assert "permute" in names(fused(other).clusters[0])


@pytest.mark.slow
def test_short_time_transform_and_back() -> None:
    """Natively, in few kernels, as close to float64 as eager, and so are gradients."""

    def f(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        z = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(z * (z.abs() > 0.5), 16, 4, window=window)

    x = torch.randn(2, 160, generator=torch.Generator().manual_seed(0))
    window = torch.hann_window(16)
    fast = tw.compile(f, strict=True)
    runs = []
    for run, dtype in ((fast, torch.float32), (f, torch.float32), (f, torch.float64)):
        given = x.to(dtype).detach().requires_grad_()
        out = run(given, window.to(dtype))
        (found,) = torch.autograd.grad((out**3).sum(), given)
        runs.append([v.detach().double() for v in (out, found)])
    for ours, eager, exact in zip(*runs, strict=True):
        room = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
        assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max() + room
    assert len(tw.explain(fast).kernels) <= 24  # forward and backward; frames are no kernels each
