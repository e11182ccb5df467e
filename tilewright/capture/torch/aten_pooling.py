"""Pooling and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import ops
from tilewright.capture.torch.context import Context, parts
from tilewright.capture.torch.registry import aten
from tilewright.ir.node import Node
from tilewright.ir.types import f32


def _ints(v: Any, n: int) -> tuple[int, ...]:
    given = tuple(v) if isinstance(v, (list, tuple)) else (v,)
    return given * n if len(given) == 1 else given


def _spatial(c: Context) -> int:
    """How many axes the operator's name says it pools over."""
    name = str(c.fx.target)
    return next(n for n in (1, 2, 3) if f"{n}d" in name)


@aten("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    c: Context,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Node, Node]:
    n = _spatial(c)
    k = _ints(kernel, n)
    s = _ints(stride, n) if stride else k
    values, indices = parts(ops.max_pool(x, k, s, _ints(padding, n), _ints(dilation, n), ceil_mode))
    return values, indices


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    c: Context,
    grad: Node,
    x: Node,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Node,
) -> Node:
    n = _spatial(c)
    k = _ints(kernel, n)
    s = _ints(stride, n) if stride else k
    return ops.max_pool_backward(
        grad, indices, x.shape[x.rank - n :], k, s, _ints(padding, n), _ints(dilation, n)
    )


@aten("avg_pool1d", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    c: Context,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    n = _spatial(c)
    k = _ints(kernel, n)
    s = _ints(stride, n) if stride else k
    return ops.avg_pool(x, k, s, _ints(padding, n), ceil_mode, count_include_pad, divisor_override)


@aten("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(
    c: Context,
    grad: Node,
    x: Node,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Node:
    n = _spatial(c)
    k = _ints(kernel, n)
    s = _ints(stride, n) if stride else k
    return ops.avg_pool_backward(
        grad,
        x.shape[x.rank - n :],
        k,
        s,
        _ints(padding, n),
        ceil_mode,
        count_include_pad,
        divisor_override,
    )


@aten(
    "adaptive_avg_pool1d",
    "_adaptive_avg_pool2d",
    "adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool3d",
)
def adaptive_avg_pool(c: Context, x: Node, size: Any) -> Node:
    return ops.adaptive_avg_pool(x, _ints(size, _spatial(c)))


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(c: Context, grad: Node, x: Node) -> Node:
    return ops.adaptive_avg_pool_backward(grad, x.shape[x.rank - _spatial(c) :])


@aten("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(c: Context, x: Node, size: Any) -> tuple[Node, Node]:
    values, indices = parts(ops.adaptive_max_pool(x, _ints(size, _spatial(c))))
    return values, indices


@aten("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(c: Context, grad: Node, x: Node, indices: Node) -> Node:
    return ops.max_pool_backward(grad, indices, x.shape[x.rank - _spatial(c) :])


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest(c: Context, x: Node, size: Sequence[int], *scales: float | None) -> Node:
    return ops.upsample_nearest(x, tuple(size), tuple(scales) or None)


@aten(*(f"_upsample_nearest_exact{n}d.default" for n in (1, 2, 3)))
def upsample_nearest_exact(c: Context, x: Node, size: Sequence[int], *scales: float | None) -> Node:
    return ops.upsample_nearest(x, tuple(size), tuple(scales) or None, exact=True)


@aten(*(f"upsample_nearest{n}d_backward.default" for n in (1, 2, 3)))
def upsample_nearest_backward(
    c: Context, grad: Node, size: Sequence[int], given: Sequence[int], *scales: float | None
) -> Node:
    return ops.upsample_nearest_backward(grad, tuple(given)[2:], tuple(scales) or None)


@aten(*(f"_upsample_nearest_exact{n}d_backward.default" for n in (1, 2, 3)))
def upsample_nearest_exact_backward(
    c: Context, grad: Node, size: Sequence[int], given: Sequence[int], *scales: float | None
) -> Node:
    return ops.upsample_nearest_backward(grad, tuple(given)[2:], tuple(scales) or None, exact=True)


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def upsample_linear(
    c: Context, x: Node, size: Sequence[int], align_corners: bool, *scales: float | None
) -> Node:
    wide = x if x.dtype.is_float else ops.cast(x, f32)  # of bytes the nearest number is taken
    made = ops.upsample_linear(wide, tuple(size), align_corners, tuple(scales) or None)
    return made if x.dtype.is_float else ops.cast(ops.round(made), x.dtype)


@aten(
    "upsample_linear1d_backward.default",
    "upsample_bilinear2d_backward.default",
    "upsample_trilinear3d_backward.default",
)
def upsample_linear_backward(
    c: Context,
    grad: Node,
    size: Sequence[int],
    given: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Node:
    spatial = tuple(given)[2:]
    return ops.upsample_linear_backward(grad, spatial, align_corners, tuple(scales) or None)
