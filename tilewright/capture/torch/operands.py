"""Tensors that native code computes for eager's operators, laid out as eager's own would be.

The strides of what an operator of torch returns follow those of its operands, and so may the last
digits of its numbers; one of the user's own may look at them. So a host call is given memory with
the strides that torch announced, and a view of an input where eager's is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.capture.torch.captured import Argument
from tilewright.capture.torch.facts import is_lazy, storage_of
from tilewright.capture.torch.layout import Dense, contiguous, packed, to_memory
from tilewright.capture.torch.shapes import Shapes
from tilewright.capture.torch.values import Complex, joined
from tilewright.ir.dim import Dim
from tilewright.ir.node import Input, Node
from tilewright.ir.slots import Buffer, View


@dataclass(frozen=True)
class Operand:
    """In the arguments of a pending host call: a node in the order of memory, and how torch sees
    it. `paired`: torch sees pairs as complex numbers. `gaps`: the strides that eager has, where its
    memory has gaps, or elements on top of each other, and native code's has not."""

    node: Node
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    paired: bool = False
    gaps: tuple[Dim, ...] | None = None

    def buffer(self, slot: str) -> Buffer:
        return Buffer(slot, self.node.dtype, self.shape, self.stride, self.paired)


def operand(x: Node | Complex, v: Any, shapes: Shapes) -> Operand:
    """`x` as torch's fake tensor `v` lies in memory; row by row where there is none."""
    paired, shape = isinstance(x, Complex), x.shape
    if not isinstance(v, torch.Tensor) or v.layout is not torch.strided or v.dim() != x.rank:
        return Operand(joined(x), shape, contiguous(shape), paired)
    wanted = shapes.dims(v.stride())
    how, stride = packed(shape, wanted)
    return Operand(in_memory(x, how), shape, stride, paired, wanted if wanted != stride else None)


def view_of_input(v: Any, given: Iterable[tuple[Argument, Any]], shapes: Shapes) -> View | None:
    """The view of one of the inputs that `v` is in eager. `given`: inputs, and what torch announced
    of them."""
    if not isinstance(v, torch.Tensor) or v.layout is not torch.strided or is_lazy(v):
        return None
    for a, w in given:
        if a.dtype is None or not isinstance(w, torch.Tensor) or w.dtype is not v.dtype:
            continue
        if a.stride != shapes.dims(w.stride()):
            continue  # views of it, as torch announced them, lie elsewhere in it
        if storage_of(w) == storage_of(v) and not is_lazy(w):
            offset = shapes.dim(v.storage_offset() - w.storage_offset())
            return View(a.slot, shapes.dims(v.shape), shapes.dims(v.stride()), offset)
    return None


def in_memory(x: Node | Complex, how: Dense) -> Node:
    if isinstance(x, Complex):
        return joined(Complex(to_memory(x.re, how), to_memory(x.im, how)))
    return to_memory(x, how)


def is_result(x: Any, v: Any, results: Mapping[str, torch.Tensor]) -> bool:
    """Is this, announced as `v`, a tensor as a host call returned it? Not where torch has a copy
    of it or sees it with other strides. `results`: what torch announced, by slot."""
    if not isinstance(x, Node) or not isinstance(x.op, Input) or x.op.label not in results:
        return False
    return same_memory(v, results[x.op.label])


def same_memory(v: Any, w: torch.Tensor) -> bool:
    """Do two of torch's fake tensors name the same elements of the same memory?"""
    if not isinstance(v, torch.Tensor) or v.layout is not torch.strided:
        return v is w
    return storage_of(v) == storage_of(w) and v.dtype is w.dtype and _text(v) == _text(w)


def _text(v: torch.Tensor) -> tuple[str, ...]:
    """Sizes, strides and offset, read in a way that adds no guard."""
    return tuple(map(str, (*v.shape, *v.stride(), v.storage_offset())))
