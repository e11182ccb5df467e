"""Where torch's tensors are, and the machine that code for them runs on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.torch.libraries import TorchLibraries, can_record
from tilewright.runtime.cuda.assembling import available
from tilewright.runtime.cuda.device import device as gpu
from tilewright.runtime.cuda.machine import Machine
from tilewright.targets.nvptx import target_of

CPU = torch.device("cpu")
KINDS = ("cpu", "cuda")


def require_known(inputs: Sequence[Any]) -> None:
    """An error where a tensor is on a device that nothing is compiled for."""
    _only(_devices(inputs))


def device_of_graph(gm: torch.fx.GraphModule) -> torch.device:
    """The device of a graph of operators: a GPU where one is used."""
    return _only(x.device for n in gm.graph.nodes for x in _tensors(n.meta.get("val")))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _devices(inputs: Sequence[Any]) -> Iterable[torch.device]:
    for k, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            if x.device.type not in KINDS:
                raise Invalid(
                    f"input {k} is on {x.device}, and tilewright compiles for the CPU and for CUDA",
                    hint="move the model and its inputs with .cpu() or .cuda()",
                )
            yield x.device


def _only(devices: Iterable[torch.device]) -> torch.device:
    """The GPU among devices, or the CPU."""
    found = sorted({str(d) for d in devices if d.type == "cuda"})
    if len(found) > 1:
        raise Invalid(
            f"one graph uses {' and '.join(found)}, and a program runs on one GPU",
            hint="compile the parts that run on each GPU on their own",
        )
    return torch.device(found[0]) if found else CPU


@cache
def machine_of(device: torch.device) -> Machine:
    """The GPU that torch calls so: memory and streams are torch's."""
    number = device.index or 0
    found = gpu(number)
    place = torch.device("cuda", number)
    stream = torch._C._cuda_getCurrentRawStream

    def allocate(size: int) -> tuple[int, object]:
        try:
            made = torch.empty(size, dtype=torch.uint8, device=place)
        except torch.OutOfMemoryError as problem:
            said = str(problem).split(". ")[0]
            raise Unsupported(
                f"the arena of a call, {size:,} bytes, does not fit on {place}: {said}",
                hint="free tensors, or use smaller ones",
            ) from None
        return made.data_ptr(), made

    def capturing() -> bool:
        with torch.cuda.device(number):  # torch tells it of the current device
            return torch._C._cuda_isCurrentStreamCapturing()

    alone = torch.cuda.device_count() == 1
    return Machine(
        found,
        target_of(found),
        allocate,
        lambda: stream(number),
        torch._C._cuda_isCurrentStreamCapturing if alone else capturing,
        torch.cuda.empty_cache,
        os.environ.get("CUDA_LAUNCH_BLOCKING", "0") == "1",
        TorchLibraries(place) if can_record() else None,
        available(),
    )
