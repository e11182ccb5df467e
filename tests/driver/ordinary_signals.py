"""More programs of a new user (see ordinary_table.py): images, sounds and complex numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- images


@program
def random_crops() -> Ordinary:
    def f(x: Tensor, top: Tensor, left: Tensor, turned: Tensor) -> Tensor:
        rows = top[:, None] + torch.arange(48)
        columns = left[:, None] + torch.arange(48)
        columns = torch.where(turned[:, None], columns.flip(1), columns)
        image = torch.arange(x.shape[0])[:, None, None]
        return x.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)

    x, turned = torch.rand(16, 3, 64, 64), torch.rand(16) > 0.5
    return Ordinary(f, (x, whole(16, 16), whole(16, 16), turned))


@program
def colour_jitter() -> Ordinary:
    def f(x: Tensor, light: Tensor, contrast: Tensor, colour: Tensor) -> Tensor:
        x = (x * light[:, None, None, None]).clamp(0, 1)
        r, g, b = x.unbind(1)
        grey = (0.299 * r + 0.587 * g + 0.114 * b)[:, None]
        mean = grey.mean((1, 2, 3), keepdim=True)
        x = (mean + (x - mean) * contrast[:, None, None, None]).clamp(0, 1)
        return (grey + (x - grey) * colour[:, None, None, None]).clamp(0, 1)

    return Ordinary(f, (torch.rand(8, 3, 64, 64), *(0.7 + 0.6 * torch.rand(3, 8)).unbind(0)))


@program
def random_erasing() -> Ordinary:
    def f(x: Tensor, top: Tensor, left: Tensor, size: Tensor) -> Tensor:
        at = torch.arange(64)
        rows = (at >= top[:, None]) & (at < (top + size)[:, None])
        columns = (at >= left[:, None]) & (at < (left + size)[:, None])
        return x.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0.5)

    return Ordinary(f, (torch.rand(16, 3, 64, 64), whole(40, 16), whole(40, 16), whole(24, 16)))


@program
def mix_of_images() -> Ordinary:
    """Mixup, with labels."""

    def f(x: Tensor, y: Tensor, order: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        hot = F.one_hot(y, 10).float()
        part = share[:, None, None, None]
        labels = hot * share[:, None] + hot[order] * (1 - share[:, None])
        return x * part + x[order] * (1 - part), labels

    return Ordinary(
        f, (torch.rand(16, 3, 32, 32), whole(10, 16), torch.randperm(16), torch.rand(16))
    )


@program
def optical_flow_warp() -> Ordinary:
    """An image moved by a field, with its edges held."""

    def f(x: Tensor, flow: Tensor) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(80.0), indexing="ij")
        at = torch.stack([columns, rows], -1) + flow.permute(0, 2, 3, 1)
        at = 2 * at / torch.tensor([79.0, 63.0]) - 1
        return F.grid_sample(x, at, padding_mode="border", align_corners=True)

    return Ordinary(f, (torch.rand(2, 3, 64, 80), 3 * torch.randn(2, 2, 64, 80)))


@program
def bicubic_warp() -> Ordinary:
    f = lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", align_corners=False)  # noqa: E731
    return Ordinary(f, (torch.rand(2, 3, 48, 48), torch.rand(2, 40, 40, 2) * 2.4 - 1.2))


@program
def nearest_and_area() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        up = F.interpolate(x, scale_factor=3.0, mode="nearest-exact")
        return up, F.interpolate(x, size=(20, 24), mode="area")

    return Ordinary(f, (torch.rand(2, 8, 60, 50),))


@program
def trilinear() -> Ordinary:
    f = lambda x: F.interpolate(x, size=(20, 24, 28), mode="trilinear")  # noqa: E731
    return Ordinary(f, (torch.rand(1, 4, 12, 16, 16),))


@program
def structural_similarity() -> Ordinary:
    """With windows of Gaussian weights, as it is defined."""
    line = torch.exp(-(torch.arange(-5.0, 6) ** 2) / 4.5)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(3, 1, 11, 11).contiguous()

    def f(x: Tensor, y: Tensor) -> Tensor:
        mean = lambda v: F.conv2d(v, kernel, groups=3)  # noqa: E731
        a, b = mean(x), mean(y)
        var, other, both = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
        top = (2 * a * b + 1e-4) * (2 * both + 9e-4)
        return (top / ((a * a + b * b + 1e-4) * (var + other + 9e-4))).mean((1, 2, 3))

    return Ordinary(f, (torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)))


@program
def histogram_equalisation() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        codes = (x * 255).long()
        counts = torch.zeros(256).scatter_add_(0, codes.flatten(), torch.ones(codes.numel()))
        return (counts.cumsum(0) / codes.numel())[codes]

    return Ordinary(f, (torch.rand(128, 128) ** 2,))


@program
def boxes_in_common() -> Ordinary:
    """Which boxes share how much, and each one's best partner."""

    def f(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        area = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])  # noqa: E731
        low, high = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
        both = (high - low).clamp(min=0).prod(2)
        share = both / (area(a)[:, None] + area(b) - both)
        return share.max(1)

    corner = torch.rand(2, 200, 2)
    boxes = torch.cat([corner, corner + 0.05 + torch.rand(2, 200, 2) * 0.3], 2)
    return Ordinary(f, (boxes[0], boxes[1]))


@program
def suppression_one_by_one() -> Ordinary:
    """The best box of all that are left, thirty times."""

    def f(share: Tensor, scores: Tensor) -> Tensor:
        kept = []
        for _ in range(30):
            at = scores.argmax()
            kept.append(at)
            scores = torch.where(share[at] > 0.5, -1.0, scores)
        return torch.stack(kept)

    share = torch.rand(300, 300)
    return Ordinary(f, ((share + share.T + 2 * torch.eye(300)) / 2, torch.rand(300)))


@program
def labels_to_border() -> Ordinary:
    """Where a segmentation changes, and how large each class is."""

    def f(y: Tensor) -> tuple[Tensor, Tensor]:
        hot = F.one_hot(y, 6).permute(0, 3, 1, 2).float()
        inner = -F.max_pool2d(-hot, 3, 1, 1)
        return (hot - inner).amax(1) > 0, hot.mean((2, 3))

    return Ordinary(f, (whole(6, 2, 64, 64),))


# ---- sounds


def _mel_filters(count: int, bins: int) -> Tensor:
    edges = 700 * (torch.logspace(0, math.log10(8), count + 2) - 1) / 4900 * (bins - 1)
    at = torch.arange(bins)[:, None]
    up = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return torch.minimum(up, down).clamp(min=0)


@program
def mel_spectrogram() -> Ordinary:
    window, filters = torch.hann_window(400), _mel_filters(40, 201)

    def f(x: Tensor) -> Tensor:
        s = torch.stft(x, 400, 160, window=window, return_complex=True).abs().square()
        return (s.transpose(1, 2) @ filters + 1e-6).log()

    return Ordinary(f, (torch.randn(2, 8000),))


@program
def cepstral_features() -> Ordinary:
    """Cosines of logarithms of a spectrum."""
    k = torch.arange(40)
    cosines = torch.cos(math.pi / 40 * (k[:, None] + 0.5) * torch.arange(13))

    def f(x: Tensor) -> Tensor:
        frames = x.unfold(1, 400, 160) * torch.hamming_window(400)
        energy = torch.fft.rfft(frames, 512).abs().square()[..., :240]
        return (energy.reshape(*energy.shape[:2], 40, 6).mean(-1) + 1e-6).log() @ cosines

    return Ordinary(f, (torch.randn(2, 8000),))


@program
def pitch_by_correlation() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        frames = x.unfold(1, 512, 256)
        frames = frames - frames.mean(-1, keepdim=True)
        s = torch.fft.rfft(frames, 1024)
        similar = torch.fft.irfft(s * s.conj())[..., 32:400]
        return similar.argmax(-1) + 32

    return Ordinary(f, (torch.randn(2, 8192),))


@program
def mu_law() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sign() * torch.log1p(255 * x.abs()) / math.log1p(255)
        codes = ((y + 1) * 127.5 + 0.5).long()
        z = codes / 127.5 - 1
        return codes, z.sign() * (torch.exp(z.abs() * math.log1p(255)) - 1) / 255

    return Ordinary(f, (torch.rand(16000) * 2 - 1,))


@program
def echo_by_fft() -> Ordinary:
    """A long convolution by transforms of a length that is no power of two."""

    def f(x: Tensor, h: Tensor) -> Tensor:
        n = x.shape[-1] + h.shape[-1] - 1
        return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(h, n), n)

    return Ordinary(f, (torch.randn(4, 3001), torch.randn(1000)))


@program
def analytic_signal() -> Ordinary:
    """Envelope and phase by a Hilbert transform."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.fft.fft(x)
        n = x.shape[-1]
        keep = torch.zeros(n)
        keep[0] = keep[n // 2] = 1
        keep[1 : n // 2] = 2
        z = torch.fft.ifft(s * keep)
        return z.abs(), z.angle()

    return Ordinary(f, (torch.randn(8, 1000),))


@program
def recursive_filter() -> Ordinary:
    """One pole, sample by sample, for many sounds at once."""

    def f(x: Tensor) -> Tensor:
        y, out = torch.zeros(x.shape[1]), []
        for t in range(40):
            y = 0.9 * y + 0.1 * x[t]
            out.append(y)
        return torch.stack(out)

    return Ordinary(f, (torch.randn(40, 500),))


# ---- complex numbers


@program
def complex_products() -> Ordinary:
    f = lambda a, b: (a @ b).abs()  # noqa: E731
    a = torch.randn(8, 48, 48, dtype=torch.complex64)
    return Ordinary(f, (a, torch.randn(8, 48, 48, dtype=torch.complex64)))


@program
def quantum_gates() -> Ordinary:
    """One gate on each of eight qubits."""

    def f(state: Tensor, gates: Tensor) -> Tensor:
        for k in range(8):
            s = state.reshape(2**k, 2, -1)
            state = torch.einsum("ij,ajb->aib", gates[k], s)
        return state.reshape(-1).abs().square()

    state = torch.randn(256, dtype=torch.complex64)
    return Ordinary(f, (state, torch.randn(8, 2, 2, dtype=torch.complex64)))


@program
def polynomial_by_points() -> Ordinary:
    """Products of polynomials, and values of one at many points by Horner's rule."""

    def f(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        c = torch.fft.irfft(torch.fft.rfft(a, 64) * torch.fft.rfft(b, 64), 64)
        y = torch.zeros_like(x)
        for k in range(31, -1, -1):
            y = y * x + a[0, k]
        return c, y

    return Ordinary(f, (torch.randn(4, 32), torch.randn(4, 32), torch.rand(5000) * 2 - 1))
