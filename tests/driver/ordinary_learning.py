"""More programs of a new user (see ordinary_table.py): losses, learning by rewards, functions of
functions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- losses


@program
def redundancy_loss() -> Ordinary:
    """Barlow twins: features of two views agree, and are not alike."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        a, b = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
        c = a.T @ b / x.shape[0]
        on = (c.diagonal() - 1).square().sum()
        off = c.flatten()[:-1].view(c.shape[0] - 1, c.shape[0] + 1)[:, 1:].square().sum()
        return on + 0.005 * off

    return Ordinary(f, tuple(torch.randn(128, 64, requires_grad=True) for _ in range(2)), True)


@program
def spread_of_features() -> Ordinary:
    """VICReg."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        loss = 25 * F.mse_loss(x, y)
        for z in (x, y):
            z = z - z.mean(0)
            loss = loss + 25 * F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
            c = (z.T @ z) / (z.shape[0] - 1)
            loss = loss + (c.square().sum() - c.diagonal().square().sum()) / z.shape[1]
        return loss

    return Ordinary(f, tuple(torch.randn(128, 64, requires_grad=True) for _ in range(2)), True)


@program
def margins_of_angles() -> Ordinary:
    """ArcFace: the right class must win by an angle."""

    def f(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        cos = F.normalize(x) @ F.normalize(w).T
        sin = (1 - cos.square()).clamp(1e-6, 1).sqrt()
        moved = cos * math.cos(0.5) - sin * math.sin(0.5)
        moved = torch.where(cos > math.cos(math.pi - 0.5), moved, cos - 0.24)
        hot = torch.zeros_like(cos).scatter_(1, y[:, None], 1)
        return F.cross_entropy(30 * (hot * moved + (1 - hot) * cos), y)

    inputs = torch.randn(64, 64, requires_grad=True), torch.randn(500, 64, requires_grad=True)
    return Ordinary(f, (*inputs, whole(500, 64)), True)


@program
def hardest_triplets() -> Ordinary:
    """Of a batch: the farthest of the same class, the nearest of others."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        square = x.square().sum(1)
        gap = (square[:, None] + square - 2 * x @ x.T).clamp(min=1e-8).sqrt()
        same = y[:, None] == y
        far = gap.masked_fill(~same, -1).amax(1)
        near = gap.masked_fill(same, torch.inf).amin(1)
        return F.softplus(far - near).mean()

    return Ordinary(f, (torch.randn(96, 48, requires_grad=True), whole(8, 96)), True)


@program
def supervised_contrast() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x = F.normalize(x, dim=1)
        score = (x @ x.T / 0.1).fill_diagonal_(-1e9)
        logp = score - score.logsumexp(1, keepdim=True)
        same = (y[:, None] == y).float().fill_diagonal_(0)
        return -((logp * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return Ordinary(f, (torch.randn(96, 48, requires_grad=True), whole(8, 96)), True)


@program
def survival_loss() -> Ordinary:
    """Cox: who is at risk is who lives longer."""

    def f(risk: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        risk, seen = risk[time.argsort(descending=True)], seen[time.argsort(descending=True)]
        return -((risk - risk.logcumsumexp(0)) * seen).sum() / seen.sum()

    return Ordinary(
        f,
        (torch.randn(300, requires_grad=True), torch.rand(300), (torch.rand(300) > 0.4).float()),
        True,
    )


@program
def small_student() -> Ordinary:
    """Distillation with a teacher's features, and the teacher that follows its student."""

    def f(
        x: Tensor, y: Tensor, weights: list[Tensor], slow: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        t = 4.0
        soft = F.kl_div((x / t).log_softmax(-1), (y / t).softmax(-1), reduction="batchmean") * t * t
        slow = [a.clone() for a in slow]
        for a, b in zip(slow, weights, strict=True):
            a.lerp_(b, 0.004)
        return soft, slow

    shapes = (64, 128), (64,), (10, 64), (10,)
    weights, slow = [torch.randn(s) for s in shapes], [torch.randn(s) for s in shapes]
    return Ordinary(f, (torch.randn(64, 100), torch.randn(64, 100), weights, slow))


@program
def error_of_calibration() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        sure, own = x.softmax(-1).max(-1)
        at = torch.bucketize(sure, torch.linspace(0, 1, 16)[1:-1])
        zero = torch.zeros(15)
        count = zero.index_add(0, at, torch.ones_like(sure))
        right = zero.index_add(0, at, (own == y).float())
        total = zero.index_add(0, at, sure)
        return ((right - total).abs() / y.shape[0]).sum() + 0 * count.sum()

    return Ordinary(f, (torch.randn(2000, 10) * 2, whole(10, 2000)))


# ---- learning by rewards


@program
def shares_of_returns() -> Ordinary:
    """C51: a distribution of returns moved by a reward, put back on its places."""
    places = torch.linspace(-10, 10, 51)

    def f(p: Tensor, reward: Tensor, done: Tensor) -> Tensor:
        moved = (reward[:, None] + 0.99 * (1 - done[:, None]) * places).clamp(-10, 10)
        at = (moved + 10) / 0.4
        low, high = at.floor().long().clamp(0, 50), at.ceil().long().clamp(0, 50)
        same = (low == high).float()
        row = 51 * torch.arange(p.shape[0])[:, None]
        out = torch.zeros(p.numel())
        out.index_add_(0, (row + low).flatten(), (p * (high - at + same)).flatten())
        out.index_add_(0, (row + high).flatten(), (p * (at - low)).flatten())
        return out.view_as(p)

    return Ordinary(f, (torch.rand(64, 51), torch.randn(64), (torch.rand(64) > 0.9).float()))


@program
def loss_of_quantiles() -> Ordinary:
    def f(x: Tensor, wanted: Tensor) -> Tensor:
        share = (torch.arange(32) + 0.5) / 32
        gap = wanted[:, None, :] - x[:, :, None]
        huber = torch.where(gap.abs() < 1, 0.5 * gap.square(), gap.abs() - 0.5)
        return ((share[:, None] - (gap.detach() < 0).float()).abs() * huber).sum(1).mean()

    return Ordinary(f, (torch.randn(64, 32, requires_grad=True), torch.randn(64, 32)), True)


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        self.one, self.two = (
            nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(2)
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self.net(x).chunk(2, -1)
        std = log_std.clamp(-5, 2).exp()
        raw = Normal(mean, std).loc + std * noise
        logp = Normal(mean, std).log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        both = torch.cat([x, raw.tanh()], -1)
        return (
            0.2 * logp.sum(-1, keepdim=True) - torch.minimum(self.one(both), self.two(both))
        ).mean()


@program
def soft_actor() -> Ordinary:
    return Ordinary(Actor(), (torch.randn(64, 16), torch.randn(64, 4)), gradient=True)


@program
def draws_by_priority() -> Ordinary:
    """Which memories are taken, by given random numbers, and what they weigh."""

    def f(gap: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        p = (gap.abs() + 1e-6) ** 0.6
        total = p.cumsum(0)
        step = torch.arange(u.shape[0]) / u.shape[0]
        at = torch.searchsorted(total, (step + u / u.shape[0]) * total[-1]).clamp(
            max=p.shape[0] - 1
        )
        weight = (p[at] / total[-1] * p.shape[0]) ** -0.4
        return at, weight / weight.max()

    return Ordinary(f, (whole(100, 5000).float(), torch.rand(64)))


@program
def corrected_values() -> Ordinary:
    """V-trace: values of another policy's steps, from the last one."""

    def f(ratio: Tensor, reward: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        rho, c = ratio.exp().clamp(max=1), ratio.exp().clamp(max=1)
        gap = rho * (reward + 0.99 * value[1:] - value[:-1])
        rest, out = torch.zeros_like(value[0]), []
        for t in reversed(range(reward.shape[0])):
            rest = gap[t] + 0.99 * c[t] * rest
            out.append(rest)
        v = torch.stack(out[::-1]) + value[:-1]
        return v, rho * (reward + 0.99 * torch.cat([v[1:], value[-1:]]) - value[:-1])

    return Ordinary(f, (torch.randn(20, 32), torch.randn(20, 32), torch.randn(21, 32)))


# ---- functions of functions


def _mlp(w: dict[str, Tensor], x: Tensor) -> Tensor:
    return (x @ w["a"]).tanh() @ w["b"]


@program
def gradient_of_each() -> Ordinary:
    """Of each sample its own, cut to a norm, with a module as a function."""
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    weights = {k: v.detach() for k, v in net.named_parameters()}

    def loss(w: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, w, (x[None],)), y[None])

    def f(w: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        every = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(w, x, y)
        squares = [g.flatten(1).square().sum(1) for g in every.values()]
        norm = torch.stack(squares).sum(0).sqrt()
        cut = (1 / norm).clamp(max=1)
        return {k: torch.einsum("b,b...->...", cut, g) for k, g in every.items()}

    return Ordinary(f, (weights, torch.randn(32, 16), whole(4, 32)))


@program
def curvature_times_vector() -> Ordinary:
    def f(w: dict[str, Tensor], v: dict[str, Tensor], x: Tensor, y: Tensor) -> Any:
        loss = lambda w: (_mlp(w, x) - y).square().mean()  # noqa: E731
        return torch.func.jvp(torch.func.grad(loss), (w,), (v,))

    make = lambda: {"a": torch.randn(16, 32) / 4, "b": torch.randn(32, 4) / 6}  # noqa: E731
    return Ordinary(f, (make(), make(), torch.randn(64, 16), torch.randn(64, 4)))


@program
def learning_to_learn() -> Ordinary:
    """MAML: a loss after one step of each of eight tasks, with gradients through the step."""

    def f(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
        def task(x: Tensor, y: Tensor) -> Tensor:
            loss = lambda w: F.mse_loss(_mlp(w, x[:10]), y[:10])  # noqa: E731
            w = {"a": a, "b": b}
            g = torch.func.grad(loss)(w)
            return F.mse_loss(_mlp({k: w[k] - 0.1 * g[k] for k in w}, x[10:]), y[10:])

        return torch.func.vmap(task)(x, y).mean()

    w = torch.randn(1, 32, requires_grad=True), torch.randn(32, 1, requires_grad=True)
    x = torch.rand(8, 20, 1) * 6
    return Ordinary(f, (*w, x, x.sin()), True)


@program
def equation_as_loss() -> Ordinary:
    """A network whose second derivatives are to follow Poisson's equation."""

    class Solution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(2, 32),
                nn.Tanh(),
                nn.Linear(32, 32),
                nn.Tanh(),
                nn.Linear(32, 1, bias=False),
            )

        def forward(self, x: Tensor) -> Tensor:
            value = lambda p: self.net(p).squeeze(-1)  # noqa: E731
            second = torch.func.vmap(torch.func.hessian(value))(x)
            right = torch.sin(math.pi * x[:, 0]) * torch.sin(math.pi * x[:, 1])
            return (second.diagonal(dim1=-2, dim2=-1).sum(-1) + right).square().mean()

    return Ordinary(Solution(), (torch.rand(64, 2),), gradient=True)


@program
def orbit_by_network() -> Ordinary:
    """A neural differential equation: steps of Runge and Kutta, with gradients."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(6):
                a = self.net(x)
                b = self.net(x + 0.05 * a)
                c = self.net(x + 0.05 * b)
                x = x + 0.1 / 6 * (a + 2 * b + 2 * c + self.net(x + 0.1 * c))
            return x.square().mean()

    return Ordinary(Field(), (torch.randn(64, 4),), gradient=True)
