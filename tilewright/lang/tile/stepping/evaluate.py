"""What each operation of a tile kernel means, on numpy arrays.

These are the operations without effects. Arrays represent elements as ir/types.py says (bfloat16
and floats of 8 bits as float32 that was rounded), pointers as int64, addresses in bytes. Inside the
function of a reduction, scalars stand for many lanes: what works element by element takes its shape
from its arguments and not from types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.scalar import applied
from tilewright.ir.types import DType, as_dtype, clamped
from tilewright.lang.tile.ir import Element, Pointer, TileType
from tilewright.lang.tile.stepping.raw_memory import from_bits, to_bits

Arrays = Sequence[np.ndarray]

# Work element by element: they mean the same for many lanes at once.
ELEMENTWISE = frozenset(("const", "map", "cast", "bitcast", "offset"))


def evaluate(
    name: str,
    arrays: Arrays,
    given: Sequence[TileType],
    types: Sequence[TileType],
    attrs: Mapping[str, Any],
) -> tuple[np.ndarray, ...]:
    """The results (of `types`) of an operation on arrays (of the types `given`)."""
    rule = _MEANING.get(name)
    if rule is None:
        raise Invalid(f"{name} is no operation that works without a program or memory")
    with np.errstate(all="ignore"):
        return tuple(np.asarray(x) for x in rule(arrays, given, types, attrs))


def is_pure(name: str) -> bool:
    return name in _MEANING


def holds(element: Element) -> np.dtype:
    """The numpy dtype that holds an element or a pointer."""
    return np.dtype(np.int64) if isinstance(element, Pointer) else element.numpy


def as_element(x: Any, element: Element) -> np.ndarray:
    """`x` in the numpy dtype of its elements; Python integers of any size wrap."""
    if isinstance(element, Pointer):
        return np.asarray(x, np.int64)
    if isinstance(x, int) and element.is_int:
        x = x & ((1 << element.bits) - 1)
        return np.asarray(x, f"u{element.bytes}").view(element.numpy)
    return as_dtype(np.asarray(x), element)


def cast(x: np.ndarray, source: DType, target: DType, rounding: str = "rtne") -> np.ndarray:
    if source is target:
        return x
    if target.is_bool:
        return x != 0
    if source.is_float and target.is_int:
        return _cut(x, target)
    if rounding == "rtz" and source.is_float and target.is_float and target.bits < source.bits:
        return _toward_zero(clamped(x, target), target)
    return as_dtype(clamped(x, target), target)


def _toward_zero(x: np.ndarray, target: DType) -> np.ndarray:
    """Floats to narrower ones, cut instead of rounded to the nearest."""
    rounded = as_dtype(x, target)
    over = np.abs(rounded.astype(np.float64)) > np.abs(x.astype(np.float64))
    # One less in magnitude is one less as bits, for the sign stands by itself.
    return from_bits(to_bits(rounded, target) - over.astype(f"u{target.bytes}"), target)


def _cut(x: np.ndarray, target: DType) -> np.ndarray:
    """Floats to integers: without their fraction, wrapped where they do not fit."""
    whole = np.where(np.isfinite(x), np.trunc(x), 0).astype(np.float64)
    if target.bits == 64 and target.kind == "u":
        upper = whole >= 2.0**63
        low = np.clip(np.where(upper, whole - 2.0**63, whole), -(2.0**63), 2.0**63 - 1024)
        bits = low.astype(np.int64).view(np.uint64)
        return np.where(upper, bits | np.uint64(1 << 63), bits)
    return np.clip(whole, -(2.0**63), 2.0**63 - 1024).astype(np.int64).astype(target.numpy)


def bits_of(x: np.ndarray, element: Element) -> np.ndarray:
    if isinstance(element, Pointer):
        return np.asarray(x, np.int64).view(np.uint64)
    return to_bits(x, element)


def _bitcast(x: np.ndarray, source: Element, target: Element) -> np.ndarray:
    bits = bits_of(x, source)
    return bits.view(np.int64) if isinstance(target, Pointer) else from_bits(bits, target)


def dot(a: np.ndarray, b: np.ndarray, c: np.ndarray, target: DType) -> np.ndarray:
    """Products and sums in the target's element: floats by way of float64, which is exact enough
    for each of them; integers exactly, then wrapped."""
    if target.is_float:
        r = np.matmul(a.astype(np.float64), b.astype(np.float64)) + c.astype(np.float64)
        return as_dtype(r, target)
    if a.dtype.itemsize < 4 and b.dtype.itemsize < 4:  # then sums are exact in float64, and fast
        r = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    else:
        r = np.matmul(a.astype(np.int64), b.astype(np.int64))
    return (r + c.astype(np.int64)).astype(target.numpy)


def _gather(x: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    n = x.shape[axis]
    bad = (index < 0) | (index >= n)
    if bad.any():
        worst = int(index[bad].flat[0])
        raise Invalid(
            f"gather takes element {worst} of an axis of {n}",
            hint=f"indices are 0 to {n - 1}; mask the others before you gather",
        )
    return np.take_along_axis(x, index.astype(np.int64), axis)


def _histogram(arrays: Arrays, n: int) -> np.ndarray:
    x = arrays[0].astype(np.int64)
    inside = (x >= 0) & (x < n)
    if len(arrays) > 1:
        inside &= arrays[1]
    return np.bincount(x[inside], minlength=n).astype(np.int32)


def structural(
    name: str, arrays: Arrays, shapes: Sequence[tuple[int, ...]], attrs: Mapping[str, Any]
) -> tuple[np.ndarray, ...] | None:
    """Operations that only move elements, on whatever arrays; None for others."""
    if name == "broadcast":
        return (np.broadcast_to(arrays[0], shapes[0]),)
    if name == "reshape":
        return (arrays[0].reshape(shapes[0]),)
    if name == "permute":
        return (arrays[0].transpose(attrs["order"]),)
    if name == "join":
        return (np.stack(list(arrays), axis=-1),)
    if name == "split":
        return arrays[0][..., 0], arrays[0][..., 1]
    if name == "cat":
        return (np.concatenate(list(arrays), axis=0),)
    return None


STRUCTURAL = ("broadcast", "reshape", "permute", "join", "split", "cat")

Rule = Callable[
    [Arrays, Sequence[TileType], Sequence[TileType], Mapping[str, Any]], Sequence[np.ndarray]
]


def _moving(name: str) -> Rule:
    def rule(
        a: Arrays, _: Sequence[TileType], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[np.ndarray]:
        moved = structural(name, a, [t.shape for t in types], attrs)
        assert moved is not None
        return moved

    return rule


def _const(
    a: Arrays, given: Sequence[TileType], types: Sequence[TileType], attrs: Mapping[str, Any]
) -> Sequence[np.ndarray]:
    (t,) = types
    return (np.full(t.shape, as_element(attrs["value"], t.element), holds(t.element)),)


_MEANING: dict[str, Rule] = {
    "const": _const,
    "iota": lambda a, g, t, k: (
        np.arange(k.get("start", 0), k.get("start", 0) + t[0].shape[0], dtype=np.int32),
    ),
    "map": lambda a, g, t, k: (applied(k["fn"], a, t[0].dtype),),
    "cast": lambda a, g, t, k: (cast(a[0], g[0].dtype, t[0].dtype, k.get("rounding") or "rtne"),),
    "bitcast": lambda a, g, t, k: (_bitcast(a[0], g[0].element, t[0].element),),
    "offset": lambda a, g, t, k: (a[0] + a[1].astype(np.int64) * stride(t[0].element),),
    "gather": lambda a, g, t, k: (_gather(a[0], a[1], k["axis"]),),
    "dot": lambda a, g, t, k: (dot(a[0], a[1], a[2], t[0].dtype),),
    "histogram": lambda a, g, t, k: (_histogram(a, t[0].shape[0]),),
    **{name: _moving(name) for name in STRUCTURAL},
}


def stride(pointer: Element) -> int:
    """Bytes from one element to the next."""
    assert isinstance(pointer, Pointer)
    return pointer.to.bytes
