"""Tiles with known elements, for tests of the language's rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.ir.types import DTYPES, bf16
from tilewright.lang.tile.builder import IRBuilder, using
from tilewright.lang.tile.ir import Pointer, TileType, Value
from tilewright.lang.tile.language import core as tl
from tilewright.lang.tile.rules import verify
from tilewright.lang.tile.stepping.eager import EagerBuilder, EagerValue
from tilewright.lang.tile.stepping.evaluate import as_element
from tilewright.lang.tile.stepping.raw_memory import Memory

INTS = (tl.int8, tl.int16, tl.int32, tl.int64)
UINTS = (tl.uint8, tl.uint16, tl.uint32, tl.uint64)
FLOATS = (tl.float16, tl.bfloat16, tl.float32, tl.float64)
FP8 = (tl.float8e5, tl.float8e5b16, tl.float8e4nv, tl.float8e4b8, tl.float8e4b15)


def tile(values: Any, dtype: Any) -> tl.tensor:
    """A tensor with these elements."""
    array = as_element(np.asarray(values), dtype.ir)
    return tl.tensor(EagerValue(TileType(dtype.ir, array.shape), array))


def array(x: tl.tensor) -> np.ndarray:
    return x.handle.array  # type: ignore[attr-defined]


@contextmanager
def running(*arrays: np.ndarray, grid: tuple[int, ...] = (1,)) -> Iterator[list[tl.tensor]]:
    """Functions of the language compute; pointers to the arrays."""
    builder = EagerBuilder(Memory(), grid)
    pointers = []
    for k, a in enumerate(arrays):
        element = next(d for d in DTYPES.values() if d.numpy == a.dtype and d is not bf16)
        pointers.append(tl.tensor(builder.pointer(element, builder.memory.add(f"a{k}", a))))
    with using(builder):
        yield pointers


@contextmanager
def writing() -> Iterator[IRBuilder]:
    """Functions of the language write operations, which have to be right in the end."""
    builder = IRBuilder()
    with using(builder):
        yield builder
    arguments = tuple(builder.block.parameters)
    builder.block.parameters.clear()
    verify(builder.kernel("test", arguments))


def given(builder: IRBuilder, dtype: Any, *shape: int) -> tl.tensor:
    """A tensor that is an argument of what is written."""
    value: Value = builder.block.parameter(TileType(dtype.ir, shape))
    return tl.tensor(value)


def pointer(builder: IRBuilder, dtype: Any) -> tl.tensor:
    return tl.tensor(builder.block.parameter(TileType(Pointer(dtype.ir))))
