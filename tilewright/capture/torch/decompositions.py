"""Which of torch's decompositions AOTAutograd applies before we see the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from tilewright.capture.torch.composed import compositions
from tilewright.capture.torch.foreach import for_each, of_numbers
from tilewright.capture.torch.recurrent import as_scans
from tilewright.capture.torch.undivided import undivided_table

# Decomposed by torch's core table, but defined as a whole in ops/: not decomposed here, so that
# graphs stay small and rewrites and schedules see the operator the user wrote. Attention first: the
# core table makes bmm, softmax and masks of it.
WHOLE = """
    scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_attention_math
    silu roll logsumexp
    _softmax_backward_data _log_softmax_backward_data native_layer_norm_backward
    native_group_norm_backward
    native_batch_norm_backward
    adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d
    logaddexp logaddexp2 isfinite bernoulli
    xlogy special_xlogy special_entr logit mse_loss binary_cross_entropy addcdiv addr index_add
    index_fill select_scatter unfold_backward col2im
""".split()

# Not in the core table; torch has a decomposition and ops/ has no such operator.
EXTRA = """
    addmv addbmm dist _cdist_forward upsample_bicubic2d
    _upsample_bilinear2d_aa ldexp logspace
    hardtanh leaky_relu elu
    special_log_ndtr special_xlog1py special_zeta mvlgamma
    _fused_dropout native_dropout_backward _euclidean_dist
    masked_scatter nanmedian index_reduce _unsafe_masked_index
    rrelu_with_noise rrelu_with_noise_backward rrelu_with_noise_functional
    adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
    unbind_copy split_copy view_copy permute_copy select_copy slice_copy as_strided_copy narrow_copy
""".split()


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd: torch's core one, without recurrent layers and what ops/ has
    whole, with a few more."""
    table = dict(core_aten_decompositions())
    for name in WHOLE:
        for overload in _overloads(name):
            table.pop(overload, None)
    for name in EXTRA:
        for overload in _overloads(name):
            if overload in decomposition_table:
                table.setdefault(overload, decomposition_table[overload])
    for op, function in compositions().items():
        table[op] = function
    for op in as_scans():  # what they are depends on when they are looked at
        table.pop(op, None)
    aten = torch.ops.aten
    table[aten.native_batch_norm_backward.default] = _by_own_statistics
    table[aten.soft_margin_loss_backward.default] = _soft_margin_backward
    table[aten.nll_loss_backward.default] = table[aten.nll_loss2d_backward.default] = _nll_backward
    for op, function in undivided_table().items():
        table.pop(op, None)
        if function is not None:
            table[op] = function
    table[aten._scaled_dot_product_flash_attention_for_cpu.default] = _of_equal_sizes
    table |= for_each()
    return table | of_numbers(table)


def _of_equal_sizes(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
    """Attention stays whole. Sizes that eager wants to be equal are one symbol from here on:
    torch's rule of its shapes does not compare them."""
    _same(k.shape[-2], v.shape[-2], "keys and values differ in length")
    _same(q.shape[-1], k.shape[-1], "queries and keys differ in width")
    return NotImplemented


def _same(a: Any, b: Any, otherwise: str) -> None:
    if not (isinstance(a, int) and isinstance(b, int)):  # eager says it of numbers
        torch._check(a == b, lambda: otherwise)


def _by_own_statistics(grad: Any, x: Any, weight: Any, mean: Any, var: Any, *rest: Any) -> Any:
    """Of a norm by the batch's own statistics, running ones are not kept for the gradient: they
    have been changed by then, so that copies would have to be made."""
    _, _, train, *_ = rest
    if not train or (mean is None and var is None):
        return NotImplemented
    none = (None, None)
    return torch.ops.aten.native_batch_norm_backward.default(grad, x, weight, *none, *rest)


def _soft_margin_backward(grad: Any, x: Any, target: Any, reduction: int = 1) -> Any:
    """Torch's own subtracts 1 from a sigmoid, which leaves few digits where it is near 1."""
    wide = torch.promote_types(x.dtype, torch.float32)
    y, t = x.to(wide), target.to(wide)
    found = -t * grad.to(wide) * torch.sigmoid(-t * y)
    return (found / x.numel() if reduction == 1 else found).to(x.dtype)


def _nll_backward(
    grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any
) -> Any:
    """One element of each row differs from 0. Torch's own multiplies all of them with the row's
    gradient, from which it does not follow what they add up to."""
    axis = 0 if x.dim() < 2 else 1
    at = target.unsqueeze(axis)
    counted = at != ignored
    at = torch.where(counted, at, 0)
    rows = -(grad / total if reduction == 1 else grad)
    rows = rows.unsqueeze(axis) if rows.dim() else rows
    if weight is not None:
        shape = [1] * x.dim()
        shape[axis] = weight.shape[0]
        rows = rows * torch.gather(weight.reshape(shape).expand(x.shape), axis, at)
    rows = torch.where(counted, rows, 0).to(x.dtype)
    return torch.zeros_like(x).scatter(axis, at, rows.expand(at.shape))


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    return [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
