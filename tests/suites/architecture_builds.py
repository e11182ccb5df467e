"""Architectures of `transformers` in a tiny size, with random weights, from their own configs.

One table of rules says how small each kind of number in a config is made, by its name; configs
inside configs are shrunk alike. `ARCHITECTURES` names the model types, with the few settings that
the rules cannot know: sizes that have to fit each other, or inputs of another kind.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

LAYERS, WIDTH, HEADS, GROUPS, HEAD = 2, 32, 4, 2, 8
VOCABULARY, POSITIONS, LENGTH, IMAGE, PATCH = 96, 64, 9, 32, 8

# By name: the number that takes the place of a larger one. The first that matches holds.
RULES: tuple[tuple[str, Any], ...] = (
    (r"\w*dropout\w*|\w*layerdrop|drop_path_rate|\w*_pdrop|mask_time_prob|\w*jitter\w*", 0.0),
    (r"depths|layers_per_\w+|num_blocks_per_\w+|layer_depths|num_repeats", 1),
    (r"(\w+_)?layers|n_layers?|depth", LAYERS),
    (r"num_key_value_heads|num_kv_heads|n_head_kv|multi_query_group_num", GROUPS),
    (r"\w*heads|n_head", HEADS),
    (r"(\w+_)?head_dim|attention_head_size|d_kv|kv_channels", HEAD),
    (r"(\w+_)?vocab_size", VOCABULARY),
    (r"\w*max_position\w*|n_positions|n_ctx|max_seq_len\w*|max_source_positions", POSITIONS),
    (r"image_size", IMAGE),
    (r"patch_size", PATCH),
    (r"\w*intermediate_size|\w*ffn_(dim|size|hidden_size)|d_?ff|d_inner|n_inner", 2 * WIDTH),
    (r"num_experts_per_tok|moe_topk|num_selected_experts|moe_top_k|top_k_experts", 2),
    (r"(num|n)_(\w+_)?experts", 4),
    (r"d_model|n_embd|dim|d_embed|emb_dim|conv_dim|lru_width|\w+_lora_rank", WIDTH),
    (r"\w*(hidden|embedding|embed|emb|projection|proj|codevector)_(size|dim|channel)s?", WIDTH),
    (r"\w*window(_size)?|attention_window\w*|local_attention|(attention_)?chunk_size", 4),
    (r"num_conv_pos_embeddings", 8),
    (r"num_conv_pos_embedding_groups", 4),
    (r"rotary_dim", 4),
    (r"num_mel_bins|feature_size|num_feature_\w+", 16),
)
_RULES = tuple((re.compile(name), small) for name, small in RULES)
# Tokens with a meaning have to be among the few that there are.
_TOKEN = re.compile(r"\w*(token_id|token_index|_idx|start_id|end_id)")

Inputs = Callable[[Any], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Architecture:
    """What a model type needs besides the rules."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Inputs | None = None


def small_config(cls: type, settings: Mapping[str, Any]) -> Any:
    """A config of this class with small numbers; `settings` are its own, those of a config inside
    are a dictionary under its name."""
    given: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        default = f.default
        if default is dataclasses.MISSING and f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        if default is not dataclasses.MISSING:
            small = _small(f.name, default)
            if small != default or f.name in ("use_cache", "pad_token_id"):
                given[f.name] = small
    for name, inner in getattr(cls, "sub_configs", {}).items():
        if dataclasses.is_dataclass(inner):
            given[name] = small_config(inner, settings.get(name, {}))
    names = {f.name for f in dataclasses.fields(cls)}
    if "use_cache" in names:
        given["use_cache"] = False
    own = {k: v for k, v in settings.items() if k not in getattr(cls, "sub_configs", {})}
    return cls(**(given | own))


def _small(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple) and value and all(type(v) in (int, float) for v in value):
        # Stages of different widths have heads that divide all of them.
        most = 2 if name.endswith("heads") else float("inf")
        return type(value)(min(most, _small(name, v)) for v in value)
    if type(value) not in (int, float):
        return value
    if _TOKEN.fullmatch(name) and value >= VOCABULARY:
        return 1 if "token" in name else VOCABULARY - 1
    small = next((s for pattern, s in _RULES if pattern.fullmatch(name)), None)
    return small if small is not None and small < value else value


class Flat(nn.Module):
    """A model called with keyword arguments, and the tensors of what it gives."""

    def __init__(self, inner: nn.Module, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.arguments = inner, arguments

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.inner(**dict(zip(self.arguments, inputs, strict=True)))
        found: list[torch.Tensor] = []
        for value in out.to_tuple():
            parts = value if isinstance(value, tuple | list) else (value,)
            found += [part for part in parts if isinstance(part, torch.Tensor)]
        return tuple(found)


def build(name: str, seed: int = 0) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """A model by its type, in eval mode, and its inputs."""
    auto: Any = import_module("transformers.models.auto.configuration_auto")
    models: Any = import_module("transformers.models.auto.modeling_auto")
    known = ARCHITECTURES[name]
    torch.manual_seed(0)
    cls = auto.CONFIG_MAPPING[name]
    config = small_config(cls, known.settings)
    made = models.MODEL_MAPPING[cls]
    made = made[0] if isinstance(made, tuple | list) else made
    module = made._from_config(config).eval()
    _randomized(module)
    torch.manual_seed(seed + 1)
    given = (known.inputs or _inputs(module))(config)
    return Flat(module, tuple(given)), tuple(given.values())


def _randomized(module: nn.Module) -> None:
    """Weights of some size everywhere: those that begin at 0 or 1 would hide what is wrong."""
    with torch.no_grad():
        for p in module.parameters():
            if p.is_floating_point() and p.numel() and bool((p == p.flatten()[0]).all()):
                p.add_(torch.randn_like(p) * 0.1)
        for name, b in module.named_buffers():
            if name.endswith("running_mean"):
                b.normal_(std=0.1)
            elif name.endswith("running_var"):
                b.uniform_(0.5, 1.5)


def _inputs(module: Any) -> Inputs:
    return INPUTS[module.main_input_name]


def tokens(config: Any) -> dict[str, torch.Tensor]:
    inner = getattr(config, "text_config", config)
    return {"input_ids": torch.randint(4, inner.vocab_size, (2, LENGTH))}


def both_tokens(config: Any) -> dict[str, torch.Tensor]:
    return {**tokens(config), "decoder_input_ids": torch.randint(4, config.vocab_size, (2, 5))}


def pixels(config: Any) -> dict[str, torch.Tensor]:
    inner = getattr(config, "vision_config", config)
    size = getattr(inner, "image_size", None) or IMAGE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(inner, "num_channels", None) or 3
    return {"pixel_values": torch.randn(2, channels, height, width)}


def large_pixels(config: Any) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def tokens_and_pixels(config: Any) -> dict[str, torch.Tensor]:
    return {**tokens(config), **pixels(config)}


def characters(config: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(32, 600, (2, 33))}


def wave(config: Any) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 1600)}


def clips(config: Any) -> dict[str, torch.Tensor]:
    size = (2, config.num_frames, 3, config.image_size, config.image_size)
    return {"pixel_values": torch.randn(*size)}


def spectrum(config: Any) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins)}


def boxes(config: Any) -> dict[str, torch.Tensor]:
    corner = torch.randint(0, 20, (2, LENGTH, 2))
    return {**tokens(config), "bbox": torch.cat((corner, corner + 10), -1)}


INPUTS: dict[str, Inputs] = {
    "input_ids": tokens,
    "pixel_values": pixels,
    "input_values": wave,
}

_PLAIN = Architecture()
_BOTH = Architecture(inputs=both_tokens)
_STAGES = Architecture(inputs=large_pixels)
_BOXES = Architecture(inputs=boxes)
_SEEN_AND_READ = Architecture(inputs=tokens_and_pixels)
_FRAMES = Architecture({"num_frames": 4}, clips)

# Encoders of text, decoders of text, images, sound.
_BY_THE_RULES = """
albert roberta distilbert electra deberta deberta-v2 mpnet camembert convbert fnet nystromformer
squeezebert mobilebert megatron-bert ibert roformer rembert xlm-roberta-xl modernbert ernie
roberta-prelayernorm mra yoso xlnet flaubert nomic_bert eurobert data2vec-text

gpt_neox gptj gpt_bigcode opt bloom falcon codegen mpt mistral mixtral qwen2 qwen3 qwen3_moe
gemma gemma2 gemma3_text phi phi3 stablelm starcoder2 olmo olmo2 cohere granite granitemoe glm4
persimmon biogpt ctrl openai-gpt helium smollm3 arcee exaone4 gpt_oss olmoe
mamba falcon_mamba rwkv recurrent_gemma lfm2 xglm bitnet apertus jetmoe diffllama

deit beit dinov2 dinov2_with_registers ijepa vit_msn yolos dpt data2vec-vision dinov3_vit
siglip_vision_model clip_vision_model

wav2vec2 hubert wavlm unispeech
"""
_OF_STAGES = """
convnextv2 mobilevit segformer pvt_v2 poolformer regnet
focalnet levit swiftformer
"""
_IN_AND_OUT = """
bart mbart pegasus marian m2m_100 blenderbot led longt5 mt5 switch_transformers umt5 prophetnet
"""

ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(_BY_THE_RULES.split(), _PLAIN),
    **dict.fromkeys(_OF_STAGES.split(), _STAGES),
    **dict.fromkeys(_IN_AND_OUT.split(), _BOTH),
    "cvt": Architecture({"depth": [1, 2, 3]}, large_pixels),
    "esm": Architecture({"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 2}),
    "canine": Architecture(inputs=characters),
    "gpt_neo": Architecture({"attention_types": [[["global", "local"], 1]]}),
    "nemotron": Architecture({"num_key_value_heads": GROUPS, "head_dim": HEAD}),
    "deepseek_v3": Architecture({"num_key_value_heads": HEADS, "n_group": 2, "topk_group": 1}),
    "mamba2": Architecture({"num_heads": 8, "state_size": 16}),
    "mobilenet_v1": Architecture({"depth_multiplier": 0.125}, large_pixels),
    "mobilevitv2": Architecture({"width_multiplier": 0.25}, large_pixels),
    "efficientnet": Architecture(
        {"width_coefficient": 0.1, "depth_coefficient": 0.5, "hidden_dim": 128}, large_pixels
    ),
    "bit": Architecture({"num_groups": 4}, large_pixels),
    "swinv2": Architecture({"image_size": 64}, large_pixels),
    "hiera": Architecture({"image_size": [64, 64]}, large_pixels),
    "textnet": Architecture({"stem_out_channels": WIDTH}, large_pixels),
    "dinov3_convnext": Architecture({"hidden_sizes": [8, 16, 24, 32]}, large_pixels),
    "layoutlm": _BOXES,
    "bros": Architecture({"hidden_size": 64}, boxes),
    "lilt": Architecture({"hidden_size": 48}, boxes),
    **dict.fromkeys(("siglip", "altclip", "blip", "vilt"), _SEEN_AND_READ),
    **dict.fromkeys(("videomae", "timesformer"), _FRAMES),
    "vivit": Architecture({"num_frames": 4, "tubelet_size": [2, 8, 8]}, clips),
    "audio-spectrogram-transformer": Architecture({"max_length": 32, "num_mel_bins": 16}, spectrum),
}
