"""Tensors from nothing, or from settings alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright import ops
from tilewright.capture.onnx.casts import cast_to
from tilewright.capture.onnx.context import Context, Value, axis_in, translation
from tilewright.capture.onnx.elements import (
    DTYPE_OF,
    ELEMENT_OF,
    Narrow,
    dtype_for,
    values_of,
)
from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.ir.types import f32, f64, i64


def _made(c: Context, array: np.ndarray, element: int) -> Value:
    n = c.weight(values_of(array, element), element)
    return n if element in DTYPE_OF else Narrow(n, element)


@translation("Constant", narrow=True)
def constant(c: Context) -> Value:
    for name, value in c.attributes.items():
        if name == "value":
            if value.data_type == TensorProto.STRING:
                c.refuse("strings have no native form")
            return _made(c, numpy_helper.to_array(value), value.data_type)
        if name in ("value_float", "value_floats"):
            return _made(c, np.array(value, np.float32), TensorProto.FLOAT)
        if name in ("value_int", "value_ints"):
            return _made(c, np.array(value, np.int64), TensorProto.INT64)
        if name == "sparse_value":
            return _made(c, *_dense(value))
    c.refuse("it has no value that has a native form")


def _dense(sparse: onnx.SparseTensorProto) -> tuple[np.ndarray, int]:
    values, where = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    out = np.zeros(tuple(sparse.dims), values.dtype)
    out[tuple(where.T) if where.ndim > 1 else np.unravel_index(where, out.shape)] = values
    return out, sparse.values.data_type


@translation("ConstantOfShape", narrow=True)
def constant_of_shape(c: Context, shape: Node) -> Value:
    given = c.attributes.get("value")
    element = TensorProto.FLOAT if given is None else given.data_type
    value: Any = 0
    if given is not None:
        value = values_of(numpy_helper.to_array(given), element).reshape(-1)[0].item()
    n = ops.full(c.dims(shape), value, dtype_for(element))
    return n if element in DTYPE_OF else Narrow(n, element)


@translation("Range")
def range_of(c: Context, start: Node, limit: Node, delta: Node) -> Node:
    if start.dtype.is_int:
        (first,), (end,), step = c.dims(start), c.dims(limit), c.one(delta)
        if step > 0:
            return ops.iota(D.maximum(0, D.ceildiv(end - first, step)), first, step, start.dtype)
    a, b, s = (c.numbers(v).reshape(-1)[0].item() for v in (start, limit, delta))
    count = max(0, math.ceil((b - a) / s))
    return ops.iota(count, a, s, start.dtype)


@translation("EyeLike")
def eye_like(c: Context, x: Node) -> Node:
    dtype = dtype_for(c.attributes["dtype"]) if "dtype" in c.attributes else x.dtype
    rows = ops.reshape(ops.iota(x.shape[0]), (x.shape[0], 1))
    gap = ops.sub(ops.iota(x.shape[1]), rows)
    return ops.cast(ops.eq(gap, ops.number(c.get("k", 0), i64)), dtype)


@translation("OneHot")
def one_hot(c: Context, places: Node, depth: Node, values: Node) -> Node:
    n = int(c.numbers(depth).reshape(-1)[0])
    rank = places.rank + 1
    axis = axis_in(c, c.get("axis", -1), rank)
    at = ops.cast(places, i64)
    at = ops.where(ops.lt(at, ops.number(0, i64)), ops.add(at, ops.number(n, i64)), at)
    line = ops.reshape(ops.iota(n), [n if k == axis else 1 for k in range(rank)])
    off, on = (ops.reshape(ops.slice(values, 0, k, k + 1), ()) for k in (0, 1))
    return ops.where(ops.eq(ops.unsqueeze(at, axis), line), on, off)


def _window(c: Context, size: Node, terms: tuple[float, ...]) -> Value:
    """A sum of cosines over a period."""
    n = c.one(size)
    period = n if c.get("periodic", 1) else n - 1
    at = ops.iota(n, 0, 1, f64)
    total = ops.number(terms[0], f64)
    for k, factor in enumerate(terms[1:], 1):
        angle = ops.mul(at, ops.number(2 * math.pi * k / max(period, 1), f64))
        total = ops.add(total, ops.mul(ops.cos(angle), ops.number(factor, f64)))
    return cast_to(c, ops.cast(total, f32), c.get("output_datatype", TensorProto.FLOAT))


@translation("HannWindow")
def hann(c: Context, size: Node) -> Value:
    return _window(c, size, (0.5, -0.5))


@translation("HammingWindow")
def hamming(c: Context, size: Node) -> Value:
    return _window(c, size, (25 / 46, -21 / 46))


@translation("BlackmanWindow")
def blackman(c: Context, size: Node) -> Value:
    return _window(c, size, (0.42, -0.5, 0.08))


@translation("MelWeightMatrix")
def mel_weight_matrix(
    c: Context, bins: Node, length: Node, rate: Node, lower: Node, upper: Node
) -> Value:
    mels, size = c.one(bins), c.one(length)
    low, high = (float(c.numbers(v).reshape(-1)[0]) for v in (lower, upper))
    first, last = (2595 * np.log10(1 + f / 700) for f in (low, high))
    # The last edge is not reached: a step is one of as many parts as there are edges.
    edges = np.linspace(first, last, mels + 2, endpoint=False)
    hertz = 700 * (10 ** (edges / 2595) - 1)
    places = ((size + 1) * hertz // c.one(rate)).astype(int)
    out = np.zeros((size // 2 + 1, mels))
    for k in range(mels):
        a, centre, b = places[k : k + 3]
        if centre == a:
            out[centre, k] = 1
        else:
            out[a : centre + 1, k] = (np.arange(a, centre + 1) - a) / (centre - a)
        if b > centre:
            out[centre:b, k] = (b - np.arange(centre, b)) / (b - centre)
    element = c.get("output_datatype", TensorProto.FLOAT)
    return c.weight(out.astype(dtype_for(element).numpy), ELEMENT_OF[dtype_for(element)])
