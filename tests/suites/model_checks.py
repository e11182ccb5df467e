"""Runs models and training steps under a backend and says what is wrong with the results."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.utils import _pytree as pytree

from tests.suites.adapter import Work, compiled, watched
from tests.suites.models import DecodeStep, Example, build, reference
from tilewright.bench.oracle import disagreements, in_double

DRAWS = 4


def check_model(
    name: str, tiny: bool, dtype: torch.dtype = torch.float32, backend: str = "tilewright"
) -> list[str]:
    """A model in inference, as one graph and strictly: what is wrong with it, if anything.

    A tiny model may give four numbers, whose errors are luck: all its draws are judged together.
    """
    module = build(name, tiny, dtype).module
    inputs = [build(name, tiny, dtype, seed).inputs for seed in range(DRAWS if tiny else 1)]

    def all_of(call: Callable) -> Any:
        return pytree.tree_map(lambda *found: torch.stack(found), *(call(*x) for x in inputs))

    with torch.no_grad():
        eager = all_of(module)
        expected = all_of(lambda *x: reference(Example(module, x)))
        return whole_graph(
            module, backend, lambda ours: disagreements(all_of(ours), eager, expected)
        )


def whole_graph(
    function: Callable, backend: str, use: Callable[[Callable], list[str]]
) -> list[str]:
    """Compile strictly, use it, and add to its problems that it ran no native kernel."""
    torch._dynamo.reset()
    with watched(backend) as work:
        ours = compiled(function, backend, strict=True, fullgraph=True, work=work)
        problems = use(ours)
    return problems + _unnatural(work, backend)


def _unnatural(work: Work, backend: str) -> list[str]:
    if backend not in ("tilewright", "searched", "counting"):
        return []
    missing = [] if work.kernels else ["no native kernel ran"]
    return missing + [f"{name} fell back to eager" for name in work.fallbacks]


def check_decoding(
    tiny: bool, dtype: torch.dtype, backend: str = "tilewright", steps: int = 10
) -> list[str]:
    """Tokens in a row through a cache written in place: every step's logits, then the cache."""
    torch.manual_seed(1)
    eager, ours = DecodeStep(tiny, dtype), DecodeStep(tiny, dtype)
    exact = DecodeStep(tiny, torch.float64)
    exact.load_state_dict(eager.state_dict())
    vocabulary = eager.inner.config.vocab_size
    tokens = [torch.randint(3, vocabulary, (1, 1)) for _ in range(steps)]

    def decode(step: DecodeStep, call: Callable) -> list[Any]:
        return [call(token).clone() for token in tokens] + step.memory()

    with torch.no_grad():
        expected = decode(eager, eager)
        exactly = in_double(lambda: decode(exact, exact))
        return whole_graph(
            ours, backend, lambda call: disagreements(decode(ours, call), expected, exactly)
        )


class SmallConvNet(nn.Module):
    """Convolutions, batch norm with running statistics, pooling and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        # No biases before batch norm: their gradient is rounding noise, which Adam blows up.
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2, bias=False),
            nn.BatchNorm2d(16),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network, each normalised and added, over embedded tokens."""

    def __init__(self, width: int = 32, heads: int = 4, vocabulary: int = 23) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        return self.head(x).flatten(0, 1)


def training_example(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network, a batch and its labels."""
    torch.manual_seed(0)
    if name == "conv":
        return SmallConvNet(), torch.randn(6, 3, 14, 14), torch.randint(0, 5, (6,))
    tokens = torch.randint(0, 23, (3, 11))
    return TransformerBlock(), tokens, torch.randint(0, 23, (33,))


def train(
    module: nn.Module,
    call: Callable,
    batch: torch.Tensor,
    labels: torch.Tensor,
    *,
    fused: bool,
    steps: int = 20,
) -> torch.Tensor:
    """Losses of so many AdamW steps on one batch."""
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, fused=fused)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(batch), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def check_training(name: str, fused: bool, backend: str = "tilewright") -> list[str]:
    """Twenty steps as eager's, running statistics too; then eval sees the trained weights."""
    module, batch, labels = training_example(name)
    theirs, mine = copy.deepcopy(module), copy.deepcopy(module)
    expected = train(theirs, theirs, batch, labels, fused=fused)

    def use(ours: Callable) -> list[str]:
        problems = []
        with torch.no_grad():
            mine.eval()
            ours(batch)  # so that a stale copy of the first weights could be left somewhere
        losses = train(mine, ours, batch, labels, fused=fused)
        if not bool(losses[-1] < losses[0]):
            problems.append(f"training did not lower the loss: {losses[0]} to {losses[-1]}")
        if not torch.allclose(losses, expected, rtol=1e-4, atol=1e-5):
            problems.append(f"losses {losses.tolist()} where eager has {expected.tolist()}")
        for (key, x), y in zip(mine.named_buffers(), theirs.buffers()):
            if not torch.allclose(x, y, rtol=1e-3, atol=1e-5):
                problems.append(f"{key} is {x} where eager has {y}")
        with torch.no_grad():
            mine.eval()
            now = Example(mine, (batch,))
            problems += disagreements(ours(batch), mine(batch), reference(now))
        return problems

    return whole_graph(mine, backend, use)
