"""More programs of a new user (see ordinary_table.py): series, bits, words."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- series


@program
def bands_and_drops() -> Ordinary:
    """Of prices: bands around a moving mean, and the deepest fall from a maximum."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        parts = x.unfold(1, 20, 1)
        mean, spread = parts.mean(-1), parts.std(-1)
        top = x.cummax(1).values
        gain = x.diff(dim=1)
        up = gain.clamp(min=0).unfold(1, 14, 1).mean(-1)
        down = (-gain).clamp(min=0).unfold(1, 14, 1).mean(-1)
        return (
            mean - 2 * spread,
            mean + 2 * spread,
            (x / top - 1).amin(1),
            100 * up / (up + down + 1e-6),
        )

    return Ordinary(f, (100 + torch.randn(8, 400).cumsum(1).clamp(min=-60),))


@program
def season_and_trend() -> Ordinary:
    """Holt and Winters' smoothing, with gradients by its rates."""

    def f(x: Tensor, rates: Tensor) -> Tensor:
        a, b, c = rates.sigmoid().unbind(0)
        level, trend = x[:, 0], torch.zeros_like(x[:, 0])
        season = [torch.zeros_like(level)] * 6
        loss = torch.zeros(())
        for t in range(1, x.shape[1]):
            guess = level + trend + season[t % 6]
            loss = loss + (x[:, t] - guess).square().mean()
            new = a * (x[:, t] - season[t % 6]) + (1 - a) * (level + trend)
            trend = b * (new - level) + (1 - b) * trend
            season[t % 6] = c * (x[:, t] - new) + (1 - c) * season[t % 6]
            level = new
        return loss / x.shape[1]

    return Ordinary(f, (torch.randn(16, 30), torch.zeros(3, requires_grad=True)), True)


@program
def small_waves() -> Ordinary:
    """Haar: three levels, small ones to zero, and back."""

    def f(x: Tensor) -> Tensor:
        parts = []
        for _ in range(3):
            a, b = x[:, 0::2], x[:, 1::2]
            x, d = (a + b) / math.sqrt(2), (a - b) / math.sqrt(2)
            parts.append(d.sign() * (d.abs() - 0.5).relu())
        for d in reversed(parts):
            x = torch.stack([x + d, x - d], -1).flatten(1) / math.sqrt(2)
        return x

    return Ordinary(f, (torch.randn(16, 1024),))


@program
def curves_of_points() -> Ordinary:
    """Bezier curves by de Casteljau, and splines by their recurrence."""

    def f(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.linspace(0, 1, 50)[:, None, None]
        line = p.expand(50, -1, -1)
        while line.shape[1] > 1:
            line = line[:, :-1] * (1 - t) + line[:, 1:] * t
        knots = torch.arange(-3.0, 12) / 8
        x = x[:, None]
        base = ((x >= knots[:-1]) & (x < knots[1:])).float()
        for k in range(1, 4):
            left = (x - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])
            right = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k])
            base = left * base[:, :-1] + right * base[:, 1:]
        return line.squeeze(1), base

    return Ordinary(f, (torch.randn(6, 2), torch.rand(500)))


# ---- bits


@program
def bits_of_words() -> Ordinary:
    """Counts of ones, Gray codes and places along a curve of Morton."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def spread(v: Tensor) -> Tensor:
            for shift, mask in ((8, 0xFF00FF), (4, 0xF0F0F0F), (2, 0x33333333), (1, 0x55555555)):
                v = (v | (v << shift)) & mask
            return v

        n = x - ((x >> 1) & 0x55555555)
        n = (n & 0x33333333) + ((n >> 2) & 0x33333333)
        n = (((n + (n >> 4)) & 0xF0F0F0F) * 0x1010101 & 0xFFFFFFFF) >> 24
        return n, x ^ (x >> 1), spread(x & 0xFFFF) | (spread(y & 0xFFFF) << 1)

    return Ordinary(f, (whole(1 << 31, 5000), whole(1 << 31, 5000)))


@program
def random_by_shifts() -> Ordinary:
    def f(seed: Tensor) -> tuple[Tensor, Tensor]:
        out = []
        for _ in range(16):
            seed = seed ^ (seed << 13)
            seed = seed ^ ((seed >> 7) & ((1 << 57) - 1))
            seed = seed ^ (seed << 17)
            out.append(((seed >> 40) & 0xFFFFFF).float() / 16777216)
        return torch.stack(out, 1), seed

    return Ordinary(f, (1 + whole(1 << 40, 500),))


@program
def sums_of_check() -> Ordinary:
    """A checksum by a table, byte after byte, of many messages."""
    table = torch.arange(256)
    for _ in range(8):
        table = torch.where(table & 1 == 1, (table >> 1) ^ 0xEDB88320, table >> 1)

    def f(x: Tensor) -> Tensor:
        total = torch.full((x.shape[0],), 0xFFFFFFFF)
        for column in x.unbind(1):
            total = (total >> 8) ^ table[(total ^ column) & 255]
        return total ^ 0xFFFFFFFF

    return Ordinary(f, (whole(256, 256, 24),))


# ---- words


@program
def bytes_to_words() -> Ordinary:
    """A text as bytes: where words begin, their lengths and numbers of a hash."""

    def f(text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        upper = (text >= 65) & (text <= 90)
        text = torch.where(upper, text + 32, text).long()
        letter = (text >= 97) & (text <= 122)
        begins = letter & ~F.pad(letter[:-1], (1, 0))
        word = begins.long().cumsum(0) * letter
        lengths = torch.zeros(400, dtype=torch.long).index_add(0, word, letter.long())
        place = (
            torch.arange(text.shape[0])
            - torch.where(begins, torch.arange(text.shape[0]), 0).cummax(0)[0]
        )
        part = (text * (31 ** (place % 8)) * letter) % 65536
        return word, lengths, torch.zeros_like(lengths).index_add(0, word, part) % 65536

    letters = torch.tensor(list(b"abc DeFg, hi JK. lmno PQR"), dtype=torch.uint8)
    return Ordinary(f, (letters[whole(len(letters), 1000)],))


@program
def lines_of_lengths() -> Ordinary:
    """Rows one after the other, as a padded batch, and back in order."""

    def f(flat: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.arange(32) < lengths[:, None]
        padded = torch.zeros(lengths.shape[0], 32, flat.shape[1])
        padded[mask] = flat
        padded = padded / (padded.norm(dim=1, keepdim=True) + 1)
        return padded, padded[mask]

    lengths = torch.tensor([32, 5, 17, 1, 20, 9])
    return Ordinary(f, (torch.randn(int(lengths.sum()), 24), lengths))


@program
def list_of_sequences() -> Ordinary:
    def f(rows: list[Tensor]) -> dict[str, Tensor]:
        x = pad_sequence(rows, batch_first=True, padding_value=-1)
        mask = x != -1
        return {"x": x, "mask": mask, "mean": (x * mask).sum(1) / mask.sum(1)}

    return Ordinary(f, ([torch.rand(n) for n in (12, 30, 7, 19)],))


@program
def words_and_noise() -> Ordinary:
    """word2vec: a pair that was seen and ten that were not."""
    left, right = nn.Embedding(1000, 48), nn.Embedding(1000, 48)

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = left, right

        def forward(self, a: Tensor, b: Tensor, noise: Tensor) -> Tensor:
            x = self.left(a)
            near = F.logsigmoid((x * self.right(b)).sum(-1))
            far = F.logsigmoid(-(self.right(noise) @ x[:, :, None]).squeeze(-1)).sum(-1)
            return -(near + far).mean()

    return Ordinary(Pairs(), (whole(1000, 128), whole(1000, 128), whole(1000, 128, 10)), True)


@program
def switched_experts() -> Ordinary:
    """Each word goes to one of eight, as long as there is room, by products with one-hot tables."""

    class Switch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(32, 8)
            self.up = nn.Parameter(torch.randn(8, 32, 64) / 6)
            self.down = nn.Parameter(torch.randn(8, 64, 32) / 8)

        def forward(self, x: Tensor) -> Tensor:
            p = self.gate(x).softmax(-1)
            share, own = p.max(-1)
            hot = F.one_hot(own, 8).float()
            place = (hot.cumsum(0) * hot - hot).sum(-1).long()
            fits = (place < 20).float()
            send = torch.einsum(
                "te,tc->tec", hot, F.one_hot(place.clamp(max=19), 20) * fits[:, None]
            )
            y = torch.einsum("tec,td->ecd", send, x)
            y = F.relu(y @ self.up) @ self.down
            y = torch.einsum("tec,ecd->td", send * share[:, None, None], y)
            return y.square().mean() + 0.01 * 8 * (hot.mean(0) * p.mean(0)).sum()

    return Ordinary(Switch(), (torch.randn(128, 32, requires_grad=True),), True)


@program
def masked_words() -> Ordinary:
    """BERT: of given random numbers, which words are hidden, changed or kept, with options."""

    def f(x: Tensor, u: Tensor, other: Tensor, *, rate: float = 0.15, special: Any = None) -> Any:
        chosen = u < rate
        if special is not None:
            chosen = chosen & ~torch.isin(x, special)
        labels = torch.where(chosen, x, -100)
        hidden = chosen & (u < rate * 0.8)
        changed = chosen & ~hidden & (u < rate * 0.9)
        x = torch.where(hidden, 103, x)
        return torch.where(changed, other, x), labels

    inputs = whole(1000, 16, 64), torch.rand(16, 64), whole(1000, 16, 64)
    return Ordinary(lambda *x: f(*x, rate=0.3, special=torch.tensor([0, 1, 2])), inputs)
