"""What convolutions and their gradients share: checks, settings per spatial axis, references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as cartesian

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node
from tilewright.ir.positions import Shape, may_equal, static
from tilewright.ir.types import DType, TensorType
from tilewright.ops.shapes import same_dtype
from tilewright.ops.views import pad

Ints = tuple[int, ...]


def check_conv(
    what: str, x: TensorType, w: TensorType, groups: int, channel: int, *settings: Sequence[Dim]
) -> None:
    """Ranks, attribute lengths, dtype; `channel` is the axis of w that is contracted with x's
    channels."""
    same_dtype(what, x, w)
    n = x.rank - 2
    require(
        1 <= n <= 3 and w.rank == x.rank,
        f"{what}: {x!r} and weight {w!r} need 3 to 5 axes, batch and channels first",
        hint="reshape an unbatched input to a batch of one",
    )
    for s in settings:
        require(
            len(s) == n, f"{what}: {tuple(s)} has {len(s)} entries for {n} spatial axes of {x!r}"
        )
    c, own = x.shape[1], w.shape[channel]
    want = own * groups if channel == 1 else own
    require(
        groups > 0 and may_equal(c, want) and D.known_eq(D.mod(w.shape[0], groups), 0),
        f"{what}: {c} channels of {x!r} do not fit weight {w!r} in {groups} groups",
    )


def want_positive(what: str, name: str, values: Sequence[int]) -> None:
    require(all(v > 0 for v in values), f"{what}: {name} {tuple(values)} has to be positive")


def summed_dtype(dtype: DType, wide: bool) -> DType:
    return dtype.accumulator if wide else dtype


def wide_value(x: Tensor, at: tuple[Dim, ...]) -> Value:
    return E.cast(x[at], x.dtype.accumulator)


def group_of(channel: Dim, channels: Dim, groups: int) -> Dim:
    """The group of a channel, as an index function."""
    if groups == 1 or D.known_eq(channels, 0):
        return 0
    return D.floordiv(channel, D.floordiv(channels, groups))


def pad_space(x: Node, lo: Sequence[Dim], hi: Sequence[Dim]) -> Node:
    return pad(x, (0, 0, *lo), (0, 0, *hi), 0)


def per_axis(v: Sequence[Dim] | Dim, n: int) -> Shape:
    """One setting for every spatial axis, where a single one is given."""
    given = tuple(v) if isinstance(v, Sequence) else (v,)
    return given * n if len(given) == 1 else given


def per_axis_ints(v: Sequence[int] | int, n: int) -> Ints:
    return static(per_axis(v, n))


# ---- references: loops over windows, in float64


def _steps(
    inner: Ints, outer: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """(position, kernel tap, place in the outer tensor) for every pair that reads real data, not
    padding."""
    for p in cartesian(*map(range, inner)):
        for k in cartesian(*map(range, kernel)):
            at = tuple(
                i * s + j * d - pad
                for i, s, j, d, pad in zip(p, stride, k, dilation, padding, strict=True)
            )
            if all(0 <= a < n for a, n in zip(at, outer, strict=True)):
                yield p, k, at


def _per_group(a: np.ndarray, groups: int, axis: int) -> np.ndarray:
    """The channel axis split into (group, channel within it), in a dtype that does not overflow."""
    shape = a.shape[:axis] + (groups, a.shape[axis] // groups) + a.shape[axis + 1 :]
    return a.astype(np.float64 if a.dtype.kind == "f" else a.dtype).reshape(shape)


def numpy_conv(
    x: np.ndarray, w: np.ndarray, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> np.ndarray:
    sizes = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    )
    xs, ws = _per_group(x, groups, 1), _per_group(w, groups, 0)
    out = np.zeros((x.shape[0], groups, w.shape[0] // groups, *sizes), xs.dtype)
    for p, k, at in _steps(sizes, x.shape[2:], w.shape[2:], stride, padding, dilation):
        out[(..., *p)] += np.einsum("ngc,goc->ngo", xs[(..., *at)], ws[(..., *k)])
    return out.reshape(x.shape[0], w.shape[0], *sizes).astype(x.dtype)


def numpy_spread(
    x: np.ndarray,
    w: np.ndarray,
    shape: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> np.ndarray:
    """Each element of x adds its multiple of the kernel to the output."""
    xs, ws = _per_group(x, groups, 1), _per_group(w, groups, 0)
    out = np.zeros((shape[0], groups, shape[1] // groups, *shape[2:]), xs.dtype)
    for p, k, at in _steps(x.shape[2:], shape[2:], w.shape[2:], stride, padding, dilation):
        out[(..., *at)] += np.einsum("ngc,gco->ngo", xs[(..., *p)], ws[(..., *k)])
    return out.reshape(shape).astype(x.dtype)


def numpy_weight(
    inner: np.ndarray,
    outer: np.ndarray,
    shape: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> np.ndarray:
    xs, gs = _per_group(outer, groups, 1), _per_group(inner, groups, 1)
    out = np.zeros((groups, shape[0] // groups, *shape[1:]), xs.dtype)
    for p, k, at in _steps(inner.shape[2:], outer.shape[2:], shape[2:], stride, padding, dilation):
        out[(..., *k)] += np.einsum("ngo,ngc->goc", gs[(..., *p)], xs[(..., *at)])
    return out.reshape(shape).astype(outer.dtype)
