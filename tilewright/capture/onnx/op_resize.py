"""Resizing images. The places and weights of the elements that each result is made of depend on
sizes and settings only: they are computed here, axis by axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, static, translation
from tilewright.capture.onnx.elements import ELEMENT_OF
from tilewright.ir.node import Node
from tilewright.ir.types import f32

MANY = 8  # elements of a result from which a product of matrices is better than their sum


@dataclass(frozen=True)
class _Axis:
    """From n elements to m, by a scale that need not be their quotient."""

    n: int
    m: int
    scale: float
    start: float = 0.0  # the region of interest, in parts of the axis
    end: float = 1.0

    def places(self, c: Context, how: str) -> np.ndarray:
        """Where each result lies among the elements."""
        o = np.arange(self.m, dtype=np.float64)
        if how == "half_pixel" or (how == "pytorch_half_pixel" and self.m > 1):
            return (o + 0.5) / self.scale - 0.5
        if how == "pytorch_half_pixel":
            return np.zeros(self.m)
        if how == "half_pixel_symmetric":
            adjustment = self.m / (self.scale * self.n)
            return self.n / 2 * (1 - adjustment) + (o + 0.5) / self.scale - 0.5
        if how == "align_corners":
            # By the size that the scale says, which need not be whole.
            size = self.scale * self.n
            return o * (self.n - 1) / (size - 1) if size != 1 else np.zeros(self.m)
        if how == "asymmetric":
            return o / self.scale
        if how == "tf_half_pixel_for_nn":
            return (o + 0.5) / self.scale
        if how == "tf_crop_and_resize":
            span = self.n - 1
            if self.m > 1:
                return self.start * span + o * (self.end - self.start) * span / (self.m - 1)
            return np.full(self.m, 0.5 * (self.start + self.end) * span)
        c.refuse(f"coordinate_transformation_mode={how!r} is not known")


def _nearest(c: Context, x: np.ndarray, how: str) -> np.ndarray:
    if how == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if how == "round_prefer_ceil":
        return np.floor(x + 0.5)
    if how in ("floor", "ceil"):
        return np.floor(x) if how == "floor" else np.ceil(x)
    c.refuse(f"nearest_mode={how!r} is not known")


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _taps(c: Context, axis: _Axis, x: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """For each result the places and weights of the elements it is the sum of, [taps, m]."""
    if mode == "nearest":
        at = _nearest(c, x, c.get("nearest_mode", "round_prefer_floor"))[None]
        weights = np.ones_like(at)
    elif mode in ("linear", "cubic"):
        # Antialiasing widens what is averaged where the image gets smaller.
        shrink = min(axis.scale, 1.0) if c.get("antialias", 0) else 1.0
        reach = int(np.ceil((1 if mode == "linear" else 2) / shrink))
        at = np.floor(x) + np.arange(1 - reach, reach + 1)[:, None]
        distance = (at - x) * shrink
        if mode == "linear":
            weights = np.clip(1 - np.abs(distance), 0, 1)
        else:
            weights = _cubic(distance, c.get("cubic_coeff_a", -0.75))
        if shrink != 1.0:
            weights = weights / weights.sum(0)
    else:
        c.refuse(f"mode={mode!r} is not known")
    if c.get("exclude_outside", 0):
        weights = np.where((at >= 0) & (at < axis.n), weights, 0)
        weights = weights / weights.sum(0)
    return np.clip(at, 0, axis.n - 1).astype(np.int64), weights


def _along(c: Context, x: Node, k: int, places: np.ndarray, weights: np.ndarray) -> Node:
    """Sums of elements along an axis."""
    count, m = places.shape
    if count == 1 and np.all(weights == 1):
        return ops.take(x, c.weight(places[0], TensorProto.INT64), k, "within")
    element = ELEMENT_OF[x.dtype]
    if count > MANY:
        matrix = np.zeros((static(x.shape)[k], m))
        np.add.at(matrix, (places, np.arange(m)[None]), weights)
        order = [a for a in range(x.rank) if a != k] + [k]
        y = ops.matmul(ops.permute(x, order), c.weight(matrix, element))
        return ops.permute(y, [order.index(a) for a in range(x.rank)])
    total: Node | None = None
    line = [m if a == k else 1 for a in range(x.rank)]
    for at, factor in zip(places, weights):
        taken = ops.take(x, c.weight(at, TensorProto.INT64), k, "within")
        part = ops.mul(taken, ops.reshape(c.weight(factor, element), line))
        total = part if total is None else ops.add(total, part)
    assert total is not None
    return total


def _resized(c: Context, x: Node, axes: dict[int, _Axis], mode: str, how: str) -> Node:
    whole = x if x.dtype.is_float or mode == "nearest" else ops.cast(x, f32)
    outside: Node | None = None
    for k, axis in axes.items():
        at = axis.places(c, how)
        if how == "tf_crop_and_resize":
            line = [axis.m if a == k else 1 for a in range(x.rank)]
            beyond = ((at < 0) | (at > axis.n - 1)).reshape(line)
            if beyond.any():
                mask = c.weight(beyond, TensorProto.BOOL)
                outside = mask if outside is None else ops.logical_or(outside, mask)
        if axis.m != axis.n or not np.array_equal(at, np.arange(axis.n)):
            whole = _along(c, whole, k, *_taps(c, axis, at, mode))
    if outside is not None:
        value = ops.number(c.get("extrapolation_value", 0.0), whole.dtype)
        whole = ops.where(outside, value, whole)
    if whole.dtype is not x.dtype:
        whole = ops.round(whole)
    return ops.cast(whole, x.dtype)


@translation("Resize", since=11)
def resize(
    c: Context,
    x: Node,
    roi: Node | None = None,
    scales: Node | None = None,
    sizes: Node | None = None,
) -> Node:
    along = [axis_in(c, a, x.rank) for a in c.get("axes", list(range(x.rank)))]
    shape = static([x.shape[k] for k in along], "Resize")
    how = c.get("coordinate_transformation_mode", "half_pixel")
    bounds = [0.0] * len(along) + [1.0] * len(along)
    if how == "tf_crop_and_resize" and roi is not None:
        bounds = [float(v) for v in c.numbers(roi).reshape(-1)]
    factors = _floats(c, scales)
    if sizes is not None:
        wanted = c.ints(sizes)
        factors = [m / n for m, n in zip(wanted, shape)]
        policy = c.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(factors)
            factors = [one] * len(factors)
            wanted = [int(one * n + 0.5) for n in shape]
    elif factors:
        wanted = [int(np.floor(n * s)) for n, s in zip(shape, factors)]
    else:
        c.refuse("neither scales nor sizes are given")
    axes = {
        k: _Axis(n, m, s, bounds[i], bounds[i + len(along)])
        for i, (k, n, m, s) in enumerate(zip(along, shape, wanted, factors))
    }
    return _resized(c, x, axes, c.get("mode", "nearest"), how)


def _floats(c: Context, x: Node | None) -> list[float]:
    return [] if x is None else [float(v) for v in c.numbers(x).reshape(-1)]


@translation("Upsample", "Resize")
def upsample(c: Context, x: Node, scales: Node | None = None) -> Node:
    """Before opset 11: by scales alone, counted from the corner, toward the element before."""
    factors: Sequence[float] = c.get("scales", []) or _floats(c, scales)
    shape = static(x.shape, c.op_type)
    axes = {k: _Axis(n, int(np.floor(n * s)), s) for k, (n, s) in enumerate(zip(shape, factors))}
    mode = {"bilinear": "linear"}.get(c.get("mode", "nearest"), c.get("mode", "nearest"))
    down = replace(c, attributes={**c.attributes, "nearest_mode": "floor"})
    return _resized(down, x, axes, mode, "asymmetric")
