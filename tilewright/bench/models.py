"""Models built from a config with random weights, in a full and a tiny size.

Every builder returns a module in eval mode whose `forward` takes tensors and gives tensors, and
its inputs. Tiny sizes keep the structure (grouped queries, odd lengths) and shrink the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import nn

from tilewright.bench.example import Builder, Example, prepared


class _Late:
    """A package that is imported when something of it is used: measurements of other things, and
    tests, need not wait for it."""

    def __init__(self, package: str) -> None:
        self.package = package

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.package), name)


# Configurations take their sizes as keyword dictionaries here, which their signatures cannot type.
# By name, because a type checker would read all of that package, which takes very long.
hf: Any = _Late("transformers")

F = TypeVar("F", bound=Builder)
BUILDERS: dict[str, Builder] = {}


def model(name: str) -> Callable[[F], F]:
    """Registers a builder, whose argument says whether it builds the tiny size."""

    def register(build: F) -> F:
        BUILDERS[name] = build
        return build

    return register


def build(name: str, tiny: bool, dtype: torch.dtype = torch.float32, seed: int = 0) -> Example:
    """A model by name, the same weights and inputs for the same seed."""
    return prepared(BUILDERS[name], tiny, dtype, seed)


class Picked(nn.Module):
    """Calls a Hugging Face model with keyword arguments and returns some of its results."""

    def __init__(self, inner: nn.Module, arguments: tuple[str, ...], results: tuple[str, ...]):
        super().__init__()
        self.inner = inner
        self.arguments = arguments
        self.results = results

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.inner(**dict(zip(self.arguments, inputs, strict=True)))
        return tuple(getattr(out, name) for name in self.results)


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, shape)


def image(size: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def vision(inner: nn.Module, pixels: torch.Tensor, *results: str) -> Example:
    return Example(Picked(inner, ("pixel_values",), results), (pixels,))


def language(inner: nn.Module, ids: torch.Tensor, *results: str) -> Example:
    return Example(Picked(inner, ("input_ids",), results), (ids,))


def randomize_batch_norm(module: nn.Module) -> nn.Module:
    """Gives running statistics values that folding can get wrong; fresh ones are 0 and 1."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None and part.running_var is not None
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.1)
    return module


def resnet50_of(tiny: bool, batch: int) -> Example:
    sizes: dict[str, Any] = (
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 1], "num_labels": 10}
        if tiny
        else {"num_labels": 1000}
    )
    inner = hf.ResNetForImageClassification(hf.ResNetConfig(layer_type="bottleneck", **sizes))
    return vision(randomize_batch_norm(inner), image(33 if tiny else 224, batch), "logits")


@model("resnet50")
def resnet50(tiny: bool) -> Example:
    return resnet50_of(tiny, 1)


@model("resnet50_b64")
def resnet50_b64(tiny: bool) -> Example:
    return resnet50_of(tiny, 2 if tiny else 64)


@model("mobilenetv2")
def mobilenetv2(tiny: bool) -> Example:
    config = hf.MobileNetV2Config(
        image_size=40 if tiny else 224,
        depth_multiplier=0.25 if tiny else 1.0,
        num_labels=10 if tiny else 1000,
    )
    inner = hf.MobileNetV2ForImageClassification(config)
    return vision(randomize_batch_norm(inner), image(40 if tiny else 224), "logits")


@model("convnext")
def convnext(tiny: bool) -> Example:
    sizes: dict[str, Any] = (
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "num_labels": 10}
        if tiny
        else {"num_labels": 1000}
    )
    # The default layer scale of 1e-6 would hide whatever the blocks compute.
    config = hf.ConvNextConfig(layer_scale_init_value=0.5, **sizes)
    inner = hf.ConvNextForImageClassification(config)
    return vision(inner, image(40 if tiny else 224), "logits")


def bert_of(tiny: bool, batch: int) -> Example:
    sizes = _transformer(tiny) | ({"vocab_size": 101} if tiny else {})
    inner = hf.BertModel(hf.BertConfig(**sizes))
    ids = tokens(inner.config.vocab_size, batch, 13 if tiny else 128)
    return language(inner, ids, "last_hidden_state", "pooler_output")


@model("bert")
def bert(tiny: bool) -> Example:
    return bert_of(tiny, 1)


@model("bert_b32")
def bert_b32(tiny: bool) -> Example:
    return bert_of(tiny, 2 if tiny else 32)


@model("gpt2")
def gpt2(tiny: bool) -> Example:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 101} if tiny else {}
    inner = hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, **sizes))
    return language(inner, tokens(inner.config.vocab_size, 1, 13 if tiny else 128), "logits")


def vit_of(tiny: bool, batch: int) -> Example:
    side = 24 if tiny else 224
    sizes = _transformer(tiny) | ({"patch_size": 8} if tiny else {})
    inner = hf.ViTForImageClassification(hf.ViTConfig(image_size=side, num_labels=10, **sizes))
    return vision(inner, image(side, batch), "logits")


@model("vit")
def vit(tiny: bool) -> Example:
    return vit_of(tiny, 1)


@model("vit_b8")
def vit_b8(tiny: bool) -> Example:
    return vit_of(tiny, 2 if tiny else 8)


def llama_config(tiny: bool) -> Any:
    """Grouped queries and rotary positions; the full size is 8 layers of 1024."""
    return hf.LlamaConfig(
        hidden_size=32 if tiny else 1024,
        intermediate_size=88 if tiny else 2816,
        num_hidden_layers=2 if tiny else 8,
        num_attention_heads=4 if tiny else 16,
        num_key_value_heads=2 if tiny else 4,
        vocab_size=101 if tiny else 32000,
        use_cache=False,
    )


@model("llama")
def llama(tiny: bool) -> Example:
    inner = hf.LlamaForCausalLM(llama_config(tiny))
    return language(inner, tokens(inner.config.vocab_size, 1, 13 if tiny else 64), "logits")


@model("llama_decode1")
def llama_decode1(tiny: bool) -> Example:
    """The same Llama on a single token: every weight is read for one row."""
    inner = hf.LlamaForCausalLM(llama_config(tiny))
    return language(inner, tokens(inner.config.vocab_size, 1, 1), "logits")


def llama_1b(tiny: bool, length: int) -> Example:
    """1.1 billion parameters: 16 layers of 2048, grouped queries."""
    config = llama_config(tiny)
    if not tiny:
        config.hidden_size, config.intermediate_size = 2048, 8192
        config.num_hidden_layers, config.num_attention_heads = 16, 32
        config.num_key_value_heads, config.head_dim = 8, 64
    inner = hf.LlamaForCausalLM(config)
    return language(inner, tokens(config.vocab_size, 1, length), "logits")


@model("llama_1b_decode1")
def llama_1b_decode1(tiny: bool) -> Example:
    return llama_1b(tiny, 1)


@model("llama_1b_512")
def llama_1b_512(tiny: bool) -> Example:
    return llama_1b(tiny, 13 if tiny else 512)


@model("mlp")
def mlp(tiny: bool) -> Example:
    """Three layers on a batch of flattened digits."""
    inputs, width, classes = (20, 32, 10) if tiny else (784, 1024, 10)
    layers = (
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )
    return Example(nn.Sequential(*layers), (torch.randn(5 if tiny else 64, inputs),))


@model("t5")
def t5(tiny: bool) -> Example:
    sizes = (
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 101}
        if tiny
        else {}
    )
    inner = hf.T5ForConditionalGeneration(hf.T5Config(use_cache=False, **sizes))
    source, target = (
        tokens(inner.config.vocab_size, 1, n) for n in ((13, 7) if tiny else (64, 32))
    )
    wanted = ("logits", "encoder_last_hidden_state")
    return Example(Picked(inner, ("input_ids", "decoder_input_ids"), wanted), (source, target))


@model("clip")
def clip(tiny: bool) -> Example:
    side = 24 if tiny else 224
    text = _transformer(tiny, 512) | (
        {"vocab_size": 101, "eos_token_id": 100, "bos_token_id": 99} if tiny else {}
    )
    pixels = _transformer(tiny) | ({"patch_size": 8} if tiny else {"patch_size": 32})
    config = hf.CLIPConfig(
        text_config=text, vision_config=pixels | {"image_size": side}, projection_dim=16
    )
    ids = tokens(101 if tiny else 49407, 2, 11 if tiny else 77)
    ids[:, -1] = config.text_config.eos_token_id
    wanted = ("logits_per_image", "text_embeds", "image_embeds")
    return Example(
        Picked(hf.CLIPModel(config), ("input_ids", "pixel_values"), wanted), (ids, image(side))
    )


@model("whisper_encoder")
def whisper_encoder(tiny: bool) -> Example:
    sizes = (
        {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
        if tiny
        else {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6}
    )
    # The whole model is built and its decoder thrown away.
    sizes |= {"decoder_layers": 1, "decoder_attention_heads": 1}
    positions = 25 if tiny else 1500
    config = hf.WhisperConfig(
        num_mel_bins=20 if tiny else 80, max_source_positions=positions, **sizes
    )
    inner = hf.WhisperModel(config).get_encoder()
    sound = torch.randn(1, config.num_mel_bins, 2 * positions)
    return Example(Picked(inner, ("input_features",), ("last_hidden_state",)), (sound,))


@model("swin")
def swin(tiny: bool) -> Example:
    sizes: dict[str, Any] = (
        {"image_size": 32, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
        if tiny
        else {}
    )
    inner = hf.SwinForImageClassification(hf.SwinConfig(num_labels=10, **sizes))
    return vision(inner, image(32 if tiny else 224), "logits")


def _transformer(tiny: bool, width: int = 768) -> dict[str, Any]:
    if not tiny:
        return {
            "hidden_size": width,
            "num_attention_heads": width // 64,
            "intermediate_size": 4 * width,
        }
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
