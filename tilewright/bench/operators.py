"""Single operators and short chains of them, as modules, in a full and a tiny size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tilewright.bench.example import Builder, Example

BUILDERS: dict[str, Builder] = {}
# 16 MiB of float32: larger than most caches of a core, the size the bandwidth is measured at.
STREAM = 4 * 2**20


class Function(nn.Module):
    """A function, and the weights that come after its arguments."""

    def __init__(self, function: Callable[..., Any], *weights: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(w, requires_grad=False) for w in weights)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def operator(build: Builder) -> Builder:
    """Registers a builder by its name."""
    BUILDERS[build.__name__] = build
    return build


def _rows(tiny: bool) -> torch.Tensor:
    return torch.randn(7, 33) if tiny else torch.randn(4096, 1024)


def _numbers(tiny: bool) -> torch.Tensor:
    return torch.randn(1003 if tiny else STREAM)


def _side(tiny: bool) -> int:
    return 37 if tiny else 1024


def _weight(*shape: int) -> torch.Tensor:
    """Scaled so that sums along the last axis stay near one."""
    return torch.randn(shape) * shape[-1] ** -0.5


@operator
def softmax(tiny: bool) -> Example:
    return Example(nn.Softmax(-1), (_rows(tiny),))


@operator
def layernorm(tiny: bool) -> Example:
    x = _rows(tiny)
    norm = nn.LayerNorm(x.shape[-1])
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return Example(norm, (x,))


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@operator
def rmsnorm(tiny: bool) -> Example:
    x = _rows(tiny)
    return Example(Function(_rms_norm, torch.randn(x.shape[-1])), (x,))


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh((x * y + 0.5).sigmoid() * x - y).abs() * 2.0


@operator
def chain(tiny: bool) -> Example:
    return Example(Function(_chain), (_numbers(tiny), _numbers(tiny)))


@operator
def matmul(tiny: bool) -> Example:
    n = _side(tiny)
    return Example(Function(torch.matmul), (torch.randn(n, n), _weight(n, n)))


@operator
def matmul_packed(tiny: bool) -> Example:
    n = _side(tiny)
    return Example(Function(torch.matmul, _weight(n, n)), (torch.randn(n, n),))


@operator
def linear_gelu(tiny: bool) -> Example:
    m, k, n = (5, 12, 20) if tiny else (128, 768, 3072)
    return Example(nn.Sequential(nn.Linear(k, n), nn.GELU()), (torch.randn(m, k),))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


def _fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _heads(tiny: bool) -> tuple[torch.Tensor, ...]:
    shape = (1, 3, 19, 8) if tiny else (1, 12, 512, 64)
    return tuple(torch.randn(shape) for _ in range(3))


@operator
def attention(tiny: bool) -> Example:
    return Example(Function(_attention), _heads(tiny))


@operator
def attention_fused(tiny: bool) -> Example:
    return Example(Function(_fused_attention), _heads(tiny))


def _long_heads(keys: int, queries: int, heads: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(1, heads, n, 64) for n in (queries, keys, keys))


@operator
def attention_4096(tiny: bool) -> Example:
    return Example(
        Function(_fused_attention), _long_heads(*((19, 19) if tiny else (4096, 4096)), 2)
    )


@operator
def attention_8192(tiny: bool) -> Example:
    return Example(
        Function(_fused_attention), _long_heads(*((21, 21) if tiny else (8192, 8192)), 2)
    )


@operator
def attention_query(tiny: bool) -> Example:
    given = _long_heads(23 if tiny else 4096, 1, 8)
    return Example(Function(F.scaled_dot_product_attention), given)


@operator
def sum_middle(tiny: bool) -> Example:
    return Example(Function(_sum_middle), (torch.randn(3, 101 if tiny else 100_000, 3),))


def _sum_middle(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


@operator
def conv3x3(tiny: bool) -> Example:
    channels, side = (6, 9) if tiny else (64, 56)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    return Example(conv, (torch.randn(1, channels, side, side),))


@operator
def depthwise3x3(tiny: bool) -> Example:
    channels, side = (6, 9) if tiny else (144, 56)
    conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False, groups=channels)
    return Example(conv, (torch.randn(1, channels, side, side),))


@operator
def gemv(tiny: bool) -> Example:
    n = 37 if tiny else 4096
    return Example(nn.Linear(n, n, bias=False), (torch.randn(1, n),))


@operator
def copy(tiny: bool) -> Example:
    return Example(Function(torch.clone), (_numbers(tiny),))


@operator
def relu(tiny: bool) -> Example:
    return Example(nn.ReLU(), (_numbers(tiny),))


@operator
def add(tiny: bool) -> Example:
    return Example(Function(torch.add), (_numbers(tiny), _numbers(tiny)))


@operator
def gelu(tiny: bool) -> Example:
    return Example(nn.GELU(), (_numbers(tiny),))


@operator
def matmul_int8(tiny: bool) -> Example:
    n = 40 if tiny else 1024
    a, b = (torch.randint(-128, 128, (n, n), dtype=torch.int8) for _ in range(2))
    return Example(Function(torch.ops.aten._int_mm.default), (a, b))
