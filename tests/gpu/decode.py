"""One step of a Llama-like language model: the next token, with keys and values of earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Size:
    hidden: int
    heads: int
    groups: int
    head: int
    inner: int
    layers: int
    words: int
    keys: int  # of earlier tokens that there is room for

    @property
    def weights(self) -> int:
        """Weights that a step reads."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.groups)
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * layer + self.hidden * (self.words + 2)


TINY = Size(256, 4, 2, 16, 96, 2, 40, 256)
FULL = Size(2048, 32, 8, 64, 8192, 16, 32000, 1024)  # 1.04 billion weights


class Layer(nn.Module):
    def __init__(self, s: Size) -> None:
        super().__init__()
        self.s = s
        self.first, self.second = nn.RMSNorm(s.hidden), nn.RMSNorm(s.hidden)
        self.qkv = nn.Linear(s.hidden, s.head * (s.heads + 2 * s.groups), bias=False)
        self.out = nn.Linear(s.head * s.heads, s.hidden, bias=False)
        self.gate = nn.Linear(s.hidden, s.inner, bias=False)
        self.up = nn.Linear(s.hidden, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        s = self.s
        parts = self.qkv(self.first(x)).view(s.heads + 2 * s.groups, s.head)
        q, k, v = parts.split([s.heads, s.groups, s.groups])
        q, k = _turned(q, *turn), _turned(k, *turn)
        q = q.view(s.groups, s.heads // s.groups, s.head)
        k, v = k.view(s.groups, 1, s.head), v.view(s.groups, 1, s.head)
        scores = torch.cat([q @ keys.transpose(1, 2), q @ k.transpose(1, 2)], -1)
        weights = torch.softmax(scores.float() * s.head**-0.5 + hidden, -1).to(x.dtype)
        seen = weights[..., : s.keys] @ values + weights[..., s.keys :] * v
        x = x + self.out(seen.reshape(1, -1))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: the two halves of a head are the parts of complex numbers."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decode(nn.Module):
    """The scores of all words for the next place, and the keys and values of this one."""

    def __init__(self, s: Size) -> None:
        super().__init__()
        self.s = s
        self.table = nn.Embedding(s.words, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden)
        self.head = nn.Linear(s.hidden, s.words, bias=False)

    def forward(
        self, token: torch.Tensor, at: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        s = self.s
        x = self.table(token)
        rates = 10000 ** (-torch.arange(0, s.head, 2, device=x.device) / s.head)
        angles = at * torch.cat([rates, rates])
        turn = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        place = torch.arange(s.keys + 1, device=x.device)
        hidden = torch.where((place < at) | (place == s.keys), 0.0, float("-inf"))
        found = []
        for k, layer in enumerate(self.layers):
            x, *own = layer(x, turn, keys[k], values[k], hidden)
            found.append(own)
        new = [torch.stack(x) for x in zip(*found, strict=True)]
        return self.head(self.norm(x)), new[0], new[1]


def example(s: Size, dtype: torch.dtype, device: str) -> tuple[Decode, tuple[torch.Tensor, ...]]:
    """The model, and a token with earlier ones."""
    torch.manual_seed(0)
    with torch.device(device):  # a billion weights take long to draw on a processor
        model = Decode(s).to(dtype=dtype).eval()
    shape = (s.layers, s.groups, s.keys, s.head)
    keys, values = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    token = torch.tensor([3], device=device)
    return model, (token, torch.tensor(s.keys * 3 // 4, device=device), keys, values)
