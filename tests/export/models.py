"""The models of the table of packages: those of the benchmark, and ten further ones that users
deploy, from their configurations or from plain layers, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from tests.export.boxes import kept
from tests.suites.model_checks import DRAWS
from tests.suites.onnx_models import MODELS
from tilewright.bench.example import Builder, Example, prepared
from tilewright.bench.models import image, randomize_batch_norm, tokens

BENCH = "resnet50 mobilenetv2 bert gpt2 vit llama llama_decode1 mlp".split()
FEW = 64
FURTHER = "unet detector wav2vec2 lstm gru t5 clip efficientnet diffusion sentence".split()


@dataclass(frozen=True)
class Packaged:
    """A model, the sizes that stay symbolic, and further inputs that it is called with."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    dynamic: Any = None
    further: Sequence[tuple[Tensor, ...]] = field(default=())


def packaged(name: str, tiny: bool) -> Packaged:
    """A model by name, the same weights and inputs each time."""
    made = prepared(BUILDERS[name], tiny, torch.float32)
    if name != "sentence":
        seeds = range(1, DRAWS if tiny or _gives_few(made) else 1)
        draws = [prepared(BUILDERS[name], tiny, torch.float32, seed).inputs for seed in seeds]
        return Packaged(made.module, made.inputs, further=draws)
    dims = {0: Dim("batch", min=1, max=16), 1: Dim("length", min=2, max=128)}
    sizes = ((1, 2), (2, 128), (3, 31), (5, 64), (16, 7))
    further = [_texts(*size) for size in sizes]
    return Packaged(made.module, made.inputs, (dims, dims), further)


def _gives_few(made: Example) -> bool:
    """Whether a result is a handful of numbers: how far one of eager's is off is luck then."""
    with torch.no_grad():
        results = tree_leaves(made.module(*made.inputs))
    return any(isinstance(x, Tensor) and x.numel() < FEW for x in results)


# ---- segmentation


class _Twice(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        parts: list[nn.Module] = []
        for k in (inside, outside):
            parts += [nn.Conv2d(k, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside)]
            parts += [nn.ReLU()]
        super().__init__(*parts)


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, joined with what the way down had."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        first, *rest = widths
        self.first = _Twice(3, first)
        pairs = list(zip(widths, rest))
        self.down = nn.ModuleList(_Twice(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(_Twice(2 * a, a) for a, _ in reversed(pairs))
        self.last = nn.Conv2d(first, classes, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the classes, and the best one, of each pixel."""
        passed = [self.first(x)]
        for down in self.down:
            passed.append(down(F.max_pool2d(passed[-1], 2)))
        x = passed.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([passed.pop(), up(x)], 1))
        scores = self.last(x)
        return scores, scores.argmax(1)


def unet(tiny: bool) -> Example:
    net = UNet((4, 8, 12) if tiny else (32, 64, 128, 256), 5)
    return Example(randomize_batch_norm(net), (image(24 if tiny else 128),))


# ---- detection


class Detector(nn.Module):
    """Boxes and classes at every place of two grids; of each class the best boxes that do not
    overlap are kept, as many as there are."""

    def __init__(self, width: int, classes: int, side: int) -> None:
        super().__init__()
        self.classes, self.side = classes, side
        sizes = (3, width, width, 2 * width)
        steps = [_strided(a, b) for a, b in pairwise(sizes)]
        self.body, self.deeper = nn.Sequential(*steps), _strided(2 * width, 2 * width)
        self.heads = nn.ModuleList(
            nn.Conv2d(2 * width, 2 * (4 + classes), 3, padding=1) for _ in range(2)
        )
        self.register_buffer("anchors", torch.cat([self._anchors(8), self._anchors(16)]))

    def _anchors(self, step: int) -> Tensor:
        at = torch.arange(step / 2, self.side, step)
        y, x = torch.meshgrid(at, at, indexing="ij")
        each = [torch.stack([x, y, torch.full_like(x, s), torch.full_like(x, s)], -1)
                for s in (2.0 * step, 4.0 * step)]  # fmt: skip
        return torch.stack(each, 2).reshape(-1, 4)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes (x, y, x, y), their scores and classes, the best first."""
        fine = self.body(pixels)
        found = []
        for head, x in zip(self.heads, (fine, self.deeper(fine)), strict=True):
            found.append(head(x)[0].permute(1, 2, 0).reshape(-1, 4 + self.classes))
        every = torch.cat(found)
        centre = self.anchors[:, :2] + every[:, :2].tanh() * self.anchors[:, 2:] / 2
        half = self.anchors[:, 2:] * every[:, 2:4].clamp(-2, 2).exp() / 2
        boxes = torch.cat([centre - half, centre + half], 1)
        scores, classes = every[:, 4:].sigmoid().max(1)
        keep = kept(boxes, scores, classes, 0.3, 0.52)
        return boxes[keep], scores[keep], classes[keep]


def _strided(inside: int, outside: int) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.SiLU())


def detector(tiny: bool) -> Example:
    side = 48 if tiny else 160
    net = Detector(8 if tiny else 32, 5 if tiny else 20, side)
    for head in net.heads:  # scores around the limit
        assert isinstance(head, nn.Conv2d)
        nn.init.normal_(head.weight, std=0.1)
    return Example(randomize_batch_norm(net), (image(side),))


# ---- recurrent


class Words(nn.Module):
    """A language model: what comes next, at each position."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.last = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, (h, c) = self.layers(self.embed(ids), (h, c))
        return self.last(x), h, c


def lstm(tiny: bool) -> Example:
    vocabulary, width, length = (101, 16, 9) if tiny else (8000, 256, 64)
    states = torch.randn(2, 2, 2, width) / 2
    return Example(Words(vocabulary, width), (tokens(vocabulary, 2, length), *states))


class Tagger(nn.Module):
    """A tag for each word, which sees the text in both directions."""

    def __init__(self, vocabulary: int, width: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layer = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.last = nn.Linear(2 * width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.layer(self.embed(ids))[0]).log_softmax(-1)


def gru(tiny: bool) -> Example:
    vocabulary, width, length = (101, 16, 11) if tiny else (8000, 128, 80)
    return Example(Tagger(vocabulary, width, 17), (tokens(vocabulary, 2, length),))


# ---- images


class _Squeezed(nn.Module):
    """A narrow block whose channels are weighted by what the whole image has of them."""

    def __init__(self, inside: int, outside: int, wide: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.skips = stride == 1 and inside == outside
        self.widen = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        pad = kernel // 2
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride, pad, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
        )
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, wide // 4, 1),
            nn.ReLU(),
            nn.Conv2d(wide // 4, wide, 1),
            nn.Hardsigmoid(),
        )
        self.narrow = nn.Sequential(
            nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.widen(x))
        y = self.narrow(y * self.weigh(y))
        return x + y if self.skips else y


def efficientnet(tiny: bool) -> Example:
    k, side = (1, 40) if tiny else (4, 160)
    blocks = ((4, 4, 16, 3, 1), (4, 6, 16, 3, 2), (6, 6, 24, 5, 1), (6, 12, 24, 5, 2))
    made = [_Squeezed(a * k, b * k, c * k, kernel, s) for a, b, c, kernel, s in blocks]
    first = nn.Sequential(nn.Conv2d(3, 4 * k, 3, 2, 1), nn.BatchNorm2d(4 * k), nn.Hardswish())
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12 * k, 10))
    net = nn.Sequential(first, *made, _Squeezed(12 * k, 12 * k, 48 * k, 5, 1), last)
    return Example(randomize_batch_norm(net), (image(side),))


class _Residual(nn.Module):
    """Two convolutions with group norms, and the time added between them."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outside))
        self.second = nn.Sequential(
            nn.GroupNorm(4, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(y)


class Denoiser(nn.Module):
    """A step of a diffusion model: down, attention over all pixels, up with a skip."""

    def __init__(self, width: int, time: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.high, self.low = _Residual(width, width, time), _Residual(width, 2 * width, time)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.attend, self.out = nn.Linear(2 * width, 6 * width), nn.Linear(2 * width, 2 * width)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.join = _Residual(2 * width, width, time)
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.width // 2, dtype=x.dtype) * (-8.0 / self.width))
        angles = step[:, None].to(x.dtype) * rates
        time = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        high = self.high(self.first(x), time)
        low = self.low(self.down(high), time)
        n, c, h, w = low.shape
        seen = self.norm(low).flatten(2).transpose(1, 2)
        q, k, v = (
            y.reshape(n, h * w, self.heads, -1).transpose(1, 2)
            for y in self.attend(seen).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        low = low + self.out(mixed).transpose(1, 2).reshape(n, c, h, w)
        low = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.last(self.join(torch.cat([high, low], 1), time))


def diffusion(tiny: bool) -> Example:
    width, side = (8, 8) if tiny else (64, 32)
    steps = torch.tensor([3, 250])
    net = Denoiser(width, 4 * width, 2 if tiny else 4)
    return Example(net, (torch.randn(2, 4, side, side), steps))


# ---- texts


class Sentence(nn.Module):
    """An embedding of texts: the mean of a transformer's results over the tokens that are there,
    of length 1."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(128, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList([layer] + [_like(layer) for _ in range(layers - 1)])

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask == 0)
        there = mask.unsqueeze(2).to(x.dtype)
        return F.normalize((x * there).sum(1) / there.sum(1), dim=1)


def _like(layer: nn.TransformerEncoderLayer) -> nn.TransformerEncoderLayer:
    width, wide = layer.linear1.in_features, layer.linear1.out_features
    return nn.TransformerEncoderLayer(
        width, 4, wide, activation="gelu", batch_first=True, norm_first=True
    )


def _texts(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens, and which of them are there; the first text has all."""
    ends = torch.linspace(length, 1, batch).ceil().long()
    return tokens(101, batch, length), (torch.arange(length) < ends[:, None]).long()


def sentence(tiny: bool) -> Example:
    net = Sentence(101 if tiny else 8000, 16 if tiny else 128, 2 if tiny else 4)
    return Example(net, _texts(4, 12))


BUILDERS: dict[str, Builder] = {
    **{name: MODELS[name] for name in (*BENCH, "wav2vec2", "t5", "clip")},
    **{f.__name__: f for f in (unet, detector, lstm, gru, efficientnet, diffusion, sentence)},
}
