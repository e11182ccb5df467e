"""Grouped products of dtypes that torch multiplies in eager only.

Torch's `_grouped_mm` knows the shapes of bfloat16 alone, so that Dynamo refuses other dtypes. While
programs are captured it goes to an operator of the same meaning instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewright.capture.torch.recurrent import LIBRARY
from tilewright.capture.torch.substitutes import substitute

_NAME = "tilewright::grouped_mm"
_SCHEMA = "grouped_mm(Tensor a, Tensor b, Tensor? offs) -> Tensor"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _empty(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
    """The result without its values; eager's errors where operands do not fit."""
    flat_a, flat_b = a.dim() == 2, b.dim() == 2
    torch._check(a.dim() in (2, 3), lambda: "mat_a has to be 2 or 3d")
    torch._check(b.dim() in (2, 3), lambda: "mat_b has to be 2 or 3d")
    torch._check(
        (offs is not None) == (flat_a or flat_b),
        lambda: (
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        ),
    )
    torch._check(
        a.dtype == b.dtype and a.dtype in _FLOATS,
        lambda: (
            "Expected mat_a and mat_b to be Float32, BFloat16 or Float16 matrices of one dtype, "
            f"got {a.dtype} and {b.dtype}"
        ),
    )
    torch._check(
        a.shape[-1] == b.shape[-2],
        lambda: "contraction dimension of mat_a and mat_b must match",
    )
    groups: Any = a.shape[0]
    if offs is not None:
        groups = offs.shape[0]
        torch._check(offs.dim() == 1, lambda: "offs has to be 1D")
        torch._check(offs.dtype == torch.int32, lambda: "Offsets have to be int32")
    for x, flat in ((a, flat_a), (b, flat_b)):
        torch._check(flat or x.shape[0] == groups, lambda: "matrix batch sizes have to match")
    ends = (a.shape[-2], b.shape[-1])
    return a.new_empty(ends if flat_a != flat_b else (groups, *ends))


def _product(a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
    """Group by group."""
    if offs is None:
        return torch.bmm(a, b)
    out, start = _empty(a, b, offs).zero_(), 0
    for g, end in enumerate(offs.tolist()):
        own = slice(start, end)
        if a.dim() == 3:
            out[:, own] = a[g] @ b[:, own]
        elif b.dim() == 3:
            out[own] = a[own] @ b[g]
        else:
            out[g] = a[:, own] @ b[own]
        start = end
    return out


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    a, b, offs = ctx.saved_tensors
    product = torch.ops.tilewright.grouped_mm
    needs_a, needs_b, _ = ctx.needs_input_grad
    of_a = product(grad, b.transpose(-2, -1), offs) if needs_a else None
    of_b = product(a.transpose(-2, -1), grad, offs) if needs_b else None
    return of_a, of_b, None


LIBRARY.define(_SCHEMA)
LIBRARY.impl("grouped_mm", _product, "CompositeExplicitAutograd")
torch.library.register_fake(_NAME, _empty, lib=LIBRARY)
torch.library.register_autograd(_NAME, _backward, setup_context=_setup, lib=LIBRARY)


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """What `torch._grouped_mm` does on processors."""
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if out_dtype is not None and out_dtype != a.dtype:
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    return torch.ops.tilewright.grouped_mm(a, b, offs)


def _is_unknown(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Are these floats that torch's rule of shapes refuses?"""
    matrices = [*operands, *named.values()][:2]
    kinds = [getattr(x.realize(), "dtype", None) for x in matrices]
    return any(kind in (torch.float32, torch.float16) for kind in kinds)


substitute(torch._grouped_mm, grouped_mm, _is_unknown)
