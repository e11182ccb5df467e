"""More programs of a new user (see ordinary_table.py): images that are made, distributions, steps
of optimizers, parts of networks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta, Categorical, Dirichlet, Normal, kl_divergence

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- images that are made


@program
def colours_along_rays() -> Ordinary:
    """NeRF: a network along rays, its densities as opaqueness, with gradients."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(39, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, start: Tensor, way: Tensor, wanted: Tensor) -> Tensor:
            t = torch.linspace(2, 6, 32)
            p = start[:, None] + way[:, None] * t[:, None]
            wave = p[..., None] * 2.0 ** torch.arange(6)
            p = torch.cat([p, wave.sin().flatten(-2), wave.cos().flatten(-2)], -1)
            raw = self.net(p)
            step = F.pad(t.diff(), (0, 1), value=1e10)
            opaque = 1 - torch.exp(-F.relu(raw[..., 3]) * step)
            clear = F.pad((1 - opaque + 1e-10).cumprod(-1)[:, :-1], (1, 0), value=1.0)
            weight = opaque * clear
            return F.mse_loss((weight[..., None] * raw[..., :3].sigmoid()).sum(1), wanted)

    way = F.normalize(torch.randn(64, 3), dim=-1)
    return Ordinary(Field(), (torch.randn(64, 3), way, torch.rand(64, 3)), gradient=True)


@program
def finer_samples() -> Ordinary:
    """More points where a ray's weights are large, of given random numbers."""

    def f(weight: Tensor, u: Tensor) -> Tensor:
        edges = torch.linspace(2, 6, weight.shape[1] + 1)
        p = (weight + 1e-5) / (weight + 1e-5).sum(-1, keepdim=True)
        total = F.pad(p.cumsum(-1), (1, 0))
        above = torch.searchsorted(total, u, right=True).clamp(1, weight.shape[1])
        low, high = total.gather(1, above - 1), total.gather(1, above)
        part = (u - low) / (high - low).clamp(min=1e-5)
        return (edges[above - 1] + part * (edges[above] - edges[above - 1])).sort(-1).values

    return Ordinary(f, (torch.rand(128, 32), torch.rand(128, 48)))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.into, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.norm, self.middle = nn.GroupNorm(8, 32), nn.Conv2d(32, 32, 3, padding=1)
        self.out = nn.Conv2d(48, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rate = torch.exp(-math.log(10000) * torch.arange(16) / 16)
        wave = t[:, None].float() * rate
        mood = self.time(torch.cat([wave.sin(), wave.cos()], -1))
        first = F.silu(self.into(x))
        h = self.down(first) + mood[:, :, None, None]
        h = h + self.middle(F.silu(self.norm(h)))
        return self.out(torch.cat([first, F.interpolate(h, scale_factor=2.0)], 1))


@program
def noise_taken_away() -> Ordinary:
    """DDIM: three steps of a small network."""
    net = Denoiser().eval()
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def f(x: Tensor) -> Tensor:
        for t, before in ((900, 600), (600, 300), (300, 0)):
            noise = net(x, torch.full((x.shape[0],), t))
            a, b = kept[t], kept[before]
            clean = ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-1, 1)
            x = b.sqrt() * clean + (1 - b).sqrt() * noise
        return x

    return Ordinary(f, (torch.randn(1, 3, 32, 32),))


@program
def noise_that_is_learned() -> Ordinary:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Denoiser()
            self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

        def forward(self, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
            a = self.get_buffer("kept")[t][:, None, None, None]
            return F.mse_loss(self.net(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)

    inputs = torch.rand(2, 3, 32, 32) * 2 - 1, torch.randn(2, 3, 32, 32), whole(1000, 2)
    return Ordinary(Step(), inputs, gradient=True)


@program
def flow_of_couplings() -> Ordinary:
    """Real NVP: four layers, each moves half of the numbers, and the chance of the result."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = lambda: nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))  # noqa: E731
            self.nets = nn.ModuleList([make() for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            total = torch.zeros(x.shape[0])
            for net in self.nets:
                a, b = x.chunk(2, 1)
                scale, move = net(a).chunk(2, 1)
                scale = scale.tanh()
                x, total = torch.cat([b * scale.exp() + move, a], 1), total + scale.sum(1)
            return (0.5 * x.square().sum(1) - total).mean()

    return Ordinary(Flow(), (torch.randn(128, 8),), gradient=True)


@program
def splines_that_turn_back() -> Ordinary:
    """Neural spline flows: quotients of polynomials between learned knots, and their slopes."""

    def f(x: Tensor, w: Tensor, h: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        knots = lambda v: F.pad(v.softmax(-1).cumsum(-1), (1, 0))  # noqa: E731
        a, b, slope = knots(w), knots(h), F.softplus(d) + 1e-3
        k = torch.searchsorted(a[..., 1:-1].contiguous(), x[..., None])
        at = lambda v, k: v.gather(-1, k).squeeze(-1)  # noqa: E731
        x0, x1, y0, y1 = at(a, k), at(a, k + 1), at(b, k), at(b, k + 1)
        d0, d1, s = at(slope, k), at(slope, k + 1), (y1 - y0) / (x1 - x0)
        t = (x - x0) / (x1 - x0)
        low = s + (d0 + d1 - 2 * s) * t * (1 - t)
        y = y0 + (y1 - y0) * (s * t * t + d0 * t * (1 - t)) / low
        up = s * s * (d1 * t * t + 2 * s * t * (1 - t) + d0 * (1 - t) ** 2)
        return y, (up / low.square()).log()

    inputs = torch.randn(200, 4, 8), torch.randn(200, 4, 8), torch.randn(200, 4, 9)
    return Ordinary(f, (torch.rand(200, 4), *inputs))


@program
def layer_of_waves() -> Ordinary:
    """A Fourier neural operator's layer: low frequencies times complex weights."""
    w = torch.randn(2, 16, 16, 8, 8, dtype=torch.complex64) / 16
    point = nn.Conv2d(16, 16, 1)

    def f(x: Tensor) -> Tensor:
        s = torch.fft.rfft2(x)
        out = torch.zeros_like(s)
        out[:, :, :8, :8] = torch.einsum("bihw,iohw->bohw", s[:, :, :8, :8], w[0])
        out[:, :, -8:, :8] = torch.einsum("bihw,iohw->bohw", s[:, :, -8:, :8], w[1])
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + point(x))

    return Ordinary(f, (torch.randn(2, 16, 32, 32),))


@program
def complex_network() -> Ordinary:
    """Two layers of complex numbers, with a bias on sizes, and gradients."""

    def f(x: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        z = torch.view_as_complex(x) @ torch.view_as_complex(a)
        z = F.relu(z.abs() + bias) * torch.polar(torch.ones_like(z.abs()), z.angle())
        return (z @ torch.view_as_complex(b)).abs().square().mean()

    make = lambda *s: torch.randn(*s, 2, requires_grad=True)  # noqa: E731
    inputs = make(32, 24), make(24, 32), make(32, 8), torch.full((32,), -0.5, requires_grad=True)
    return Ordinary(f, inputs, True)


@program
def slots_of_objects() -> Ordinary:
    """Slot attention: three rounds in which slots compete for places."""
    q, k, v = (nn.Linear(32, 32, bias=False) for _ in range(3))
    cell, norm = nn.GRUCell(32, 32), nn.LayerNorm(32)

    def f(x: Tensor, slots: Tensor) -> Tensor:
        keys, values = k(x), v(x)
        for _ in range(3):
            share = (keys @ q(norm(slots)).mT / math.sqrt(32)).softmax(-1) + 1e-8
            share = share / share.sum(1, keepdim=True)
            new = cell((share.mT @ values).flatten(0, 1), slots.flatten(0, 1))
            slots = new.view_as(slots)
        return slots

    return Ordinary(f, (torch.randn(4, 100, 32), torch.randn(4, 6, 32)))


# ---- distributions


@program
def logarithms_of_chances() -> Ordinary:
    def f(x: Tensor, a: Tensor, b: Tensor, logits: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        first, second = Normal(a, b), Normal(0.0, 1.0)
        share = Beta(a.abs() + 1, b + 1)
        kind = Categorical(logits=logits)
        return (
            *(first.log_prob(x), kl_divergence(first, second), share.log_prob(x.sigmoid())),
            *(kind.log_prob(k), kind.entropy(), Dirichlet(logits.exp()).entropy()),
        )

    inputs = torch.randn(64, 8), torch.randn(64, 8), torch.rand(64, 8) + 0.5
    return Ordinary(f, (*inputs, torch.randn(64, 8), whole(8, 64)))


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 16))
        self.out = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 196))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_var = self.into(x).chunk(2, -1)
        z = mean + noise * (0.5 * log_var).exp()
        like = F.binary_cross_entropy_with_logits(self.out(z), x, reduction="sum")
        return (like - 0.5 * (1 + log_var - mean.square() - log_var.exp()).sum()) / x.shape[0]


@program
def variational_codes() -> Ordinary:
    return Ordinary(Codes(), (torch.rand(64, 196), torch.randn(64, 8)), gradient=True)


# ---- optimizers


@program
def adam_by_hand() -> Ordinary:
    def f(w: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor]) -> list[Tensor]:
        norm = torch.stack([x.norm() for x in g]).norm()
        cut = (1 / (norm + 1e-6)).clamp(max=1)
        out = []
        for a, b, c, d in zip(w, g, m, v, strict=True):
            b = b * cut
            c = c.mul(0.9).add(b, alpha=0.1)
            d = d.mul(0.999).addcmul(b, b, value=0.001)
            out += [a - 1e-3 * ((c / 0.1) / ((d / 0.001).sqrt() + 1e-8) + 0.01 * a), c, d]
        return out

    shapes = (64, 64), (64,), (128, 64), (128,)
    make = lambda: [torch.rand(s) for s in shapes]  # noqa: E731
    return Ordinary(f, (make(), make(), make(), make()))


@program
def orthogonal_steps() -> Ordinary:
    """Muon: momentum made orthogonal by Newton and Schulz."""

    def f(g: Tensor) -> Tensor:
        x = g / (g.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x

    return Ordinary(f, (torch.randn(64, 128),))


@program
def rates_per_channel() -> Ordinary:
    """Weights rounded to eight bits forward, a scale for each channel, a range for inputs."""

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 96) / 10)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            scale = self.weight.detach().abs().amax(1) / 127
            w = torch.fake_quantize_per_channel_affine(
                self.weight, scale, torch.zeros(64, dtype=torch.int32), 0, -128, 127
            )
            x = torch.fake_quantize_per_tensor_affine(x, 0.05, 128, 0, 255)
            return F.mse_loss(F.linear(x, w), y)

    net, x, y = Rounded(), torch.randn(32, 96, requires_grad=True), torch.randn(32, 64)

    def judge(found: Any) -> str | None:  # scales of float64 are refused by torch
        loss = net(x, y)
        wanted = loss, *torch.autograd.grad(loss, [x, *net.parameters()])
        near = map(torch.allclose, (found[0], *found[1]), wanted)
        return None if all(near) else "is not what eager gives"

    return Ordinary(net, (x, y), True, judge)


# ---- parts of networks


class NextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


@program
def convnext_block() -> Ordinary:
    return Ordinary(NextBlock(48).eval(), (torch.randn(2, 48, 28, 28),))


@program
def inverted_residual() -> Ordinary:
    layers = (
        *(nn.Conv2d(24, 96, 1, bias=False), nn.BatchNorm2d(96), nn.ReLU6()),
        *(nn.Conv2d(96, 96, 3, 1, 1, groups=96, bias=False), nn.BatchNorm2d(96), nn.ReLU6()),
        *(nn.Conv2d(96, 24, 1, bias=False), nn.BatchNorm2d(24)),
    )
    net = nn.Sequential(*layers).eval()
    return Ordinary(lambda x: x + net(x), (torch.randn(2, 24, 28, 28),))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 96, 8, 8)
        self.first, self.second = nn.LayerNorm(96), nn.LayerNorm(96)
        self.tokens = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.channels = nn.Sequential(nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(self.second(x))).mean(1)


@program
def mixer_of_patches() -> Ordinary:
    return Ordinary(Mixer().eval(), (torch.randn(2, 3, 64, 64),))


@program
def deformable_window() -> Ordinary:
    """A 3x3 convolution that reads between pixels, at places that data chooses."""
    conv = nn.Conv2d(16, 18, 3, padding=1)
    weight = torch.randn(24, 16, 9) / 12

    def f(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y, z = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        side = torch.arange(9)
        base = torch.stack([z[..., None] + side % 3 - 1, y[..., None] + side // 3 - 1], -1)
        at = base + conv(x).view(n, 9, 2, h, w).permute(0, 3, 4, 1, 2)
        at = at * 2 / torch.tensor([w - 1, h - 1]) - 1
        read = F.grid_sample(x, at.view(n, h, w * 9, 2), align_corners=True)
        return torch.einsum("nchwk,ock->nohw", read.view(n, c, h, w, 9), weight)

    return Ordinary(f, (torch.randn(1, 16, 24, 24),))


@program
def video_block() -> Ordinary:
    layers = nn.Conv3d(3, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2)
    return Ordinary(nn.Sequential(*layers).eval(), (torch.randn(1, 3, 8, 32, 32),))
