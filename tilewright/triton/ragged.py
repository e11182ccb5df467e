"""`triton.tools.ragged_tma`: descriptors of arrays that are slices of unequal length one after the
other. A block that reaches beyond the end of its slice reads zeros there and stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import Invalid, require
from tilewright.lang.tile.language.core import builtin, minimum, to_tensor
from tilewright.lang.tile.language.descriptors import TensorDescriptor, tensor_descriptor
from tilewright.lang.tile.language.types import int32, unwrap


def create_ragged_descriptor(
    T: Any, block_shape: Sequence[int], ragged_dim: int = 0
) -> TensorDescriptor:
    """A descriptor of an array whose axis `ragged_dim` holds the slices."""
    rank = len(T.shape)
    axis = ragged_dim + rank if ragged_dim < 0 else ragged_dim
    require(len(block_shape) == rank, "a block of another rank than its tensor")
    require(0 <= axis < rank - 1, f"ragged_dim={ragged_dim}", hint="the last axis is not ragged")
    return TensorDescriptor(T, list(T.shape), list(T.stride()), list(block_shape))


def _slice(
    what: str, TMA: Any, offset: Any, size: Any, coords: Any, axis: Any
) -> tuple[tensor_descriptor, list[Any]]:
    """The array up to the end of a slice, and where a block of it begins."""
    if not isinstance(TMA, tensor_descriptor):
        raise Invalid(f"{what} of {TMA}", hint="give it what create_ragged_descriptor made")
    at = list(unwrap(coords))
    k = unwrap(axis)
    if len(at) != len(TMA.block_shape):
        raise Invalid(f"{what}: {len(at)} values for {len(TMA.block_shape)} axes")
    shape = list(TMA.shape)
    end = to_tensor(offset) + size
    shape[k] = minimum(end.to(int32), shape[k].to(int32))
    at[k] = to_tensor(offset) + at[k]
    limited = TMA.up_to(shape)
    return limited, at


@builtin
def load_ragged(TMA: Any, slice_off: Any, slice_size: Any, coords: Any, ragged_dim: Any = 0) -> Any:
    """The block at these places of a slice."""
    of, at = _slice("load_ragged", TMA, slice_off, slice_size, coords, ragged_dim)
    return of.load(at)


@builtin
def store_ragged(
    TMA: Any,
    slice_off: Any,
    slice_size: Any,
    coords: Any,
    data: Any,
    ragged_dim: Any = 0,
) -> None:
    of, at = _slice("store_ragged", TMA, slice_off, slice_size, coords, ragged_dim)
    of.store(at, data)


@builtin
def atomic_add_ragged(
    TMA: Any,
    slice_off: Any,
    slice_size: Any,
    coords: Any,
    data: Any,
    ragged_dim: Any = 0,
) -> None:
    of, at = _slice("atomic_add_ragged", TMA, slice_off, slice_size, coords, ragged_dim)
    of.atomic_add(at, data)


__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged"]
