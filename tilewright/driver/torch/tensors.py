"""Memory of a call's tensors: how it is made, where it starts, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._dynamo import guards

from tilewright.base.errors import Invalid
from tilewright.driver.weights.given_up import RESTORE, given_up
from tilewright.ir.node import Input


def allocator(device: torch.device) -> Callable[..., torch.Tensor]:
    """torch's short way to fresh memory where it has one: on a GPU only that of the current one."""
    short = getattr(guards, f"_empty_strided_{device.type}", None)
    if short is not None and (device.type == "cpu" or torch.cuda.device_count() == 1):
        return short
    make = torch.empty_strided
    return lambda shape, stride, dtype: make(shape, stride, dtype=dtype, device=device)


def start_of(memory: torch.Tensor, count: int, dtype: torch.dtype) -> int:
    if memory.numel() != count or memory.dtype is not dtype or not memory.is_contiguous():
        raise Invalid(
            f"what a forward call kept for its gradient came back as {tuple(memory.shape)}, "
            f"{memory.dtype}, not {(count,)}, {dtype}",
            hint="hooks on saved tensors have to return equal tensors",
        )
    return memory.data_ptr()


def draw_seed(device: torch.device) -> torch.Tensor:
    """One draw from the device's default generator: reproducible under torch.manual_seed."""
    return torch.empty((), dtype=torch.int64, device=device).random_()


def label(n: Any) -> str:
    assert isinstance(n.op, Input)
    return n.op.label


def require_memory(inputs: Iterable[tuple[object, Any]]) -> None:
    """For when an address is 0: that of no elements is, any other's memory was given back."""
    for name, x in inputs:
        gone = given_up(x)
        if gone is not None:
            raise Invalid(
                f"{gone.name} has no memory of its own: a program compiled with own_weights=True "
                "stores it packed, and here it is needed as it was",
                hint=RESTORE,
            )
        if isinstance(x, torch.Tensor) and x.numel() > 0 and x.data_ptr() == 0:
            raise Invalid(
                f"input {name} ({tuple(x.shape)}, {x.dtype}) has no memory: "
                "its storage was freed or resized",
                hint="pass a tensor that still owns its elements",
            )
