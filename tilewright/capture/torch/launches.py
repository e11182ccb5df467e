"""Launches of kernels of the tile language inside a graph.

Dynamo makes a launch one higher-order operator, whose results are the tensors that the kernel
changes, by name. It runs as a host call between native segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from tilewright.capture.torch.shapes import Shapes
from tilewright.ir.dim import Int
from tilewright.ir.slots import SymbolicInt


@dataclass(frozen=True)
class Launch:
    """The operator, with results in order instead of by name."""

    operator: Callable[..., Mapping[str, Any]]
    keys: tuple[str, ...]

    def __call__(self, *, strides: Mapping[str, tuple[int, ...]], **given: Any) -> tuple[Any, ...]:
        tensors = dict(given["kwargs"])
        for name, stride in strides.items():
            x = tensors[name]
            if x.stride() != stride:
                laid_out = torch.empty_strided(x.shape, stride, dtype=x.dtype)
                tensors[name] = laid_out.copy_(x)
        found = self.operator(**{**given, "kwargs": tensors})
        return tuple(found[k] for k in self.keys)


def strides_of(n: torch.fx.Node, shapes: Shapes) -> dict[str, tuple[Any, ...]]:
    """The strides of a launch's tensors as torch announced them: kernels are given them as numbers,
    and native code writes its results in the order of memory."""
    found: dict[str, tuple[Any, ...]] = {}
    given: Any = n.kwargs["kwargs"]
    for name, x in given.items():
        v = x.meta.get("val") if isinstance(x, torch.fx.Node) else None
        if isinstance(v, torch.Tensor) and v.layout is torch.strided:
            dims = shapes.dims(v.stride())
            found[name] = tuple(SymbolicInt(d) if isinstance(d, Int) else d for d in dims)
    return found


def kernel_name(n: torch.fx.Node) -> str:
    """What a launch is called in reports."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(n.kwargs["kernel_idx"])  # type: ignore[arg-type]
    while not hasattr(kernel, "parameters") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return f"the kernel {getattr(kernel, '__name__', kernel)}"
