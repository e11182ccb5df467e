"""Softmax, normalisations and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.capture.torch.aten_rounded import log_softmax_last
from tilewright.capture.torch.context import Context, axis_of, cast, parts
from tilewright.capture.torch.registry import aten
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import DType, bf16, f16, f32


def _softmax(c: Context, x: Node, dim: int, fn: Any, one: float) -> Node:
    out = c.out().dtype
    if x.rank == 0:
        return cast(ops.add(ops.mul(x, c.number(0, x.dtype)), c.number(one, x.dtype)), out)
    return cast(fn(_wider(x, out), axis_of(dim, x.rank)), out)


def _wider(x: Node, out: DType) -> Node:
    """half_to_float: the result is wider than the operand."""
    return cast(x, out) if out.bits > x.dtype.bits else x


@aten("_softmax.default")
def softmax(c: Context, x: Node, dim: int, half_to_float: bool = False) -> Node:
    return _softmax(c, x, dim, ops.softmax, 1.0)


@aten("_log_softmax.default")
def log_softmax(c: Context, x: Node, dim: int, half_to_float: bool = False) -> Node:
    if x.dtype in (f16, bf16) and x.rank and axis_of(dim, x.rank) == x.rank - 1:
        if not half_to_float:
            return log_softmax_last(x)
    return _softmax(c, x, dim, ops.log_softmax, 0.0)


@aten("_safe_softmax.default")
def safe_softmax(c: Context, x: Node, dim: int, dtype: Any = None) -> Node:
    """Rows that are masked out entirely give zeros."""
    out = c.out().dtype
    x = cast(x, out)
    axis = axis_of(dim, x.rank)
    dead = ops.all(ops.eq(x, c.number(float("-inf"), out)), (axis,), True)
    return ops.where(dead, c.number(0, out), ops.softmax(x, axis))


@aten("_softmax_backward_data.default")
def softmax_backward(c: Context, grad: Node, output: Node, dim: int, input_dtype: Any) -> Node:
    if grad.rank == 0:
        return cast(ops.mul(grad, c.number(0, grad.dtype)), c.out().dtype)
    return cast(ops.softmax_backward(grad, output, axis_of(dim, grad.rank)), c.out().dtype)


@aten("_log_softmax_backward_data.default")
def log_softmax_backward(c: Context, grad: Node, output: Node, dim: int, input_dtype: Any) -> Node:
    if grad.rank == 0:
        return cast(ops.mul(grad, c.number(0, grad.dtype)), c.out().dtype)
    return cast(ops.log_softmax_backward(grad, output, axis_of(dim, grad.rank)), c.out().dtype)


# ---- layer norm


@aten("native_layer_norm.default")
def layer_norm(
    c: Context, x: Node, shape: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node]:
    y, mean, rstd = parts(ops.layer_norm(x, weight, bias, len(shape), float(eps)))
    return y, _as(c, mean, 1), _as(c, rstd, 2)


def _as(c: Context, x: Node, k: int) -> Node:
    """The statistic in the dtype and shape torch gives it."""
    want = c.out(k)
    return ops.reshape(cast(x, want.dtype), want.shape)


@aten("native_layer_norm_backward.default")
def layer_norm_backward(
    c: Context,
    grad: Node,
    x: Node,
    shape: Sequence[Dim],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    output_mask: Sequence[bool],
) -> tuple[Node | None, ...]:
    dims = len(shape)
    d = x.dtype
    wide = f32 if d in (f16, bf16) else d
    g, v = cast(grad, wide), cast(x, wide)
    stats = (*x.shape[: x.rank - dims], *(1,) * dims)
    m, r = (ops.reshape(cast(s, wide), stats) for s in (mean, rstd))
    inner, outer = tuple(range(x.rank - dims, x.rank)), tuple(range(x.rank - dims))
    normal = ops.mul(ops.sub(v, m), r)
    scaled = g if weight is None else ops.mul(g, cast(weight, wide))
    dx = dw = db = None
    if output_mask[0]:
        a = ops.mean(scaled, inner, True)
        b = ops.mean(ops.mul(scaled, normal), inner, True)
        dx = cast(ops.mul(ops.sub(ops.sub(scaled, a), ops.mul(normal, b)), r), d)
    if output_mask[1] and weight is not None:
        dw = cast(ops.sum(ops.mul(g, normal), outer, False), weight.dtype)
    if output_mask[2] and bias is not None:
        db = cast(ops.sum(g, outer, False), bias.dtype)
    return dx, dw, db


# ---- group norm


@aten("native_group_norm.default")
def group_norm(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    eps: float,
) -> tuple[Node, Node, Node]:
    y, mean, rstd = parts(ops.group_norm(x, weight, bias, group, float(eps)))
    return y, _as(c, mean, 1), _as(c, rstd, 2)


@aten("native_group_norm_backward.default")
def group_norm_backward(
    c: Context,
    grad: Node,
    x: Node,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    N: Dim,
    C: Dim,
    HxW: Dim,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Node | None, ...]:
    d = x.dtype
    wide = f32 if d in (f16, bf16) else d
    per = C // group
    grouped = (N, group, per, HxW)
    g, v = (ops.reshape(cast(t, wide), grouped) for t in (grad, x))
    m, r = (ops.reshape(cast(s, wide), (N, group, 1, 1)) for s in (mean, rstd))
    normal = ops.mul(ops.sub(v, m), r)
    dx = dw = db = None
    if output_mask[0]:
        scaled = g
        if weight is not None:
            scaled = ops.mul(g, ops.reshape(cast(weight, wide), (1, group, per, 1)))
        a = ops.mean(scaled, (2, 3), True)
        b = ops.mean(ops.mul(scaled, normal), (2, 3), True)
        dx = ops.mul(ops.sub(ops.sub(scaled, a), ops.mul(normal, b)), r)
        dx = ops.reshape(cast(dx, d), x.shape)
    if output_mask[1] and weight is not None:
        dw = cast(ops.reshape(ops.sum(ops.mul(g, normal), (0, 3), False), (C,)), weight.dtype)
    if output_mask[2]:
        db = ops.reshape(ops.sum(g, (0, 3), False), (C,))
        db = cast(db, weight.dtype if weight is not None else d)
    return dx, dw, db


# ---- batch norm


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    var: Node,
    momentum: float,
    eps: float,
) -> tuple[Node, Node, Node]:
    out = ops.batch_norm(x, weight, bias, mean, var, float(eps))
    return (
        out,
        ops.full(c.out(1).shape, 0, c.out(1).dtype),
        ops.full(c.out(2).shape, 0, c.out(2).dtype),
    )


def _trained(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node | None,
    var: Node | None,
    momentum: float,
    eps: float,
) -> tuple[Node, ...]:
    """(y, mean, rstd, new running mean, new running var) from the batch's own statistics."""
    channels = x.shape[1]
    zero = ops.full((channels,), 0, f32 if x.dtype in (f16, bf16) else x.dtype)
    out = ops.batch_norm_train(
        x,
        weight,
        bias,
        zero if mean is None else mean,
        zero if var is None else var,
        float(eps),
        float(momentum),
    )
    return parts(out)


@aten("_native_batch_norm_legit_functional.default", "_batch_norm_with_update_functional.default")
def batch_norm_functional(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running_mean: Node,
    running_var: Node,
    *rest: Any,
) -> tuple[Node, ...]:
    update = "_batch_norm_with_update" in str(c.fx.target)
    training, momentum, eps = (True, *rest) if update else rest
    empty = (ops.full((0,), 0, c.out(3).dtype),) if update else ()
    # What torch announces: statistics in 16 bits come back in 32, and are then copied.
    new = c.out(4 if update else 3)
    if not training:
        y = ops.batch_norm(x, weight, bias, running_mean, running_var, float(eps))
        none = [ops.full(c.out(k).shape, 0, c.out(k).dtype) for k in (1, 2)]
        return (y, *none, *empty, cast(running_mean, new.dtype), cast(running_var, new.dtype))
    y, mean, rstd, new_mean, new_var = _trained(
        c, x, weight, bias, running_mean, running_var, momentum, eps
    )
    return (
        y,
        cast(mean, c.out(1).dtype),
        cast(rstd, c.out(2).dtype),
        *empty,
        cast(new_mean, new.dtype),
        cast(new_var, new.dtype),
    )


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    c: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Node, ...]:
    y, mean, rstd, _, _ = _trained(c, x, weight, bias, None, None, momentum, eps)
    return y, cast(mean, c.out(1).dtype), cast(rstd, c.out(2).dtype)


@aten("native_batch_norm_backward.default", "batch_norm_backward.default")
def batch_norm_backward(
    c: Context,
    grad: Node,
    x: Node,
    weight: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    save_mean: Node | None,
    save_rstd: Node | None,
    *rest: Any,
) -> tuple[Node | None, ...]:
    training, eps, output_mask = rest[0], rest[1], rest[2]
    d = x.dtype
    wide = f32 if d in (f16, bf16) else d
    shape = (1, x.shape[1], *(1,) * (x.rank - 2))
    axes = (0, *range(2, x.rank))
    g, v = cast(grad, wide), cast(x, wide)
    if training:
        assert save_mean is not None and save_rstd is not None
        mean, rstd = cast(save_mean, wide), cast(save_rstd, wide)
    else:
        assert running_mean is not None and running_var is not None
        mean = cast(running_mean, wide)
        rstd = ops.rsqrt(ops.add(cast(running_var, wide), c.number(eps, wide)))
    m, r = ops.reshape(mean, shape), ops.reshape(rstd, shape)
    centred = ops.sub(v, m)
    dot = ops.sum(ops.mul(g, centred), axes, False)
    total = ops.sum(g, axes, False)
    scale = r if weight is None else ops.mul(r, ops.reshape(cast(weight, wide), shape))
    dx = dw = db = None
    if output_mask[0]:
        if training:
            count: Dim = 1
            for a in axes:
                count = count * x.shape[a]
            n = c.number(count, wide)
            mean_g = ops.reshape(ops.div(total, n), shape)
            slope = ops.mul(ops.reshape(ops.div(dot, n), shape), ops.mul(r, r))
            # The mean first: what rows have in common leaves no rounding behind, which would not
            # cancel in sums of the result that are 0.
            dx = ops.mul(ops.sub(ops.sub(g, mean_g), ops.mul(centred, slope)), scale)
        else:
            dx = ops.mul(g, scale)
        dx = cast(dx, d)
    if output_mask[1]:
        dw = cast(ops.mul(dot, rstd), weight.dtype if weight is not None else d)
    if output_mask[2]:
        db = cast(total, weight.dtype if weight is not None else d)
    return dx, dw, db


@aten("_fused_rms_norm.default")
def rms_norm(
    c: Context, x: Node, shape: Sequence[Dim], weight: Node | None, eps: float | None
) -> tuple[Node, Node]:
    d = x.dtype
    wide = f32 if d in (f16, bf16) else d
    small = (
        eps
        if eps is not None
        else {"f64": 2.220446049250313e-16}.get(d.name, 1.1920928955078125e-07)
    )
    axes = tuple(range(x.rank - len(shape), x.rank))
    v = cast(x, wide)
    rstd = ops.rsqrt(ops.add(ops.mean(ops.mul(v, v), axes, True), c.number(small, wide)))
    out = ops.mul(v, rstd)
    if weight is not None:
        out = ops.mul(out, cast(weight, wide))
    return cast(out, d), cast(rstd, c.out(1).dtype)
