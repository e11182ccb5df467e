"""What only the suites need in addition to the models of `tilewright.bench.models`."""

import copy
from typing import Any

import torch
from torch import nn

from tilewright.bench.example import Example
from tilewright.bench.models import (
    BUILDERS,
    build,
    hf,
    language,
    llama_config,
    model,
    tokens,
)
from tilewright.bench.oracle import in_double

__all__ = [
    "BUILDERS",
    "DecodeStep",
    "Example",
    "build",
    "hf",
    "language",
    "llama_config",
    "model",
    "reference",
    "tokens",
]


def reference(example: Example) -> Any:
    """What the model gives at double precision throughout."""
    return in_double(copy.deepcopy(example.module).double(), *example.inputs)


class DecodeStep(nn.Module):
    """One token through a Llama with a static key-value cache that is written in place."""

    def __init__(self, tiny: bool, dtype: torch.dtype, length: int = 32, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        config = llama_config(tiny)
        config.use_cache = True
        self.inner = hf.LlamaForCausalLM(config).to(dtype).eval()
        self.cache = hf.StaticCache(config=config, max_cache_len=length)
        heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(1, heads, width, dtype, torch.device("cpu"))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=token, past_key_values=self.cache, use_cache=True).logits

    def memory(self) -> list[torch.Tensor]:
        """The cache's own tensors, which decoding must have changed as eager does."""
        layers: Any = self.cache.layers
        return [tensor for layer in layers for tensor in (layer.keys, layer.values)]
