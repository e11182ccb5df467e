"""Convolutions: plain, transposed, of quantised integers, deformable."""

from __future__ import annotations

from tilewright import ops
from tilewright.capture.onnx.context import Context, static, translation
from tilewright.capture.onnx.op_products import centred
from tilewright.capture.onnx.quantised import rounded_to
from tilewright.capture.onnx.windows import windows_of
from tilewright.ir.node import Node
from tilewright.ir.types import f32


def _convolved(c: Context, x: Node, w: Node) -> Node:
    kernel = static(w.shape[2:], "the kernel of a convolution")
    win = windows_of(c, kernel, x.shape[2:])
    pads = win.before
    if win.before != win.after:
        x, pads = ops.pad(x, (0, 0, *win.before), (0, 0, *win.after)), (0,) * len(kernel)
    return ops.conv(x, w, win.stride, pads, win.dilation, c.get("group", 1))


def _biased(y: Node, bias: Node | None) -> Node:
    if bias is None:
        return y
    return ops.add(y, ops.reshape(bias, (1, bias.shape[0], *[1] * (y.rank - 2))))


@translation("Conv")
def conv(c: Context, x: Node, w: Node, bias: Node | None = None) -> Node:
    return _biased(_convolved(c, x, w), bias)


@translation("ConvInteger")
def conv_integer(
    c: Context, x: Node, w: Node, x_zero: Node | None = None, w_zero: Node | None = None
) -> Node:
    return _convolved(c, centred(x, x_zero), centred(w, w_zero, _per_channel(w_zero)))


def _per_channel(zero: Node | None) -> int | None:
    return 0 if zero is not None and zero.rank == 1 and zero.shape[0] != 1 else None


@translation("QLinearConv")
def qlinear_conv(
    c: Context,
    x: Node,
    x_scale: Node,
    x_zero: Node,
    w: Node,
    w_scale: Node,
    w_zero: Node,
    y_scale: Node,
    y_zero: Node,
    bias: Node | None = None,
) -> Node:
    exact = _convolved(c, centred(x, x_zero), centred(w, w_zero, _per_channel(w_zero)))
    exact = _biased(exact, bias)
    many = w_scale.rank == 1 and w_scale.shape[0] != 1
    shape = (1, w_scale.shape[0], *[1] * (x.rank - 2)) if many else ()
    scale = ops.mul(ops.reshape(x_scale, ()), ops.reshape(w_scale, shape))
    out = ops.mul(ops.cast(exact, f32), scale)
    return rounded_to(ops.div(out, ops.reshape(y_scale, ())), ops.reshape(y_zero, ()))


@translation("ConvTranspose")
def conv_transpose(c: Context, x: Node, w: Node, bias: Node | None = None) -> Node:
    kernel = static(w.shape[2:], "the kernel of a convolution")
    n = len(kernel)
    stride, dilation = c.get("strides", [1] * n), c.get("dilations", [1] * n)
    extra = c.get("output_padding", [0] * n)
    pads, rule = c.get("pads", [0] * 2 * n), c.get("auto_pad", "NOTSET")
    before, after = list(pads[:n]), list(pads[n:])
    if rule == "VALID":
        before, after = [0] * n, [0] * n
    full = [
        stride[k] * (x.shape[2 + k] - 1) + extra[k] + (kernel[k] - 1) * dilation[k] + 1
        for k in range(n)
    ]
    wanted = c.get("output_shape", [])[-n:]
    if not wanted and rule in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [x.shape[2 + k] * stride[k] for k in range(n)]
    if wanted:
        for k, (size, want) in enumerate(zip(static(full, "output_shape"), static(wanted))):
            total = size - want
            small = total // 2
            before[k] = small if rule == "SAME_UPPER" else total - small
            after[k] = total - before[k]
    # The whole result, with as much behind it as is wanted; then what the pads cut off.
    more = [extra[k] + max(0, -after[k]) for k in range(n)]
    fits = all(more[k] < max(stride[k], dilation[k]) for k in range(n))
    y = ops.conv(x, w, stride, 0, dilation, c.get("group", 1), True, more if fits else [0] * n)
    if not fits:
        y = ops.pad(y, [0] * (n + 2), [0, 0, *more])
    for k in range(n):
        if before[k] or after[k]:
            y = ops.slice(y, 2 + k, max(before[k], 0), full[k] - after[k])
    return _biased(y, bias)
