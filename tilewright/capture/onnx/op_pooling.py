"""Pooling: by windows and over everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.capture.onnx.context import Context, static, translation
from tilewright.capture.onnx.elements import ELEMENT_OF
from tilewright.capture.onnx.windows import Windows, windows_of
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node


@translation("MaxPool")
def max_pool(c: Context, x: Node) -> Node | tuple[Node, Node]:
    win = windows_of(c, c.get("kernel_shape", []), x.shape[2:])
    size = win.sizes(x.shape[2:], bool(c.get("ceil_mode", 0)))
    settings = (win.kernel, win.stride, win.before, win.dilation, size)
    y = ops.window_max(x, *settings)
    if c.outputs == 1:
        return y
    code = ops.window_argmax(x, y, *settings)
    flat = ops.maximum(code, ops.bitwise_not(code))
    space = x.shape[2:]
    if c.get("storage_order", 0):
        flat = _by_columns(flat, space)
    planes = ops.mul(
        ops.reshape(ops.iota(x.shape[0] * x.shape[1]), (*x.shape[:2], *[1] * len(space))),
        ops.number(_count(space), flat.dtype),
    )
    return y, ops.add(flat, planes)


def _count(space: Sequence[Dim]) -> Dim:
    n: Dim = 1
    for d in space:
        n = n * d
    return n


def _by_columns(flat: Node, space: Sequence[Dim]) -> Node:
    """A place in a plane, counted in the other order of its axes."""
    out, step = ops.number(0, flat.dtype), 1
    rest, inner = flat, _count(space)
    for d in space:
        inner = inner // d if isinstance(inner, int) and isinstance(d, int) else inner
        line = ops.number(inner, flat.dtype)
        at = ops.floordiv(rest, line)
        rest = ops.sub(rest, ops.mul(at, line))
        out = ops.add(out, ops.mul(at, ops.number(step, flat.dtype)))
        step = step * d
    return out


@translation("AveragePool")
def average_pool(c: Context, x: Node) -> Node:
    space = x.shape[2:]
    win = windows_of(c, c.get("kernel_shape", []), space)
    ceil, pads = bool(c.get("ceil_mode", 0)), bool(c.get("count_include_pad", 0))
    size = win.sizes(space, ceil)
    total = ops.window_sum(x, win.kernel, win.stride, win.before, win.dilation, size)
    whole = not ceil and (pads or not any((*win.before, *win.after)))
    if whole:
        count = ops.number(int(np.prod(win.kernel)), total.dtype)
    else:
        numbers = _counts(win, static(space, "AveragePool"), static(size), pads)
        count = c.weight(numbers.astype(total.dtype.numpy), ELEMENT_OF[total.dtype])
    return ops.cast(ops.div(total, count), x.dtype)


def _counts(win: Windows, space: Sequence[int], size: Sequence[int], pads: bool) -> np.ndarray:
    """How many elements each window has, pads among them where they count."""
    out = np.ones(())
    for k, (n, m) in enumerate(zip(space, size)):
        at = np.arange(m)[:, None] * win.stride[k] + np.arange(win.kernel[k]) * win.dilation[k]
        at = at - win.before[k]
        low, high = (-win.before[k], n + win.after[k]) if pads else (0, n)
        out = out[..., None] * ((at >= low) & (at < high)).sum(1)
    return np.maximum(out, 1)


@translation("LpPool")
def lp_pool(c: Context, x: Node) -> Node:
    p, space = c.get("p", 2), x.shape[2:]
    win = windows_of(c, c.get("kernel_shape", []), space)
    size = win.sizes(space, bool(c.get("ceil_mode", 0)))
    powers = ops.pow(ops.abs(x), ops.number(p, x.dtype))
    total = ops.window_sum(powers, win.kernel, win.stride, win.before, win.dilation, size)
    return ops.cast(ops.pow(total, ops.number(1 / p, total.dtype)), x.dtype)


def _space(x: Node) -> tuple[int, ...]:
    return tuple(range(2, x.rank))


@translation("GlobalAveragePool")
def global_average_pool(c: Context, x: Node) -> Node:
    return ops.mean(x, _space(x), True)


@translation("GlobalMaxPool")
def global_max_pool(c: Context, x: Node) -> Node:
    return ops.amax(x, _space(x), True)


@translation("GlobalLpPool")
def global_lp_pool(c: Context, x: Node) -> Node:
    return ops.norm(x, c.get("p", 2), _space(x), True)


@translation("MaxUnpool")
def max_unpool(c: Context, x: Node, places: Node, shape: Node | None = None) -> Node:
    kernel = c.get("kernel_shape", [])
    n = len(kernel)
    stride, pads = c.get("strides", [1] * n), c.get("pads", [0] * 2 * n)
    natural = [
        (d - 1) * stride[k] + kernel[k] - pads[k] - pads[n + k]
        for k, d in enumerate(static(x.shape[2:], "MaxUnpool"))
    ]
    lead = static(x.shape[:2], "MaxUnpool")
    out = [*lead, *natural]
    # The places count in the natural shape, in which the values are put down first.
    flat = ops.full((int(np.prod(out)),), 0, x.dtype)
    count = int(np.prod(static(x.shape)))
    put = ops.scatter(flat, ops.reshape(places, (count,)), ops.reshape(x, (count,)), 0)
    y = ops.reshape(put, out)
    if shape is None:
        return y
    wanted = c.ints(shape)
    return ops.pad(y, [0] * len(out), [w - h for w, h in zip(wanted, out)])
