"""More programs of a new user (see ordinary_table.py): parts of models, sampling, statistics."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.ordinary_table import Ordinary, program, whole


def _heads(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(shape), torch.randn(shape), torch.randn(shape)


# ---- attention


@program
def attention_with_distance() -> Ordinary:
    """ALiBi: scores fall with the distance, in each head at its own rate."""
    slopes = 2 ** -torch.arange(1.0, 5)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        bias = (at[None, :] - at[:, None]) * slopes[:, None, None]
        bias = bias.masked_fill(at[None, :] > at[:, None], -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return Ordinary(f, _heads(2, 4, 128, 32))


@program
def attention_in_window() -> Ordinary:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        gap = at[:, None] - at[None, :]
        seen = (gap >= 0) & (gap < 32)
        score = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -torch.inf)
        return score.softmax(-1) @ v

    return Ordinary(f, _heads(2, 4, 256, 32))


@program
def grouped_query_attention() -> Ordinary:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Ordinary(
        f, (torch.randn(1, 8, 128, 32), torch.randn(1, 2, 128, 32), torch.randn(1, 2, 128, 32))
    )


@program
def linear_attention() -> Ordinary:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        both = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
        top = torch.einsum("bhnd,bhnde->bhne", q, both)
        return top / torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2))[..., None]

    return Ordinary(f, _heads(1, 2, 64, 16))


@program
def relative_positions() -> Ordinary:
    """A learned number for each distance, as T5 and Swin add to scores."""
    table = nn.Embedding(63, 4)

    def f(score: Tensor) -> Tensor:
        at = torch.arange(score.shape[-1])
        gap = (at[None, :] - at[:, None]).clamp(-31, 31) + 31
        return (score + table(gap).permute(2, 0, 1)).softmax(-1)

    return Ordinary(f, (torch.randn(4, 4, 64, 64),))


@program
def windows_of_image() -> Ordinary:
    """Swin: an image in windows, attention inside each, and back."""

    def f(x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.roll((-4, -4), (1, 2)).view(b, h // 8, 8, w // 8, 8, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 64, c)
        x = (x @ x.mT / math.sqrt(c)).softmax(-1) @ x
        x = x.view(b, h // 8, w // 8, 8, 8, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x.roll((4, 4), (1, 2))

    return Ordinary(f, (torch.randn(2, 32, 32, 32),))


# ---- sampling


@program
def gumbel_choice() -> Ordinary:
    """Of given random numbers: one hot forward, soft for gradients."""

    def f(x: Tensor, u: Tensor) -> Tensor:
        soft = ((x - (-(u + 1e-9).log() + 1e-9).log()) / 0.5).softmax(-1)
        hard = torch.zeros_like(soft).scatter(1, soft.argmax(-1, keepdim=True), 1.0)
        return (hard - soft.detach() + soft).mul(torch.arange(50.0)).sum()

    return Ordinary(f, (torch.randn(64, 50, requires_grad=True), torch.rand(64, 50)), True)


@program
def least_probability() -> Ordinary:
    """min-p sampling with a temperature and given random numbers."""

    def f(x: Tensor, u: Tensor) -> Tensor:
        p = (x / 0.8).softmax(-1)
        p = p.masked_fill(p < 0.05 * p.amax(-1, keepdim=True), 0)
        p = p / p.sum(-1, keepdim=True)
        return (p.cumsum(-1) < u[:, None]).sum(-1)

    return Ordinary(f, (torch.randn(4, 8000) * 3, torch.rand(4)))


@program
def penalty_for_repeats() -> Ordinary:
    def f(x: Tensor, tokens: Tensor) -> Tensor:
        own = x.gather(1, tokens)
        own = torch.where(own < 0, own * 1.2, own / 1.2)
        return x.scatter(1, tokens, own).log_softmax(-1)

    return Ordinary(f, (torch.randn(4, 8000), whole(8000, 4, 64)))


@program
def check_of_draft() -> Ordinary:
    """How many words of a draft a large model accepts (speculative sampling)."""

    def f(p: Tensor, q: Tensor, words: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        a, b = p.softmax(-1), q.softmax(-1)
        at = words[..., None]
        taken = u < (a.gather(-1, at) / b.gather(-1, at)).squeeze(-1).clamp(max=1)
        count = taken.long().cumprod(1).sum(1)
        rest = (a - b).clamp(min=0)
        return count, rest / rest.sum(-1, keepdim=True).clamp(min=1e-9)

    return Ordinary(
        f, (torch.randn(2, 6, 2000), torch.randn(2, 6, 2000), whole(2000, 2, 6), torch.rand(2, 6))
    )


# ---- losses and metrics


@program
def in_batch_loss() -> Ordinary:
    """NT-Xent: two views of each image, all others are wrong."""

    def f(x: Tensor) -> Tensor:
        x = F.normalize(x, dim=1)
        score = x @ x.T / 0.5
        own = torch.eye(x.shape[0], dtype=torch.bool)
        n = x.shape[0] // 2
        target = (torch.arange(2 * n) + n) % (2 * n)
        return F.cross_entropy(score.masked_fill(own, -torch.inf), target)

    return Ordinary(f, (torch.randn(128, 64, requires_grad=True),), True)


@program
def policy_loss() -> Ordinary:
    """PPO: a clipped ratio, values and entropy."""

    def f(logits: Tensor, value: Tensor, old: Tensor, act: Tensor, gain: Tensor) -> Tensor:
        logp = logits.log_softmax(-1)
        own = logp.gather(1, act[:, None]).squeeze(1)
        ratio = (own - old).exp()
        part = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        spread = -(logp.exp() * logp).sum(-1).mean()
        return 0.5 * (value - gain).square().mean() - part - 0.01 * spread

    inputs = torch.randn(256, 6, requires_grad=True), torch.randn(256, requires_grad=True)
    return Ordinary(f, (*inputs, -torch.rand(256) - 1, whole(6, 256), torch.randn(256)), True)


@program
def returns_backwards() -> Ordinary:
    """Generalised advantages, from the last step to the first."""

    def f(reward: Tensor, value: Tensor, done: Tensor) -> Tensor:
        keep, gain, out = 1 - done, torch.zeros(reward.shape[1]), []
        for t in range(reward.shape[0] - 1, -1, -1):
            gap = reward[t] + 0.99 * value[t + 1] * keep[t] - value[t]
            gain = gap + 0.99 * 0.95 * keep[t] * gain
            out.append(gain)
        return torch.stack(out[::-1])

    return Ordinary(
        f, (torch.randn(32, 64), torch.randn(33, 64), (torch.rand(32, 64) > 0.9).float())
    )


@program
def preference_loss() -> Ordinary:
    """DPO: logarithms of chances of words that were chosen, over two models."""

    def f(x: Tensor, ref: Tensor, y: Tensor) -> Tensor:
        own = x.log_softmax(-1).gather(2, y[..., None]).squeeze(2).sum(1)
        other = ref.log_softmax(-1).gather(2, y[..., None]).squeeze(2).sum(1)
        gain = (own - other).view(-1, 2)
        return -F.logsigmoid(0.1 * (gain[:, 0] - gain[:, 1])).mean()

    x = torch.randn(4, 24, 500, requires_grad=True)
    return Ordinary(f, (x, torch.randn(4, 24, 500), whole(500, 4, 24)), True)


@program
def area_under_curve() -> Ordinary:
    def f(score: Tensor, y: Tensor) -> Tensor:
        hits = y[score.argsort(descending=True)].float()
        right, wrong = hits.cumsum(0), (1 - hits).cumsum(0)
        return torch.trapezoid(right / right[-1], wrong / wrong[-1])

    return Ordinary(f, (torch.randn(3000), whole(2, 3000)))


@program
def gain_of_ranking() -> Ordinary:
    def f(score: Tensor, y: Tensor) -> Tensor:
        weight = 1 / torch.log2(torch.arange(2.0, 12))
        found = y.gather(1, score.topk(10, 1).indices)
        best = y.topk(10, 1).values
        return (((2**found - 1) * weight).sum(1) / ((2**best - 1) * weight).sum(1)).mean()

    return Ordinary(f, (torch.randn(128, 100), whole(4, 128, 100).float()))


@program
def edit_distance() -> Ordinary:
    """Of pairs of words, row by row of the table."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        line = torch.arange(b.shape[1] + 1).repeat(a.shape[0], 1)
        at = torch.arange(b.shape[1] + 1)
        for k in range(a.shape[1]):
            change = line[:, :-1] + (a[:, k : k + 1] != b).long()
            row = torch.minimum(line[:, 1:] + 1, change)
            row = torch.cat([torch.full((a.shape[0], 1), k + 1), row], 1)
            line = (row - at).cummin(1).values + at
        return line[:, -1]

    return Ordinary(f, (whole(5, 64, 12), whole(5, 64, 16)))


# ---- layers


@program
def spectral_norm() -> Ordinary:
    def f(w: Tensor, u: Tensor, x: Tensor) -> Tensor:
        for _ in range(2):
            v = F.normalize(w.T @ u, dim=0)
            u = F.normalize(w @ v, dim=0)
        return F.linear(x, w / (u @ w @ v))

    return Ordinary(f, (torch.randn(96, 128), torch.randn(96), torch.randn(32, 128)))


@program
def quantised_layer() -> Ordinary:
    """Weights of four bits, two to a byte, in groups with a scale each."""

    def f(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
        low, high = (packed & 15).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8
        w = torch.stack([low, high], -1).flatten(1).float()
        w = (w.view(128, -1, 32) * scale[..., None]).flatten(1)
        return x @ w.T

    return Ordinary(
        f, (torch.randn(4, 256), whole(256, 128, 128).to(torch.uint8), torch.rand(128, 8))
    )


@program
def straight_through() -> Ordinary:
    """Rounding whose gradient passes, with a scale that is learned."""

    def f(x: Tensor, scale: Tensor) -> Tensor:
        y = x / scale
        y = y + (y.round().clamp(-8, 7) - y).detach()
        return (y * scale).square().mean()

    inputs = torch.randn(128, 256, requires_grad=True), torch.full((1,), 0.3, requires_grad=True)
    return Ordinary(f, inputs, True)


@program
def codebook() -> Ordinary:
    """The nearest of 64 vectors, and how often each was."""

    def f(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        far = (x**2).sum(1, keepdim=True) - 2 * x @ codes.T + (codes**2).sum(1)
        at = far.argmin(1)
        return codes[at], at, F.one_hot(at, 64).float().mean(0)

    return Ordinary(f, (torch.randn(1000, 16), torch.randn(64, 16)))


@program
def state_space_scan() -> Ordinary:
    """A diagonal state that decays, as selective state spaces step."""

    def f(x: Tensor, rate: Tensor, b: Tensor, c: Tensor) -> Tensor:
        state, out = torch.zeros(x.shape[0], x.shape[2], b.shape[2]), []
        for t in range(x.shape[1]):
            keep = torch.exp(-rate[:, t, :, None])
            state = keep * state + x[:, t, :, None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1))
        return torch.stack(out, 1)

    return Ordinary(
        f,
        (
            torch.randn(2, 16, 32),
            torch.rand(2, 16, 32),
            torch.randn(2, 16, 8),
            torch.randn(2, 16, 8),
        ),
    )


@program
def fields_of_factors() -> Ordinary:
    """A factorisation machine over categories."""
    table, line = nn.Embedding(1000, 16), nn.Embedding(1000, 1)

    def f(x: Tensor) -> Tensor:
        v = table(x)
        both = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return torch.sigmoid(line(x).sum((1, 2)) + both)

    return Ordinary(f, (whole(1000, 256, 10),))


@program
def words_to_lines() -> Ordinary:
    """Rows of many lengths, padded to the longest, and their lengths."""

    def f(x: Tensor, begin: Tensor) -> tuple[Tensor, Tensor]:
        lengths = begin[1:] - begin[:-1]
        at = begin[:-1, None] + torch.arange(20)
        there = torch.arange(20) < lengths[:, None]
        return x[at.clamp(max=x.shape[0] - 1)] * there[..., None], lengths

    begin = torch.cat([torch.zeros(1, dtype=torch.long), whole(20, 40).cumsum(0)])
    return Ordinary(f, (torch.randn(int(begin[-1]) + 1, 16), begin))


# ---- statistics and numerical methods


@program
def kalman_step() -> Ordinary:
    def f(x: Tensor, p: Tensor, a: Tensor, h: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        x, p = x @ a.T, a @ p @ a.T + 0.01 * torch.eye(4)
        s = h @ p @ h.T + 0.1 * torch.eye(2)
        gain = torch.linalg.solve(s, h @ p).mT
        x = x + (gain @ (z - x @ h.T)[..., None]).squeeze(-1)
        return x, p - gain @ h @ p

    p = torch.eye(4).expand(100, 4, 4).contiguous()
    a, h = torch.eye(4) + 0.1 * torch.randn(4, 4), torch.randn(2, 4)
    return Ordinary(f, (torch.randn(100, 4), p, a, h, torch.randn(100, 2)))


@program
def cosines_of_all() -> Ordinary:
    f = lambda x, y: F.cosine_similarity(x[:, None], y[None], dim=-1)  # noqa: E731
    return Ordinary(f, (torch.randn(100, 64), torch.randn(120, 64)))


@program
def kernel_two_samples() -> Ordinary:
    """Maximum mean discrepancy of two clouds of points."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        k = lambda a, b: torch.exp(-(a[:, None] - b).square().sum(-1) / 8).mean()  # noqa: E731
        return k(x, x) + k(y, y) - 2 * k(x, y)

    return Ordinary(f, (torch.randn(100, 8), torch.randn(100, 8)))


@program
def principal_directions() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        x = x - x.mean(0)
        _, v = torch.linalg.eigh(x.T @ x / x.shape[0])
        return (x @ v[:, -3:]).abs()

    return Ordinary(f, (torch.randn(500, 16) * torch.arange(1.0, 17),))


@program
def bootstrap() -> Ordinary:
    f = lambda x, at: x[at].mean(1).quantile(torch.tensor([0.05, 0.5, 0.95]))  # noqa: E731
    return Ordinary(f, (torch.randn(500), whole(500, 200, 500)))


@program
def moments_of_windows() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        c, s = x.cumsum(1), x.square().cumsum(1)
        mean = (c[:, 20:] - c[:, :-20]) / 20
        return mean, ((s[:, 20:] - s[:, :-20]) / 20 - mean.square()).clamp(min=0).sqrt()

    return Ordinary(f, (torch.randn(16, 1000),))


@program
def einsum_of_many() -> Ordinary:
    def f(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        diagonal = torch.einsum("bii->bi", a)
        trace = torch.einsum("bij,bji->b", a, a)
        outer = torch.einsum("bi,bj,b->ij", b, b, c)
        return diagonal, trace, outer, torch.einsum("bij,bj,bi->b", a, b, b)

    return Ordinary(f, (torch.randn(64, 40, 40), torch.randn(64, 40), torch.randn(64)))


@program
def newton_roots() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        for _ in range(8):
            x = x - (x**3 - 2 * x - 5) / (3 * x**2 - 2)
        return x

    return Ordinary(f, (torch.rand(4000) + 2,))


@program
def runge_kutta() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        def slope(x: Tensor) -> Tensor:
            a, b, c = x.unbind(-1)
            return torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], -1)

        for _ in range(4):
            k1 = slope(x)
            k2 = slope(x + 0.005 * k1)
            k3 = slope(x + 0.005 * k2)
            k4 = slope(x + 0.01 * k3)
            x = x + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x

    return Ordinary(f, (torch.randn(500, 3),))
