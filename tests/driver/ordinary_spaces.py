"""More programs of a new user (see ordinary_table.py): points, graphs, tables, and results of
every kind."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- points


@program
def farthest_points() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.arange(x.shape[0])
        gap, at = torch.full(x.shape[:2], 1e10), torch.zeros(x.shape[0], dtype=torch.long)
        found = []
        for _ in range(24):
            found.append(at)
            new = (x - x[row, at][:, None]).square().sum(-1)
            gap = torch.minimum(gap, new)
            at = gap.argmax(-1)
        every = torch.stack(found, 1)
        return every, x.gather(1, every[..., None].expand(-1, -1, 3))

    return Ordinary(f, (torch.rand(4, 300, 3),))


@program
def points_in_balls() -> Ordinary:
    """Up to 16 points near each centre, in their order; of fewer, the first one again."""

    def f(x: Tensor, c: Tensor, y: Tensor) -> Tensor:
        gap = torch.cdist(c, x)
        at = torch.arange(x.shape[1]).expand(gap.shape)
        at = torch.where(gap < 0.25, at, x.shape[1]).sort(-1).values[..., :16]
        at = torch.where(at == x.shape[1], at[..., :1], at).clamp(max=x.shape[1] - 1)
        row = torch.arange(x.shape[0])[:, None, None]
        return torch.cat([x[row, at] - c[:, :, None], y[row, at]], -1).amax(2)

    return Ordinary(f, (torch.rand(2, 256, 3), torch.rand(2, 32, 3), torch.randn(2, 256, 16)))


@program
def distance_of_clouds() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        gap = (x[:, :, None] - y[:, None]).square().sum(-1)
        return gap.amin(2).mean() + gap.amin(1).mean()

    return Ordinary(f, (torch.randn(2, 128, 3, requires_grad=True), torch.randn(2, 100, 3)), True)


@program
def boxes_of_points() -> Ordinary:
    """Voxels: the mean of the points in each cube that has any."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        cell = (x * 6).floor().long()
        key = (cell[:, 0] * 6 + cell[:, 1]) * 6 + cell[:, 2]
        kept, own, count = torch.unique(key, return_inverse=True, return_counts=True)
        total = torch.zeros(kept.shape[0], 3).index_add(0, own, x)
        return kept, total / count[:, None]

    return Ordinary(f, (torch.rand(2000, 3),))


class Edges(nn.Module):
    """EdgeConv: neighbours in the space of features, the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(8, largest=False).indices
        other = x[torch.arange(x.shape[0])[:, None, None], near]
        own = x[:, :, None].expand_as(other)
        return self.net(torch.cat([own, other - own], -1)).amax(2)


@program
def edges_of_features() -> Ordinary:
    return Ordinary(Edges().eval(), (torch.randn(2, 128, 16),))


@program
def turns_in_space() -> Ordinary:
    """Axes with angles as matrices, six numbers as a basis, and the turn between two clouds."""

    def f(r: Tensor, six: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle = r.norm(dim=-1, keepdim=True)
        a, b, c = (r / angle).unbind(-1)
        zero = torch.zeros_like(a)
        cross = torch.stack([zero, -c, b, c, zero, -a, -b, a, zero], -1).view(-1, 3, 3)
        s, k = angle.sin()[..., None], (1 - angle.cos())[..., None]
        first = torch.eye(3) + s * cross + k * cross @ cross
        u = F.normalize(six[:, :3], dim=-1)
        v = F.normalize(six[:, 3:] - (u * six[:, 3:]).sum(-1, keepdim=True) * u, dim=-1)
        second = torch.stack([u, v, torch.linalg.cross(u, v)], -1)
        return first, second, torch.einsum("nij,njk,nk->ni", first, second, x)

    return Ordinary(f, (torch.randn(500, 3), torch.randn(500, 6), torch.randn(500, 3)))


# ---- graphs


@program
def sums_and_extremes_of_neighbours() -> Ordinary:
    """PNA: mean, largest, smallest and spread of what neighbours send, by degree."""
    layer = nn.Linear(8 * 16, 16)

    def f(x: Tensor, edges: Tensor) -> Tensor:
        a, b = edges
        at, sent = b[:, None].expand(-1, 16), x[a]

        def reduce(v: Tensor, how: str) -> Tensor:
            return torch.zeros_like(x).scatter_reduce(0, at, v, how, include_self=False)

        mean = reduce(sent, "mean")
        spread = (reduce(sent * sent, "mean") - mean * mean).clamp(min=1e-5).sqrt()
        every = torch.cat([mean, spread, reduce(sent, "amax"), reduce(sent, "amin")], 1)
        degree = torch.zeros(x.shape[0]).index_add(0, b, torch.ones(b.shape[0]))
        return layer(torch.cat([every, every * (degree + 1).log()[:, None]], 1)).relu()

    return Ordinary(f, (torch.randn(500, 16), whole(500, 2, 3000)))


@program
def ranks_of_pages() -> Ordinary:
    def f(edges: Tensor) -> Tensor:
        a, b = edges
        n = 400
        out = torch.zeros(n).scatter_add(0, a, torch.ones(a.shape[0]))
        share = torch.full((n,), 1 / n)
        for _ in range(10):
            lost = share[out == 0].sum()
            sent = (share / out.clamp(min=1))[a]
            share = 0.15 / n + 0.85 * (torch.zeros(n).scatter_add(0, b, sent) + lost / n)
        return share

    return Ordinary(f, (whole(400, 2, 1500),))


@program
def shortest_paths() -> Ordinary:
    """Floyd and Warshall."""

    def f(x: Tensor) -> Tensor:
        for k in range(x.shape[0]):
            x = torch.minimum(x, x[:, k : k + 1] + x[k : k + 1])
        return x

    return Ordinary(f, (torch.rand(40, 40) * 10,))


class Molecule(nn.Module):
    """SchNet: filters of distances between atoms, energies of whole molecules with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, 32)
        self.filter = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 32))
        self.mix, self.head = nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, place: Tensor, kind: Tensor, edges: Tensor, own: Tensor) -> Tensor:
        a, b = edges
        gap = ((place[a] - place[b]).square().sum(1) + 1e-6).sqrt()
        wave = torch.exp(-10 * (gap[:, None] - torch.linspace(0, 4, 16)) ** 2)
        near = 0.5 * ((gap * math.pi / 4).cos() + 1) * (gap < 4)
        x = self.kinds(kind)
        sent = x[a] * self.filter(wave) * near[:, None]
        x = x + F.softplus(self.mix(torch.zeros_like(x).index_add(0, b, sent)))
        energy = torch.zeros(8).index_add(0, own, self.head(x).squeeze(1))
        return energy.square().mean()


@program
def energies_of_molecules() -> Ordinary:
    own = torch.arange(8).repeat_interleave(10)
    edges = whole(10, 2, 8, 60) + 10 * torch.arange(8)[None, :, None]
    place = torch.randn(80, 3, requires_grad=True)
    return Ordinary(Molecule(), (place, whole(10, 80), edges.flatten(1), own), True)


@program
def trees_of_decisions() -> Ordinary:
    """A forest: each row goes down every tree."""
    feature, border = whole(12, 20, 63), torch.randn(20, 63)
    leaf = torch.randn(20, 64)

    def f(x: Tensor) -> Tensor:
        at, tree = torch.zeros(x.shape[0], 20, dtype=torch.long), torch.arange(20)
        for _ in range(6):
            value = x.gather(1, feature[tree, at])
            at = 2 * at + 1 + (value > border[tree, at]).long()
        return leaf[tree, at - 63].mean(1)

    return Ordinary(f, (torch.randn(500, 12),))


# ---- results of every kind


class Summary(NamedTuple):
    mean: Tensor
    parts: dict[str, Any]


@program
def results_of_every_kind() -> Ordinary:
    def f(
        x: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, names: tuple = ()
    ) -> Summary:
        y = x * scale
        if mask is not None:
            y = y.masked_fill(mask, 0)
        parts: dict[str, Any] = {n: y[:, k] for k, n in enumerate(names)}
        return Summary(y.mean(0), {**parts, "shape": list(x.shape), "scale": scale, "none": None})

    mask = torch.rand(100, 8) > 0.5
    return Ordinary(lambda x: f(x, scale=2.5, mask=mask, names=("a", "b")), (torch.randn(100, 8),))


@program
def neighbours_that_count() -> Ordinary:
    """DBSCAN: who has enough neighbours, who is beside one of those."""

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        near = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") < 0.08
        core = near.sum(1) >= 5
        label = torch.where(core, torch.arange(x.shape[0]), x.shape[0])
        for _ in range(6):
            other = torch.where(near & core[None], label[None], x.shape[0]).amin(1)
            label = torch.minimum(label, other)
        return core, label, (~core & (near & core).any(1)).nonzero()

    return Ordinary(f, (torch.rand(300, 2),))


@program
def map_of_neighbours() -> Ordinary:
    """t-SNE: how near points are here and there, and the gradient by places."""

    def f(y: Tensor, x: Tensor) -> Tensor:
        p = (-torch.cdist(x, x).square() / 2).fill_diagonal_(-torch.inf).softmax(1)
        p = ((p + p.T) / (2 * x.shape[0])).clamp(min=1e-12)
        q = 1 / (1 + (y[:, None] - y).square().sum(-1))
        q = q * (1 - torch.eye(y.shape[0]))
        return (p * (p.log() - (q / q.sum()).clamp(min=1e-12).log())).sum()

    return Ordinary(f, (torch.randn(100, 2, requires_grad=True), torch.randn(100, 10)), True)


@program
def logistic_by_newton() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        w = torch.zeros(x.shape[1])
        for _ in range(5):
            p = (x @ w).sigmoid()
            h = (x * (p * (1 - p))[:, None]).T @ x + 0.1 * torch.eye(x.shape[1])
            w = w - torch.linalg.solve(h, x.T @ (p - y) + 0.1 * w)
        return w

    return Ordinary(f, (torch.randn(500, 10), whole(2, 500).float()))


@program
def routes_of_capsules() -> Ordinary:
    def f(x: Tensor, w: Tensor) -> Tensor:
        vote = torch.einsum("bid,ijde->bije", x, w)
        score = torch.zeros(vote.shape[:3])
        for _ in range(3):
            s = (score.softmax(2)[..., None] * vote).sum(1)
            square = s.square().sum(-1, keepdim=True)
            v = square / (1 + square) * s / (square + 1e-8).sqrt()
            score = score + (vote * v[:, None]).sum(-1)
        return v

    return Ordinary(f, (torch.randn(8, 64, 8), torch.randn(64, 10, 8, 16) / 3))


@program
def distances_in_a_disc() -> Ordinary:
    """Poincaré's, and sums there."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.square().sum(-1, keepdim=True), y.square().sum(-1, keepdim=True)
        gap = (x - y).square().sum(-1, keepdim=True)
        far = torch.acosh(1 + 2 * gap / ((1 - a) * (1 - b)) + 1e-6)
        both = (x * y).sum(-1, keepdim=True)
        top = (1 + 2 * both + b) * x + (1 - a) * y
        return far, top / (1 + 2 * both + a * b)

    make = lambda: F.normalize(torch.randn(2000, 8), dim=-1) * torch.rand(2000, 1) * 0.8  # noqa: E731
    return Ordinary(f, (make(), make()))
