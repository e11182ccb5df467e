"""Products, convolutions, pooling, normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.capture.to_onnx.writer import Out, Writer, writes
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Node
from tilewright.ir.types import TupleType, f64, i64
from tilewright.ops.convolution import Conv, ConvValid
from tilewright.ops.norms import BatchNorm, GroupNorm, LayerNorm, RmsNorm
from tilewright.ops.pooling import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool, pooled_size
from tilewright.ops.upsample import UpsampleLinear


@writes("matmul")
def matmul(w: Writer, n: Node, a: Out, b: Out) -> Out:
    return w.op("MatMul", a, b)


@writes("wide_matmul")
def wide_matmul(w: Writer, n: Node, a: Out, b: Out) -> Out:
    return w.op("MatMul", w.cast(a, n.dtype), w.cast(b, n.dtype))


@writes("conv")
def conv(w: Writer, n: Node, x: Out, weight: Out) -> Out:
    op = n.op
    assert isinstance(op, Conv)
    x, weight = w.cast(x, n.dtype), w.cast(weight, n.dtype)
    settings = {
        "strides": list(op.stride),
        "dilations": list(op.dilation),
        "pads": list(op.padding) * 2,
        "group": op.groups,
    }
    if not op.transposed:
        return w.op("Conv", x, weight, **settings)
    extra = [d for d in op.output_padding if isinstance(d, int)]
    if len(extra) != len(op.output_padding):
        w.refuse("an output padding that is symbolic")
    return w.op("ConvTranspose", x, weight, output_padding=extra, **settings)


@writes("conv_valid")
def conv_valid(w: Writer, n: Node, x: Out, weight: Out) -> Out:
    op = n.op
    assert isinstance(op, ConvValid)
    x, weight = w.cast(x, n.dtype), w.cast(weight, n.dtype)
    settings = {"strides": list(op.stride), "dilations": list(op.dilation), "group": op.groups}
    return w.op("Conv", x, weight, **settings)


# ---- pooling


def _windows(
    w: Writer,
    n: Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
) -> dict[str, Any]:
    """Attributes of a pool; windows that begin or end beyond the padding are not ONNX's."""
    spatial = n.inputs[0].shape[-len(kernel) :]
    for d, k, s, p, t in zip(spatial, kernel, stride, padding, dilation):
        fewer = pooled_size(d, k, s, p, t, False)
        if ceil and not D.known_eq(pooled_size(d, k, s, p, t, True), fewer):
            w.refuse("windows beyond the end, which implementations count in their own ways")
    return {
        "kernel_shape": list(kernel),
        "strides": list(stride),
        "pads": list(padding) * 2,
    }


def _as_image(w: Writer, n: Node, x: Out, axes: int) -> Out:
    """Two axes before the pooled ones, as ONNX has it."""
    shape = n.inputs[0].shape
    lead = shape[: len(shape) - axes]
    if len(lead) == 2:
        return x
    count: Dim = 1
    for d in lead:
        count = count * d
    return w.reshape(x, (1, count, *shape[len(lead) :]))


def _maxima(w: Writer, n: Node, x: Out, settings: dict[str, Any], axes: int) -> Any:
    own = n.inputs[0]
    image = _as_image(w, n, x, axes)
    assert isinstance(n.type, TupleType)
    items = [item.shape for item in n.type.items]
    asked = w.asked.get(n, {0})
    dtypes = [x.dtype, i64] if 1 in asked else [x.dtype]
    if 1 in asked and image.dtype.is_int:
        w.refuse("places of maxima of integers")
    found = w.op_many("MaxPool", image, dtypes=dtypes, **settings)
    results = [w.reshape(found[0], items[0]) if own.rank != axes + 2 else found[0]]
    if 1 in asked:
        size: Dim = 1
        for d in own.shape[own.rank - axes :]:
            size = size * d
        places = w.op("Mod", found[1], w.scalar(size))  # ONNX counts from the first channel on
        results.append(w.reshape(places, items[1]) if own.rank != axes + 2 else places)
    return tuple(results) if len(results) == 2 else (results[0], None)


@writes("max_pool")
def max_pool(w: Writer, n: Node, x: Out) -> Any:
    op = n.op
    assert isinstance(op, MaxPool)
    settings = _windows(w, n, op.kernel, op.stride, op.padding, op.dilation, op.ceil)
    return _maxima(w, n, x, {**settings, "dilations": list(op.dilation)}, len(op.kernel))


@writes("adaptive_max_pool")
def adaptive_max_pool(w: Writer, n: Node, x: Out) -> Any:
    assert isinstance(n.op, AdaptiveMaxPool)
    return _maxima(w, n, x, _even(w, n, n.op.size), len(n.op.size))


def _even(w: Writer, n: Node, size: Sequence[Dim]) -> dict[str, Any]:
    """A pool whose windows share an axis evenly."""
    kernel = []
    for d, s in zip(n.inputs[0].shape[-len(size) :], size):
        if isinstance(d, Int) or isinstance(s, Int) or s == 0 or d % s:
            w.refuse("windows that differ in size, or are symbolic")
        kernel.append(d // s)
    return {"kernel_shape": kernel, "strides": kernel}


@writes("avg_pool")
def avg_pool(w: Writer, n: Node, x: Out) -> Out:
    op = n.op
    assert isinstance(op, AvgPool)
    axes = len(op.kernel)
    settings = _windows(w, n, op.kernel, op.stride, op.padding, (1,) * axes, op.ceil)
    include = int(op.count_include_pad or op.divisor is not None)
    image = _as_image(w, n, x, axes)
    found = w.op("AveragePool", image, count_include_pad=include, **settings)
    if op.divisor is not None:
        found = w.op("Mul", found, w.number(math.prod(op.kernel) / op.divisor, x.dtype))
    return found if n.rank == axes + 2 else w.reshape(found, n.shape)


@writes("adaptive_avg_pool")
def adaptive_avg_pool(w: Writer, n: Node, x: Out) -> Out:
    op = n.op
    assert isinstance(op, AdaptiveAvgPool)
    axes = len(op.size)
    if all(D.known_eq(s, 1) for s in op.size):
        return w.op("ReduceMean", x, w.ints(range(n.rank - axes, n.rank)), keepdims=1)
    found = w.op("AveragePool", _as_image(w, n, x, axes), **_even(w, n, op.size))
    return found if n.rank == axes + 2 else w.reshape(found, n.shape)


# ---- normalisation


def _only_first(w: Writer, n: Node) -> None:
    if w.asked.get(n, {0}) - {0}:
        w.refuse("statistics beside the result")


def _want_short(w: Writer, x: Out) -> None:
    if x.dtype is f64:
        w.refuse("statistics or attributes of ONNX are of 32 bits")


def _ones(w: Writer, n: Node, shape: Sequence[Dim], value: float) -> Out:
    one = w.number(value, n.inputs[0].dtype)
    return w.op("Expand", one, w.dims(shape))


@writes("layer_norm")
def layer_norm(w: Writer, n: Node, x: Out, *rest: Out) -> Any:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, LayerNorm)
    _only_first(w, n)
    _want_short(w, x)
    scale = rest[0] if rest else _ones(w, n, own.shape[-op.dims :], 1)
    parts = [w.cast(p, x.dtype) for p in (scale, *rest[1:])]
    return w.op("LayerNormalization", x, *parts, axis=-op.dims, epsilon=op.eps), None, None


@writes("rms_norm", since=23)
def rms_norm(w: Writer, n: Node, x: Out, *rest: Out) -> Out:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, RmsNorm)
    _want_short(w, x)
    scale = rest[0] if rest else _ones(w, n, own.shape[-op.dims :], 1)
    settings = {"axis": -op.dims, "epsilon": op.eps}
    return w.op("RMSNormalization", x, w.cast(scale, x.dtype), **settings)


@writes("group_norm", since=21)
def group_norm(w: Writer, n: Node, x: Out, *rest: Out) -> Any:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, GroupNorm)
    _only_first(w, n)
    _want_short(w, x)
    channels = own.shape[1:2]
    scale = rest[0] if rest else _ones(w, n, channels, 1)
    shift = rest[1] if len(rest) > 1 else _ones(w, n, channels, 0)
    parts = [w.cast(p, x.dtype) for p in (scale, shift)]
    settings = {"num_groups": op.groups, "epsilon": op.eps}
    return w.op("GroupNormalization", x, *parts, **settings), None, None


@writes("batch_norm")
def batch_norm(w: Writer, n: Node, x: Out, *parts: Out) -> Out:
    assert isinstance(n.op, BatchNorm)
    _want_short(w, x)
    return w.op("BatchNormalization", x, *parts, epsilon=n.op.eps)


@writes("upsample_linear")
def upsample_linear(w: Writer, n: Node, x: Out) -> Out:
    op, own = n.op, n.inputs[0]
    assert isinstance(op, UpsampleLinear)
    first = n.rank - len(op.size)
    for d, size, scale in zip(own.shape[first:], op.size, op.scales):
        if isinstance(d, Int) or isinstance(size, Int):
            if scale is not None or op.align_corners:
                w.refuse("symbolic sizes with a scale of their own")
        elif (scale is not None and scale * d != size) or size == 1:
            w.refuse("a scale that is not the ratio of the sizes")
    mode = "align_corners" if op.align_corners else "half_pixel"
    settings = {"mode": "linear", "coordinate_transformation_mode": mode}
    if n.rank < 3:
        w.refuse("fewer than three axes")
    return w.op("Resize", x, None, None, w.dims(n.shape), **settings)
