"""More programs of a new user (see ordinary_table.py): losses, statistics, numerical methods."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- losses


@program
def token_loss() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none")
        mask = (y != 0).flatten()
        return (loss * mask).sum() / mask.sum()

    return Ordinary(f, (torch.randn(8, 32, 500, requires_grad=True), whole(500, 8, 32)), True)


@program
def masked_square_loss() -> Ordinary:
    def f(x: Tensor, y: Tensor, m: Tensor) -> Tensor:
        return F.mse_loss(x[m], y[m])

    return Ordinary(f, (torch.randn(100, 200), torch.randn(100, 200), torch.rand(100, 200) > 0.5))


@program
def contrastive_loss() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        score = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T / 0.07
        own = torch.arange(x.shape[0])
        return (F.cross_entropy(score, own) + F.cross_entropy(score.T, own)) / 2

    inputs = torch.randn(64, 128, requires_grad=True), torch.randn(64, 128, requires_grad=True)
    return Ordinary(f, inputs, True)


@program
def triplet_loss() -> Ordinary:
    inputs = tuple(torch.randn(128, 64, requires_grad=True) for _ in range(3))
    return Ordinary(lambda a, p, n: F.triplet_margin_loss(a, p, n), inputs, True)


@program
def pairwise_ranking_loss() -> Ordinary:
    def f(score: Tensor, y: Tensor) -> Tensor:
        before = (y[:, :, None] > y[:, None]).float()
        gap = score[:, :, None] - score[:, None]
        return (F.softplus(-gap) * before).sum() / before.sum()

    return Ordinary(f, (torch.randn(8, 60, requires_grad=True), torch.rand(8, 60)), True)


@program
def dice_loss() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        p = x.softmax(1)
        hot = F.one_hot(y, 4).permute(0, 3, 1, 2).float()
        both = (p * hot).sum((0, 2, 3))
        return 1 - (2 * both / (p.sum((0, 2, 3)) + hot.sum((0, 2, 3)) + 1e-6)).mean()

    return Ordinary(f, (torch.randn(2, 4, 48, 48, requires_grad=True), whole(4, 2, 48, 48)), True)


@program
def small_losses() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        near = F.smooth_l1_loss(x, y) + F.huber_loss(x, y) + F.l1_loss(x, y)
        return near + (1 - F.cosine_similarity(x, y)).mean()

    return Ordinary(f, (torch.randn(64, 32), torch.randn(64, 32)))


# ---- numbers


@program
def covariance() -> Ordinary:
    return Ordinary(torch.cov, (torch.randn(32, 1000),))


@program
def correlation() -> Ordinary:
    return Ordinary(torch.corrcoef, (torch.randn(32, 1000),))


@program
def mean_without_nan() -> Ordinary:
    x = torch.randn(256, 300)
    return Ordinary(lambda x: (x.nanmean(1), x.nansum(0)), (x.masked_fill(x > 1, torch.nan),))


@program
def standardise() -> Ordinary:
    return Ordinary(lambda x: (x - x.mean(0)) / x.std(0), (torch.randn(2000, 20),))


@program
def three_operands() -> Ordinary:
    f = lambda x, w, y: torch.einsum("bi,ijk,bk->bj", x, w, y)  # noqa: E731
    return Ordinary(f, (torch.randn(64, 32), torch.randn(32, 16, 32), torch.randn(64, 32)))


@program
def attention_scores_by_einsum() -> Ordinary:
    f = lambda q, k: torch.einsum("bthd,bshd->bhts", q, k)  # noqa: E731
    return Ordinary(f, (torch.randn(2, 64, 8, 32), torch.randn(2, 80, 8, 32)))


@program
def small_matrices() -> Ordinary:
    """Poses of joints, one after the other."""

    def f(turn: Tensor, x: Tensor) -> Tensor:
        for k in range(3):
            x = (turn[:, k] @ x[..., None]).squeeze(-1) + x
        return x

    return Ordinary(f, (torch.randn(1000, 3, 3, 3), torch.randn(1000, 3)))


@program
def quaternions() -> Ordinary:
    def f(q: Tensor, p: Tensor) -> Tensor:
        a, b, c, d = F.normalize(q, dim=-1).unbind(-1)
        w, x, y, z = p.unbind(-1)
        real = a * w - b * x - c * y - d * z
        i, j = a * x + b * w + c * z - d * y, a * y - b * z + c * w + d * x
        return torch.stack([real, i, j, a * z + b * y - c * x + d * w], -1)

    return Ordinary(f, (torch.randn(2000, 4), torch.randn(2000, 4)))


@program
def cross_and_norm() -> Ordinary:
    """Normals of triangles."""

    def f(x: Tensor, i: Tensor) -> Tensor:
        a, b, c = x[i].unbind(1)
        return F.normalize(torch.linalg.cross(b - a, c - a), dim=-1)

    return Ordinary(f, (torch.randn(1000, 3), whole(1000, 2000, 3)))


@program
def bodies() -> Ordinary:
    def f(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(3):
            gap = x[None] - x[:, None]
            pull = gap / (gap.square().sum(-1, keepdim=True) + 1e-2) ** 1.5
            v = v + 0.01 * pull.sum(1)
            x = x + 0.01 * v
        return x, v

    return Ordinary(f, (torch.randn(100, 3), torch.randn(100, 3)))


@program
def heat() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        for _ in range(10):
            inner = x[1:-1, 1:-1]
            around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
            x = F.pad(inner + 0.1 * (around - 4 * inner), (1, 1, 1, 1))
        return x

    return Ordinary(f, (torch.randn(80, 80),))


@program
def mandelbrot() -> Ordinary:
    def f(c: Tensor) -> Tensor:
        z, count = torch.zeros_like(c), torch.zeros(c.shape)
        for _ in range(12):
            z = torch.where(z.abs() < 2, z * z + c, z)
            count = count + (z.abs() < 2)
        return count

    return Ordinary(f, (torch.randn(64, 64, dtype=torch.complex64),))


@program
def balanced_transport() -> Ordinary:
    def f(cost: Tensor) -> Tensor:
        plan = -cost / 0.1
        for _ in range(5):
            plan = plan - plan.logsumexp(1, keepdim=True)
            plan = plan - plan.logsumexp(0, keepdim=True)
        return plan.exp()

    return Ordinary(f, (torch.rand(80, 80),))


@program
def viterbi() -> Ordinary:
    def f(step: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        best, back = seen[0], []
        for t in range(1, seen.shape[0]):
            best, at = (best[:, None] + step).max(0)
            best = best + seen[t]
            back.append(at)
        return best, torch.stack(back)

    return Ordinary(f, (torch.randn(12, 12), torch.randn(24, 12)))


@program
def mixture_of_gaussians() -> Ordinary:
    def f(x: Tensor, mean: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
        gap = (x[:, None] - mean).square() / log_var.exp()
        share = (-0.5 * (gap + log_var).sum(-1)).softmax(1)
        return share.sum(0), share.T @ x / share.sum(0)[:, None]

    return Ordinary(f, (torch.randn(1000, 8), torch.randn(6, 8), torch.randn(6, 8) * 0.1))


@program
def gaussian_process() -> Ordinary:
    def f(x: Tensor, y: Tensor, new: Tensor) -> Tensor:
        near = lambda a, b: torch.exp(-0.5 * torch.cdist(a, b).square())  # noqa: E731
        low = torch.linalg.cholesky(near(x, x) + 0.1 * torch.eye(x.shape[0]))
        return near(new, x) @ torch.cholesky_solve(y[:, None], low)

    return Ordinary(f, (torch.randn(80, 4), torch.randn(80), torch.randn(50, 4)))


@program
def power_iteration() -> Ordinary:
    def f(a: Tensor, v: Tensor) -> Tensor:
        for _ in range(10):
            v = F.normalize(a @ v, dim=0)
        return v @ a @ v

    a = torch.randn(100, 100)
    return Ordinary(f, (a @ a.T, torch.randn(100)))


@program
def neighbours_of_graph() -> Ordinary:
    """One product with a sparse adjacency, written with index_add and segments."""

    def f(x: Tensor, row: Tensor, column: Tensor, weight: Tensor) -> Tensor:
        sums = torch.zeros(500, 16).index_add_(0, row, x[column] * weight[:, None])
        return torch.log_softmax(sums, 1)

    return Ordinary(f, (torch.randn(500, 16), whole(500, 3000), whole(500, 3000), torch.rand(3000)))


@program
def moving_average() -> Ordinary:
    """With an update in place, as a model's shadow weights are kept."""

    def f(shadow: Tensor, x: Tensor) -> Tensor:
        return shadow.mul_(0.99).add_(x, alpha=0.01)

    return Ordinary(f, (torch.zeros(300, 300), torch.zeros(300, 300)))


@program
def windows_of_series() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        parts = x.unfold(1, 24, 1)
        return parts.mean(-1), parts.std(-1)

    return Ordinary(f, (torch.randn(16, 500),))


@program
def inverse_spectrogram() -> Ordinary:
    window = torch.hann_window(256)

    def f(x: Tensor) -> Tensor:
        s = torch.stft(x, 256, 64, window=window, return_complex=True)
        return torch.istft(s * (s.abs() > 1), 256, 64, window=window)

    return Ordinary(f, (torch.randn(2, 8192),))


@program
def jacobian_by_vmap() -> Ordinary:
    w = torch.randn(8, 8)
    f = lambda x: torch.func.vmap(torch.func.jacrev(lambda y: (w @ y).tanh()))(x)  # noqa: E731
    return Ordinary(f, (torch.randn(64, 8),))


@program
def half_precision_mlp() -> Ordinary:
    net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).bfloat16().eval()
    return Ordinary(net, (torch.randn(32, 128).bfloat16(),))


@program
def whole_number_hash() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        x = (x ^ (x >> 16)) * 0x45D9F3B
        return ((x ^ (x >> 16)) & 0x7FFFFFFF) % 1000

    return Ordinary(f, (whole(1 << 30, 10000),))
