"""Fourier transforms, frames of signals, columns put back to images."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.context import Context, axis_in, static, translation
from tilewright.capture.onnx.elements import ELEMENT_OF
from tilewright.ir.node import Node


def _transform(c: Context, x: Node, n: int, inverse: bool, onesided: bool) -> Node:
    """x[…, n, 1 or 2] as […, m, 2], by a product with the matrix of the transform."""
    rows, count = np.arange(n)[:, None], (n // 2 + 1 if onesided and not inverse else n)
    angle = 2 * np.pi * (rows * np.arange(count) % n) / n * (1 if inverse else -1)
    wave = np.exp(1j * angle) / (n if inverse else 1)
    element = ELEMENT_OF[x.dtype]
    parts = ops.split(x, [1] * static(x.shape[-1:], "DFT")[0], x.rank - 1)
    lines = [ops.reshape(p, x.shape[:-1]) for p in parts]
    cosines, sines = (c.weight(np.ascontiguousarray(v), element) for v in (wave.real, wave.imag))
    real, imaginary = ops.matmul(lines[0], cosines), ops.matmul(lines[0], sines)
    if len(lines) == 2:
        real = ops.sub(real, ops.matmul(lines[1], sines))
        imaginary = ops.add(imaginary, ops.matmul(lines[1], cosines))
    return ops.stack([real, imaginary], real.rank)


@translation("DFT")
def dft(c: Context, x: Node, length: Node | None = None, axis: Node | None = None) -> Node:
    if axis is not None:
        k = c.one(axis)
    else:
        k = c.get("axis", 1) if c.opset < 20 else -2
    k = axis_in(c, k, x.rank)
    (n,) = static((x.shape[k],), "DFT")
    wanted = n if length is None else c.one(length)
    inverse, onesided = bool(c.get("inverse", 0)), bool(c.get("onesided", 0))
    if inverse and onesided:
        half = static(x.shape[k : k + 1])[0]
        return _inverse_onesided(c, x, k, half, wanted if length is not None else 2 * (half - 1))
    if wanted < n:
        x = ops.slice(x, k, 0, wanted)
    elif wanted > n:
        after = [wanted - n if a == k else 0 for a in range(x.rank)]
        x = ops.pad(x, [0] * x.rank, after)
    order = [a for a in range(x.rank - 1) if a != k] + [k, x.rank - 1]
    y = _transform(c, ops.permute(x, order), wanted, inverse, onesided)
    return ops.permute(y, [order.index(a) for a in range(x.rank)])


def _inverse_onesided(c: Context, x: Node, k: int, half: int, n: int) -> Node:
    """Half of a spectrum whose other half is its mirror: a real signal of n numbers."""
    order = [a for a in range(x.rank - 1) if a != k] + [k, x.rank - 1]
    x = ops.permute(x, order)
    rows = np.arange(half)[:, None]
    angle = 2 * np.pi * (rows * np.arange(n) % n) / n
    twice = np.where((rows == 0) | (2 * rows == n), 1, 2) / n
    element = ELEMENT_OF[x.dtype]
    real, imaginary = (ops.reshape(p, x.shape[:-1]) for p in ops.split(x, [1, 1], x.rank - 1))
    y = ops.sub(
        ops.matmul(real, c.weight(np.cos(angle) * twice, element)),
        ops.matmul(imaginary, c.weight(np.sin(angle) * twice, element)),
    )
    return ops.permute(ops.unsqueeze(y, y.rank), [order.index(a) for a in range(x.rank)])


@translation("STFT")
def stft(
    c: Context, x: Node, step: Node, window: Node | None = None, length: Node | None = None
) -> Node:
    hop = c.one(step)
    (n,) = static(x.shape[1:2], "STFT")
    if length is not None:
        size = c.one(length)
    elif window is not None:
        (size,) = static(window.shape, "STFT")
    else:
        size = n
    frames = (n - size) // hop + 1
    at = np.arange(frames)[:, None] * hop + np.arange(size)
    x = x if x.rank == 3 else ops.unsqueeze(x, 2)
    cut = ops.take(x, c.weight(at.reshape(-1), TensorProto.INT64), 1, "within")
    cut = ops.reshape(cut, (x.shape[0], frames, size, x.shape[2]))
    if window is not None:
        cut = ops.mul(cut, ops.reshape(window, (size, 1)))
    return _transform(c, cut, size, False, bool(c.get("onesided", 1)))


@translation("Col2Im")
def col2im(c: Context, x: Node, image: Node, block: Node) -> Node:
    space, kernel = c.ints(image), c.ints(block)
    n = len(space)
    dilation, stride = c.get("dilations", [1] * n), c.get("strides", [1] * n)
    pads = c.get("pads", [0] * 2 * n)
    windows = [
        (space[k] + pads[k] + pads[n + k] - (kernel[k] - 1) * dilation[k] - 1) // stride[k] + 1
        for k in range(n)
    ]
    batch, rows, _ = static(x.shape, "Col2Im")
    parts = ops.reshape(x, (batch, rows // prod(kernel), *kernel, *windows))
    return ops.fold(parts, stride, dilation, pads[:n], space)
