"""Row-major positions: an index and its place in the flattened tensor, over symbolic dims."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim

Shape = tuple[Dim, ...]


def product(dims: Sequence[Dim]) -> Dim:
    out: Dim = 1
    for d in dims:
        out = out * d
    return out


def static(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Dims that are plain numbers, as numbers."""
    assert all(isinstance(d, int) for d in dims), f"{dims} is not static"
    return tuple(d for d in dims if isinstance(d, int))


def may_equal(a: Dim, b: Dim) -> bool:
    """Not proved different: symbolic sizes come with guards that this level does not see."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return D.known_eq(a, b) or not D.known_ne(a, b)


def contiguous_strides(shape: Sequence[Dim]) -> Shape:
    return tuple(product(shape[k + 1 :]) for k in range(len(shape)))


def linear_index(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The row-major position of an index."""
    return strided_position(index, contiguous_strides(shape), 0)


def strided_position(index: Sequence[Dim], strides: Sequence[Dim], offset: Dim) -> Dim:
    total = offset
    for i, s in zip(index, strides, strict=True):
        total = total + i * s
    return total


def split_index(position: Dim, shape: Sequence[Dim]) -> Shape:
    """The index at a row-major position that is in range: the outermost axis takes what is left."""
    if any(D.known_eq(d, 0) for d in shape):
        return (0,) * len(shape)  # an empty tensor: nothing is ever read
    out: list[Dim] = [0] * len(shape)
    wide = [k for k, d in enumerate(shape) if not D.known_eq(d, 1)]
    for k in reversed(wide):
        if k == wide[0]:
            out[k] = position
        else:
            out[k] = D.mod(position, shape[k])
            position = D.floordiv(position, shape[k])
    return tuple(out)


def matching_groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[range, range]] | None:
    """Shortest runs of axes of equal size in both shapes; None where symbolic sizes differ."""
    out: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        i0, j0 = i, j
        p, q = a[i], b[j]
        i, j = i + 1, j + 1
        while not D.known_eq(p, q):
            if j < len(b) and (D.known_le(q, p) or i == len(a)):
                q, j = q * b[j], j + 1
            elif i < len(a):
                p, i = p * a[i], i + 1
            else:
                return None
        out.append((range(i0, i), range(j0, j)))
    if any(not D.known_eq(d, 1) for d in (*a[i:], *b[j:])):
        return None
    if i < len(a) or j < len(b):
        out.append((range(i, len(a)), range(j, len(b))))
    return out


def reshape_index(index: Sequence[Dim], shape: Sequence[Dim], source: Sequence[Dim]) -> Shape:
    """Where element `index` of `shape` lies in the `source` shape of equal size."""
    if any(D.known_eq(d, 0) for d in (*shape, *source)):
        return (0,) * len(source)
    groups = matching_groups(source, shape) or [(range(len(source)), range(len(shape)))]
    out: list[Dim] = []
    for src, dst in groups:
        position = linear_index([index[k] for k in dst], [shape[k] for k in dst])
        out.extend(split_index(position, [source[k] for k in src]))
    return tuple(out)
