"""Where the tensors of a launch are, and which options of a launch a GPU's code depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.driver.tile.arguments import (
    ANYWHERE,
    BadArguments,
    gpu_holding,
    gpus_of,
    handlers_of,
)
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.language.descriptors import TensorDescriptor

if TYPE_CHECKING:
    from tilewright.driver.tile.launch import CompiledKernel

GPU = "tilewright.driver.tile.gpu"  # imported where a tensor is on one


def gpu_of(function: TileFunction, given: Sequence[Any]) -> int | None:
    """The GPU on which all tensors of a launch are; None: the processor's memory has them."""
    found: dict[int | None, str] = {}
    for p, value in zip(function.parameters, given, strict=True):
        if not p.is_constexpr:
            kind = handlers_of(p)[value.__class__](value)[0]
            for gpu in gpus_of(kind):
                found.setdefault(gpu, p.name)
    if len(found) > 1:
        places = [
            f"{name} is on {'the CPU' if gpu is None else f'cuda:{gpu}'}"
            for gpu, name in found.items()
        ]
        raise BadArguments(
            f"{function.name} is launched with tensors on two devices: {', '.join(places)}",
            where=f"{function.file}:{function.line}",
            hint="move all of them to one: x.to(device)",
        )
    return next(iter(found), None)


def gpu_among(values: Iterable[Any]) -> int | None:
    """The GPU of the first tensor that is on one."""
    for x in values:
        tensor = x.base if isinstance(x, TensorDescriptor) else x
        gpu = gpu_holding(tensor) if hasattr(tensor, "data_ptr") else None
        if gpu not in (None, ANYWHERE):
            return gpu
    return None


def of_options(key: Any, options: Mapping[str, Any]) -> Any:
    """The key of a kernel for a GPU, whose code depends on options of its launch."""
    chosen = options.get("num_warps"), options.get("num_stages")
    return key if chosen == (None, None) else (key, *chosen)


def key_of_launch(
    kernels: Mapping[Any, CompiledKernel], key: Any, options: Mapping[str, Any]
) -> Any:
    """The key by which a launch finds its kernel. On a processor options change nothing."""
    chosen = of_options(key, options)
    if chosen in kernels:
        return chosen
    return chosen if key in kernels and kernels[key].gpu is not None else key
