"""Calls of libraries through torch's operators: cuBLAS for products, cuDNN for convolutions.

Operands and results are views of memory that programs have, so nothing is copied on the way. A
call that is recorded as a CUDA graph works in memory of a pool of its own: torch would otherwise
give a library's working memory to others while the graph still uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.runtime.cuda.machine import GivenCall, Matrix

# Recording is of one thread; others may allocate meanwhile, and so may a library.
_MODE = "relaxed"


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded call; torch's object owns the memory that it works in."""

    graph: int
    owner: Any


@dataclass(frozen=True, eq=False)
class Pool:
    """Working memory of the calls that run one after the other on a stream."""

    handle: Any
    stream: Any  # on which calls are recorded: torch has working memory for each


class TorchLibraries:
    """Libraries on one GPU, as torch calls them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def name(self) -> str:
        return f"torch {torch.__version__}"

    def run(self, call: GivenCall, addresses: Sequence[int]) -> None:
        with torch.no_grad(), torch.cuda.device(self.device):
            invoke(call, addresses, self.device)

    def room(self) -> Pool:
        return Pool(torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device))

    def recorded(self, call: GivenCall, addresses: Sequence[int], room: object) -> Recording:
        assert isinstance(room, Pool)
        made = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.no_grad(), torch.cuda.device(self.device), torch.cuda.stream(room.stream):
            made.capture_begin(pool=room.handle, capture_error_mode=_MODE)
            try:
                invoke(call, addresses, self.device)
            finally:
                made.capture_end()
        return Recording(int(made.raw_cuda_graph()), made)


def can_record() -> bool:
    """Does this version of torch show the graphs that it records?"""
    return hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")


def invoke(call: GivenCall, addresses: Sequence[int], device: torch.device) -> None:
    """Calls torch's operator on memory at these addresses, the result's last."""
    x, y, out = (tensor_at(a, m, device) for a, m in zip(addresses, call.operands, strict=True))
    if call.function == "product":
        multiply = torch.mm if out.dim() == 2 else torch.bmm
        if out.dtype is x.dtype:
            multiply(x, y, out=out)
        elif x.is_cuda:  # sums of 16-bit products that stay wide
            multiply(x, y, out_dtype=out.dtype, out=out)
        else:
            multiply(x.to(out.dtype), y.to(out.dtype), out=out)
    elif call.function == "weight gradient":
        _weight_gradient(call, x, y, out)
    else:
        _convolution(call, x, y, out)


def _convolution(call: GivenCall, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> None:
    if x.is_cuda and torch.backends.cudnn.is_acceptable(x) and len(call.stride) > 1:
        cudnn = torch.backends.cudnn
        exact = (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
        settings = (call.padding, call.stride, call.dilation, call.groups, *exact)
        torch.ops.aten.cudnn_convolution.out(x, w, *settings, out=out)
        return
    made = torch.convolution(
        x,
        w,
        None,
        call.stride,
        call.padding,
        call.dilation,
        False,
        (0,) * len(call.stride),
        call.groups,
    )
    out.copy_(made)


def _weight_gradient(
    call: GivenCall, x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor
) -> None:
    settings = (call.stride, call.padding, call.dilation, False, (0,) * len(call.stride))
    # Of the weight only its shape and layout are looked at.
    made = torch.ops.aten.convolution_backward(
        grad, x, out, None, *settings, call.groups, (False, True, False)
    )
    out.copy_(made[1])


def tensor_at(address: int, m: Matrix, device: torch.device) -> torch.Tensor:
    """A tensor over memory that somebody else owns."""
    last = sum((n - 1) * s for n, s in zip(m.shape, m.strides, strict=True))
    size = (last + 1) * m.dtype.bytes
    storage = torch._C._construct_storage_from_data_pointer(address, device, size)
    made = torch.empty(0, dtype=torch_dtype(m.dtype, False), device=device)
    return made.set_(storage, 0, m.shape, m.strides)
