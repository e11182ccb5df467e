"""More programs of a new user (see ordinary_table.py): axes, images, normalisations, networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- along an axis


@program
def cumulative_product() -> Ordinary:
    return Ordinary(lambda x: (1 - x).cumprod(-1), (torch.rand(64, 200) * 0.1,))


@program
def running_maximum() -> Ordinary:
    return Ordinary(lambda x: x.cummax(1), (torch.randn(64, 1000),))


@program
def log_cumulative_sum() -> Ordinary:
    return Ordinary(lambda x: x.logcumsumexp(-1), (torch.randn(64, 500),))


@program
def differences() -> Ordinary:
    return Ordinary(lambda x: x.diff(dim=1).abs().mean(1), (torch.randn(256, 1000),))


@program
def ranks() -> Ordinary:
    return Ordinary(lambda x: x.argsort(-1).argsort(-1), (torch.randn(128, 500),))


@program
def sort_columns() -> Ordinary:
    return Ordinary(lambda x: x.sort(0), (torch.randn(500, 64),))


@program
def top_k_accuracy() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x.topk(5, -1).indices == y[:, None]).any(-1).float().mean()

    return Ordinary(f, (torch.randn(256, 100), whole(100, 256)))


@program
def confusion_matrix() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.bincount(y * 10 + x.argmax(1), minlength=100).view(10, 10)

    return Ordinary(f, (torch.randn(2000, 10), whole(10, 2000)))


@program
def buckets() -> Ordinary:
    return Ordinary(torch.bucketize, (torch.randn(20000), torch.linspace(-3, 3, 50)))


@program
def median_of_all() -> Ordinary:
    return Ordinary(lambda x: (x - x.median()).abs().median(), (torch.randn(4001),))


@program
def gather_chain() -> Ordinary:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return (x.flip(1).roll(3, 1)[:, i] * x.index_select(1, i)).sum(1)

    return Ordinary(f, (torch.randn(256, 300), whole(300, 100)))


@program
def take_pairs() -> Ordinary:
    rows = torch.triu_indices(24, 24)

    def f(x: Tensor) -> Tensor:
        return torch.cat([x, x[:, rows[0]] * x[:, rows[1]]], 1)

    return Ordinary(f, (torch.randn(500, 24),))


# ---- normalisations


@program
def layer_norm_of_short_rows() -> Ordinary:
    return Ordinary(nn.LayerNorm(16).eval(), (torch.randn(4096, 16),))


@program
def normalise_middle_axis() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt()

    return Ordinary(f, (torch.randn(16, 50, 70),))


@program
def unit_columns() -> Ordinary:
    return Ordinary(lambda x: F.normalize(x, dim=0), (torch.randn(500, 300),))


@program
def instance_norm() -> Ordinary:
    return Ordinary(nn.InstanceNorm2d(32, affine=True).eval(), (torch.randn(4, 32, 40, 40),))


@program
def batch_norm_training() -> Ordinary:
    f = lambda x, w, b: F.batch_norm(x, None, None, w, b, True).relu()  # noqa: E731
    return Ordinary(f, (torch.randn(8, 32, 28, 28), torch.randn(32), torch.randn(32)))


@program
def rms_norm_and_rotary() -> Ordinary:
    def f(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    angle = torch.randn(128, 64)
    return Ordinary(f, (torch.randn(2, 8, 128, 64), torch.randn(64), angle.cos(), angle.sin()))


@program
def layer_norm_gradient() -> Ordinary:
    net = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 96), nn.GELU(), nn.LayerNorm(96))

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).square().mean()

    return Ordinary(Summed(), (torch.randn(200, 96),), gradient=True)


# ---- images


@program
def sobel_edges() -> Ordinary:
    side = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    kernel = torch.stack([side, side.T])[:, None]

    def f(x: Tensor) -> Tensor:
        return (F.conv2d(x, kernel, padding=1).square().sum(1) + 1e-6).sqrt()

    return Ordinary(f, (torch.rand(4, 1, 128, 128),))


@program
def gaussian_blur() -> Ordinary:
    line = torch.exp(-(torch.arange(-3.0, 4) ** 2) / 4)
    kernel = (line / line.sum()).expand(3, 1, 7)

    def f(x: Tensor) -> Tensor:
        x = F.conv2d(F.pad(x, (3, 3, 3, 3), mode="reflect"), kernel[:, :, None], groups=3)
        return F.conv2d(x, kernel[:, :, :, None], groups=3)

    return Ordinary(f, (torch.rand(2, 3, 96, 96),))


@program
def median_filter() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        parts = F.unfold(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3)
        return parts.median(1).values.view_as(x)

    return Ordinary(f, (torch.rand(1, 1, 64, 64),))


@program
def dilate_and_erode() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 1, 1) + F.max_pool2d(-x, 3, 1, 1)

    return Ordinary(f, (torch.rand(4, 3, 96, 96),))


@program
def pixel_shuffle() -> Ordinary:
    return Ordinary(lambda x: F.pixel_shuffle(x, 2).relu(), (torch.randn(2, 64, 32, 32),))


@program
def bicubic() -> Ordinary:
    f = lambda x: F.interpolate(x, size=(60, 90), mode="bicubic", align_corners=False)  # noqa: E731
    return Ordinary(f, (torch.rand(2, 3, 48, 48),))


@program
def resize_bytes() -> Ordinary:
    """An image as a camera gives it: bytes, channels last."""

    def f(x: Tensor) -> Tensor:
        return F.interpolate(x.permute(0, 3, 1, 2), size=(96, 96), mode="bilinear", antialias=True)

    return Ordinary(f, (whole(256, 2, 128, 128, 3).to(torch.uint8),))


@program
def bytes_to_input() -> Ordinary:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    def f(x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2).float() / 255
        return (x - mean[:, None, None]) / std[:, None, None]

    return Ordinary(f, (whole(256, 4, 96, 96, 3).to(torch.uint8),))


@program
def hue_and_saturation() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        high, at = x.max(1)
        low = x.min(1).values
        spread = (high - low).clamp(min=1e-8)
        r, g, b = x.unbind(1)
        hue = torch.stack([(g - b) / spread, (b - r) / spread + 2, (r - g) / spread + 4], 1)
        hue = hue.gather(1, at[:, None]).squeeze(1) / 6 % 1
        return torch.stack([hue, (high - low) / high.clamp(min=1e-8), high], 1)

    return Ordinary(f, (torch.rand(2, 3, 96, 96),))


@program
def similarity_of_images() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        mean = lambda z: F.avg_pool2d(z, 7, 1)  # noqa: E731
        a, b = mean(x), mean(y)
        va, vb, both = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
        top = (2 * a * b + 1e-4) * (2 * both + 9e-4)
        return (top / ((a * a + b * b + 1e-4) * (va + vb + 9e-4))).mean()

    return Ordinary(f, (torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)))


@program
def total_variation() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        return (x[..., 1:] - x[..., :-1]).abs().mean() + (
            x[..., 1:, :] - x[..., :-1, :]
        ).abs().mean()

    return Ordinary(f, (torch.rand(4, 3, 96, 96, requires_grad=True),), gradient=True)


@program
def pads() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        modes = ("reflect", "replicate", "circular", "constant")
        return tuple(F.pad(x, (2, 2, 2, 2), mode=m) for m in modes)

    return Ordinary(f, (torch.randn(2, 8, 48, 48),))


@program
def fold_patches() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        parts = F.unfold(x, 8, stride=4) * 0.25
        return F.fold(parts, 64, 8, stride=4)

    return Ordinary(f, (torch.randn(2, 3, 64, 64),))


@program
def adaptive_pools() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return F.adaptive_avg_pool2d(x, 7), F.adaptive_max_pool2d(x, 5)

    return Ordinary(f, (torch.randn(4, 32, 30, 30),))


@program
def affine_warp() -> Ordinary:
    def f(x: Tensor, turn: Tensor) -> Tensor:
        at = F.affine_grid(turn, list(x.shape), align_corners=False)
        return F.grid_sample(x, at, mode="nearest", align_corners=False)

    return Ordinary(f, (torch.rand(4, 3, 64, 64), torch.eye(2, 3) + 0.1 * torch.randn(4, 2, 3)))


@program
def low_pass_image() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        x = torch.fft.rfft2(x)
        keep = torch.fft.fftfreq(64)[:, None] ** 2 + torch.fft.rfftfreq(64) ** 2 < 0.04
        return torch.fft.irfft2(x * keep)

    return Ordinary(f, (torch.randn(8, 64, 64),))


@program
def game_of_life() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        for _ in range(4):
            near = [x.roll((i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
            count = torch.stack(near).sum(0)
            x = ((count == 3) | ((x == 1) & (count == 2))).to(x.dtype)
        return x

    return Ordinary(f, (whole(2, 64, 64),))


# ---- small networks


class Squeeze(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth, self.point = nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 64, 1)
        self.down, self.up = nn.Linear(64, 8), nn.Linear(8, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.point(F.hardswish(self.depth(x)))
        gate = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * gate[:, :, None, None]


@program
def squeeze_and_excite() -> Ordinary:
    return Ordinary(Squeeze().eval(), (torch.randn(2, 32, 28, 28),))


@program
def unet_up() -> Ordinary:
    up, conv = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 16, 3, padding=1)
    f = lambda x, y: conv(torch.cat([up(x), y], 1)).relu()  # noqa: E731
    return Ordinary(f, (torch.randn(2, 32, 16, 16), torch.randn(2, 16, 32, 32)))


@program
def causal_convolution() -> Ordinary:
    layers = [nn.Conv1d(32, 32, 3, dilation=2**k) for k in range(4)]

    def f(x: Tensor) -> Tensor:
        for k, layer in enumerate(layers):
            x = x + layer(F.pad(x, (2 * 2**k, 0))).tanh()
        return x

    return Ordinary(f, (torch.randn(4, 32, 200),))


@program
def lstm_cell_loop() -> Ordinary:
    cell = nn.LSTMCell(32, 64)

    def f(x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[1], 64)
        out = []
        for t in range(x.shape[0]):
            h, c = cell(x[t], (h, c))
            out.append(h)
        return torch.stack(out)

    return Ordinary(f, (torch.randn(20, 8, 32),))


@program
def masked_mean_of_words() -> Ordinary:
    table, head = nn.Embedding(2000, 64, padding_idx=0), nn.Linear(64, 5)

    def f(x: Tensor) -> Tensor:
        mask = (x != 0).float()[:, :, None]
        return head((table(x) * mask).sum(1) / mask.sum(1).clamp(min=1)).softmax(-1)

    return Ordinary(f, (whole(2000, 32, 40) * (torch.rand(32, 40) > 0.3),))


@program
def additive_attention() -> Ordinary:
    a, b, v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def f(q: Tensor, k: Tensor) -> Tensor:
        score = v(torch.tanh(a(q)[:, :, None] + b(k)[:, None])).squeeze(-1)
        return score.softmax(-1) @ k

    return Ordinary(f, (torch.randn(4, 16, 64), torch.randn(4, 40, 64)))


@program
def attention_by_hand() -> Ordinary:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        ahead = torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)
        return score.masked_fill(ahead, -torch.inf).softmax(-1) @ v

    return Ordinary(f, tuple(torch.randn(2, 4, 128, 32) for _ in range(3)))


@program
def decode_with_cache() -> Ordinary:
    """One word: its key and value are written at a position, queries see what is there so far."""
    into, out = nn.Linear(128, 384), nn.Linear(128, 128)

    def f(x: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Tensor:
        q, k, v = into(x).view(1, 1, 3, 4, 32).permute(2, 0, 3, 1, 4)
        keys, values = keys.index_copy(2, at, k), values.index_copy(2, at, v)
        seen = torch.arange(keys.shape[2])[None] <= at
        return out(F.scaled_dot_product_attention(q, keys, values, seen).reshape(1, 1, 128))

    past = torch.randn(1, 4, 256, 32), torch.randn(1, 4, 256, 32)
    return Ordinary(f, (torch.randn(1, 1, 128), *past, torch.tensor([100])))


@program
def low_rank_layer() -> Ordinary:
    base, down, up = nn.Linear(128, 128), torch.randn(128, 4), torch.randn(4, 128)
    return Ordinary(lambda x: base(x) + (x @ down @ up) * 0.5, (torch.randn(64, 128),))


@program
def positions_of_sines() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1])[:, None]
        rate = torch.exp(torch.arange(0, x.shape[2], 2) * (-9.21 / x.shape[2]))
        return x + torch.stack([(t * rate).sin(), (t * rate).cos()], -1).flatten(1)

    return Ordinary(f, (torch.randn(4, 100, 64),))


@program
def quantise() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(1, keepdim=True) / 127
        codes = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return codes, codes.float() * scale - x

    return Ordinary(f, (torch.randn(256, 512),))
