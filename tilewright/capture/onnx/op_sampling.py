"""Images read at places that are data: grids and regions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product

import numpy as np

from tilewright import ops
from tilewright.capture.onnx.context import Context, static, translation
from tilewright.ir.node import Node
from tilewright.ir.types import f32, i64

_CUBIC = -0.75


def _number(value: float) -> Node:
    return ops.number(value, f32)


def _taps(x: Node, mode: str) -> list[tuple[Node, Node]]:
    """Whole places around a place, and the weight of each."""
    if mode == "nearest":
        return [(ops.cast(ops.round(x), i64), _number(1))]
    base = ops.floor(x)
    part = ops.sub(x, base)
    first = ops.cast(base, i64)
    if mode == "linear":
        return [(first, ops.sub(_number(1), part)), (ops.add(first, ops.number(1, i64)), part)]
    out = []
    for k in range(-1, 3):
        d = ops.abs(ops.sub(part, _number(k)))
        a = _CUBIC
        terms = (1, 0, -(a + 3), a + 2) if k in (0, 1) else (-4 * a, 8 * a, -5 * a, a)
        weight = _number(terms[3])
        for t in (terms[2], terms[1], terms[0]):
            weight = ops.add(ops.mul(weight, d), _number(t))
        out.append((ops.add(first, ops.number(k, i64)), weight))
    return out


def _inside(i: Node, n: int, padding: str, align: bool) -> tuple[Node, Node | None]:
    """A whole place within an axis by a rule for those outside; and where it counts, if not
    everywhere."""
    zero, last = ops.number(0, i64), ops.number(n - 1, i64)
    if padding == "reflection":
        span = max(2 * (n - 1), 1) if align else 2 * n
        i = ops.mod(i, ops.number(span, i64))
        back = ops.sub(ops.number(span if align else span - 1, i64), i)
        return ops.where(ops.gt(i, last), back, i), None
    clamped = ops.minimum(ops.maximum(i, zero), last)
    return clamped, (ops.eq(clamped, i) if padding == "zeros" else None)


def sampled(x: Node, places: Sequence[Node], mode: str, padding: str, align: bool) -> Node:
    """x[N, C, …] at places [N, points], one tensor of them per axis: [N, C, points]."""
    space = static(x.shape[2:], "an image that is sampled")
    flat = ops.reshape(x, (*x.shape[:2], int(np.prod(space))))
    points = places[0].shape[1]
    total: Node | None = None
    for taps in product(*(_taps(p, mode) for p in places)):
        at: Node = ops.number(0, i64)
        weight: Node = _number(1)
        counts: list[Node] = []
        for (i, w), n in zip(taps, space):
            i, real = _inside(i, n, padding, align)
            at = ops.add(ops.mul(at, ops.number(n, i64)), i)
            weight = ops.mul(weight, w)
            counts += [] if real is None else [real]
        index = ops.expand(ops.unsqueeze(at, 1), (*x.shape[:2], points))
        value = ops.cast(ops.gather(flat, index, 2, "within"), f32)
        if counts:
            real = ops.unsqueeze(reduce(ops.logical_and, counts), 1)
            value = ops.where(real, value, _number(0))
        part = ops.mul(value, ops.unsqueeze(weight, 1) if weight.rank else weight)
        total = part if total is None else ops.add(total, part)
    assert total is not None
    return ops.cast(total, x.dtype)


@translation("GridSample")
def grid_sample(c: Context, x: Node, grid: Node) -> Node:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        c.get("mode", "linear"), c.get("mode", "linear")
    )
    align, padding = bool(c.get("align_corners", 0)), c.get("padding_mode", "zeros")
    space = static(x.shape[2:], "GridSample")
    points = reduce(lambda a, b: a * b, grid.shape[1:-1], 1)
    rows = ops.cast(ops.reshape(grid, (grid.shape[0], points, len(space))), f32)
    parts = ops.split(rows, [1] * len(space), 2)
    places = []
    for n, part in zip(space, reversed(parts)):  # the last axis of the image comes first
        g = ops.add(ops.reshape(part, (grid.shape[0], points)), _number(1))
        if align:
            places.append(ops.mul(g, _number((n - 1) / 2)))
        else:
            places.append(ops.sub(ops.mul(g, _number(n / 2)), _number(0.5)))
    y = sampled(x, places, mode, padding, align)
    return ops.reshape(y, (*x.shape[:2], *grid.shape[1:-1]))


@translation("RoiAlign")
def roi_align(c: Context, x: Node, rois: Node, batches: Node) -> Node:
    height, width = c.get("output_height", 1), c.get("output_width", 1)
    ratio, mode = c.get("sampling_ratio", 0), c.get("mode", "avg")
    if ratio <= 0:
        c.refuse("sampling_ratio=0 lets the data decide how many samples there are")
    default = "half_pixel" if c.opset >= 16 else "output_half_pixel"
    half = c.get("coordinate_transformation_mode", default) == "half_pixel"
    scale = _number(c.get("spatial_scale", 1.0))
    (count,) = static(rois.shape[:1], "RoiAlign")
    size = static(x.shape[2:], "RoiAlign")
    corners = ops.mul(ops.cast(rois, f32), scale)
    if half:
        corners = ops.sub(corners, _number(0.5))
    left, top, right, bottom = (ops.reshape(p, (count, 1)) for p in ops.split(corners, [1] * 4, 1))
    lines = []
    for low, high, bins in ((top, bottom, height), (left, right, width)):
        span = ops.sub(high, low)
        if not half:
            span = ops.maximum(span, _number(1))
        step = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
        lines.append(ops.add(low, ops.mul(span, c.weight(step.astype(np.float32), 1))))
    ys, xs = lines  # [rois, samples of an axis]
    rows, columns = height * ratio, width * ratio
    whole = (count, rows, columns)
    ys = ops.expand(ops.unsqueeze(ys, 2), whole)
    xs = ops.expand(ops.unsqueeze(xs, 1), whole)
    real: Node | None = None
    taps = []
    for at, n in ((ys, size[0]), (xs, size[1])):
        inside = ops.logical_and(ops.ge(at, _number(-1)), ops.le(at, _number(n)))
        real = inside if real is None else ops.logical_and(real, inside)
        at = ops.minimum(ops.maximum(at, _number(0)), _number(n - 1))
        taps.append((_taps(at, "linear"), n))
    channels = x.shape[1]
    planes = ops.reshape(ops.take(x, batches, 0), (count, channels, size[0] * size[1]))
    parts = []
    for (i, wi), (j, wj) in product(taps[0][0], taps[1][0]):
        i, _ = _inside(i, size[0], "border", False)
        j, _ = _inside(j, size[1], "border", False)
        flat = ops.reshape(
            ops.add(ops.mul(i, ops.number(size[1], i64)), j), (count, 1, rows * columns)
        )
        index = ops.expand(flat, (count, channels, rows * columns))
        value = ops.cast(ops.gather(planes, index, 2, "within"), f32)
        weight = ops.reshape(ops.mul(wi, wj), (count, 1, rows * columns))
        parts.append(ops.mul(value, weight))
    assert real is not None
    how = ops.maximum if mode == "max" else ops.add
    found = reduce(how, parts)
    found = ops.where(ops.reshape(real, (count, 1, rows * columns)), found, _number(0))
    bins = ops.reshape(found, (count, channels, height, ratio, width, ratio))
    pooled = ops.amax(bins, (3, 5)) if mode == "max" else ops.mean(bins, (3, 5))
    return ops.cast(pooled, x.dtype)


@translation("DeformConv")
def deform_conv(
    c: Context,
    x: Node,
    w: Node,
    offset: Node,
    bias: Node | None = None,
    mask: Node | None = None,
) -> Node:
    """Every tap of every window is read where its offset says, then all are one product."""
    if x.rank != 4:
        c.refuse(f"images of {x.rank - 2} axes have no native form")
    kernel, space = static(w.shape[2:], "DeformConv"), static(offset.shape[2:], "DeformConv")
    n, channels = static(x.shape[:2], "DeformConv")
    stride, dilation = c.get("strides", [1, 1]), c.get("dilations", [1, 1])
    pads, groups, parts = c.get("pads", [0] * 4), c.get("group", 1), c.get("offset_group", 1)
    taps, windows = kernel[0] * kernel[1], space[0] * space[1]
    moves = ops.reshape(ops.cast(offset, f32), (n, parts, taps, 2, windows))
    inner = channels // parts
    # Where each tap of each window lies without its offset, [axis][taps, windows].
    tap, window = np.indices(kernel).reshape(2, -1, 1), np.indices(space).reshape(2, 1, -1)
    read: list[Node] = []
    for part in range(parts):
        places = []
        for axis in range(2):
            at = tap[axis] * dilation[axis] + window[axis] * stride[axis] - pads[axis]
            move = ops.slice(ops.slice(moves, 1, part, part + 1), 3, axis, axis + 1)
            still = c.weight(at.reshape(-1).astype(np.float32), 1)
            places.append(ops.add(ops.reshape(move, (n, taps * windows)), still))
        image = ops.slice(x, 1, part * inner, (part + 1) * inner)
        value = sampled(image, places, "linear", "zeros", False)
        value = ops.reshape(value, (n, inner, taps, windows))
        if mask is not None:
            factor = ops.reshape(mask, (n, parts, taps, windows))
            value = ops.mul(value, ops.slice(factor, 1, part, part + 1))
        read.append(value)
    columns = ops.reshape(ops.concat(read, 1), (n, groups, channels // groups * taps, windows))
    results = static(w.shape[:1])[0]
    rows = ops.reshape(w, (groups, results // groups, channels // groups * taps))
    y = ops.reshape(ops.matmul(rows, columns), (n, results, *space))
    return y if bias is None else ops.add(y, ops.reshape(bias, (results, 1, 1)))
