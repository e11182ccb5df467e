"""The networks on which searches among equal graphs are compared, by their papers.

Plain modules with random weights, for inference: `networks.build("nasrnn")` at the published size,
`build("nasrnn", tiny=True)` with the same structure and small numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilewright.bench.example import Builder, Example, prepared

BUILDERS: dict[str, Builder] = {}


def network(make: Builder) -> Builder:
    BUILDERS[make.__name__] = make
    return make


def build(name: str, tiny: bool = False, seed: int = 0) -> Example:
    """In eval mode, in float32; the same weights and inputs for the same seed."""
    made = prepared(BUILDERS[name], tiny, torch.float32, seed)
    torch.manual_seed(seed)
    for part in made.module.modules():
        if isinstance(part, nn.BatchNorm2d):  # fresh ones do nothing, which would hide mistakes
            assert part.running_mean is not None and part.running_var is not None
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.1)
    return made


def image(side: int) -> Tensor:
    return torch.randn(1, 3, side, side)


def tokens(vocabulary: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (1, length))


# ---- BERT


class Attention(nn.Module):
    """Of several heads, with a layer of its own for queries, keys and values each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(*(p.transpose(1, 2) for p in parts))
        return self.out(mixed.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Encoder(width, heads) for _ in range(layers)))
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.layers(self.norm(self.words(ids) + self.places))
        return x, torch.tanh(self.pool(x[:, 0]))


@network
def bert(tiny: bool) -> Example:
    width, heads, layers, vocabulary, length = (
        (32, 4, 2, 50, 11) if tiny else (768, 12, 12, 30522, 128)
    )
    module = Bert(width, heads, layers, vocabulary, length)
    return Example(module, (tokens(vocabulary, length),))


# ---- a Llama with adapters of low rank


class Adapted(nn.Module):
    """A layer, and beside it a product of two thin matrices, which alone was trained."""

    def __init__(self, width: int, out: int, rank: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, out, bias=False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, out, bias=False)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.up(self.down(x)) * self.scale


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int, keys: int, inside: int, rank: int) -> None:
        super().__init__()
        self.heads, self.keys, self.size = heads, keys, width // heads
        self.query = Adapted(width, width, rank)
        self.key, self.value = (Adapted(width, keys * self.size, rank) for _ in range(2))
        self.out = Adapted(width, width, rank)
        self.gate, self.up = (Adapted(width, inside, rank) for _ in range(2))
        self.down = Adapted(inside, width, rank)
        self.norms = nn.ModuleList(RootMeanSquare(width) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n = self.norms[0](x)
        q, k, v = (
            f(n).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        times = self.heads // self.keys
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        n = self.norms[1](x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Llama(nn.Module):
    def __init__(
        self,
        width: int,
        heads: int,
        keys: int,
        inside: int,
        rank: int,
        layers: int,
        vocabulary: int,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        made = (LlamaLayer(width, heads, keys, inside, rank) for _ in range(layers))
        self.layers = nn.ModuleList(made)
        self.norm = RootMeanSquare(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.pairs = width // heads // 2

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        speeds = 10000.0 ** (-torch.arange(self.pairs) / self.pairs)
        angles = torch.outer(torch.arange(ids.shape[1]).float(), speeds).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x[:, -1:]))  # of the next token


@network
def lora_llama(tiny: bool) -> Example:
    """Adapters of rank 64 in all layers, as QLoRA trains them."""
    width, heads, keys, inside, rank, layers, vocabulary, length = (
        (32, 4, 2, 48, 4, 2, 50, 11) if tiny else (1024, 16, 4, 2816, 64, 8, 32000, 64)
    )
    module = Llama(width, heads, keys, inside, rank, layers, vocabulary)
    return Example(module, (tokens(vocabulary, length),))


# ---- convolutional networks


class Convolution(nn.Sequential):
    """With batch normalisation and a rectifier."""

    def __init__(
        self,
        inside: int,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        rectified: bool = True,
    ) -> None:
        parts: list[nn.Module] = [
            nn.Conv2d(inside, out, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(out, eps=1e-3),
        ]
        super().__init__(*parts, *([nn.ReLU()] if rectified else []))


class Bottleneck(nn.Module):
    """A block of ResNeXt."""

    def __init__(self, inside: int, width: int, groups: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Convolution(inside, width, 1),
            Convolution(width, width, 3, stride, 1, groups),
            Convolution(width, 2 * width, 1, rectified=False),
        )
        same = inside == 2 * width and stride == 1
        beside = Convolution(inside, 2 * width, 1, stride, rectified=False)
        self.beside = nn.Identity() if same else beside

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.beside(x))


@network
def resnext(tiny: bool) -> Example:
    """ResNeXt-50, 32 groups of 4."""
    width, groups, depths, classes, side = (
        (16, 4, (1, 2), 10, 32) if tiny else (128, 32, (3, 4, 6, 3), 1000, 224)
    )
    layers: list[nn.Module] = [Convolution(3, width // 2, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    inside = width // 2
    for k, depth in enumerate(depths):
        for j in range(depth):
            layers.append(Bottleneck(inside, width << k, groups, 2 if k and not j else 1))
            inside = 2 * width << k
    return Example(nn.Sequential(*layers, *classifier(inside, classes)), (image(side),))


def classifier(inside: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)]


class Branches(nn.Module):
    """Of one image, their results put together."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([f(x) for f in self.branches], 1)


@network
def squeezenet(tiny: bool) -> Example:
    """SqueezeNet 1.0."""
    scale, classes, side = (8, 10, 47) if tiny else (1, 1000, 224)

    def fire(inside: int, squeezed: int, expanded: int) -> nn.Module:
        small = nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU())
        large = nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU())
        squeeze = nn.Conv2d(inside, squeezed, 1)
        return nn.Sequential(squeeze, nn.ReLU(), Branches(small, large))

    sizes = (16, 16, 32, 0, 32, 48, 48, 64, 0, 64)  # 0: the image gets smaller
    inside = 96 // scale
    layers: list[nn.Module] = [nn.Conv2d(3, inside, 7, 2), nn.ReLU(), _smaller()]
    for n in sizes:
        if n:
            layers.append(fire(inside, n // scale, 4 * n // scale))
            inside = 8 * n // scale
        else:
            layers.append(_smaller())
    layers += [nn.Conv2d(inside, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Example(nn.Sequential(*layers), (image(side),))


def _smaller() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def _averaged() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1)


@network
def inception(tiny: bool) -> Example:
    """Inception-v3, without the classifier that only training uses."""
    scale, classes, side = (8, 10, 75) if tiny else (1, 1000, 299)

    def conv(inside: int, out: int, kernel: int | tuple[int, int], stride: int = 1) -> nn.Module:
        """The image stays as large unless it steps."""
        pair = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (pair[0] // 2, pair[1] // 2) if stride == 1 else (0, 0)
        return Convolution(inside // scale, out // scale, pair, stride, padding)

    def row(inside: int, *layers: tuple[int, int | tuple[int, int]]) -> nn.Module:
        made = []
        for out, kernel in layers:
            made.append(conv(inside, out, kernel))
            inside = out
        return nn.Sequential(*made)

    def small(inside: int, pooled: int) -> nn.Module:
        return Branches(
            conv(inside, 64, 1),
            row(inside, (48, 1), (64, 5)),
            row(inside, (64, 1), (96, 3), (96, 3)),
            nn.Sequential(_averaged(), conv(inside, pooled, 1)),
        )

    def long(inside: int, width: int) -> nn.Module:
        flat, tall = (1, 7), (7, 1)
        return Branches(
            conv(inside, 192, 1),
            row(inside, (width, 1), (width, flat), (192, tall)),
            row(inside, (width, 1), (width, tall), (width, flat), (width, tall), (192, flat)),
            nn.Sequential(_averaged(), conv(inside, 192, 1)),
        )

    def split(inside: int) -> nn.Module:
        def both() -> nn.Module:
            return Branches(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))

        return Branches(
            conv(inside, 320, 1),
            nn.Sequential(conv(inside, 384, 1), both()),
            nn.Sequential(row(inside, (448, 1), (384, 3)), both()),
            nn.Sequential(_averaged(), conv(inside, 192, 1)),
        )

    def first() -> nn.Module:
        """Without padding but for one, as published."""
        a, b, c = (n // scale for n in (32, 64, 80))
        return nn.Sequential(
            Convolution(3, a, 3, 2),
            Convolution(a, a, 3),
            Convolution(a, b, 3, 1, 1),
            nn.MaxPool2d(3, 2),
            Convolution(b, c, 1),
            Convolution(c, 192 // scale, 3),
            nn.MaxPool2d(3, 2),
        )

    def narrower() -> nn.Module:
        steps = nn.Sequential(row(288, (64, 1), (96, 3)), conv(96, 96, 3, 2))
        return Branches(conv(288, 384, 3, 2), steps, nn.MaxPool2d(3, 2))

    def narrowest() -> nn.Module:
        one = nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2))
        other = row(768, (192, 1), (192, (1, 7)), (192, (7, 1)))
        return Branches(one, nn.Sequential(other, conv(192, 192, 3, 2)), nn.MaxPool2d(3, 2))

    layers = [
        first(),
        *(small(n, p) for n, p in ((192, 32), (256, 64), (288, 64))),
        narrower(),
        *(long(768, w) for w in (128, 160, 160, 192)),
        narrowest(),
        *(split(n) for n in (1280, 2048)),
    ]
    return Example(nn.Sequential(*layers, *classifier(2048 // scale, classes)), (image(side),))


class RepVggBlock(nn.Module):
    """As it is trained: filters of 3x3, of 1x1, and none, added up."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.large = Convolution(inside, out, 3, stride, 1, rectified=False)
        self.small = Convolution(inside, out, 1, stride, rectified=False)
        self.same = nn.BatchNorm2d(inside) if inside == out and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        found = self.large(x) + self.small(x)
        return F.relu(found if self.same is None else found + self.same(x))


@network
def repvgg(tiny: bool) -> Example:
    """RepVGG-A0."""
    stages, classes, side = (
        (((8, 1), (8, 2), (16, 2)), 10, 32)
        if tiny
        else (((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1)), 1000, 224)
    )
    layers: list[nn.Module] = []
    inside = 3
    for width, depth in stages:
        for k in range(depth):
            layers.append(RepVggBlock(inside, width, 1 if k else 2))
            inside = width
    return Example(nn.Sequential(*layers, *classifier(inside, classes)), (image(side),))


# ---- networks that a search found


class Separable(nn.Module):
    """Twice: a rectifier, one filter for each channel, then a mixture of channels."""

    def __init__(self, inside: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()

        def once(inside: int, stride: int) -> list[nn.Module]:
            padding = kernel // 2
            each = nn.Conv2d(inside, inside, kernel, stride, padding, groups=inside, bias=False)
            return [nn.ReLU(), each, Convolution(inside, out, 1, rectified=False)]

        self.body = nn.Sequential(*once(inside, stride), *once(out, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def _mixed(inside: int, out: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.ReLU(), Convolution(inside, out, 1, stride, rectified=False))


class Cell(nn.Module, ABC):
    """A cell of NASNet-A: of the results of the two cells before it."""

    def __init__(self, before: int, inside: int, out: int, halved: bool) -> None:
        super().__init__()
        self.before = _mixed(before, out, 2 if halved else 1)
        self.inside = _mixed(inside, out)

    def forward(self, before: Tensor, x: Tensor) -> Tensor:
        return torch.cat(self.parts(self.before(before), self.inside(x)), 1)

    @abstractmethod
    def parts(self, before: Tensor, x: Tensor) -> list[Tensor]:
        """What is put together along the channels, of both after their 1x1 convolutions."""


class NormalCell(Cell):
    def __init__(self, before: int, inside: int, out: int, halved: bool) -> None:
        super().__init__(before, inside, out, halved)
        kernels = (5, 3, 5, 3, 3)
        self.separable = nn.ModuleList(Separable(out, out, k) for k in kernels)

    def parts(self, before: Tensor, x: Tensor) -> list[Tensor]:
        a, b, c, d, e = self.separable
        mean = _averaged()
        pooled = mean(before)
        return [
            before,
            a(x) + b(before),
            c(before) + d(before),
            mean(x) + before,
            pooled + pooled,
            e(x) + x,
        ]


class ReductionCell(Cell):
    def __init__(self, before: int, inside: int, out: int, halved: bool) -> None:
        super().__init__(before, inside, out, halved)
        self.strided = nn.ModuleList(Separable(out, out, k, 2) for k in (5, 7, 7, 5))
        self.last = Separable(out, out, 3)

    def parts(self, before: Tensor, x: Tensor) -> list[Tensor]:
        a, b, c, d = self.strided
        largest, mean = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1)
        one, two = a(x) + b(before), largest(x) + c(before)
        last = largest(x) + self.last(one)
        return [two, mean(x) + d(before), _averaged()(one) + two, last]


class NasNet(nn.Module):
    def __init__(self, filters: int, cells: int, classes: int) -> None:
        super().__init__()
        stem = max(filters * 8 // 11, 4)
        self.stem = Convolution(3, stem, 3, 2, rectified=False)
        made: list[Cell] = []
        sizes = [stem, stem]  # of the results so far

        def add(kind: type[NormalCell] | type[ReductionCell], out: int) -> None:
            halved = bool(made) and isinstance(made[-1], ReductionCell)
            made.append(kind(sizes[-2], sizes[-1], out, halved))
            sizes.append((6 if kind is NormalCell else 4) * out)

        for out in (filters // 4, filters // 2):
            add(ReductionCell, out)
        for stage in range(3):
            if stage:
                add(ReductionCell, filters << stage)
            for _ in range(cells):
                add(NormalCell, filters << stage)
        self.cells = nn.ModuleList(made)
        self.head = nn.Sequential(nn.ReLU(), *classifier(sizes[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        before = x = self.stem(x)
        for cell in self.cells:
            before, x = x, cell(before, x)
        return self.head(x)


@network
def nasnet(tiny: bool) -> Example:
    """NASNet-A, 4 @ 1056."""
    filters, cells, classes, side = (8, 1, 10, 48) if tiny else (44, 4, 1000, 224)
    return Example(NasNet(filters, cells, classes), (image(side),))


Activation = Callable[[Tensor], Tensor]
Join = Callable[[Tensor, Tensor], Tensor]


class NasCell(nn.Module):
    """The recurrent cell of the same search: eight gates, joined in pairs."""

    GATES: Sequence[tuple[Activation, Join]] = (
        (torch.sigmoid, torch.add),
        (torch.relu, torch.add),
        (torch.sigmoid, torch.add),
        (torch.relu, torch.mul),
        (torch.tanh, torch.add),
        (torch.sigmoid, torch.add),
        (torch.tanh, torch.add),
        (torch.sigmoid, torch.add),
    )

    def __init__(self, width: int) -> None:
        super().__init__()
        made = (torch.randn(width, width) / math.sqrt(width) for _ in range(16))
        weights = [nn.Parameter(w) for w in made]
        self.of_input, self.of_state = nn.ParameterList(weights[:8]), nn.ParameterList(weights[8:])

    def forward(self, x: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        of_input = [x @ w for w in self.of_input]
        of_state = [state @ w for w in self.of_state]
        pairs = zip(self.GATES, of_input, of_state, strict=True)
        gates = [f(join(a, b)) for (f, join), a, b in pairs]
        one, two = torch.tanh(gates[0] * gates[1]), torch.tanh(gates[2] + gates[3])
        three, four = torch.tanh(gates[4] * gates[5]), torch.sigmoid(gates[6] + gates[7])
        left, right = torch.tanh(one + cell), torch.tanh(three + four)
        cell = left * two
        return torch.tanh(cell * right), cell


class NasRnn(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.cell = NasCell(width)

    def forward(self, x: Tensor) -> Tensor:
        state = cell = torch.zeros(x.shape[1], self.width)
        found = []
        for step in x.unbind(0):
            state, cell = self.cell(step, state, cell)
            found.append(state)
        return torch.stack(found)


@network
def nasrnn(tiny: bool) -> Example:
    """Five steps of one row, the weights the same in each."""
    width, length = (16, 3) if tiny else (512, 5)
    return Example(NasRnn(width), (torch.randn(length, 1, width),))
