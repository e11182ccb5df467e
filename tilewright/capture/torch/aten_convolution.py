"""Convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, cast
from tilewright.capture.torch.registry import aten
from tilewright.ir.node import Node
from tilewright.ir.types import bf16, f16


def _batched(x: Node, spatial: int) -> tuple[Node, bool]:
    """With a batch axis, which torch lets callers leave out."""
    if x.rank == spatial + 2:
        return x, False
    return ops.reshape(x, (1, *x.shape)), True


@aten("convolution.default")
def convolution(
    c: Context,
    x: Node,
    w: Node,
    bias: Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    n = w.rank - 2
    full, single = _batched(x, n)
    out = ops.conv(
        full,
        w,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        transposed,
        tuple(output_padding) if transposed else 0,
        wide=bias is not None and x.dtype in (f16, bf16),  # the bias is added before they round
    )
    if bias is not None:
        each = ops.reshape(bias, (bias.shape[0], *(1,) * n))
        out = cast(ops.add(out, cast(each, out.dtype)), x.dtype)
    return ops.reshape(out, out.shape[1:]) if single else out


@aten("convolution_backward.default")
def convolution_backward(
    c: Context,
    grad: Node,
    x: Node,
    w: Node,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Node | None, Node | None, Node | None]:
    n = w.rank - 2
    (g, single), (full, _) = _batched(grad, n), _batched(x, n)
    how = (tuple(stride), tuple(padding), tuple(dilation), groups, transposed)
    dx = dw = db = None
    if output_mask[0]:
        dx = ops.conv_backward_input(g, w, full.shape, *how)
        dx = ops.reshape(dx, dx.shape[1:]) if single else dx
    if output_mask[1]:
        dw = ops.conv_backward_weight(g, full, w.shape, *how)
    if output_mask[2]:
        db = ops.sum(g, (0, *range(2, g.rank)), False)
    return dx, dw, db
