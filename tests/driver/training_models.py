"""Networks as they are trained: modules from a batch to its loss, and such a batch.

Full sizes are those that people train; small ones have the same structure and smaller numbers, for
tests and for work on the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilewright.bench.models import hf


@dataclass(frozen=True)
class Trained:
    """A module whose result is the loss of a batch, such a batch, and what updates its weights."""

    module: nn.Module
    batch: tuple[Tensor, ...]
    optimizer: Callable[[Any], torch.optim.Optimizer]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9, weight_decay=1e-4)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-4)


class Classified(nn.Module):
    """A network that gives classes to images, and the loss of its answer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.inner(images).logits, labels)


class Told(nn.Module):
    """A language model of Hugging Face's, which computes the loss itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.inner(input_ids=tokens, labels=labels).loss


def images(batch: int, side: int, classes: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, side, side), torch.randint(classes, (batch,))


def words(batch: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    every = torch.randint(vocabulary, (2, batch, length))
    return every[0], every[1]


def resnet(kind: str, depths: Sequence[int], widths: Sequence[int], small: bool) -> Trained:
    sizes: dict[str, Any] = {"depths": list(depths), "hidden_sizes": list(widths)}
    if small:
        sizes = {"depths": [1, 2], "hidden_sizes": [16, 32], "embedding_size": 8}
    config = hf.ResNetConfig(layer_type=kind, num_labels=10 if small else 1000, **sizes)
    batch = images(2, 32, 10) if small else images(8, 224, 1000)
    return Trained(Classified(hf.ResNetForImageClassification(config)), batch, momentum)


def resnet18(small: bool) -> Trained:
    return resnet("basic", (2, 2, 2, 2), (64, 128, 256, 512), small)


def resnet50(small: bool) -> Trained:
    return resnet("bottleneck", (3, 4, 6, 3), (256, 512, 1024, 2048), small)


def mobilenetv2(small: bool) -> Trained:
    side, width, classes = (32, 0.25, 10) if small else (224, 1.0, 1000)
    config = hf.MobileNetV2Config(image_size=side, depth_multiplier=width, num_labels=classes)
    module = Classified(hf.MobileNetV2ForImageClassification(config))
    return Trained(module, images(2 if small else 8, side, classes), momentum)


class Encoder(nn.Module):
    """Layers of nn.TransformerEncoderLayer between an embedding and a language model's head."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        parts = [
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        ]
        self.layers = nn.ModuleList(parts)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def transformer(small: bool) -> Trained:
    vocabulary, width, heads, layers = (101, 32, 4, 2) if small else (8192, 512, 8, 4)
    batch, length = (2, 13) if small else (8, 128)
    module = Encoder(vocabulary, width, heads, layers, length)
    return Trained(module, words(batch, length, vocabulary), adam)


def bert(small: bool) -> Trained:
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 101,
    }
    config = hf.BertConfig(**(sizes if small else {}))
    batch = words(2, 13, 101) if small else words(4, 128, config.vocab_size)
    return Trained(Told(hf.BertForMaskedLM(config)), batch, adam)


def gpt2(small: bool) -> Trained:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 101} if small else {}
    config = hf.GPT2Config(use_cache=False, **sizes)
    tokens, _ = words(2, 13, 101) if small else words(2, 128, config.vocab_size)
    return Trained(Told(hf.GPT2LMHeadModel(config)), (tokens, tokens.clone()), adam)


def vit(small: bool) -> Trained:
    side, classes = (24, 10) if small else (224, 1000)
    sizes: dict[str, Any] = {
        "hidden_size": 32 if small else 384,
        "num_hidden_layers": 2 if small else 12,
        "num_attention_heads": 4 if small else 6,
        "intermediate_size": 64 if small else 1536,
        "patch_size": 8 if small else 16,
    }
    inner = hf.ViTForImageClassification(hf.ViTConfig(image_size=side, num_labels=classes, **sizes))
    return Trained(Classified(inner), images(2 if small else 8, side, classes), adam)


class Recurrent(nn.Module):
    """A language model of recurrent layers."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x, _ = self.layers(self.drop(self.words(tokens)))
        return F.cross_entropy(self.head(self.drop(x)).flatten(0, 1), labels.flatten())


def lstm(small: bool) -> Trained:
    vocabulary, width = (101, 24) if small else (10000, 512)
    batch = words(2, 9, vocabulary) if small else words(16, 35, vocabulary)
    return Trained(Recurrent(vocabulary, width, 2), batch, adam)


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with norms."""
    parts: list[nn.Module] = []
    for n in (inputs, outputs):
        parts += [nn.Conv2d(n, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
        parts += [nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Down to small images and up again, each level beside the one that it came from."""

    def __init__(self, classes: int, width: int, levels: int) -> None:
        super().__init__()
        sizes = [width << k for k in range(levels)]
        pairs = list(pairwise(sizes))
        self.first = double(3, width)
        self.down = nn.ModuleList(double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(double(b, a) for a, b in reversed(pairs))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        seen = [self.first(images)]
        for part in self.down:
            seen.append(part(F.max_pool2d(seen[-1], 2)))
        x = seen.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((seen.pop(), up(x)), 1))
        return F.cross_entropy(self.last(x), labels)


def unet(small: bool) -> Trained:
    width, levels, side, batch = (8, 3, 16, 2) if small else (32, 4, 128, 4)
    pictures, _ = images(batch, side, 5)
    labels = torch.randint(5, (batch, side, side))
    return Trained(UNet(5, width, levels), (pictures, labels), momentum)


MODELS: dict[str, Callable[[bool], Trained]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenetv2": mobilenetv2,
    "transformer": transformer,
    "bert": bert,
    "gpt2": gpt2,
    "vit": vit,
    "lstm": lstm,
    "unet": unet,
}


def trained(name: str, small: bool, seed: int = 0) -> Trained:
    """By name, the same weights and batch for the same seed; in training mode."""
    torch.manual_seed(seed)
    made = MODELS[name](small)
    made.module.train()
    return made


def without_chance(module: nn.Module) -> nn.Module:
    """The module without dropout: two runs then compute the same."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name, value in vars(part).items():
            if "dropout" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return module
