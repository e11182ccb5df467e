"""More programs of a new user (see ordinary_table.py): words, sequences, decoding."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.driver.ordinary_table import Ordinary, program, whole

# ---- decoding


class Best(NamedTuple):
    tokens: Tensor
    scores: Tensor


@program
def beam_search() -> Ordinary:
    """Six steps of a recurrent model with four beams; those that ended stay as they are."""
    table, cell, head = nn.Embedding(200, 48), nn.GRUCell(48, 48), nn.Linear(48, 200)

    def f(state: Tensor) -> Best:
        n, k = state.shape[0], 4
        state = state.repeat_interleave(k, 0)
        tokens = torch.zeros(n, k, 1, dtype=torch.long)
        scores = torch.tensor([0.0, -1e9, -1e9, -1e9]).repeat(n, 1)
        ended = torch.zeros(n, k, dtype=torch.bool)
        for _ in range(6):
            state = cell(table(tokens[:, :, -1].flatten()), state)
            step = head(state).log_softmax(-1).view(n, k, -1)
            only = torch.full_like(step, -torch.inf)
            only[:, :, 0] = 0
            step = torch.where(ended[..., None], only, step)
            scores, at = (scores[..., None] + step).flatten(1).topk(k, 1)
            beam, word = at // 200, at % 200
            row = torch.arange(n)[:, None]
            tokens = torch.cat([tokens[row, beam], word[..., None]], 2)
            ended = ended[row, beam] | (word == 0)
            state = state.view(n, k, -1)[row, beam].flatten(0, 1)
        return Best(tokens, scores)

    return Ordinary(f, (torch.randn(3, 48),))


@program
def typical_words() -> Ordinary:
    """Words whose surprise is near the expected one, up to a share."""

    def f(x: Tensor) -> Tensor:
        logp = x.log_softmax(-1)
        p = logp.exp()
        mean = -(p * logp).nansum(-1, keepdim=True)
        order = ((-logp) - mean).abs().argsort(-1)
        total = p.gather(-1, order).cumsum(-1)
        last = (total < 0.9).sum(-1, keepdim=True)
        keep = torch.arange(x.shape[-1]) <= last
        keep = torch.zeros_like(keep).scatter(-1, order, keep)
        return x.masked_fill(~keep, -torch.inf)

    return Ordinary(f, (torch.randn(4, 4000) * 2,))


@program
def no_repeated_triples() -> Ordinary:
    """Words that would complete three words seen before are forbidden."""

    def f(tokens: Tensor, logits: Tensor) -> Tensor:
        triples = tokens.unfold(1, 3, 1)
        same = (triples[:, :, :2] == tokens[:, None, -2:]).all(-1)
        banned = torch.zeros_like(logits).scatter_reduce(
            1, triples[:, :, 2], same.to(logits.dtype), "amax"
        )
        return logits.masked_fill(banned > 0, -torch.inf)

    return Ordinary(f, (whole(8, 4, 100), torch.randn(4, 500)))


@program
def greedy_transcript() -> Ordinary:
    """CTC: the best symbols, repetitions once, without blanks."""

    def f(x: Tensor) -> list[Tensor]:
        out = []
        for row in x.argmax(-1).unbind(0):
            row = torch.unique_consecutive(row)
            out.append(row[row != 0])
        return out

    return Ordinary(f, (torch.randn(3, 100, 8),))


@program
def tree_of_drafts() -> Ordinary:
    """Which drafted words see which: their ancestors, found by doubling."""

    def f(parent: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = parent.shape[0]
        seen = torch.eye(n, dtype=torch.bool) | F.one_hot(parent, n).bool()
        for _ in range(4):
            seen = (seen.float() @ seen.float()) > 0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    parent = torch.tensor([max(0, (i - 1) // 2) for i in range(31)])
    return Ordinary(f, (parent, *(torch.randn(1, 4, 31, 32) for _ in range(3))))


@program
def copies_of_source() -> Ordinary:
    """A pointer network: chances of words plus those of words that are copied."""

    def f(logits: Tensor, score: Tensor, gate: Tensor, source: Tensor) -> Tensor:
        share = gate.sigmoid()
        copied = torch.zeros_like(logits).scatter_add(1, source, score.softmax(-1))
        return (share * logits.softmax(-1) + (1 - share) * copied + 1e-9).log()

    inputs = torch.randn(8, 2000), torch.randn(8, 60), torch.randn(8, 1), whole(2000, 8, 60)
    return Ordinary(f, inputs)


# ---- attention


@program
def buckets_of_distances() -> Ordinary:
    """T5: near words by their distance, far ones by its logarithm."""
    table = nn.Embedding(32, 8)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gap = torch.arange(k.shape[2])[None] - torch.arange(q.shape[2])[:, None]
        side = (gap > 0).long() * 16
        gap = gap.abs()
        far = 8 + ((gap.clamp(min=1).float() / 8).log() / math.log(128 / 8) * 8).long()
        kind = side + torch.where(gap < 8, gap, far.clamp(max=15))
        bias = table(kind).permute(2, 0, 1)[None]
        return (q @ k.mT + bias).softmax(-1) @ v

    return Ordinary(f, tuple(torch.randn(2, 8, 96, 32) for _ in range(3)))


@program
def attention_of_blocks() -> Ordinary:
    """Blocks of words see what a table of blocks says."""

    def f(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        mask = seen.repeat_interleave(16, 0).repeat_interleave(16, 1)
        mask = mask & torch.ones(256, 256, dtype=torch.bool).tril()
        score = (q @ k.mT / 8).masked_fill(~mask, -1e9)
        return score.softmax(-1) @ v

    seen = (torch.rand(16, 16) > 0.5) | torch.eye(16, dtype=torch.bool)
    return Ordinary(f, (*(torch.randn(1, 4, 256, 32) for _ in range(3)), seen))


@program
def keys_of_neighbours() -> Ordinary:
    """Each word sees 16 before it: keys and values in windows, not a mask."""

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = F.pad(k, (0, 0, 15, 0)).unfold(2, 16, 1)
        v = F.pad(v, (0, 0, 15, 0)).unfold(2, 16, 1)
        score = torch.einsum("bhnd,bhndw->bhnw", q, k) / math.sqrt(q.shape[-1])
        empty = torch.arange(16) < 15 - torch.arange(q.shape[2])[:, None]
        share = score.masked_fill(empty, -torch.inf).softmax(-1)
        return torch.einsum("bhnw,bhndw->bhnd", share, v)

    return Ordinary(f, tuple(torch.randn(1, 4, 128, 32) for _ in range(3)))


@program
def rotary_at_positions() -> Ordinary:
    """Neighbouring pairs turned, at positions that are given, with a stretched base."""
    rate = 1 / (10000 * 4 ** (64 / 62)) ** (torch.arange(0, 64, 2) / 64)

    def f(x: Tensor, at: Tensor) -> Tensor:
        angle = at[:, None, :, None].float() * rate
        a, b = x[..., 0::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    return Ordinary(f, (torch.randn(2, 8, 64, 64), whole(500, 2, 64)))


@program
def ring_of_keys() -> Ordinary:
    """A cache that is written around its end, in place."""

    def f(cache: Tensor, new: Tensor, at: Tensor, q: Tensor) -> Tensor:
        cache = cache.clone()
        cache[:, :, at % 64] = new
        share = (q @ cache[0].mT / 6).softmax(-1)
        return share @ cache[1]

    new = torch.randn(2, 4, 3, 32)
    return Ordinary(
        f, (torch.randn(2, 4, 64, 32), new, torch.tensor([62, 63, 64]), torch.randn(4, 3, 32))
    )


@program
def gated_memory_in_chunks() -> Ordinary:
    """Linear attention that forgets, chunk by chunk."""

    def f(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        b, h, n, d = q.shape
        q, k, v = (x.view(b, h, n // 16, 16, d) for x in (q, k, v))
        kept = F.logsigmoid(gate).view(b, h, n // 16, 16).cumsum(-1)
        near = (kept[..., :, None] - kept[..., None, :]).exp().tril()
        out = (q @ k.mT * near) @ v
        state, before = torch.zeros(b, h, d, d), []
        for c in range(n // 16):
            before.append(q[:, :, c] @ state * kept[:, :, c, :, None].exp())
            rest = (kept[:, :, c, -1:] - kept[:, :, c]).exp()
            state = state * kept[:, :, c, -1, None, None].exp()
            state = state + (k[:, :, c] * rest[..., None]).mT @ v[:, :, c]
        return (out + torch.stack(before, 2)).view(b, h, n, d)

    return Ordinary(f, (*(torch.randn(1, 4, 128, 32) for _ in range(3)), torch.randn(1, 4, 128)))


# ---- recurrences


@program
def weighted_keys() -> Ordinary:
    """RWKV: sums of values that fall with time, in numbers that do not overflow."""

    def f(k: Tensor, v: Tensor, fall: Tensor, first: Tensor) -> Tensor:
        a, b = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        high, out = torch.full_like(a, -1e38), []
        for t in range(k.shape[1]):
            top = torch.maximum(high, first + k[:, t])
            x, y = (high - top).exp(), (first + k[:, t] - top).exp()
            out.append((x * a + y * v[:, t]) / (x * b + y))
            top = torch.maximum(high - fall, k[:, t])
            x, y = (high - fall - top).exp(), (k[:, t] - top).exp()
            a, b, high = x * a + y * v[:, t], x * b + y, top
        return torch.stack(out, 1)

    return Ordinary(
        f, (torch.randn(2, 24, 64), torch.randn(2, 24, 64), torch.rand(64), torch.randn(64))
    )


class Selective(nn.Module):
    def __init__(self, width: int = 32, states: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.rest = nn.Linear(2 * width, 2 * states + 1)
        self.rates = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(2 * width, 1))
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.into(x).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        step, b, c = self.rest(u).split((1, self.states, self.states), -1)
        step = F.softplus(step)
        keep = (-step[..., None] * self.rates.exp()).exp()
        add = (step * u)[..., None] * b[:, :, None]
        h, out = torch.zeros_like(add[:, 0]), []
        for t in range(x.shape[1]):
            h = keep[:, t] * h + add[:, t]
            out.append((h * c[:, t, None]).sum(-1))
        return self.out(torch.stack(out, 1) * F.silu(gate))


@program
def selective_block() -> Ordinary:
    return Ordinary(Selective().eval(), (torch.randn(2, 48, 32),))


class Translator(nn.Module):
    """A decoder that is given the right words, with attention to the source."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 32), nn.Linear(64, 100)
        self.encoder, self.cell = nn.GRU(32, 32, batch_first=True), nn.GRUCell(64, 32)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen, state = self.encoder(self.table(source))
        state, near, loss = state[0], torch.zeros(source.shape[0], 32), torch.zeros(())
        for t in range(target.shape[1] - 1):
            state = self.cell(torch.cat([self.table(target[:, t]), near], -1), state)
            share = torch.einsum("bnd,bd->bn", seen, state).softmax(-1)
            near = torch.einsum("bn,bnd->bd", share, seen)
            loss = loss + F.cross_entropy(self.head(torch.cat([state, near], -1)), target[:, t + 1])
        return loss / (target.shape[1] - 1)


@program
def teacher_forcing() -> Ordinary:
    return Ordinary(Translator(), (whole(100, 8, 12), whole(100, 8, 10)), gradient=True)


@program
def sequences_in_a_pack() -> Ordinary:
    net = nn.GRU(24, 32, batch_first=True).eval()

    def f(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = net(packed)
        return pad_packed_sequence(out, batch_first=True)[0], last

    return Ordinary(f, (torch.randn(4, 20, 24), torch.tensor([20, 7, 13, 16])))


@program
def labels_of_chain() -> Ordinary:
    """A conditional random field: minus the logarithm of the right labels' chance."""

    def f(step: Tensor, seen: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        total = seen[:, 0]
        own = seen[:, 0].gather(1, y[:, :1]).squeeze(1)
        for t in range(1, seen.shape[1]):
            new = (total[:, :, None] + step).logsumexp(1) + seen[:, t]
            total = torch.where(mask[:, t, None], new, total)
            gain = step[y[:, t - 1], y[:, t]] + seen[:, t].gather(1, y[:, t : t + 1]).squeeze(1)
            own = own + gain * mask[:, t]
        return (total.logsumexp(1) - own).mean()

    mask = torch.arange(16) < torch.tensor([16, 9, 12, 5, 16, 3, 8, 11])[:, None]
    inputs = torch.randn(9, 9, requires_grad=True), torch.randn(8, 16, 9, requires_grad=True)
    return Ordinary(f, (*inputs, whole(9, 8, 16), mask), True)


@program
def warped_times() -> Ordinary:
    """The distance of two series whose times may be stretched, by diagonals."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        cost = (x[:, None] - y).square()
        n, m = cost.shape
        best = torch.full((n + 1, m + 1), torch.inf)
        best[0, 0] = 0
        for d in range(2, n + m + 1):
            i = torch.arange(max(1, d - m), min(n, d - 1) + 1)
            j = d - i
            before = torch.stack([best[i - 1, j], best[i, j - 1], best[i - 1, j - 1]])
            best[i, j] = cost[i - 1, j - 1] + before.amin(0)
        return best[n, m]

    return Ordinary(f, (torch.randn(20).cumsum(0), torch.randn(16).cumsum(0)))
