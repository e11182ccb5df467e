"""Sizes that are known at a call only: where it finds them, and which values depend on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewright.capture.torch.captured import Argument
from tilewright.driver.torch.layouts import one_of
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.slots import Buffer, Result, SymbolicInt, View, symbol_from


def sizes_in(r: Result | Buffer) -> set[str]:
    """The symbols of a result. Strides may depend on sizes that no shape has."""
    dims: tuple[Dim, ...] = ()
    if isinstance(r, (View, Buffer)):
        dims = (*r.shape, *r.stride, *((r.offset,) if isinstance(r, View) else ()))
    elif isinstance(r, SymbolicInt):
        dims = (r.value,)
    return {x.name for d in dims for x in D.symbols(d)}


def stand_ins(addresses: list[int], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where data or edges decide what is read, kernels read the nearest element that there is: of a
    tensor without any, one that stands in for it."""
    room = []
    for k, x in enumerate(inputs):
        if addresses[k] == 0:
            room.append(one_of(x))
            addresses[k] = room[-1].data_ptr()
    return room


def binders(arguments: Sequence[Argument]) -> list[tuple[str, int, int | None, int, int]]:
    """(name of a symbol, argument, its axis or None, factor, constant): where a call finds each
    symbol's value, a number of its own where there is one.
    """
    out: dict[str, tuple[str, int, int | None, int, int]] = {}

    def bind(d: Dim | None, index: int, axis: int | None) -> None:
        found = symbol_from(d)
        if found is not None and (found[0] not in out or found[1:] == (1, 0) != out[found[0]][3:]):
            out[found[0]] = found[0], index, axis, *found[1:]

    for k, a in enumerate(arguments):
        bind(a.value, k, None)
    for k, a in enumerate(arguments):
        for axis, d in enumerate(a.shape):
            bind(d, k, axis)
    return list(out.values())


def known_strides(arguments: Sequence[Argument]) -> list[tuple[int, tuple[int, ...]]]:
    """Of arguments that a segment reads: their numbers, and the strides they were captured with."""
    return [
        (k, tuple(d for d in a.stride if isinstance(d, int)))
        for k, a in enumerate(arguments)
        if a.native and a.kind == "tensor" and a.dtype is not None
        if all(isinstance(d, int) for d in (*a.stride, *a.shape))
    ]
