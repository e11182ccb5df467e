"""Strides: how a tensor of torch lies in memory, and the operators that say so.

Native code reads and writes contiguous memory. A dense tensor whose axes are permuted is contiguous
memory seen through a permutation; a broadcast one is smaller memory expanded; anything else is a
flat run of memory and `as_strided`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.capture.torch.values import Complex, parted
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node, input
from tilewright.ir.types import DType, TensorType


def contiguous(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Row-major strides as torch counts them: an axis of size 0 counts as 1."""
    out: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        out.append(step)
        step = step * (D.maximum(d, 1))
    return tuple(reversed(out))


@dataclass(frozen=True)
class Dense:
    """Axes in the order of memory, outermost first; axes in `broadcast` have stride 0 and are not
    in memory.
    """

    order: tuple[int, ...]
    broadcast: tuple[int, ...] = ()


def dense(shape: Sequence[Dim], stride: Sequence[Dim]) -> Dense | None:
    """How the strides are a permutation (and expansion) of contiguous memory; None where there are
    gaps.
    """
    if any(isinstance(d, int) and d == 0 for d in shape):
        return Dense(tuple(range(len(shape))))
    if is_contiguous(shape, stride):
        return Dense(tuple(range(len(shape))))
    big = [k for k, d in enumerate(shape) if not (isinstance(d, int) and d == 1)]
    broadcast = tuple(k for k in big if isinstance(stride[k], int) and stride[k] == 0)
    ones = [k for k in range(len(shape)) if k not in big]
    guess = [_guess(s) for s in stride]
    moving = sorted((k for k in big if k not in broadcast), key=lambda k: (-guess[k], k))
    step: Dim = 1
    for k in reversed(moving):
        if not D.known_eq(stride[k], step):
            return None
        step = step * shape[k]
    return Dense((*ones, *moving), broadcast)


def packed(shape: Sequence[Dim], stride: Sequence[Dim]) -> tuple[Dense, tuple[Dim, ...]]:
    """Memory with the axes in the order of the strides and without gaps, and its strides."""
    how = dense(shape, stride)
    if how is not None:
        return how, tuple(stride)
    broadcast = tuple(k for k, s in enumerate(stride) if isinstance(s, int) and s == 0)
    stored = (k for k in range(len(shape)) if k not in broadcast)
    order = tuple(sorted(stored, key=lambda k: (-_guess(stride[k]), k)))
    steps = dict(zip(order, contiguous([shape[k] for k in order]), strict=True))
    return Dense(order, broadcast), tuple(steps.get(k, 0) for k in range(len(shape)))


def _guess(s: Dim) -> int:
    """Orders strides by size: each symbol counts as some number of its range."""
    if isinstance(s, int):
        return s
    return int(D.evaluate(s, {x.name: max(D.bounds(D.as_int(x))[0], 3) for x in D.symbols(s)}))


def is_contiguous(shape: Sequence[Dim], stride: Sequence[Dim]) -> bool:
    step: Dim = 1
    for d, s in zip(reversed(shape), reversed(stride)):
        if isinstance(d, int) and d == 1:
            continue
        if not D.known_eq(s, step):
            return False
        step = step * d
    return True


def extent(shape: Sequence[Dim], stride: Sequence[Dim]) -> Dim:
    """Elements from the first to the last one that the strides reach."""
    total: Dim = 1
    for d, s in zip(shape, stride):
        total = total + (d - 1) * s
    return total


def memory_shape(shape: Sequence[Dim], how: Dense) -> tuple[Dim, ...]:
    return tuple(shape[k] for k in how.order)


def from_memory(x: Node, shape: Sequence[Dim], how: Dense) -> Node:
    """The tensor of `shape` that the memory `x` (of memory_shape) is."""
    order = list(how.order)
    if order != sorted(order):
        x = ops.permute(x, tuple(sorted(range(len(order)), key=lambda j: order[j])))
    if not how.broadcast:
        return x
    for k in sorted(how.broadcast):
        x = ops.reshape(x, (*x.shape[:k], 1, *x.shape[k:]))
    return ops.expand(x, tuple(shape))


def to_memory(x: Node, how: Dense) -> Node:
    """`x` in the order of memory; a broadcast axis has one element there."""
    for k in sorted(how.broadcast, reverse=True):
        x = ops.slice(x, k, 0, 1, 1)
        x = ops.reshape(x, (*x.shape[:k], *x.shape[k + 1 :]))
    stored = [k for k in range(x.rank + len(how.broadcast)) if k not in how.broadcast]
    place = {k: j for j, k in enumerate(stored)}
    perm = tuple(place[k] for k in how.order)
    return x if perm == tuple(range(len(perm))) else ops.permute(x, perm)


def read_slot(
    slot: str,
    dtype: DType,
    shape: tuple[Dim, ...],
    stride: tuple[Dim, ...],
    paired: bool,
    role: str = "arg",
) -> Node | Complex:
    """The tensor in a slot, as it lies in memory and as torch sees it."""
    if paired:
        shape, stride = (*shape, 2), (*(2 * s for s in stride), 1)
    how = dense(shape, stride)
    if how is not None:
        memory = input(slot, TensorType(dtype, memory_shape(shape, how)), role)
        x = from_memory(memory, shape, how)
    else:
        flat = input(slot, TensorType(dtype, (extent(shape, stride),)), role)
        x = ops.as_strided(flat, shape, stride, 0)
    return parted(x) if paired else x
