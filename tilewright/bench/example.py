"""What is run: a module and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Example:
    """A module ready to be called as `module(*inputs)`."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]


def on_device(example: Example, device: str) -> Example:
    """Constants of a model may be made elsewhere, whatever the default device is."""
    if device == "cpu":
        return example
    return Example(example.module.to(device), tuple(x.to(device) for x in example.inputs))


# A builder's argument says whether it builds the tiny size.
Builder = Callable[[bool], Example]


def prepared(
    builder: Builder, tiny: bool, dtype: torch.dtype, seed: int = 0, device: str = "cpu"
) -> Example:
    """In eval mode, at `dtype` and on `device`; the same weights and inputs for the same seed."""
    torch.manual_seed(seed)
    with torch.device(device) if device != "cpu" else nullcontext():
        example = on_device(builder(tiny), device)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in example.inputs)
    return Example(example.module.to(dtype).eval(), inputs)
